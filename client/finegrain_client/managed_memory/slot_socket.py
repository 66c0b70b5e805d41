"""Connects a task to the socket of its slot: registers operators, watches quotas, lists peers.

After a restart of the executor, the client connects again. A frame is 4 bytes with the length of
the content (big-endian), and then the content as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "FINEGRAIN_SLOT_SOCKET"
RETRY_S: Final = 0.1
ANSWER_S: Final = 30.0
_WATCH, _REPORT = 0, -1  # ids of requests; no caller waits for the answers to these requests

Quotas = Mapping[str, Any]


class SlotSocketError(Exception):
    """The executor refused a call, or could not be reached. `reason` is the reason code."""

    def __init__(self, message: str, reason: str = "UNREACHABLE") -> None:
        super().__init__(message)
        self.reason = reason


class SlotSocket:
    """A connection to the socket of the slot.

    Args:
        path: path of the socket; an empty value means the path in FINEGRAIN_SLOT_SOCKET.
        on_quota: a function that gets the quotas. A thread of this object calls the function after
            each connect, and when a quota has changed. If None, this object does not watch quotas.

    Raises:
        SlotSocketError: `path` is empty and FINEGRAIN_SLOT_SOCKET is not set.
    """

    def __init__(self, path: str = "", on_quota: Callable[[Quotas], None] | None = None) -> None:
        found = path or os.environ.get(VARIABLE, "")
        if not found:
            raise SlotSocketError(
                f"{VARIABLE} is not set: this is no task of a slot with managed memory",
                reason="CONFIGURATION",
            )
        self._path = Path(found)
        self._on_quota = on_quota
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._answers: dict[int, dict[str, Any] | None] = {}  # None if there is no answer yet
        self._number = 0
        self._peer: socket.socket | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="slot socket", daemon=True)
        self._thread.start()

    def register(self, operator_id: str, fraction: str) -> dict[str, int]:
        """Registers an operator. Returns memory_bytes, pages and page_bytes of its quota.

        Raises:
            SlotSocketError: the executor refused the operator, or does not answer.
        """
        quota: dict[str, int] = self.call(
            "RegisterManagedMemory", operator_id=operator_id, fraction=fraction
        )
        return quota

    def peers(self) -> list[dict[str, Any]]:
        """Returns the current peers of the task.

        Raises:
            SlotSocketError: the executor does not answer.
        """
        found: list[dict[str, Any]] = self.call("GetPeers")["peers"]
        return found

    def call(self, verb: str, *, timeout_s: float = ANSWER_S, **args: Any) -> Any:
        """Calls the executor, and repeats the call if the connection breaks.

        It is safe to repeat all calls of this protocol.

        Raises:
            SlotSocketError: the executor refused the call, or did not answer within `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        with self._lock:
            while True:
                peer = self._peer
                if peer is not None:
                    self._number += 1
                    number = self._number
                    self._answers[number] = None
                    try:
                        _send(peer, {"id": number, "verb": verb, "args": args})
                        while peer is self._peer and self._answers[number] is None:
                            self._wait(end, verb)
                    except OSError:
                        pass  # the thread connects again
                    finally:
                        answer = self._answers.pop(number)
                    if answer is not None:
                        return _result(answer)
                self._wait(end, verb)

    def _wait(self, end: float, verb: str) -> None:
        if self._closed:
            raise SlotSocketError("the connection to the slot's socket is closed")
        left = end - time.monotonic()
        if left <= 0:
            raise SlotSocketError(f"the executor does not answer {verb} at {self._path}; try again")
        self._answered.wait(min(left, RETRY_S))

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._closed = True
            if self._peer is not None:
                with suppress(OSError):
                    self._peer.shutdown(socket.SHUT_RDWR)
            self._answered.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            try:
                peer = _connect(self._path)
            except OSError:  # the executor is being restarted
                time.sleep(RETRY_S)
                continue
            with peer, suppress(OSError, EOFError, ValueError, SlotSocketError):
                self._serve(peer)
            with self._lock:
                self._peer = None
                self._answered.notify_all()
            if not self._closed:
                # The executor has possibly refused the connection, so do not try again at once.
                time.sleep(RETRY_S)

    def _serve(self, peer: socket.socket) -> None:
        """Receives frames of one connection until it breaks."""
        with self._lock:
            if self._on_quota is not None:
                # Send this before any other call, so that the quotas are known when the first call
                # returns.
                _send(peer, {"id": _WATCH, "verb": "WatchQuota", "args": {}})
            self._peer = peer
            self._answered.notify_all()
        while True:
            message = _receive(peer)
            if self._on_quota is not None and message.get("event") == "quota":
                self._on_quota(message)
            elif self._on_quota is not None and message.get("id") == _WATCH:
                self._on_quota(_result(message))
            elif "event" in message:
                continue  # this message is from a later version
            elif message.get("id") is None:
                return  # the executor refuses this connection and closes it
            else:
                with self._lock:
                    if message["id"] in self._answers:
                        self._answers[message["id"]] = message
                    self._answered.notify_all()

    def report(self, verb: str, **args: Any) -> None:
        """Reports the use of a pool without waiting for an answer. Does nothing if there is no
        connection.
        """
        with self._lock:
            if self._peer is not None:
                with suppress(OSError):
                    _send(self._peer, {"id": _REPORT, "verb": verb, "args": args})


def _connect(path: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The name of a socket has at most 107 bytes. A name below /proc/self/fd is always short.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        peer.connect(f"/proc/self/fd/{directory}/{path.name}")
    except OSError:
        peer.close()
        raise
    finally:
        os.close(directory)
    return peer


def _send(peer: socket.socket, message: Mapping[str, Any]) -> None:
    body = json.dumps(message).encode()
    peer.sendall(len(body).to_bytes(4, "big") + body)


def _receive(peer: socket.socket) -> dict[str, Any]:
    size = int.from_bytes(_exactly(peer, 4), "big")
    message = json.loads(_exactly(peer, size))
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = peer.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _result(answer: Mapping[str, Any]) -> Any:
    if answer.get("ok"):
        return answer["result"]
    error = answer["error"]
    raise SlotSocketError(error["message"], error["reason"])
