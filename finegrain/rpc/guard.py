"""Wraps every served method: checks access and size, limits the time, and converts errors.

The wrapper first identifies the caller by its certificate, and can reject a call without reading
its message. Then the wrapper reads the message as raw bytes, checks the number of bytes, and parses
the message. Last, it runs the handler, and converts an error of the handler to the status of the
call. The wrapper also ends open streams when the server stops.

For a unary method, gRPC reads the message before it runs the handler. For a streaming method, gRPC
runs the handler before it reads a message. So this module registers every method as a method that
takes a stream of raw bytes. Clients do not notice the difference.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from finegrain.rpc.access import (
    LARGE_BYTES,
    Caller,
    Roles,
    check_role,
    enter_call,
    request_bytes_max,
)
from finegrain.rpc.open_calls import OpenCalls
from finegrain.rpc.refusal_log import RefusalLog
from finegrain.rpc.status import Metadata, status_code_of, status_of
from finegrain.rpc.trust import Trust

UNARY_TIME_MAX_S = 60.0
"""Time limit of a unary handler, even if the caller has set a later deadline."""
READ_TIME_MAX_S = 20.0
"""Time limit for the arrival of a request's message."""
LARGE_READS_MAX = 32
"""Number of large messages that a server reads at the same time from callers of one role.

Other large messages wait. While a message waits, it stays with the client, except for its first 64
KiB.
"""

Gate = Callable[[], FinegrainError | None]
"""Returns the error with which the server rejects every call at present; None: the server serves
calls.
"""

Observer = Callable[[str, str, float], None]
"""A function that is called after every call. It gets the method, the name of the status, and the
duration in seconds.
"""

Refused = Callable[[str, FinegrainError], None]
"""A function that is called for each call that ends with an error. It gets the method and the
error.
"""

_log = logging.getLogger("finegrain.rpc")


@dataclass(slots=True)
class ServerLifecycle:
    """State that all methods of one server share."""

    trust: Trust
    observe: Observer
    gate: Gate = lambda: None
    refused: Refused = lambda _method, _error: None
    streams: set[OpenStream] = field(default_factory=set)
    stopping: bool = False
    calls: OpenCalls = field(default_factory=OpenCalls)
    refusals: RefusalLog = field(default_factory=lambda: RefusalLog(_log))
    large_reads: defaultdict[str, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(LARGE_READS_MAX))
    )

    def end_streams(self) -> None:
        """Ends every open stream with UNAVAILABLE. The caller must set `stopping` first."""
        for stream in list(self.streams):
            stream.end()

    def end_denied_streams(self) -> None:
        """Ends streams whose callers were denied after they had opened the stream."""
        for stream in list(self.streams):
            try:
                self.trust.check_not_denied(stream.caller)
            except Unauthenticated as error:
                stream.error = error
                stream.end()


class OpenStream:
    """A stream whose handler is running. While the `with` block of the stream runs, the stream is
    in the set of open streams.

    After the handler yields a message, the same task runs gRPC's code, which sends the message. A
    cancellation of the task during the sending never reaches the handler: gRPC ends the task
    without a status. The call then stays open until the client cancels it or the grace period ends.
    So `end` does not cancel while `sending` is true. The wrapper checks `ServerLifecycle.stopping`
    and `error` after the message is sent.

    Attributes:
        sending: True while gRPC sends a message of the stream.
        caller: the caller that has opened the stream.
        error: the error with which the stream must end; None: the stream continues.
    """

    def __init__(self, streams: set[OpenStream]) -> None:
        self._streams = streams
        self._task: asyncio.Task[Any] | None = None
        self.sending = False
        self.caller = Caller()
        self.error: FinegrainError | None = None

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


class GuardedMethod:
    """One method of a service, with the wrapper around its handler.

    Each of the four methods without an underscore at the start of its name, such as `unary_unary`,
    serves calls of the kind in its name. These methods take raw bytes.
    """

    def __init__(
        self,
        lifecycle: ServerLifecycle,
        method: str,
        allowed: Roles,
        handler: Any,
        *,
        gated: bool = True,
    ) -> None:
        self._lifecycle = lifecycle
        self._gated = gated
        self._method = method
        self._allowed = allowed
        self._handler = handler
        self._bytes_max = request_bytes_max(method)

    async def unary_unary(self, _raw: AsyncIterator[bytes], context: Any) -> Any:
        started = time.perf_counter()
        try:
            caller = self.admit(context)
            with self._lifecycle.calls.enter(caller, self._method):
                async with asyncio.timeout(UNARY_TIME_MAX_S):
                    request = await self._read(context, caller)
                    answer = await self._handler.unary_unary(request, context)
        except BaseException as error:
            # `_fail` aborts the call by raising. So the `raise` below is reached only for an error
            # that has no status.
            await self._fail(error, context, started)
            raise
        self._done("OK", started)
        return answer

    async def stream_unary(self, raw: AsyncIterator[bytes], context: Any) -> Any:
        started = time.perf_counter()
        with OpenStream(self._lifecycle.streams) as stream:
            try:
                stream.caller = self.admit(context)
                self._refuse_when_stopping()
                with self._lifecycle.calls.enter(stream.caller, self._method):
                    answer = await self._handler.stream_unary(self._parsed(raw), context)
            except BaseException as error:
                await self._fail(stream.error or error, context, started)
                raise
        self._done("OK", started)
        return answer

    async def unary_stream(self, _raw: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async def begin(caller: Caller) -> Any:
            return self._handler.unary_stream(await self._read(context, caller), context)

        async for message in self._stream(context, begin):
            yield message

    async def stream_stream(self, raw: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async def begin(_caller: Caller) -> Any:
            return self._handler.stream_stream(self._parsed(raw), context)

        async for message in self._stream(context, begin):
            yield message

    async def _stream(
        self, context: Any, begin: Callable[[Caller], Awaitable[Any]]
    ) -> AsyncIterator[Any]:
        started = time.perf_counter()
        with OpenStream(self._lifecycle.streams) as stream, ExitStack() as stack:
            messages: Any = None
            try:
                stream.caller = self.admit(context)
                self._refuse_when_stopping()
                stack.enter_context(self._lifecycle.calls.enter(stream.caller, self._method))
                messages = await begin(stream.caller)
                # This handler is not a generator: it sends messages itself, with `context.write`.
                if asyncio.iscoroutine(messages):
                    await messages
                else:
                    async for message in messages:
                        stream.sending = True
                        yield message
                        # `end` does not cancel while gRPC sends a message. If `end` was called
                        # during that time, end the stream here.
                        stream.sending = False
                        self._refuse_when_stopping()
                        if stream.error is not None:
                            raise stream.error
            except GeneratorExit:
                self._done("CANCELLED", started)
                raise
            except BaseException as error:
                await self._fail(stream.error or error, context, started)
                raise
            finally:
                # Close the generator now. Otherwise the handler would be cleaned up only when the
                # generator is garbage collected.
                if hasattr(messages, "aclose"):
                    await messages.aclose()
        self._done("OK", started)

    def admit(self, context: Any) -> Caller:
        """Identifies the caller, before any part of the request's message is read."""
        caller = self._lifecycle.trust.identify(context.auth_context(), context.peer())
        enter_call(caller)  # before the role check, so that a refusal knows its caller
        check_role(caller, self._method, self._allowed)
        if self._gated and (refusal := self._lifecycle.gate()) is not None:
            raise refusal
        return caller

    def _refuse_when_stopping(self) -> None:
        if self._lifecycle.stopping:
            raise _stopping()

    async def _read(self, context: Any, caller: Caller) -> Any:
        """Reads and parses the one message of a request."""
        if self._bytes_max < LARGE_BYTES:
            return self._parse(await context.read())
        # Keep the permit until the message is parsed: the parsed message needs much more memory
        # than its bytes. Because of the time limit, a caller that stalls does not keep the permit.
        async with self._lifecycle.large_reads[str(caller.role)]:
            try:
                async with asyncio.timeout(READ_TIME_MAX_S):
                    data = await context.read()
            except TimeoutError:
                raise Unavailable(
                    f"the request for {self._method} did not arrive within {READ_TIME_MAX_S:g} s;"
                    " try again"
                ) from None
            return self._parse(data)

    def _parse(self, data: Any) -> Any:
        if data is grpc.aio.EOF:
            name = self._method.rpartition("/")[2]
            raise InvalidArgument("request", "no message", f"a {name} message")
        size = len(data)
        if size > self._bytes_max:
            raise ResourceExhausted(
                f"the request has {size} bytes; {self._method} takes at most {self._bytes_max}; "
                "send fewer items at a time",
                reason=Reason.MESSAGE_TOO_LARGE,
                details={"size_bytes": size, "limit_bytes": self._bytes_max},
            )
        try:
            return self._handler.request_deserializer(data)
        except Exception:  # the message library raises several kinds of exceptions
            name = self._method.rpartition("/")[2]
            raise InvalidArgument("request", f"{size} bytes", f"a {name} message") from None

    async def _parsed(self, raw: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in raw:
            yield self._parse(data)

    async def _fail(self, error: BaseException, context: Any, started: float) -> None:
        """Ends the call with the status of the error. Returns only if no status can be sent."""
        if isinstance(error, grpc.aio.AbortError):
            self._done("ABORTED", started)
            return
        # gRPC raises this error when the caller disconnects before a handler has sent a status, for
        # example the handler of health checks. Then no other status can be sent.
        if isinstance(error, grpc.aio.InternalError):
            self._done("CANCELLED", started)
            return
        if isinstance(error, asyncio.CancelledError):
            # If the caller has cancelled the call, send no status: the caller would not read it.
            # Otherwise `end_streams` has cancelled the handler, and the status asks the caller to
            # try again.
            if not self._lifecycle.stopping or context.cancelled():
                self._done("CANCELLED", started)
                return
            error = _stopping()
        elif isinstance(error, TimeoutError):
            error = Unavailable(f"{self._method} took longer than {UNARY_TIME_MAX_S:g} s")
        elif isinstance(error, NotImplementedError):
            self._done("UNIMPLEMENTED", started)
            message = f"{self._method} is not served here"
            await _abort(context, grpc.StatusCode.UNIMPLEMENTED, message, ())
            return  # never reached: the abort raises
        elif not isinstance(error, FinegrainError):
            # After KeyboardInterrupt or SystemExit, the process ends, so report no failure of the
            # call.
            if not isinstance(error, Exception):
                return
            _log.error("call_failed", exc_info=error, extra={"method": self._method})
            error = FinegrainError(
                "the server failed while it handled this call; its log has the details",
                reason=Reason.INTERNAL,
            )
        else:
            self._lifecycle.refusals.add(self._method, error, context.peer())
            self._lifecycle.refused(self._method, error)
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
