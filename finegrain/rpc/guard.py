"""Wraps every served method: checks access and size, limits the time, and converts errors.

The wrapper first checks the caller's access, then the form and size of the request. Then it runs
the handler, and converts an error of the handler to the status of the call. It also ends open
streams when the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from finegrain.rpc.access import Access, TokenHashes, enter_call, identify, request_bytes_max
from finegrain.rpc.status import Metadata, status_code_of, status_of

UNARY_TIME_MAX_S = 60.0
"""Time limit of a unary handler. It holds even if the caller has set a later deadline."""

Gate = Callable[[], FinegrainError | None]
"""Returns the error with which the server rejects every call at the moment, or None to serve calls.
"""

Observer = Callable[[str, str, float], None]
"""Called after every call with method, status name and duration in seconds."""

_log = logging.getLogger("finegrain.rpc")


@dataclass(slots=True)
class ServerLifecycle:
    """State that all methods of one server share."""

    tokens: TokenHashes
    observe: Observer
    gate: Gate = lambda: None
    streams: set[OpenStream] = field(default_factory=set)
    stopping: bool = False

    def end_streams(self) -> None:
        """Ends every open stream with UNAVAILABLE. The caller must set `stopping` first."""
        for stream in list(self.streams):
            stream.end()


class OpenStream:
    """A stream whose handler is running. While its `with` block runs, it is in the set of open
    streams.

    After the handler yields a message, the same task runs gRPC's code, which sends the message. A
    cancellation at that point never reaches the handler: gRPC ends the task without a status. The
    call then stays open until the client cancels it or the grace period ends. So `end` does not
    cancel while `sending` is true. The wrapper checks `ServerLifecycle.stopping` after the message
    is sent.
    """

    def __init__(self, streams: set[OpenStream]) -> None:
        self._streams = streams
        self._task: asyncio.Task[Any] | None = None
        self.sending = False

    def __enter__(self) -> OpenStream:
        self._task = asyncio.current_task()
        self._streams.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._streams.discard(self)

    def end(self) -> None:
        """Cancels the handler, unless gRPC is sending a message for it."""
        if self._task is not None and not self.sending:
            self._task.cancel()


class _Malformed:
    """Stands for a request whose bytes are not a valid message."""

    def __init__(self, size: int) -> None:
        self.size = size


class GuardedMethod:
    """One method with the wrapper around its handler."""

    def __init__(
        self,
        lifecycle: ServerLifecycle,
        method: str,
        need: Access,
        handler: Any,
        *,
        gated: bool = True,
    ) -> None:
        self._lifecycle = lifecycle
        self._gated = gated
        self._method = method
        self._need = need
        self._handler = handler
        self._bytes_max = request_bytes_max(method)

    async def unary_unary(self, request: Any, context: Any) -> Any:
        started = time.perf_counter()
        try:
            # Access is checked first, so that a caller without access learns nothing about the
            # expected form of a request.
            self._admit(context)
            self._check(request)
            async with asyncio.timeout(UNARY_TIME_MAX_S):
                answer = await self._handler.unary_unary(request, context)
        except BaseException as error:
            # `_fail` aborts the call by raising. So the `raise` below is reached only for an error
            # that has no status.
            await self._fail(error, context, started)
            raise
        self._done("OK", started)
        return answer

    async def stream_unary(self, requests: AsyncIterator[Any], context: Any) -> Any:
        started = time.perf_counter()
        with OpenStream(self._lifecycle.streams):
            try:
                self._admit(context)
                self._refuse_when_stopping()
                answer = await self._handler.stream_unary(self._checked(requests), context)
            except BaseException as error:
                await self._fail(error, context, started)
                raise
        self._done("OK", started)
        return answer

    async def unary_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in self._stream(context, lambda: self._open_one(request, context)):
            yield message

    async def stream_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        def begin() -> Any:
            return self._handler.stream_stream(self._checked(requests), context)

        async for message in self._stream(context, begin):
            yield message

    def _open_one(self, request: Any, context: Any) -> Any:
        self._check(request)
        return self._handler.unary_stream(request, context)

    async def _stream(self, context: Any, begin: Callable[[], Any]) -> AsyncIterator[Any]:
        started = time.perf_counter()
        with OpenStream(self._lifecycle.streams) as stream:
            messages: Any = None
            try:
                self._admit(context)
                self._refuse_when_stopping()
                messages = begin()
                # The handler is no generator: it sends messages itself, with `context.write`.
                if asyncio.iscoroutine(messages):
                    await messages
                else:
                    async for message in messages:
                        stream.sending = True
                        yield message
                        # `end` does not cancel while gRPC sends a message, so a stream may have to
                        # be ended here.
                        stream.sending = False
                        self._refuse_when_stopping()
            except GeneratorExit:
                self._done("CANCELLED", started)
                raise
            except BaseException as error:
                await self._fail(error, context, started)
                raise
            finally:
                # Otherwise the handler's cleanup would run only when the generator is garbage
                # collected.
                if hasattr(messages, "aclose"):
                    await messages.aclose()
        self._done("OK", started)

    def _admit(self, context: Any) -> None:
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        enter_call(identify(metadata, self._need, self._lifecycle.tokens, context.peer()))
        if self._gated and (refusal := self._lifecycle.gate()) is not None:
            raise refusal

    def _refuse_when_stopping(self) -> None:
        if self._lifecycle.stopping:
            raise _stopping()

    def _check(self, request: Any) -> None:
        if isinstance(request, _Malformed):
            name = self._method.rpartition("/")[2]
            raise InvalidArgument("request", f"{request.size} bytes", f"a {name} message")
        size = request.ByteSize()
        if size > self._bytes_max:
            raise ResourceExhausted(
                f"the request has {size} bytes; {self._method} takes at most {self._bytes_max}; "
                "send fewer items at a time",
                reason=Reason.MESSAGE_TOO_LARGE,
                details={"size_bytes": size, "limit_bytes": self._bytes_max},
            )

    async def _checked(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            self._check(request)
            yield request

    async def _fail(self, error: BaseException, context: Any, started: float) -> None:
        """Ends the call with the status of the error; returns only if no status can be sent."""
        if isinstance(error, grpc.aio.AbortError):
            self._done("ABORTED", started)
            return
        if isinstance(error, asyncio.CancelledError):
            # The caller has cancelled the call, so it would not read a status. In all other cases
            # `end_streams` has cancelled the handler, and the status asks the caller to try again.
            if not self._lifecycle.stopping or context.cancelled():
                self._done("CANCELLED", started)
                return
            error = _stopping()
        elif isinstance(error, TimeoutError):
            error = Unavailable(f"{self._method} took longer than {UNARY_TIME_MAX_S:g} s")
        elif isinstance(error, NotImplementedError):
            error = FinegrainError(f"{self._method} is not served here")
        elif not isinstance(error, FinegrainError):
            # KeyboardInterrupt or SystemExit: the process ends, and the call itself has not failed.
            if not isinstance(error, Exception):
                return
            _log.error("call_failed", exc_info=error, extra={"method": self._method})
            error = FinegrainError(
                "the server failed while it handled this call; its log has the details",
                reason=Reason.INTERNAL,
            )
        else:
            _log.info(
                "call_refused",
                extra={
                    "method": self._method,
                    "reason": error.reason.value,
                    "error": error.message,
                    "peer": context.peer(),
                },
            )
        # Record first, because the abort below raises.
        self._done(status_code_of(error).name, started)
        code, message, trailing = status_of(error)
        await _abort(context, code, message, trailing)

    def _done(self, code: str, started: float) -> None:
        self._lifecycle.observe(self._method, code, time.perf_counter() - started)


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping; try again")


async def _abort(context: Any, code: grpc.StatusCode, message: str, trailing: Metadata) -> None:
    await context.abort(code, message, trailing)


def tolerant(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Returns a decoder that does not raise: it returns `_Malformed` for bytes that are no message.

    The wrapper then rejects the call with INVALID_ARGUMENT.
    """

    def attempt(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception:  # whatever the message library raises
            return _Malformed(len(data))

    return attempt
