"""Reads a host's units, processes, control groups (cgroup v1 or v2) and journal.

It knows where to look, and does not depend on finegrain's rules.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 180.0  # the host may be emulated, and then thirty times slower
RM = "finegrain-resource-manager.service"
HELPER = "finegrain-executor-helper.service"
FRONT = "finegrain-executor.service"
CGROUPS = Path("/sys/fs/cgroup")


def sh(*command: str, check: bool = True) -> str:
    """Returns the standard output of a command.

    Raises:
        AssertionError: the command failed; the message contains its output.
    """
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 or not check, (
        f"{' '.join(command)}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
    )
    return ran.stdout


def eventually(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """Returns the first true value of `look`. If there is none in time, raises an AssertionError
    that names `what`.
    """
    end = time.monotonic() + patience_s
    while not (value := look()):
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.1)
    return value


def main_pid(unit: str) -> int:
    """Returns the pid of the main process of a unit; 0: it has none."""
    return int(sh("systemctl", "show", "--property=MainPID", "--value", unit) or 0)


def is_active(unit: str) -> bool:
    return sh("systemctl", "is-active", unit, check=False).strip() == "active"


def kill_now(*units: str) -> None:
    """Sends SIGKILL to the main processes of all these units. Raises AssertionError if a unit has
    none: pid 0 would be this test.
    """
    pids = [main_pid(unit) for unit in units]
    assert all(pids), f"main processes of {units}: {pids}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def start_ticks(pid: int) -> int:
    """Returns the start time of a process, in ticks since boot. Start time and pid together
    identify a process.
    """
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def groups_of(pid: int) -> dict[str, Path]:
    """Returns the directory of a process's control group for each controller. The key "" is the
    unified hierarchy. The key "name=systemd" is the hierarchy by which systemd on v1 knows the unit
    of a process.
    """
    found = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            mount = _mount(name)
            if mount is not None:
                found[name] = Path(f"{mount}{path}")
    return found


def _mount(controller: str) -> Path | None:
    if controller == "":
        hybrid = CGROUPS / "unified"
        return hybrid if hybrid.is_dir() else CGROUPS
    place = CGROUPS / controller.removeprefix("name=")
    if place.is_dir():
        return place
    together = [path for path in CGROUPS.iterdir() if controller in path.name.split(",")]
    return together[0] if together else None


def on_v2() -> bool:
    return (CGROUPS / "cgroup.controllers").exists()


def slot_groups(pid: int) -> dict[str, Path]:
    """Returns the control groups of the slot of a task's process, by controller ("" on v2)."""
    found = {}
    for name, path in groups_of(pid).items():
        for place in (path, *path.parents):
            if place.parent.name == "slots":
                found[name] = place
    return found


def limit(pid: int, v2: str, v1: str) -> str:
    """Returns the content of a file of the slot's control group: `v2`, or `v1` as
    CONTROLLER/FILE.
    """
    groups = slot_groups(pid)
    if on_v2():
        return (groups[""] / v2).read_text().strip()
    controller, _, file = v1.partition("/")
    return (groups[controller] / file).read_text().strip()


def groups_left() -> list[Path]:
    """Returns the control groups of the slots of all executors on this host."""
    found: list[Path] = []
    for top, names, _files in os.walk(CGROUPS):  # it ignores groups that vanish meanwhile
        if top.endswith("/slots") and "finegrain" in top:
            found += [Path(top, name) for name in names]
    return found


def unit_of(pid: int) -> str:
    """Returns the unit to which a process belongs, according to systemd."""
    return sh("ps", "-o", "unit=", "-p", str(pid)).strip()


def journal(unit: str) -> str:
    return sh("journalctl", "--no-pager", "-o", "cat", "-b", "-u", unit)
