"""Installs finegrain on this host as docs/operations.md describes, from the files of a release.

It does nothing that a user could not type. Only the timeouts are longer, because the host may be
emulated.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.systemd_host.machine import FRONT, HELPER, RM, eventually, is_active, sh

SHIPPED = Path(__file__).resolve().parents[2] / "deploy/systemd"
USERS = Path("/etc/sysusers.d/finegrain.conf")
UNITS = Path("/etc/systemd/system")
CONFIGURATION = Path("/etc/finegrain/finegrain.toml")
EXECUTOR_STATE = Path("/var/lib/finegrain/executor")
FRONT_USER = "finegrain-executor"
# On an emulated host a front takes half a minute to restart; its executor must not be lost
# meanwhile.
PATIENT = 'lost_timeout = "5m"\nlease = "10m"\n'


def install(program: Path) -> None:
    """Installs users, units and configuration; starts the resource manager and the executor.
    Existing files are replaced.

    Args:
        program: the `finegrain` command that the units start.
    """
    USERS.parent.mkdir(exist_ok=True)
    shutil.copy(SHIPPED / "sysusers.conf", USERS)
    sh("systemd-sysusers", str(USERS))
    for unit in (RM, HELPER, FRONT):
        text = (SHIPPED / unit).read_text()
        (UNITS / unit).write_text(text.replace("/opt/finegrain/bin/finegrain", str(program)))
    CONFIGURATION.parent.mkdir(mode=0o755, exist_ok=True)
    shipped = (SHIPPED / "finegrain.toml").read_text()
    CONFIGURATION.write_text(shipped.replace("[rm]\n", f"[rm]\n{PATIENT}"))
    sh("systemd-analyze", "verify", *(str(UNITS / unit) for unit in (RM, HELPER, FRONT)))
    sh("systemctl", "daemon-reload")
    sh("systemctl", "enable", "--now", RM)
    eventually(lambda: is_active(RM), "the resource manager is active")
    give_token(program)
    sh("systemctl", "enable", "--now", HELPER, FRONT)
    eventually(lambda: is_active(FRONT), "the executor is active")


def give_token(program: Path) -> None:
    """Creates a join token, and writes it to the state directory of this host's executor."""
    name = sh("hostname", "--short").strip()
    sh("install", "-d", "-o", FRONT_USER, "-g", FRONT_USER, "-m", "0750", str(EXECUTOR_STATE))
    target = EXECUTOR_STATE / "join.token"
    target.touch(mode=0o600)
    target.write_text(sh(str(program), "token", "create", "--executor", name))
    shutil.chown(target, FRONT_USER, FRONT_USER)


def remove() -> None:
    """Removes everything that `install` has made, and the state."""
    sh("systemctl", "disable", "--now", FRONT, HELPER, RM, check=False)
    sh("systemctl", "stop", "finegrain.slice", check=False)
    for unit in (RM, HELPER, FRONT):
        (UNITS / unit).unlink(missing_ok=True)
    sh("systemctl", "daemon-reload")
    USERS.unlink(missing_ok=True)
    for directory in ("/etc/finegrain", "/var/lib/finegrain/rm", "/var/lib/finegrain/executor"):
        shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree("/var/lib/finegrain/executor-helper", ignore_errors=True)


def check_host() -> None:
    """Raises AssertionError if the stories cannot run on this host."""
    assert os.geteuid() == 0, "run as root"
    assert Path("/run/systemd/system").is_dir(), "this host does not run systemd"
