"""Server of the frame protocol on a unix socket. The helper and each supervisor use it.

The server checks the user of each peer. Invalid input never stops the process.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from task_executor.helper.loop import READ, WRITE, Loop
from task_executor.helper.protocol import (
    Fault,
    Fields,
    as_fault,
    check_request,
    decode,
    encode,
    frames,
)

NO_ANSWER: dict[str, Any] = {}
_CONNECTIONS_MAX = 64
# the server disconnects a peer that has not read more than this number of bytes
_OUTBOX_BYTES_MAX = 16 << 20


def peer_uid(peer: Any) -> int:
    """Returns the user at the other end of a connected unix socket."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yields a name of the socket `path` with at most 107 bytes, the limit of sun_path."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen(path: Path, uid: int, gid: int) -> socket.socket:
    """Returns a listening socket.

    Before the name `path` becomes visible, the socket has the owner `uid`, the group `gid` and mode
    0600.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # Make the socket with mode 0600 from the start. Before a later chmod, other users could connect
    # for a moment.
    umask = os.umask(0o177)
    try:
        with socket_address(fresh) as address:
            listener.bind(address)
    finally:
        os.umask(umask)
    listener.listen(128)
    os.chown(fresh, uid, gid)
    # From now on peers can connect. The rename replaces an old socket.
    fresh.rename(path)
    return listener


class FrameServer:
    """Answers requests.

    Args:
        loop: the event loop.
        listener: the listening socket.
        uids: the users that are allowed to connect.
        verbs: the fields of each verb, for the check of requests.
        handle: a function of the verb and the arguments of a request. It returns a dict, or a job
            that returns a dict. The function and the job can raise Fault. If the result is
            `NO_ANSWER`, the server sends no answer. The server always answers a request that fails.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        uids: set[int],
        verbs: Mapping[str, Fields],
        handle: Callable[[str, dict[str, Any]], Any],
    ) -> None:
        self.loop, self.uids, self.verbs, self.handle = loop, uids, verbs, handle
        self._listener = listener
        self._connections: set[_Connection] = set()
        loop.watch(listener.fileno(), self._accept)

    def _accept(self, _events: int) -> None:
        peer, _ = self._listener.accept()
        peer.setblocking(False)
        # Limit the number of connections, because supervisors and locks also need descriptors.
        if peer_uid(peer) in self.uids and len(self._connections) < _CONNECTIONS_MAX:
            self._connections.add(_Connection(self, peer))
        else:
            peer.close()

    def serve(self, peer: socket.socket, closed: Callable[[], None]) -> None:
        """Answers requests on a connected socket.

        Args:
            peer: the socket.
            closed: called when the connection has ended.
        """
        peer.setblocking(False)
        self._connections.add(_Connection(self, peer, closed))

    def broadcast(self, event: Mapping[str, Any]) -> None:
        for connection in list(self._connections):
            connection.send(event)

    def drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)


class _Connection:
    def __init__(
        self, server: FrameServer, peer: socket.socket, closed: Callable[[], None] = lambda: None
    ) -> None:
        self._server, self._peer, self._fd, self._closed = server, peer, peer.fileno(), closed
        self._inbox, self._outbox = bytearray(), bytearray()
        self._open, self._closing, self._is_sending = True, False, False
        server.loop.watch(self._fd, self._ready)

    def _ready(self, events: int) -> None:
        try:
            if events & WRITE and self._outbox:
                del self._outbox[: self._peer.send(self._outbox)]
            if events & READ and not self._closing:
                self._receive()
        # The socket is no longer ready. The next event comes when the socket is ready again.
        except BlockingIOError:
            pass
        except OSError:
            return self._close()
        return self._watch_or_close()

    def _receive(self) -> None:
        data = self._peer.recv(1 << 18)
        self._closing = not data
        self._inbox += data
        try:
            for body in frames(self._inbox):
                self._request(decode(body))
        # close the connection, because it is unknown where the next frame starts
        except Fault as fault:
            self.send({"id": None, "ok": False, "error": fault.as_dict()})
            self._closing = True

    def _request(self, message: dict[str, Any]) -> None:
        identity = message.get("id")

        def done(value: Any, error: Exception | None) -> None:
            if error is None and value is NO_ANSWER:
                return None
            if error is None:
                return self.send({"id": identity, "ok": True, "result": value or {}})
            refusal = as_fault(error, "INTERNAL").as_dict()
            return self.send({"id": identity, "ok": False, "error": refusal})

        if type(identity) is not int or message.keys() - {"id", "verb", "args"}:
            raise Fault("INVALID_ARGUMENT", "a request must have an integer id, a verb and args")
        try:
            args = check_request(message, self._server.verbs)
            answer = self._server.handle(message["verb"], args)
        # An error in a request must not stop the process, so convert each error to an answer.
        except Exception as error:
            return done(None, error)
        if isinstance(answer, Generator):
            return self._server.loop.run(answer, done)
        return done(answer, None)

    def send(self, message: Mapping[str, Any]) -> None:
        if self._open:
            try:
                self._outbox += encode(message)
            # If the answer is too large, send an error, because the peer waits for an answer with
            # this id.
            except Fault as fault:
                refusal = {"id": message.get("id"), "ok": False, "error": fault.as_dict()}
                self._outbox += encode(refusal)
            if not self._is_sending:
                # All messages of one iteration of the event loop are sent together.
                self._is_sending = True
                self._server.loop.soon(self._send_now)

    def _send_now(self) -> None:
        self._is_sending = False
        if self._open:
            self._ready(WRITE)

    def _watch_or_close(self) -> None:
        # Send all data in the outbox before the connection is closed.
        if (self._closing and not self._outbox) or len(self._outbox) > _OUTBOX_BYTES_MAX:
            return self._close()
        is_waiting = self._outbox and not self._is_sending
        wanted = (0 if self._closing else READ) | (WRITE if is_waiting else 0)
        return self._server.loop.watch(self._fd, self._ready, wanted)

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._server.loop.unwatch(self._fd)
            self._peer.close()
            self._server.drop(self)
            self._closed()
