"""Sends bytes that are no calls: broken TLS, broken HTTP/2, broken gRPC messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from finegrain.credentials import Credentials
from finegrain.identity import Identity
from tests.fuzz.targets import Target, path_of

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
PATIENCE_S = 2.0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int = -1) -> bytes:
    """Returns a frame of HTTP/2; `length` is what its head says, -1: the truth."""
    said = len(payload) if length < 0 else length
    return struct.pack(">I", said)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    """Returns a header in the form that HPACK uses for headers that are in no table; "\udc8a"
    becomes the byte 0x8a.
    """
    texts = [text.encode(errors="surrogateescape") for text in (name, value)]
    return b"\x00" + b"".join(bytes([len(text)]) + text for text in texts)


def opened(*frames: bytes) -> bytes:
    """Returns the beginning of a connection, and frames."""
    return PREFACE + frame(SETTINGS, 0, 0) + b"".join(frames)


def call_head(path: str, *more: tuple[str, str]) -> bytes:
    """Returns the headers of a call."""
    fields = (
        (":method", "POST"),
        (":scheme", "https"),
        (":path", path),
        (":authority", "a"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    )
    return b"".join(header(*each) for each in fields)


async def send(
    address: str, server: Identity, data: bytes, context: ssl.SSLContext | None, reading_s: float
) -> None:
    """Sends bytes on a new connection, reads answers for some time, and hangs up.

    Args:
        address: "host:port".
        server: who must answer there.
        data: what is sent.
        context: None: without TLS.
        reading_s: how long answers are read.
    """
    host, _, port = address.rpartition(":")
    name = server.dns_name if context is not None else None
    # The server may close the connection at any moment, as it should.
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname=name
            )
            try:
                for start in range(0, len(data), 65_536):
                    writer.write(data[start : start + 65_536])
                    await writer.drain()
                async with asyncio.timeout(reading_s):
                    while await reader.read(65_536):
                        pass
            finally:
                writer.transport.abort()


class RawCaller:
    """Opens connections and sends garbage of many kinds."""

    def __init__(self, target: Target, shown: Credentials | None, trusted: str, seed: str) -> None:
        self._target = target
        self._random = random.Random(seed)
        self.sent: Counter[str] = Counter()
        self._context = tls_context(shown, trusted)
        self._kinds: tuple[Callable[[], bytes], ...] = (
            self.noise,
            self.random_frames,
            self.wrong_lengths,
            self.broken_headers,
            self.many_headers,
            self.endless_continuation,
            self.rapid_resets,
            self.many_settings,
            self.many_pings,
            self.windows,
            self.broken_messages,
            self.wrong_requests,
        )

    async def run(self, ends_at: float) -> None:
        """Sends until a moment of the event loop's clock, and each kind at least once."""
        loop = asyncio.get_running_loop()
        todo = list(self._kinds)
        while todo or loop.time() < ends_at:
            make = todo.pop() if todo else self._random.choice(self._kinds)
            await self._send(make.__name__, make(), is_tls=True)
            if self._random.random() < 0.2:
                await self._send("no TLS", make(), is_tls=False)
                await self._send("broken TLS", self._hello(), is_tls=False)

    async def _send(self, name: str, data: bytes, *, is_tls: bool) -> None:
        self.sent[name] += 1
        # Some leave without reading the answer.
        reading_s = 0.2 if self._random.random() < 0.7 else 0.0
        context = self._context if is_tls else None
        await send(self._target.address, self._target.server, data, context, reading_s)

    # -- what is sent ----------------------------------------------------------------------------

    def noise(self) -> bytes:
        return self._random.randbytes(self._random.choice((1, 100, 20_000)))

    def random_frames(self) -> bytes:
        frames = [
            frame(
                self._random.randrange(12),
                self._random.randrange(256),
                self._random.choice((0, 1, 2, 3, 2**31 - 1)),
                self._random.randbytes(self._random.randrange(60)),
            )
            for _ in range(self._random.choice((1, 10, 200)))
        ]
        return opened(*frames)

    def wrong_lengths(self) -> bytes:
        length = self._random.choice((0, 5, 2**14 + 1, 2**24 - 1))
        return opened(frame(self._random.randrange(10), 0, 1, b"abc", length))

    def broken_headers(self) -> bytes:
        head = bytearray(call_head(self._path()))
        for _ in range(self._random.choice((1, 3))):
            head[self._random.randrange(len(head))] = self._random.randrange(256)
        return opened(frame(HEADERS, END_HEADERS, 1, bytes(head)))

    def many_headers(self) -> bytes:
        more = [(f"x-{number}", "v" * 100) for number in range(self._random.choice((50, 400)))]
        head = call_head(self._path(), *more)
        parts = [head[start : start + 16_000] for start in range(0, len(head), 16_000)]
        last = len(parts) - 1
        frames = [
            frame(CONTINUATION if n else HEADERS, END_HEADERS if n == last else 0, 1, part)
            for n, part in enumerate(parts)
        ]
        return opened(*frames)

    def endless_continuation(self) -> bytes:
        begun = frame(HEADERS, 0, 1, call_head(self._path()))
        return opened(begun, *[frame(CONTINUATION, 0, 1, header("a", "b" * 90))] * 3_000)

    def rapid_resets(self) -> bytes:
        head, frames = call_head(self._path()), []
        for stream in range(1, 2 * self._random.choice((50, 2_000)), 2):
            frames.append(frame(HEADERS, END_HEADERS, stream, head))
            frames.append(frame(RESET, 0, stream, b"\x00\x00\x00\x08"))
        return opened(*frames)

    def many_settings(self) -> bytes:
        pair = struct.pack(">HI", self._random.randrange(9), self._random.choice((0, 1, 2**32 - 1)))
        return opened(*[frame(SETTINGS, 0, 0, pair)] * 2_000)

    def many_pings(self) -> bytes:
        return opened(*[frame(PING, 0, 0, b"12345678")] * 2_000)

    def windows(self) -> bytes:
        more = struct.pack(">I", 2**31 - 1)
        return opened(*[frame(WINDOW, 0, self._random.choice((0, 1)), more)] * 3)

    def broken_messages(self) -> bytes:
        """A message whose head says another length, or that it is compressed."""
        flag = self._random.choice((0, 1, 2, 255))
        said = self._random.choice((0, 1, 10, 2**32 - 1, 4 << 20))
        body = struct.pack(">BI", flag, said) + self._random.randbytes(self._random.randrange(50))
        return opened(
            frame(HEADERS, END_HEADERS, 1, call_head(self._path())),
            frame(DATA, self._random.choice((0, END_STREAM)), 1, body),
        )

    def wrong_requests(self) -> bytes:
        more = self._random.choice(
            (
                ("grpc-timeout", "1n"),
                ("grpc-timeout", "99999999999H"),
                ("grpc-encoding", "gzip"),
                ("grpc-encoding", "no-such"),
                ("grpc-bin", "\x7f\x01"),
                ("content-length", "-1"),
            )
        )
        path = self._random.choice((self._path(), "/", "", "/finegrain.v1/None", "//" * 50))
        body = frame(DATA, END_STREAM, 1, b"\x00\x00\x00\x00\x00")
        return opened(frame(HEADERS, END_HEADERS, 1, call_head(path, more)), body)

    def _path(self) -> str:
        return path_of(self._random.choice(self._target.methods))

    def _hello(self) -> bytes:
        """A greeting of TLS that breaks off or lies about its length."""
        body = self._random.randbytes(self._random.choice((3, 200)))
        return b"\x16\x03\x01" + struct.pack(">H", self._random.choice((len(body), 65_535))) + body


def tls_context(shown: Credentials | None, trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusted)
    context.set_alpn_protocols(["h2"])
    if shown is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "shown.pem")
            path.write_text(shown.certificate + shown.key, encoding="ascii")
            context.load_cert_chain(path)
    return context
