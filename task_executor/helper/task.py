"""Keeps the data that the helper has about one task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from task_executor.helper.journal import Journal
from task_executor.helper.paths import read_json, write_json
from task_executor.helper.supervisors import SupervisorLink


class Task:
    """One task.

    Args:
        directory: the directory of its output, which exists from the first byte on. If an earlier
            version started the task, its records are also there.
        record: the specification of the task, and the known facts about its process.
        is_previous: True if an earlier version started the task.

    Attributes:
        exit: the record of the task's end; None if the task has not ended.
        link: the supervisor of the task, while it is known and runs.
        source: the supervisor in whose journal the task is.
        journals: the journals, of supervisors that have ended, that contain the task.
        is_lost: True if the task is being killed, because it has no supervisor.
        pipes: copies of the read ends of stdout and stderr, for a supervisor that is killed.
    """

    def __init__(
        self, directory: Path, record: dict[str, Any], *, is_previous: bool = False
    ) -> None:
        self.is_previous = is_previous
        self.id, self.directory, self.record = directory.name, directory, record
        self.slot = f"{record['allocation_id']}.{record['generation']}"
        self.exit: dict[str, Any] | None = None
        self.link: SupervisorLink | None = None
        self.source: SupervisorLink | None = None
        self.journals: list[Journal] = []
        self.is_lost = False
        self.pipes = (-1, -1)
        # True until the start is answered. The end is reported only after this answer.
        self.start_unanswered = False

    def describe(self) -> dict[str, Any]:
        names = ("task_id", "allocation_id", "generation", "pid", "start_time_ticks")
        state = {"state": "exited" if self.exit else "running", "exit": self.exit}
        known = {name: self.record.get(name, 0) for name in names}
        return known | state | {"directory": str(self.directory)}

    def read_exit(self) -> dict[str, Any] | None:
        """Returns the exit record, after the task's supervisor has ended; None if there is none."""
        if self.is_previous:
            return read_json(self.directory / "exit.json")
        ends = (journal.entries.get(self.id, {}).get("end") for journal in self.journals)
        return next(filter(None, ends), None)

    def write_exit(self, record: dict[str, Any], gid: int) -> None:
        """Records the end of a task that has no supervisor. Group `gid` can read the record."""
        self.exit = record
        if self.is_previous:
            write_json(self.directory / "exit.json", record, 0o640, gid)
        elif self.journals:
            self.journals[-1].add(self.id, "end", record)

    def was_begun(self) -> bool:
        """Returns False if the task's supervisor, which has ended, has certainly not begun to start
        the task.
        """
        # A shim of version 0.2 has always begun to start its task.
        return self.is_previous or any(self.id in journal.entries for journal in self.journals)

    def close_pipes(self) -> None:
        for fd in self.pipes:
            if fd >= 0:
                os.close(fd)
        self.pipes = (-1, -1)

    def copy_pipes(self, supervisor: int, pipes: list[tuple[int, int]]) -> None:
        """Opens the read ends of the pipes of the task a second time.

        As long as any process has the read ends open, the task's writes do not fail, even if the
        supervisor is killed.

        Args:
            supervisor: the process of the supervisor.
            pipes: the supervisor's descriptors of stdout and stderr. Each comes with its inode.
        """
        self.close_pipes()
        stdout, stderr = (_copy_pipe(supervisor, *each) for each in pipes)
        self.pipes = (stdout, stderr)


def _copy_pipe(supervisor: int, fd: int, inode: int) -> int:
    """Opens the pipe that another process has as `fd`, and returns a descriptor; -1 if the process
    has already closed the pipe.
    """
    if fd < 0:
        return -1
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        copy = os.open(f"/proc/{supervisor}/fd/{fd}", flags)
    except OSError:
        return -1
    # Compare the inodes: the supervisor has possibly closed the descriptor, and uses its number for
    # another task.
    if os.fstat(copy).st_ino == inode:
        return copy
    os.close(copy)
    return -1
