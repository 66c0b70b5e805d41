"""Runs one command of the operator's: no shell, bounded time, bounded output, nothing left running.

Decides when a command is over (its first process ended, whoever else still holds its output) and
what is kept of what it wrote (the beginning and the end). Runs in a thread, needs no event loop.
Refuses to know what the command is for.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from resource_manager.providers.process_tree import Process, this_process
from resource_manager.providers.threads import Cancellation

KEPT_BYTES = 32 * 1024  # of the beginning and of the end of each stream
TERMINATE_WAIT_S = 3.0
DRAIN_WAIT_S = 1.0
END_WAIT_S = 1.0
_CHUNK_BYTES = 64 * 1024


class StillRuns(Exception):
    """A command that was to be ended does not: it runs as another user (sudo), or hangs in the
    kernel. `process` leads its group.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(f"process {process.pid} cannot be ended; does it run as another user?")
        self.process = process


@dataclass(slots=True)
class Kept:
    """What is kept of a stream of any length."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    length: int = 0

    def add(self, data: bytes) -> None:
        """The next part of it."""
        self.length += len(data)
        room = KEPT_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        del self.tail[:-KEPT_BYTES]

    @property
    def text(self) -> str:
        """As text; what is missing in the middle is told."""
        left_out = self.length - len(self.head) - len(self.tail)
        middle = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return (bytes(self.head) + middle + bytes(self.tail)).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. `exit_code` as subprocess gives it; `ended_because`: we ended it."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    ended_because: str = ""

    @property
    def summary(self) -> str:
        """For people, in one line: how it ended and what it said last."""
        if self.ended_because:
            how = self.ended_because
        elif self.exit_code < 0:
            how = f"it was killed by signal {-self.exit_code}"
        else:
            how = f"it ended with exit status {self.exit_code}"
        said = last_lines(self.stderr) or last_lines(self.stdout)
        return f"{how} after {self.seconds:.1f} s" + (f"; it said last: {said}" if said else "")


def run_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    *,
    cancellation: Cancellation,
    started: Callable[[Process], None] = lambda _process: None,
    secret: str = "",
) -> Outcome:
    """Runs it to its end; blocks.

    Args:
        argv: the program, found in PATH, and its arguments.
        environment: all of its environment.
        timeout_s: then its process group is ended.
        cancellation: likewise when this is set.
        started: told who runs it, before anything else is done.
        secret: not kept of what it wrote: `set -x` and the like show it.

    Raises:
        OSError: it cannot be started.
        StillRuns: it is to be ended, and goes on.
    """
    began = time.monotonic()
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd="/",
        start_new_session=True,
    )
    process = this_process(child.pid) or Process(child.pid, 0)
    try:
        started(process)
        kept, ended_because = _follow(child, began + timeout_s, cancellation)
    except BaseException:
        end_group(child.pid)
        _reap(child, process)
        raise
    finally:
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    if ended_because == _TIMEOUT:
        ended_because = f"it was ended because it took longer than {timeout_s:g} s"
    return Outcome(
        tuple(argv),
        _reap(child, process),
        _without(secret, kept[0].text),
        _without(secret, kept[1].text),
        time.monotonic() - began,
        ended_because,
    )


def _without(secret: str, text: str) -> str:
    return text.replace(secret, "(the cluster token)") if secret else text


def _reap(child: subprocess.Popen[bytes], process: Process) -> int:
    """Its exit status. One that cannot be ended must not hold this thread for ever."""
    try:
        return child.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        raise StillRuns(process) from None


_TIMEOUT, _CANCELLED = "timeout", "it was ended because it is not wanted any more"


def _follow(
    child: subprocess.Popen[bytes], deadline: float, cancellation: Cancellation
) -> tuple[tuple[Kept, Kept], str]:
    """Reads both streams until the child ended; afterwards only what is there already."""
    assert child.stdout is not None  # noqa: S101 - asked for
    assert child.stderr is not None  # noqa: S101
    kept = {child.stdout.fileno(): Kept(), child.stderr.fileno(): Kept()}
    streams = tuple(kept.values())
    poll, end = select.poll(), os.pidfd_open(child.pid)
    ended_because = ""
    try:
        for descriptor in kept:
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        poll.register(end, select.POLLIN)
        poll.register(cancellation.fileno(), select.POLLIN)
        while kept or child.poll() is None:
            left_s = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, left_s) * 1000)}
            for descriptor in ready & kept.keys():
                if not _read(descriptor, kept[descriptor]):
                    poll.unregister(descriptor)
                    del kept[descriptor]
            if end in ready:  # whoever it left in the background may hold its output for ever
                poll.unregister(end)
                deadline = min(deadline, time.monotonic() + DRAIN_WAIT_S)
            cancelled = cancellation.fileno() in ready
            if not cancelled and time.monotonic() < deadline:
                continue
            if child.poll() is None:
                ended_because = _CANCELLED if cancelled else _TIMEOUT
                end_group(child.pid)
            break
    finally:
        os.close(end)
    return (streams[0], streams[1]), ended_because


def _read(descriptor: int, into: Kept) -> bool:
    """Reads what is there; False at the end of the stream."""
    try:
        data = os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    into.add(data)
    return bool(data)


def end_group(group: int) -> None:
    """Ends a process group that a command leads: SIGTERM, a moment, SIGKILL."""
    for number, wait_s in ((signal.SIGTERM, TERMINATE_WAIT_S), (signal.SIGKILL, TERMINATE_WAIT_S)):
        with suppress(OSError):
            os.killpg(group, number)
        deadline = time.monotonic() + wait_s
        while _group_is_running(group) and time.monotonic() < deadline:
            time.sleep(0.02)


def _group_is_running(group: int) -> bool:
    """Whether any process of it still runs; a leader that waits to be buried does not."""
    try:
        os.killpg(group, 0)
    except PermissionError:
        pass  # all of it runs as somebody else
    except OSError:
        return False
    leader = this_process(group)
    if leader is not None and not leader.is_running():
        return _others(group)
    return True


def _others(group: int) -> bool:
    """Whether anybody besides its dead leader is in the group."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone
        if not name.isdigit() or int(name) == group:
            continue
        with suppress(OSError):
            if os.getpgid(int(name)) == group:
                other = this_process(int(name))
                if other is not None and other.is_running():
                    return True
    return False


def last_lines(text: str, count: int = 3, length: int = 300) -> str:
    """The last lines of a text, in one, for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-count:]
    said = " / ".join(lines)
    return said if len(said) <= length else "..." + said[-length:]
