"""The wrapper of every served method: access, size and time limits, error statuses, and stopping.

Each call is checked in this order: the caller's access, then the form and size of the request. Then
the handler runs, and its error becomes the call's status.
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
"""Time limit of a unary handler, whatever deadline its caller has set."""

Gate = Callable[[], FinegrainError | None]
"""Returns the error with which to refuse every call at the moment; None: calls are served."""

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
        """Ends every open stream with UNAVAILABLE. The caller has set `stopping` before."""
        for stream in list(self.streams):
            stream.end()


class OpenStream:
    """A stream whose handler runs.

    As a context manager, it keeps itself in the set of open streams.

    Between two messages of a handler, the task runs gRPC's code, which sends the last one. A
    cancellation at that point never reaches the handler. gRPC ends the task without a status, and
    the call stays open until its client or the end of the grace period cancels it. So `sending`
    marks when not to cancel; the wrapper then checks `ServerLifecycle.stopping` when it continues.
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
            # Access comes first: a caller without it learns nothing about the request's form.
            self._admit(context)
            self._check(request)
            async with asyncio.timeout(UNARY_TIME_MAX_S):
                answer = await self._handler.unary_unary(request, context)
        except BaseException as error:
            # This aborts the call by raising, so the `raise` below is for what has no status.
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
                if asyncio.iscoroutine(messages):  # writes with context.write instead of yielding
                    await messages
                else:
                    async for message in messages:
                        stream.sending = True
                        yield message
                        # `end` leaves a stream alone while gRPC sends for it, so it has to end
                        # here.
                        stream.sending = False
                        self._refuse_when_stopping()
            except GeneratorExit:
                self._done("CANCELLED", started)
                raise
            except BaseException as error:
                await self._fail(error, context, started)
                raise
            finally:
                # Else the handler's cleanup would wait for the garbage collector.
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
            # The caller has cancelled, so no status would be read. Otherwise `end_streams` has
            # cancelled the handler, and the caller should try again.
            if not self._lifecycle.stopping or context.cancelled():
                self._done("CANCELLED", started)
                return
            error = _stopping()
        elif isinstance(error, TimeoutError):
            error = Unavailable(f"{self._method} took longer than {UNARY_TIME_MAX_S:g} s")
        elif isinstance(error, NotImplementedError):
            error = FinegrainError(f"{self._method} is not served here")
        elif not isinstance(error, FinegrainError):
            # The process is being interrupted or is exiting; this is no failure of the call.
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
        # Recorded before the abort, which raises.
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
    """Returns a decoder that does not raise: bytes that are no message become `_Malformed`.

    So the call is rejected by the wrapper, with a proper status.
    """

    def attempt(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception:  # whatever the message library raises
            return _Malformed(len(data))

    return attempt
