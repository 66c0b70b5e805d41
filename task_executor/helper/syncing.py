"""Syncs files to the disk in a separate process.

If tasks keep the disk busy, a sync can take seconds. In this time, the supervisor must start other
tasks and collect output, so it must not wait for the disk.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from task_executor.helper.forks import close_all_but, default_signals, end_with_parent
from task_executor.helper.loop import Loop

_BATCH_BYTES_MAX = 1 << 16
Synced = Callable[[bool], None]


class Syncer:
    """Syncs files and directories, batch by batch.

    While one batch is written, new orders wait for the next batch. So if many tasks end at the same
    time, the file system writes its journal only a few times. The process starts with the first
    order, and is started again if it was killed.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._peer: socket.socket | None = None
        self._pid = 0
        self._waiting: list[tuple[list[str], Synced]] = []
        self._sent: list[tuple[list[str], Synced]] = []

    def sync(self, paths: Iterable[str], done: Synced) -> None:
        """Syncs files, then directories that contain them, and calls `done`.

        The number and the length of paths are not limited, but one order must be smaller than 64
        KiB.

        Args:
            paths: the files and directories.
            done: a function that is called with True if all paths were synced, otherwise with
                False.
        """
        self._waiting.append((list(paths), done))
        # All orders of one iteration of the event loop are one batch.
        if len(self._waiting) == 1 and not self._sent:
            self._loop.soon(self._send)

    def close(self) -> None:
        """Ends the process, and waits for its end. No order must be pending."""
        if self._peer is not None:
            self._peer.close()
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def _send(self) -> None:
        if self._sent or not self._waiting:
            return
        size = 0
        while self._waiting and size < _BATCH_BYTES_MAX:
            order = self._waiting.pop(0)
            size += sum(len(path.encode()) + 1 for path in order[0])
            self._sent.append(order)
        batch = "\0".join(dict.fromkeys(path for paths, _ in self._sent for path in paths))
        try:
            self._connected().send(batch.encode())
        except OSError:  # the process was killed
            self._restart()

    def _connected(self) -> socket.socket:
        if self._peer is None:
            mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            parent = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                _serve(its, parent)
            its.close()
            self._peer = mine
            self._loop.watch(mine.fileno(), self._receive)
        return self._peer

    def _receive(self, _events: int) -> None:
        assert self._peer is not None  # noqa: S101 - only a connected socket is watched
        try:
            failures = self._peer.recv(_BATCH_BYTES_MAX)
        except OSError:
            failures = b""
        if not failures:
            return self._restart()
        sent, self._sent = self._sent, []
        paths = dict.fromkeys(path for each, _ in sent for path in each)
        failed = dict(zip(paths, failures, strict=True))
        for each, done in sent:
            done(not any(failed[path] for path in each))
        return self._send()

    def _restart(self) -> None:
        """Starts the process again and repeats the orders, because the process has ended before it
        answered.
        """
        if self._peer is not None:
            self._loop.unwatch(self._peer.fileno())
            self._peer.close()
            self._peer = None
        self._waiting, self._sent = self._sent + self._waiting, []
        self._loop.later(0.01, self._send)


def _serve(peer: socket.socket, parent: int) -> None:
    """Runs the process; never returns. It answers a batch with one byte for each path: 0 or 1."""
    try:
        default_signals()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        close_all_but((0, 1, 2, peer.fileno()))
        end_with_parent(parent)
        while batch := peer.recv(2 * _BATCH_BYTES_MAX):
            peer.send(bytes(not _sync(path) for path in batch.decode().split("\0")))
    finally:
        os._exit(0)


def _sync(path: str) -> bool:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(fd)
            return True
        finally:
            os.close(fd)
    return False
