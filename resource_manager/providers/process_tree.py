"""What runs on this host on behalf of a directory, and how the last of it is ended.

An executor's processes (front, helper, shims) name files of its directory in their command lines;
its helper notes the control groups that it made. Both are looked up, never remembered: that holds
after any crash of whoever started them. Decides what belongs to a directory. Refuses to know why.
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
    """A process and when it started, in clock ticks since boot: the two are never used again."""

    pid: int
    start_ticks: int

    def is_running(self) -> bool:
        """Whether it runs; one that is only waiting to be buried does not."""
        found = _stat(self.pid)
        return found is not None and found[1] == self.start_ticks and found[0] not in "ZX"

    def signal(self, number: int) -> None:
        """Sends a signal, to this process and to no successor of its number."""
        with suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.is_running():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def wait(self, timeout_s: float, cancellation: Cancellation | None = None) -> bool:
        """Waits for its end and buries it if it is ours; whether it ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return not self.is_running()
        try:
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
        """Takes its number out of the table of processes, if it is a child of ours that ended."""
        found = _stat(self.pid)
        if found is not None and found[1] == self.start_ticks and found[0] in "ZX":
            with suppress(OSError):  # another child of that number is not ours to take
                os.waitpid(self.pid, os.WNOHANG)


def this_process(pid: int) -> Process | None:
    """Who has this number now."""
    found = _stat(pid)
    return Process(pid, found[1]) if found else None


def boot_id() -> str:
    """Which boot of the host this is."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def command_lines() -> Iterator[tuple[Process, list[str]]]:
    """Every process on this host that can be seen, with its command line, but this one."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if words and (process := this_process(int(entry.name))) is not None:
            yield process, os.fsdecode(words).split("\0")


def processes_of(directory: Path) -> list[Process]:
    """The live processes of the executor in a directory."""
    return [process for process, _ in executor_processes(directory)]


def executor_processes(directory: Path) -> list[tuple[Process, list[str]]]:
    """Live processes of executors whose files lie in a directory, with their command lines: fronts,
    helpers and shims.

    The path stands alone or in JSON, and never behind more of a path: executors of other clusters
    on this host may be called the same.
    """
    path = f"{directory.absolute()}/"
    either = "|".join(re.escape(each) for each in (path, json.dumps(path)[1:-1]))
    mark = re.compile(rf"(?:^|[\"'=:, ])(?:{either})")
    return [
        (process, words)
        for process, words in command_lines()
        if _serves(words) or any("task_executor" in word for word in words)
        if any(mark.search(word) for word in words) and process.is_running()
    ]


def front_of(config_file: Path) -> Process | None:
    """The live front that was started with this configuration file."""
    for process, words in command_lines():
        if _serves(words) and str(config_file) in words and process.is_running():
            return process
    return None


def control_groups(state_dir: Path) -> list[Path]:
    """The control groups that the executor's helper made and that still exist."""
    try:
        note = json.loads((state_dir / "helper" / "helper.json").read_text(encoding="utf-8"))
        paths = [Path(path) for path in dict.fromkeys(note["base"].values())]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
    return [path for path in paths if str(path).startswith(_CGROUPS) and path.is_dir()]


def fronts_below(directory: Path) -> Iterator[Path]:
    """The configuration files below a directory that live fronts were started with; they may be
    gone.
    """
    for process, words in command_lines():
        if _serves(words) and process.is_running():
            yield from (Path(word) for word in words if word.startswith(f"{directory}/"))


def groups_around(processes: Iterable[Process], executor_id: str) -> list[Path]:
    """The executor's control groups, by who is in them: its helper's note may be gone."""
    mark, found = f"/finegrain/{executor_id}/", dict[Path, None]()
    for process in processes:
        with suppress(OSError):
            for line in (_PROC / str(process.pid) / "cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                above, within, _ = f"{path}/".partition(mark)
                if within:
                    top = Path(_CGROUPS, controllers.removeprefix("name="))
                    found[Path(f"{top}{above}{mark}")] = None
    return [path for path in found if path.is_dir()]


def end_forcibly(processes: Iterable[Process], groups: Iterable[Path], patience_s: float) -> None:
    """Kills the processes and whatever runs in the control groups, and removes those, as far as the
    kernel lets us within that time.
    """
    found = list(processes)
    for process in found:
        process.signal(signal.SIGKILL)
    for process in found:
        process.wait(patience_s)
    deadline = time.monotonic() + patience_s
    left = [group for group in groups if not _removed(group)]
    while left and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        left = [group for group in left if not _removed(group)]


def _removed(top: Path) -> bool:
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
    return "executor" in words and "serve" in words


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
