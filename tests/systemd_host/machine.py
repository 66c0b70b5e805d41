"""What the stories see of a host: units, processes, control groups of either version, the journal.

Decides where to look. Does not depend on finegrain's rules.
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

PATIENCE_S = 180.0  # hosts for this may be emulated, and then thirty times slower than others
RM = "finegrain-resource-manager.service"
HELPER = "finegrain-executor-helper.service"
FRONT = "finegrain-executor.service"
CGROUPS = Path("/sys/fs/cgroup")


def sh(*command: str, check: bool = True) -> str:
    """Standard output of a command.

    Raises:
        AssertionError: it failed; the message is what it said.
    """
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 or not check, (
        f"{' '.join(command)}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
    )
    return ran.stdout


def eventually(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """The first true value of `look`; an AssertionError that says what was waited for."""
    end = time.monotonic() + patience_s
    while not (value := look()):
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.1)
    return value


def main_pid(unit: str) -> int:
    """The main process of a unit; 0: none."""
    return int(sh("systemctl", "show", "--property=MainPID", "--value", unit) or 0)


def is_active(unit: str) -> bool:
    return sh("systemctl", "is-active", unit, check=False).strip() == "active"


def kill_now(*units: str) -> None:
    """kill -9 of the main processes, at once. AssertionError if one has none: 0 would be us."""
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
    """When a process began, in ticks since boot: with its pid, who it is."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def groups_of(pid: int) -> dict[str, Path]:
    """Directory of a process's group by controller; "" is the unified hierarchy, and
    "name=systemd" the one by which systemd on v1 knows whose a process is.
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
    """Of the slot that a task's process is in, by controller ("" on v2)."""
    found = {}
    for name, path in groups_of(pid).items():
        for place in (path, *path.parents):
            if place.parent.name == "slots":
                found[name] = place
    return found


def limit(pid: int, v2: str, v1: str) -> str:
    """A file of the slot that a process is in: `v2`, or `v1` as CONTROLLER/FILE."""
    groups = slot_groups(pid)
    if on_v2():
        return (groups[""] / v2).read_text().strip()
    controller, _, file = v1.partition("/")
    return (groups[controller] / file).read_text().strip()


def groups_left() -> list[Path]:
    """All groups of slots on this host, of whatever executor."""
    found: list[Path] = []
    for top, names, _files in os.walk(CGROUPS):  # which minds no group that goes meanwhile
        if top.endswith("/slots") and "finegrain" in top:
            found += [Path(top, name) for name in names]
    return found


def unit_of(pid: int) -> str:
    """The unit that systemd counts a process to."""
    return sh("ps", "-o", "unit=", "-p", str(pid)).strip()


def journal(unit: str) -> str:
    return sh("journalctl", "--no-pager", "-o", "cat", "-b", "-u", unit)
