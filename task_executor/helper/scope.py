"""Keeps a delegated systemd scope for the slots, which continues to exist when the executor's
service restarts.

A sleeping process, the holder, is always in the scope, because systemd removes a scope without
processes. This code runs in the process that starts the helper.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from task_executor.helper.cgroups.base import LEAF, Kernel
from task_executor.helper.paths import boot_id, read_json, start_ticks, write_json

_SYSTEMD = Path("/run/systemd/system")
_CGROUPS = Path("/sys/fs/cgroup")  # where systemd mounts all hierarchies
_ATTEMPTS, _RETRY_S, _START_S, _PAUSE_S = 3, 1.0, 60.0, 0.02
_HOLDER = ("sleep", "infinity")
_PROPERTIES = ("Delegate=yes", "TasksMax=infinity", "Description=Slots and tasks of finegrain")
# the process becomes an orphan, which init reaps
_IN_BACKGROUND = '"$@" </dev/null >/dev/null & echo $!'


class ScopeError(RuntimeError):
    """systemd did not create a scope. The message says why."""


def scope_is_available() -> bool:
    """Returns True if this process is root under systemd, and the executor's own group is not
    delegated yet.
    """
    own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].splitlines()[:1] or [""]
    given = own[0].endswith(".scope") and Kernel().is_delegated(f"{_CGROUPS}{own[0]}")
    return os.geteuid() == 0 and _SYSTEMD.exists() and not given


def hold_scope(state: Path, executor_id: str, stderr: IO[bytes] | None) -> int:
    """Returns the pid of the holder of this executor's scope. Starts a holder if necessary.

    Args:
        state: the directory with the record of the holder.
        executor_id: the id of the executor, which names the scope.
        stderr: the file for the output of systemd; None: standard error.

    Raises:
        ScopeError: there is no scope, and systemd has failed to create one.
    """
    unit, failure = f"finegrain-{executor_id}.scope", ""
    # Step 1: use the recorded holder if it still runs. The start time shows that no other process
    # has reused the pid.
    known = read_json(state / "holder.json") or {}
    if known.get("boot_id") == boot_id() and _is_running(known["pid"], known["start_ticks"]):
        return int(known["pid"])
    # Step 2: start a new holder, in the old scope if tasks have kept it alive, otherwise in a new
    # scope.
    for _ in range(_ATTEMPTS):
        try:
            pid = _join(place, stderr) if (place := _place(unit)) else _make(unit, stderr)
        except (OSError, subprocess.SubprocessError, ScopeError) as error:
            failure = str(error)  # for example, the scope has ended during the attempt
            time.sleep(_RETRY_S)
            continue
        with _killed_on_failure(pid):
            record = {"boot_id": boot_id(), "pid": pid, "start_ticks": start_ticks(pid)}
            write_json(state / "holder.json", record)
        return pid
    raise ScopeError(f"no scope {unit}: {failure}")


def _is_running(pid: int, ticks: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and start_ticks(pid) == ticks
    return False


def _place(unit: str) -> str:
    """Returns the group of an active scope; empty if the scope is not active."""
    command = ["systemctl", "show", "--property=ControlGroup", "--value", unit]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _make(unit: str, stderr: IO[bytes] | None) -> int:
    command = ["systemd-run", "--scope", "--quiet", "--collect", "--slice=finegrain.slice"]
    command += [f"--unit={unit}", *(f"--property={each}" for each in _PROPERTIES)]
    pid, end = _start([*command, *_HOLDER], stderr), time.monotonic() + _START_S
    with suppress(FileNotFoundError, ProcessLookupError):  # systemd-run has failed
        while time.monotonic() < end:
            # systemd-run has finished when the process is in the scope and has become `sleep`.
            inside = f"/{unit}" in Path(f"/proc/{pid}/cgroup").read_text()
            if inside and Path(f"/proc/{pid}/comm").read_text().strip() == _HOLDER[0]:
                return pid
            time.sleep(_PAUSE_S)
        os.kill(pid, signal.SIGKILL)  # otherwise the process could still make a scope later
    raise ScopeError("systemd-run failed; the log has details")


def _join(place: str, stderr: IO[bytes] | None) -> int:
    """Starts a new holder in an existing scope. Tasks kept the scope alive after the old holder
    ended.

    The holder joins the scope's group in each hierarchy that systemd uses.
    """
    # v1 and hybrid hosts have several hierarchies below the mount point.
    tops = [Path(f"{root}{place}") for root in (_CGROUPS, *_CGROUPS.iterdir())]
    if not (groups := [top for top in tops if top.is_dir()]):
        raise ScopeError("the scope has just ended")
    pid = _start(list(_HOLDER), stderr)
    with _killed_on_failure(pid):
        for group in groups:
            leaf = group / LEAF
            # On v2 the scope's group has child groups, so a process can be only in a leaf group.
            (leaf if leaf.is_dir() else group).joinpath("cgroup.procs").write_text(str(pid))
    return pid


@contextmanager
def _killed_on_failure(pid: int) -> Iterator[None]:
    """Kills a new holder if a later step fails. So no holder is left without a record."""
    try:
        yield
    except OSError:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise


def _start(command: list[str], stderr: IO[bytes] | None) -> int:
    shell = ["/bin/sh", "-c", _IN_BACKGROUND, "sh", *command]
    run = subprocess.run(
        shell, stdout=subprocess.PIPE, stderr=stderr, check=True, start_new_session=True
    )
    return int(run.stdout)
