"""Implements the spawner, a small process that forks the processes of tasks for its supervisor.

A fork of the supervisor is expensive: the kernel protects every page of the supervisor's memory,
and then copies each page that the supervisor changes. The spawner has little memory and changes
little of it. Its forks are children of the supervisor, so the supervisor watches and reaps them
like its own forks.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from task_executor.helper.child import become_task, prepare_for_tasks
from task_executor.helper.forks import default_signals, own_descriptor_limit

_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
"""Number of the system call `clone`. On some other machines, its arguments have another order."""

_FORMAT = b"1"
"""The version of the orders and of `become_task`, which every change of either must raise.

If the package is upgraded while a helper runs, its next supervisor can start a spawner of the new
version. A spawner with another format is not used.
"""

_CLONE_PARENT = 0x8000
_ANSWER_S = 10.0
_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r});"
    "from task_executor.helper.spawner import serve; serve(sys.argv[1])"
)
_STREAMS = 4  # the three standard streams, and the descriptor for errors


class Lost(OSError):
    """The spawner has ended or does not answer. It is unknown whether it has forked."""


class Spawner:
    """The supervisor's view of its spawner.

    The spawner is executed, because a fork would have all memory of the supervisor. It starts in
    about 40 ms. Until then, and if it has ended, `is_ready` is false.

    Args:
        with_root: True if tasks are allowed to run as user 0.
    """

    def __init__(self, *, with_root: bool) -> None:
        self._peer, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peer.settimeout(0)
        self._was_ready = False
        order = json.dumps({"with_root": with_root, "descriptors": own_descriptor_limit()})
        program = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, order]
        # With `posix_spawn`, the program and its forks would ignore two signals of the C library.
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(its.fileno(), 0)
                os.execv(program[0], program)  # noqa: S606 - no shell on purpose
            finally:
                os._exit(1)
        its.close()

    def is_ready(self) -> bool:
        """Returns whether the spawner can fork."""
        if not self._was_ready and self._peer.fileno() >= 0:
            try:
                if self._receive(1) != _FORMAT:
                    raise ConnectionAbortedError("the spawner has another version")
                self._was_ready = True
                self._peer.settimeout(_ANSWER_S)
            except BlockingIOError:
                return False
            except OSError:
                self._give_up()
        return self._was_ready and self._peer.fileno() >= 0

    def fork(
        self, spec: dict[str, Any], entrances: Sequence[str], streams: Sequence[int]
    ) -> int | None:
        """Forks the process of a task. Returns its pid, or None if the spawner cannot fork.

        Args:
            spec: the specification of the task.
            entrances: see `Driver.entrances`.
            streams: the descriptors of the standard streams, and the one for errors.

        Raises:
            Lost: see the class.
            OSError: the kernel has too little memory or too many processes for the fork.
        """
        names = ("uid", "gid", "cwd", "argv", "env")
        order = [{name: spec[name] for name in names}, list(entrances)]
        body = json.dumps(order).encode()
        try:
            socket.send_fds(self._peer, [struct.pack("!I", len(body))], list(streams))
            self._peer.sendall(body)
        except OSError:
            # The spawner has not received the whole order, so it has not forked.
            self._give_up()
            return None
        try:
            (pid,) = struct.unpack("!i", self._receive(4))
        except OSError as error:
            self._give_up()
            raise Lost(*error.args) from None
        if -pid in (errno.EAGAIN, errno.ENOMEM):
            raise OSError(-pid, os.strerror(-pid))
        if pid < 0:
            # Some filters of system calls refuse this flag of `clone`, and allow a usual fork.
            self._give_up()
            return None
        return int(pid)

    def reaped(self) -> None:
        """Records that the spawner has ended, and that the supervisor has reaped it."""
        self.pid = 0
        self._peer.close()

    def _give_up(self) -> None:
        # A spawner that does not answer in time must not fork later.
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._peer.close()

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._peer.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the spawner has ended")
            data += part
        return data


def serve(order: str) -> None:
    """Runs the spawner. Descriptor 0 is the connection to the supervisor.

    Args:
        order: the settings, as JSON.
    """
    settings = json.loads(order)
    default_signals()
    prepare_for_tasks(with_root=settings["with_root"])
    own_descriptor_limit(tuple(settings["descriptors"]))
    peer = socket.socket(fileno=0)
    fork = _fork_for_parent()
    # The memory of the spawner does not grow. So no page changes because of the garbage collector.
    gc.freeze()
    gc.disable()
    peer.send(_FORMAT)
    while True:
        head, streams, _, _ = socket.recv_fds(peer, 4, _STREAMS)
        if len(head) < 4:  # the supervisor has ended
            os._exit(0)
        # The descriptors must close at exec. In Python 3.11, `recv_fds` ignores flags.
        for fd in streams:
            os.set_inheritable(fd, False)
        (size,) = struct.unpack("!I", head)
        spec, entrances = json.loads(peer.recv(size, socket.MSG_WAITALL))
        pid = fork()
        if pid == 0:
            become_task(spec, entrances, (streams[0], streams[1], streams[2]), streams[3])
        for fd in streams:
            os.close(fd)
        peer.send(struct.pack("!i", pid))


def can_spawn() -> bool:
    """Returns whether this machine has a spawner."""
    return _CLONE is not None


def _fork_for_parent() -> Callable[[], int]:
    """Returns a function like `os.fork`, whose new process is a child of this process's parent. If
    the kernel refuses, it returns the negative error number.

    `os.fork` has no such flag. The C library and Python do not notice this fork, so the new process
    must do nothing but the steps of `become_task`.
    """
    # With `PyDLL`, the call keeps the lock of the interpreter, as `os.fork` does.
    call = ctypes.PyDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    flags = ctypes.c_ulong(_CLONE_PARENT | signal.SIGCHLD)
    zero, number = ctypes.c_ulong(0), ctypes.c_long(_CLONE or -1)

    def fork() -> int:
        pid = int(call(number, flags, zero, zero, zero, zero))
        return pid if pid >= 0 else -ctypes.get_errno()

    return fork
