"""Finds the slot and the user of a process, from /proc.

With control groups, the name of the process's group contains the slot. Without control groups, the
ancestors of the process show the slot, because one ancestor is a task of the slot.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from finegrain.topology import printable
from task_executor.engine.slots import SlotKey

NAME_LENGTH_MAX: Final = 64
_ANCESTORS_MAX: Final = 64
_HOST_PID_NAMESPACE: Final = "pid:[4026531836]"  # the kernel's constant for the host's namespace


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """The owner of a process.

    Attributes:
        slot: the slot of the process; None if the process belongs to no slot of this executor.
        is_own: True if the process is a process of the executor itself, or a descendant of such a
            process.
        user: the name or number of the process's user.
        command: the name of the process's program, shortened if the name is long.
    """

    slot: SlotKey | None = None
    is_own: bool = False
    user: str = ""
    command: str = ""


class ProcessOwners:
    """Finds the owners of processes.

    Args:
        proc: the path of /proc. Tests pass another folder.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    @property
    def sees_host(self) -> bool:
        """True if this process is in the PID namespace of the host, whose ids drivers report.

        In a container, the same id can belong to another process.
        """
        try:
            return str((self._proc / "self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
        except OSError:
            return False

    def find(
        self,
        pid: int,
        *,
        groups: Mapping[str, SlotKey],
        tasks: Mapping[int, SlotKey],
        own: Iterable[int] = (),
    ) -> ProcessOwner | None:
        """Returns the owner of a process; None if the process has ended, or is in another
        namespace.

        Args:
            pid: the id of the process.
            groups: the slot of each control group, by the name of the group.
            tasks: the slot of each task's process, by its pid.
            own: the ids of the executor's own processes.
        """
        folder = self._proc / str(pid)
        try:
            user = _user_name(folder.stat().st_uid)
            names = set((folder / "cgroup").read_text().replace("\n", "/").split("/"))
        except OSError:
            return None
        for name in names & groups.keys():
            return ProcessOwner(groups[name], user=user)
        ancestors = self._ancestors(pid)
        for each in ancestors:
            if each in tasks:
                return ProcessOwner(tasks[each], user=user)
        is_own = not set(own).isdisjoint(ancestors)
        return ProcessOwner(None, is_own, user, self._command(folder))

    def task_of(self, pid: int, group: str, tasks: Mapping[str, int]) -> str | None:
        """Returns the id of the task to which a process belongs; None if the process belongs to no
        task.

        Args:
            pid: the id of the process.
            group: the name of the slot's control group.
            tasks: the pid of each task of the slot, by task id.
        """
        try:
            names = set((self._proc / f"{pid}/cgroup").read_text().replace("\n", "/").split("/"))
        except OSError:
            return None
        if group in names:
            for task_id in tasks:
                if f"task-{task_id}" in names:
                    return task_id
        ancestors = set(self._ancestors(pid))
        return next((task_id for task_id, task in tasks.items() if task in ancestors), None)

    def _ancestors(self, pid: int) -> list[int]:
        """Returns the ids of a process and of its ancestors, as far as they can be read."""
        found: list[int] = []
        while pid > 1 and len(found) < _ANCESTORS_MAX:
            found.append(pid)
            try:
                # The name in parentheses can contain spaces, so split only the text after the
                # closing parenthesis.
                pid = int((self._proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                break
        return found

    def _command(self, folder: Path) -> str:
        try:
            return printable((folder / "comm").read_text().strip())[:NAME_LENGTH_MAX]
        except OSError:
            return ""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name[:NAME_LENGTH_MAX]
    except KeyError:
        return str(uid)
