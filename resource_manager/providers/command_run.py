"""Runs one command of the administrator with limited time and limited output. No shell interprets
the command.

A command has ended when its first process has ended, even if a background process still has the
command's output open. The beginning and the end of each output stream are kept. The functions
block. So their callers run them in threads, and no event loop is needed.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from resource_manager.providers.process_tree import Process, this_process
from resource_manager.providers.threads import Cancellation

KEPT_BYTES = 32 * 1024  # size of the kept beginning, and of the kept end, of each stream
TERMINATE_WAIT_S = 3.0
DRAIN_WAIT_S = 1.0
END_WAIT_S = 1.0
_CHUNK_BYTES = 64 * 1024
# If the resource manager stops before it writes a line, the standard input of this shell ends, and
# the shell exits without the command.
_RUN_AFTER_INPUT = 'read -r _ && exec "$@" < /dev/null'


class StillRuns(Exception):
    """A command cannot be killed, because it runs as another user (sudo) or hangs in the kernel.

    `process` is the leader of the command's process group.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(f"process {process.pid} cannot be ended; does it run as another user?")
        self.process = process


@dataclass(slots=True)
class Kept:
    """The first and last `KEPT_BYTES` of a stream of any length."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    length: int = 0

    def add(self, data: bytes) -> None:
        """Appends the next part of the stream."""
        self.length += len(data)
        room = KEPT_BYTES - len(self.head)
        # Only the head and the tail are kept. So the used memory is limited even if a command
        # prints very much.
        self.head += data[:room]
        self.tail += data[room:]
        del self.tail[:-KEPT_BYTES]

    @property
    def text(self) -> str:
        """The kept output as text. A line in the middle has the number of bytes left out."""
        left_out = self.length - len(self.head) - len(self.tail)
        middle = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return (bytes(self.head) + middle + bytes(self.tail)).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command.

    `exit_code` is as in subprocess: negative if a signal ended the command. `ended_because` is the
    reason why the provider killed the command. It is empty if the command ended by itself.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    ended_because: str = ""

    @property
    def summary(self) -> str:
        """One line for people: how the command ended, and the last lines of its output."""
        if self.ended_because:
            how = self.ended_because
        elif self.exit_code < 0:
            how = f"it was killed by signal {-self.exit_code}"
        else:
            how = f"it ended with exit status {self.exit_code}"
        output = last_lines(self.stderr) or last_lines(self.stdout)
        last = f"; its last output: {output}" if output else ""
        return f"{how} after {self.seconds:.1f} s{last}"


def run_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    *,
    cancellation: Cancellation,
    started: Callable[[Process], None] = lambda _process: None,
    secret: str = "",
) -> Outcome:
    """Runs a command, and blocks until the command ends.

    Args:
        argv: the program, found in PATH, and its arguments.
        environment: the complete environment of the command.
        timeout_s: time limit, after which the command's process group is killed.
        cancellation: when it is set, the command's process group is killed, too.
        started: called with the new process, which runs the program only after `started` has
            returned. If the resource manager stops before `started` has returned, the program never
            runs.
        secret: a text that is replaced in the kept output, because the command possibly prints it
            (`set -x`).

    Raises:
        OSError: the command cannot be started.
        StillRuns: the command had to be killed, but still runs.
    """
    began = time.monotonic()
    # Check the program before the start, because the shell would only print the error and exit with
    # 126 or 127.
    _check_program(argv[0], environment)
    # The shell waits for a line before it runs the program. So `started` can first write a note.
    child = subprocess.Popen(
        ["/bin/sh", "-c", _RUN_AFTER_INPUT, argv[0], *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd="/",
        start_new_session=True,  # a separate process group; so the whole group can be killed
    )
    # The process possibly has ended already. No process has start time 0, so `Process(child.pid,
    # 0)` counts as ended.
    process = this_process(child.pid) or Process(child.pid, 0)
    try:
        started(process)
        _let_run(child)
        kept, ended_because = _follow(child, began + timeout_s, cancellation)
    except BaseException:
        # An error in `started` ends the process group, too, because the program must not run
        # without a note.
        end_group(child.pid)
        _reap(child, process)
        raise
    finally:
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
    if ended_because == _TIMEOUT:
        ended_because = f"it was stopped because it took longer than {timeout_s:g} s"
    return Outcome(
        tuple(argv),
        _reap(child, process),
        _without(secret, kept[0].text),
        _without(secret, kept[1].text),
        time.monotonic() - began,
        ended_because,
    )


def _check_program(program: str, environment: Mapping[str, str]) -> None:
    """Raises the error that the start of the program would give, because the shell would only print
    it.

    Raises:
        OSError: the program does not exist or is not executable.
    """
    path = Path("/", program) if "/" in program else Path(program)  # commands run in /
    if shutil.which(path, path=environment.get("PATH", os.defpath)) is None:
        number = errno.EACCES if path.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), program)


def _let_run(child: subprocess.Popen[bytes]) -> None:
    """Lets the waiting shell run its program."""
    assert child.stdin is not None  # noqa: S101 - asked for
    with suppress(BrokenPipeError):  # the shell was killed in the meantime
        child.stdin.write(b"\n")
        child.stdin.close()


def _without(secret: str, text: str) -> str:
    return text.replace(secret, "(the join token)") if secret else text


def _reap(child: subprocess.Popen[bytes], process: Process) -> int:
    """Returns the exit status of the child. Waits only for a limited time: a process that cannot be
    killed must not block this thread indefinitely.
    """
    try:
        return child.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        raise StillRuns(process) from None


_TIMEOUT, _CANCELLED = "timeout", "it was stopped because it is no longer needed"


def _follow(
    child: subprocess.Popen[bytes], deadline: float, cancellation: Cancellation
) -> tuple[tuple[Kept, Kept], str]:
    """Reads both streams until the child has ended, and then for at most `DRAIN_WAIT_S` more."""
    assert child.stdout is not None  # noqa: S101 - asked for
    assert child.stderr is not None  # noqa: S101
    kept = {child.stdout.fileno(): Kept(), child.stderr.fileno(): Kept()}
    streams = tuple(kept.values())
    # The pidfd reports the end of the child, even while other processes keep its output open.
    poll, end = select.poll(), os.pidfd_open(child.pid)
    ended_because = ""
    try:
        for descriptor in kept:
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        poll.register(end, select.POLLIN)
        poll.register(cancellation.fileno(), select.POLLIN)
        while kept or child.poll() is None:
            # Compute the remaining time in each iteration, because the end of the child brings the
            # deadline forward.
            left_s = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, left_s) * 1000)}
            for descriptor in ready & kept.keys():
                if not _read(descriptor, kept[descriptor]):
                    poll.unregister(descriptor)
                    del kept[descriptor]
            # the child has ended, but a background process possibly keeps the output open
            if end in ready:
                poll.unregister(end)
                deadline = min(deadline, time.monotonic() + DRAIN_WAIT_S)
            cancelled = cancellation.fileno() in ready
            if not cancelled and time.monotonic() < deadline:
                continue
            # If the child ended by itself and only its output is still open, there is no reason to
            # report.
            if child.poll() is None:
                ended_because = _CANCELLED if cancelled else _TIMEOUT
                end_group(child.pid)
            break
    finally:
        os.close(end)
    return (streams[0], streams[1]), ended_because


def _read(descriptor: int, into: Kept) -> bool:
    """Reads the available data; returns False at the end of the stream."""
    try:
        data = os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    into.add(data)
    return bool(data)


def end_group(group: int) -> None:
    """Ends a process group with SIGTERM. If a process still runs after `TERMINATE_WAIT_S`, sends
    SIGKILL.
    """
    # SIGTERM lets the command clean up. SIGKILL ends the processes that are left.
    for number, wait_s in ((signal.SIGTERM, TERMINATE_WAIT_S), (signal.SIGKILL, TERMINATE_WAIT_S)):
        with suppress(OSError):
            os.killpg(group, number)
        deadline = time.monotonic() + wait_s
        while _group_is_running(group) and time.monotonic() < deadline:
            time.sleep(0.02)


def _group_is_running(group: int) -> bool:
    """Returns whether any process of the group still runs. A leader that is a zombie does not count
    as running.
    """
    try:
        os.killpg(group, 0)
    except PermissionError:
        pass  # the group exists, and all its processes run as another user
    except OSError:
        return False
    # A leader that is a zombie keeps the group in existence. In this case only the other members
    # count.
    leader = this_process(group)
    if leader is not None and not leader.is_running():
        return _others(group)
    return True


def _others(group: int) -> bool:
    """Returns whether any process other than the dead leader is in the group."""
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
    """Returns the last lines of a text in one line, for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-count:]
    joined = " / ".join(lines)
    return joined if len(joined) <= length else "..." + joined[-length:]
