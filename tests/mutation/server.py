"""A process that has imported pytest and forks for each run, which saves a second per run.

It runs in a copy of the checkout (`python -m tests.mutation.server`), reads one request per line
and answers with one line. As root, each run has a separate process namespace: nothing outlives it,
and a mutant of a `kill` reaches no other process. The checkout itself is read-only there.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.stateful  # noqa: F401 - imported once, for all children
import pytest
import pytest_asyncio  # noqa: F401

from tests.mutation.plugin import Chosen
from tests.mutation.reach import Marks

_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# A test hangs if it takes longer than this factor times its duration without a mutant, plus
# `hang_s`.
HANG_FACTOR = 10.0
# Limit for the imports before the first test, as a multiple of `limit_s`.
IMPORT_FACTOR = 3.0

FREEZER = Path("/sys/fs/cgroup/freezer")


@dataclass(frozen=True)
class Request:
    """One run. With `order` it runs these tests until one fails; without, all in `paths`."""

    paths: list[str]
    order: list[str] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    limit_s: float = 30.0
    hang_s: float = 5.0
    examples: int = 20
    marks: str = ""
    ids: list[tuple[str, int]] = field(default_factory=list)
    output: str = os.devnull
    protected: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass
class Outcome:
    """The result of a run: `passed`, `failed`, `hung`, or `limit` (no time for the other tests).

    `test` is the test that failed or hung, or says that the run failed outside of tests; `seconds`
    is the time since the first test began.
    """

    result: str
    test: str = ""
    ran: int = 0
    seconds: float = 0.0
    done: list[dict[str, Any]] = field(default_factory=list)


class _Progress:
    """Follows the pipe of one run."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome = Outcome("passed")
        self.test, self.since = "", time.monotonic()
        self.begun: float | None = None
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.since = time.monotonic()
            self.begun = self.begun or self.since
            self.test = told.get("begun", "")
            if "done" in told:
                self.outcome.ran += 1
                if told["outcome"] == "failed" and self.outcome.result == "passed":
                    self.outcome.result, self.outcome.test = "failed", told["done"]
                if self.request.order is None:
                    self.outcome.done.append(told)

    def cut(self) -> str:
        """Returns `hung` or `limit` if the run must end, else an empty text.

        The limit starts at the first test, because the import of many files comes before it.
        """
        now = time.monotonic()
        if self.begun is None:
            return "hung" if now - self.since > IMPORT_FACTOR * self.request.limit_s else ""
        usual = self.request.seconds.get(self.test, 0.0)
        if self.test and now - self.since > HANG_FACTOR * usual + self.request.hang_s:
            return "hung"
        return "limit" if now - self.begun > self.request.limit_s else ""


def run(request: Request) -> Outcome:
    """Runs the tests in a child process, and waits until it and all its children have ended."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        _child(request, writer)
    os.close(writer)
    progress = _Progress(request)
    cut = ""
    while True:
        if request.order is not None and (cut := progress.cut()):
            break
        if select.select([reader], [], [], 0.1)[0]:
            if not (data := os.read(reader, 1 << 16)):
                break
            progress.feed(data)
    code = _end(child, kill=bool(cut))
    os.close(reader)
    outcome = progress.outcome
    outcome.seconds = time.monotonic() - (progress.begun or time.monotonic())
    if cut and outcome.result == "passed":
        outcome.result, outcome.test = cut, progress.test
    elif code != 0 and outcome.result == "passed":
        outcome.result, outcome.test = "failed", progress.test or f"pytest ended with {code}"
    return outcome


def _end(child: int, kill: bool) -> int:
    """Ends the child and all that it started; returns its exit code."""
    if kill:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    # orphans become our children, because we are a subreaper
    while orphans := _children()[os.getpid()]:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        _thaw()
        for _ in orphans:
            os.waitpid(-1, 0)
    return os.waitstatus_to_exitcode(status)


def _children() -> dict[int, list[int]]:
    """Returns the children of each process of this machine."""
    found = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found[parent].append(int(stat.parent.name))
    return found


def _thaw() -> None:
    """Thaws the control groups of all our descendants.

    On cgroup v1 a frozen process that a mutant left does not die of SIGKILL, nor does its
    namespace.
    """
    children, below = _children(), [os.getpid()]
    for pid in below:  # the list grows during the loop
        below += children[pid]
    for pid in below[1:]:
        with suppress(OSError, IndexError):
            own = Path(f"/proc/{pid}/cgroup").read_text().partition(":freezer:/")[2].split()[0]
            for group in (FREEZER / own, *(FREEZER / own).parents):
                state = group / "freezer.state"
                if state.exists() and state.read_text().strip() != "THAWED":
                    state.write_text("THAWED")


def _child(request: Request, writer: int) -> None:
    code = 70
    try:
        os.setsid()
        output = os.open(
            request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        for stream in (1, 2):
            os.dup2(output, stream)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if os.geteuid() == 0:
            _alone(request.protected)
        code = _pytest(request, writer)
    finally:
        os._exit(code)


def _alone(protected: str) -> None:
    """Continues as a child of the first process of a new namespace; that process never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID) != 0:
        return  # not allowed here: the subreaper must be enough
    if inside := os.fork():
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _, status = os.waitpid(inside, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # all end with the child that the server kills
    commands = [["mount", "--make-rprivate", "/"], ["mount", "-t", "proc", "proc", "/proc"]]
    if protected:
        commands.append(["mount", "--bind", protected, protected])
        commands.append(["mount", "-o", "remount,bind,ro", protected])
    for command in commands:
        subprocess.run(command, check=True)
    if (tests := os.fork()) == 0:
        return
    while True:  # the first process reaps orphans of its children
        pid, status = os.waitpid(-1, 0)
        if pid == tests:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _pytest(request: Request, writer: int) -> int:
    marks = Marks(Path(request.marks), request.ids) if request.marks else None
    chosen = Chosen(writer, request.order, request.examples, marks)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:cov", "--tb=short"]
    if request.order is not None:
        arguments += ["-x"]
    return int(pytest.main([*arguments, *request.paths], plugins=[chosen]))


def main() -> None:
    """Answers requests until standard input ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for line in sys.stdin.buffer:
        outcome = run(Request(**json.loads(line)))
        sys.stdout.buffer.write(json.dumps(asdict(outcome)).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
