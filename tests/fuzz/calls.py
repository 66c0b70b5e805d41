"""Calls methods with random requests, as random members, and judges the answers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor

from finegrain.rpc.channels import CHANNEL_OPTIONS
from tests.fuzz.messages import Messages
from tests.fuzz.targets import Target, Targets, path_of, request_type

WRONG = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
DEADLINE_S = 5.0
ANSWERS_MAX = 3  # messages that are read from a stream
CHANNEL_CALLS = 400  # calls on one connection; then another is opened
FAILURES_MAX = 50
RACE = "Internal error from Core"
"""What gRPC's client itself says if it sends a message while the server's refusal arrives."""
FORGED = b"spiffe://"


@dataclass
class Figures:
    """What has happened so far.

    Attributes:
        calls: number of calls by method and identity.
        statuses: number of answers by status.
        failures: calls that the server has answered in a way that is not allowed.
    """

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        """Records a failure; only the first ones are kept."""
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(what)


class Caller:
    """One caller that makes one call after another, each as a random member."""

    def __init__(self, targets: Targets, messages: Messages, seed: str, figures: Figures) -> None:
        self._targets = targets
        self._messages = messages
        self._random = random.Random(seed)
        self._figures = figures
        self._channels: dict[tuple[str, str], tuple[grpc.aio.Channel, int]] = {}
        self._todo: list[tuple[Target, MethodDescriptor, str]] = []

    async def run(self, ends_at: float) -> None:
        """Calls until a moment of the event loop's clock, and each method at least once as each
        member."""
        loop = asyncio.get_running_loop()
        self._todo = self._pairs()
        try:
            while self._todo or loop.time() < ends_at:
                if not self._todo:
                    self._todo = self._pairs()
                await self._call(*self._todo.pop())
        finally:
            for channel, _ in self._channels.values():
                await channel.close()

    def _pairs(self) -> list[tuple[Target, MethodDescriptor, str]]:
        pairs = [
            (target, method, who)
            for target in self._targets.all
            for method in target.methods
            for who in (self._targets.who if target.asks_for_certificates else ("nobody",))
        ]
        self._random.shuffle(pairs)
        return pairs

    async def _call(self, target: Target, method: MethodDescriptor, who: str) -> None:
        channel = await self._channel(target, who)
        data = self._messages.request(request_type(method))
        # Denying the members of this run would end it.
        if method.name == "DenyIdentity" and any(n.encode() in data for n in self._targets.who):
            data = data.replace(b"fuzz", b"zzuf").replace(b"rm", b"mr")
        self._figures.calls[path_of(method), who] += 1
        code, text = await self._status(channel, method, data)
        self._figures.statuses[code.name] += 1
        if code in WRONG and text != RACE:
            shown = _shown(method, data)
            self._figures.fail(f"{code.name} {path_of(method)} as {who}: {text[:300]}\n    {shown}")

    async def _status(
        self, channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes
    ) -> tuple[grpc.StatusCode, str]:
        path = path_of(method)
        kinds: dict[tuple[bool, bool], Any] = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }
        streams = (bool(method.client_streaming), bool(method.server_streaming))
        sent = [data] * self._random.choice((0, 1, 1, 3))
        call = kinds[streams](path)(iter(sent) if streams[0] else data, timeout=DEADLINE_S)
        try:
            # Some callers leave at once, or do not wait for the end.
            if self._random.random() < 0.03:
                await asyncio.sleep(self._random.random() * 0.01)
                return grpc.StatusCode.CANCELLED, ""
            if not streams[1]:
                await call
            else:
                async with asyncio.timeout(0.3):
                    for _ in range(ANSWERS_MAX):
                        if await call.read() is grpc.aio.EOF:
                            break
        except TimeoutError:
            return grpc.StatusCode.OK, ""  # a stream that stays open
        except asyncio.CancelledError:
            # gRPC also raises this error when the server closes the connection.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return grpc.StatusCode.CANCELLED, ""
        except grpc.RpcError as error:
            refused: Any = error
            return refused.code(), str(refused.details())
        finally:
            call.cancel()
        return grpc.StatusCode.OK, ""

    async def _channel(self, target: Target, who: str) -> grpc.aio.Channel:
        key = (target.name, who)
        channel, left = self._channels.get(key, (None, 0))
        if channel is not None and left > 0:
            self._channels[key] = (channel, left - 1)
            return channel
        if channel is not None:
            await channel.close()
        opened = self._opened(target, who)
        self._channels[key] = (opened, self._random.randrange(1, CHANNEL_CALLS))
        return opened

    def _opened(self, target: Target, who: str) -> grpc.aio.Channel:
        any_of_them = next(iter(self._targets.who.values()))
        shown = self._targets.who.get(who)
        credentials = grpc.ssl_channel_credentials(
            any_of_them.authorities.encode(),
            shown.key.encode() if shown else None,
            shown.certificate.encode() if shown else None,
        )
        options = [
            *((name, value) for name, value in CHANNEL_OPTIONS if "service_config" not in name),
            ("grpc.enable_retries", 0),
            ("grpc.ssl_target_name_override", target.server.dns_name),
        ]
        return grpc.aio.secure_channel(target.address, credentials, options)


def _shown(method: MethodDescriptor, data: bytes) -> str:
    try:
        text = str(request_type(method).FromString(data))
    except Exception:  # whatever the message library raises
        text = f"no message: {data[:300].hex()}"
    return text.replace("\n", " ")[:600]
