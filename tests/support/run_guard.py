"""Ends all processes that a test run started, however the run ends.

Daemons under test detach on purpose, so killing a process group misses them. Three processes run:

    front      the process that the user started: forwards signals, ends as pytest ends
    guard      in a separate process group: waits for pytest, then kills what is left
    pytest     in the front's process group, so that the terminal treats it as before

Front and guard are child subreapers: every orphan becomes a child of the guard. If the guard was
killed, it becomes a child of the front. If any of the three processes, or their process group, is
killed, the whole run ends.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.control_groups import groups_called

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
FRONT_GONE = signal.SIGUSR1
PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
WATCHED = PASSED_ON | {signal.SIGCHLD, FRONT_GONE}
ENDING_S = 10.0
"""After a successful run, processes may take this time, in seconds, to end by themselves."""
KILLING_S = 60.0
WORDS_MAX = 200

_EXECUTOR = re.compile(r'/finegrain/([\w.-]+)|"executor_id": "([\w.-]+)"')
_guarded = False


@dataclass(frozen=True)
class Process:
    """A process of the run, with the executors that its control groups and arguments name."""

    pid: int
    words: str
    executors: frozenset[str]


def guard_run() -> None:
    """Continues in a new, guarded process. The calling process waits for this process, and ends in
    the same way.

    Call it before anything is started. A second call in one process does nothing.
    """
    global _guarded  # noqa: PLW0603  # one per process, like what it guards
    if _guarded:
        return
    _guarded = True
    before, group = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED), os.getpgrp()
    front = os.getpid()
    if child := os.fork():
        _watch(child)
    os.setpgid(0, 0)
    _prctl(PR_SET_PDEATHSIG, FRONT_GONE)
    if os.getppid() != front:  # the front was killed before the line above
        os._exit(1)
    if child := os.fork():
        _watch(child)
    os.setpgid(0, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(child: int) -> None:
    """Waits for the child, ends all other descendants, and ends as the child did."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    status: int | None = None
    while (status := _reap(child, status)) is None:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo == FRONT_GONE:
            os.kill(child, signal.SIGKILL)
        elif info.si_signo != signal.SIGCHLD and info.si_pid:  # a terminal signals all processes
            os.kill(child, info.si_signo)
    left = _end_descendants(ENDING_S if status == 0 else 0)
    with suppress(OSError):  # the reader of standard error may have ended
        for process in left:
            line = f"left by the test run, killed now: {process.pid} {process.words}\n"
            os.write(2, line.encode())
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _reap(child: int, status: int | None) -> int | None:
    """Reaps children that have ended. If `child` was among them, returns its status. Otherwise
    returns `status`.
    """
    with suppress(ChildProcessError):
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            status = dead[1] if dead[0] == child else status
    return status


def _end_descendants(patience_s: float) -> list[Process]:
    """Kills all descendants, and removes the control groups of their executors. Returns the killed
    processes.

    Processes that end by themselves within `patience_s` are not killed.
    """
    kill_at = time.monotonic() + patience_s
    killed: dict[int, Process] = {}
    executors: set[str] = set()
    around = _executors(
        Path("/proc/self/cgroup").read_text()
    )  # a run may itself be a task in a slot
    while found := descendants(os.getpid()):
        now = time.monotonic()
        executors.update(*(process.executors - around for process in found))
        for process in found if now >= kill_at else []:
            killed.setdefault(process.pid, process)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        for name in executors if now >= kill_at else []:
            _thaw(name)
        if now > kill_at + KILLING_S:
            break
        time.sleep(0.05)
        _reap(0, None)
    for name in executors:
        _remove_groups(name)
    return list(killed.values())


def descendants(root: int) -> list[Process]:
    """Returns all living processes below `root`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        found += [process for pid in below if (process := _described(pid))]
    return found


def _described(pid: int) -> Process | None:
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return None
    return Process(pid, words[:WORDS_MAX], _executors(groups + words))


def _executors(text: str) -> frozenset[str]:
    return frozenset(name for pair in _EXECUTOR.findall(text) for name in pair if name)


def _thaw(executor: str) -> None:
    """Thaws the executor's groups: with cgroup v1 a frozen process does not die when killed."""
    for group in groups_called(f"finegrain/{executor}"):
        for state in group.rglob("freezer.state"):
            with suppress(OSError):
                state.write_text("THAWED")


def _remove_groups(executor: str) -> None:
    for group in groups_called(f"finegrain/{executor}"):
        below = sorted((Path(folder) for folder, _, _ in os.walk(group)), reverse=True)
        for each in (*below, group.parent):  # the parent is shared: removed once it is empty
            with suppress(OSError):
                each.rmdir()


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        sys.exit(f"prctl {option}: {os.strerror(ctypes.get_errno())}")
