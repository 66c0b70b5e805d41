"""Finds the processes and control groups that belong to a directory, and ends them.

An executor's processes (front, helper, supervisors) have paths of the executor's directory in their
command lines. The helper writes a note: a file that lists the control groups that it creates. This
module reads command lines and notes in each call and stores nothing, so it also works after a
crash.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resource_manager.providers.threads import Cancellation

_PROC = Path("/proc")
_PAUSE_S = 0.05
_CGROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified by pid and start time (clock ticks since boot), because pids are
    reused.
    """

    pid: int
    start_ticks: int

    def is_running(self) -> bool:
        """Returns whether the process runs. A zombie does not count as running."""
        found = _stat(self.pid)
        return found is not None and found[1] == self.start_ticks and found[0] not in "ZX"

    def signal(self, number: int) -> None:
        """Sends a signal to this process, and never to a later process with the same pid.

        The pidfd is opened first, and the start time is checked afterwards. So the pid cannot be
        reused between the check and the signal.
        """
        with suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.is_running():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def wait(self, timeout_s: float, cancellation: Cancellation | None = None) -> bool:
        """Waits until the process has ended. If the process is a child of the calling process, also
        reaps it.

        Args:
            timeout_s: the longest wait.
            cancellation: when it is set, the wait ends before the timeout.

        Returns:
            Whether the process has ended.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # the process ended and was reaped
            return not self.is_running()
        try:
            # Check the process only after the descriptor is open, so that the pid cannot be reused
            # between these two steps.
            if self.is_running():
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                if cancellation is not None:
                    ended.register(cancellation.fileno(), select.POLLIN)
                ended.poll(max(0.0, timeout_s) * 1000)
        finally:
            os.close(descriptor)
        if self.is_running():
            return False
        self.reap()
        return True

    def reap(self) -> None:
        """Reaps the process if it is a zombie and a child of the calling process."""
        found = _stat(self.pid)
        if found is not None and found[1] == self.start_ticks and found[0] in "ZX":
            # WNOHANG prevents a wait if another thread has reaped the process.
            with suppress(OSError):  # the zombie is not a child of the calling process
                os.waitpid(self.pid, os.WNOHANG)


def this_process(pid: int) -> Process | None:
    """Returns the process that has this pid now, or None if there is no such process."""
    found = _stat(pid)
    return Process(pid, found[1]) if found else None


def boot_id() -> str:
    """Returns the id of the current boot. Start times of processes can be compared only within a
    boot.
    """
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def command_lines() -> Iterator[tuple[Process, list[str]]]:
    """Yields every visible process on this host except this one, with its command line."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        # Threads of the kernel have no command line, so they are skipped.
        if words and (process := this_process(int(entry.name))) is not None:
            yield process, os.fsdecode(words).split("\0")


def processes_of(directory: Path) -> list[Process]:
    """Returns the live processes of the executor in a directory."""
    return [process for process, _ in executor_processes(directory)]


def executor_processes(directory: Path) -> list[tuple[Process, list[str]]]:
    """Returns live processes of executors whose files are in a directory, with their command lines.

    The processes are fronts, helpers and supervisors. A path in the command line, alone or within
    JSON, must begin with the path of the directory. The middle of a longer path does not count,
    because executors of other clusters on this host can have the same id.
    """
    path = f"{directory.absolute()}/"
    either = "|".join(re.escape(each) for each in (path, json.dumps(path)[1:-1]))
    # If the directory's path is only the middle of a longer path, the longer path belongs to
    # another cluster.
    mark = re.compile(rf"(?:^|[\"'=:, ])(?:{either})")
    return [
        (process, words)
        for process, words in command_lines()
        # This cheap test comes first, because few processes belong to executors.
        if _serves(words) or any("task_executor" in word for word in words)
        if any(mark.search(word) for word in words) and process.is_running()
    ]


def front_of(config_file: Path) -> Process | None:
    """Returns the live front that was started with this configuration file."""
    for process, words in command_lines():
        if _serves(words) and str(config_file) in words and process.is_running():
            return process
    return None


def control_groups(state_dir: Path) -> list[Path]:
    """Returns those control groups in the note of the executor's helper that exist."""
    try:
        note = json.loads((state_dir / "helper" / "helper.json").read_text(encoding="utf-8"))
        paths = [Path(path) for path in dict.fromkeys(note["base"].values())]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
    # The caller removes these directories, so ignore all paths in the note that are outside the
    # cgroup file system.
    return [path for path in paths if str(path).startswith(_CGROUPS) and path.is_dir()]


def fronts_below(directory: Path) -> Iterator[Path]:
    """Yields the paths of live fronts' configuration files below a directory, even if the files
    were deleted.
    """
    for process, words in command_lines():
        if _serves(words) and process.is_running():
            yield from (Path(word) for word in words if word.startswith(f"{directory}/"))


def groups_around(processes: Iterable[Process], executor_id: str) -> list[Path]:
    """Returns the control groups of an executor that contain the given processes, even if the
    helper's note is missing.
    """
    mark, found = f"/finegrain/{executor_id}/", dict[Path, None]()
    for process in processes:
        with suppress(OSError):
            for line in (_PROC / str(process.pid) / "cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                # The caller removes the returned group and all groups below it. So return the
                # executor's own group: the groups above it do not belong to the executor.
                above, within, _ = f"{path}/".partition(mark)
                if within:
                    top = Path(_CGROUPS, controllers.removeprefix("name="))
                    found[Path(f"{top}{above}{mark}")] = None
    return [path for path in found if path.is_dir()]


def end_forcibly(processes: Iterable[Process], groups: Iterable[Path], patience_s: float) -> None:
    """Kills the given processes and all processes in the control groups, and removes these groups.

    Args:
        processes: the processes to kill.
        groups: control groups. All groups below them are included.
        patience_s: longest wait for each process, and for all groups together. Groups that are
            still left after this time are not ended.
    """
    found = list(processes)
    for process in found:
        process.signal(signal.SIGKILL)
    # Signal all processes before the first wait, so that the waits overlap.
    for process in found:
        process.wait(patience_s)
    deadline = time.monotonic() + patience_s
    left = [group for group in groups if not _removed(group)]
    # The kernel removes a group only a moment after its last process.
    while left and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        left = [group for group in left if not _removed(group)]


def _removed(top: Path) -> bool:
    """Kills all processes in a control group and the groups below it, and removes the groups.
    Returns whether the group no longer exists.
    """
    # Begin at the leaves, because a group with groups below it cannot be removed.
    for folder, _, _ in os.walk(top, topdown=False):
        group = Path(folder)
        with suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
        with suppress(OSError):
            group.rmdir()
    return not top.exists()


def _serves(words: list[str]) -> bool:
    """Returns whether a command line belongs to a front (`finegrain executor serve`)."""
    return "executor" in words and "serve" in words


def _stat(pid: int) -> tuple[str, int] | None:
    """Returns the state and the start time of a process from /proc/PID/stat, or None if there is no
    such process.
    """
    try:
        # The process's name is in parentheses, and the name itself can have spaces and parentheses.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])  # fields 3 and 22 of proc(5)
    except (OSError, IndexError, ValueError):
        return None
