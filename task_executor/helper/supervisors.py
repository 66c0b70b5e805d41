"""Starts supervisors, sends requests to them, and notices when they end. A supervisor is the
process that runs tasks for the helper (see `supervisor.py`).

With cgroups, a helper starts its own supervisor with the first task. Supervisors of earlier helpers
continue until their last task has ended. So an upgrade never changes the code of a running
supervisor.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.loop import READ, WRITE, Job, Loop, Waker
from task_executor.helper.paths import start_ticks
from task_executor.helper.protocol import decode, encode, fault_of, frames
from task_executor.helper.server import socket_address
from task_executor.helper.supervisor import Setup, run_supervisor

_RECEIVE_BYTES = 1 << 18


class Unanswered(OSError):
    """A supervisor did not answer in time."""


class Ended(Unanswered):
    """A supervisor has closed the connection, because it has ended or is ending."""


class SupervisorLink:
    """The helper's view of a supervisor.

    Args:
        loop: the event loop.
        pid: the process of the supervisor.
        control: the socket for connections.
        ended: a function that is called with this link when the process has ended.
        event: a function that is called with each event of the supervisor.

    Attributes:
        tasks: the ids of the tasks that the supervisor runs.
        is_own: True if this helper has started the supervisor.
    """

    def __init__(
        self,
        loop: Loop,
        pid: int,
        control: Path,
        ended: Callable[[SupervisorLink], None],
        event: Callable[[dict[str, Any]], None],
    ) -> None:
        self._loop, self.pid, self.control = loop, pid, control
        self._ended, self._event = ended, event
        self.start_ticks = start_ticks(pid) or 0
        self.tasks: set[str] = set()
        self.is_own = False
        self._peer: socket.socket | None = None
        self._inbox, self._outbox = bytearray(), bytearray()
        self._answers: dict[int, dict[str, Any] | None] = {}
        self._wakers: dict[int, Waker] = {}
        self._number = 0
        self._fd = os.pidfd_open(pid)  # ProcessLookupError: the process has ended
        loop.watch(self._fd, self._on_end)

    @property
    def is_alive(self) -> bool:
        return self._fd >= 0

    def can_start(self) -> bool:
        """Returns True if the supervisor is a child process that still runs.

        The method asks the kernel, because the event loop has possibly not noticed the end yet.
        """
        if not self.is_alive:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def use(self, peer: socket.socket) -> None:
        """Uses a connected socket for all requests to the supervisor and all its messages."""
        peer.setblocking(False)
        self._peer = peer
        self._loop.watch(peer.fileno(), self._ready)

    def connect(self) -> None:
        """Connects to a supervisor of an earlier helper.

        Raises:
            OSError: the supervisor does not listen.
        """
        if self._peer is None:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with socket_address(self.control) as address:
                    peer.connect(address)
            except OSError:
                peer.close()
                raise
            self.use(peer)

    def ask(self, verb: str, args: dict[str, Any], answer_s: float) -> Job:
        """Sends a request, and returns the result.

        Raises:
            Fault: the supervisor refused the request.
            Unanswered: see the class.
        """
        self._number = number = self._number + 1
        deadline = time.monotonic() + answer_s
        waker = self._wakers[number] = Waker()
        try:
            self.connect()
            # All requests of one iteration of the event loop are sent together.
            self._loop.soon(self._flush)
            self._outbox += encode({"id": number, "verb": verb, "args": args})
            while number not in self._answers:
                if not self.is_alive or self._peer is None:
                    raise Ended("it has ended")
                if (left := deadline - time.monotonic()) <= 0:
                    raise Unanswered("it did not answer in time")
                yield waker, left
        except OSError as error:
            raise error if isinstance(error, Unanswered) else Ended(str(error)) from None
        finally:
            del self._wakers[number]
        answer = self._answers.pop(number) or {}
        if not answer["ok"]:
            raise fault_of(answer["error"])
        return answer["result"]

    def tell(self, verb: str, args: dict[str, Any]) -> None:
        """Sends a request that has no answer. If the supervisor has ended, nothing is sent."""
        with suppress(OSError):
            self.connect()
            self._loop.soon(self._flush)
            self._outbox += encode({"id": 0, "verb": verb, "args": args})

    def _flush(self) -> None:
        if self._peer is None:
            return None
        try:
            while self._outbox:
                del self._outbox[: self._peer.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            return self._disconnect()
        return self._loop.watch(
            self._peer.fileno(), self._ready, READ | (WRITE if self._outbox else 0)
        )

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if not events & READ or self._peer is None:
            return None
        try:
            data = self._peer.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._disconnect()
        self._inbox += data
        for body in frames(self._inbox):
            message = decode(body)
            if "id" not in message:
                self._event(message)
            elif (number := message["id"]) in self._wakers:
                self._answers[number] = message
                self._wakers[number].wake()
        return None

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._loop.unwatch(self._peer.fileno())
            self._peer.close()
            self._peer = None
        self._inbox.clear()
        self._outbox.clear()
        for waker in self._wakers.values():
            waker.wake()

    def release(self) -> None:
        """Closes the connection. The supervisor then ends with its last task."""
        self._disconnect()

    def wait(self, seconds: float) -> None:
        """Blocks until the process has ended."""
        if self.is_alive:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.poll(round(seconds * 1000))

    def _on_end(self, _events: int = 0) -> None:
        # First handle the events that the supervisor sent before its end.
        while self._peer is not None:
            self._ready(READ)
            if self._peer is not None and not _has_more(self._peer):
                self._disconnect()
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._disconnect()
            self._ended(self)


def _has_more(peer: socket.socket) -> bool:
    try:
        return bool(peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


def fork_supervisor(setup: Setup) -> tuple[int, socket.socket]:
    """Starts a supervisor. Returns its pid, and the connection to it."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid == 0:
        run_supervisor(setup, its)
    its.close()
    return pid, mine
