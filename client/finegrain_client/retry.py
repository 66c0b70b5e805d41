"""Retries calls. Only this module decides whether a call is tried again.

A call that fails with UNAVAILABLE or CANCELLED is retried with capped, jittered backoff. CANCELLED
is included because a server that is stopping ends its calls with this status. If the server names a
time with RESOURCE_EXHAUSTED (RetryInfo), the call is retried after this time. After other errors, a
call is not retried. All tries of a call share one budget of time. It is safe to repeat every call
of this client, because the ids in the call make the call idempotent. Streams have no deadline:
`resumed` continues a stream at the position where it broke.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc

from finegrain import errors
from finegrain.errors import FailedPrecondition, FinegrainError, Reason, ResourceExhausted
from finegrain.rpc.status import error_from_rpc

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


BUDGET_DEFAULT_S = 30.0

REFUSALS = (
    errors.InvalidArgument,
    errors.NotFound,
    errors.AlreadyExists,
    errors.FailedPrecondition,
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.ResourceExhausted,
)
"""Errors after which the call has certainly changed nothing. After other errors, it is unknown
whether the call has changed something.
"""


Redirect = Callable[[FinegrainError | None], bool]
"""A function that switches to another server after a failure. It returns True if the new server
should be called at once.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The time for all tries of a call, and the delays between the tries."""

    budget_s: float = BUDGET_DEFAULT_S  # for all tries of one call together
    first_delay_s: float = 0.1
    longest_delay_s: float = 2.0
    growth: float = 2.0  # factor of the delay, from one try to the next


class Backoff:
    """Exponential backoff: delays grow up to a cap, and each delay is multiplied by a random factor
    from 0.5 to 1.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.failures = 0

    def reset(self) -> None:
        """Starts again with the shortest delay, after a success."""
        self.failures = 0

    def next_s(self) -> float:
        """Returns the delay before the next try, in seconds, and counts one more failure."""
        grown_s = self._policy.first_delay_s * self._policy.growth ** min(self.failures, 16)
        self.failures += 1
        longest_s = min(grown_s, self._policy.longest_delay_s)
        return float(longest_s * random.uniform(0.5, 1.0))  # noqa: S311


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """Returns the status code of a failed call."""
    code: grpc.StatusCode = error.code()
    return code


def delay_before_retry(error: grpc.RpcError, backoff: Backoff) -> float | None:
    """Returns the seconds to wait before a retry; None if the call must not be retried."""
    code = code_of(error)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return backoff.next_s()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        meaning = error_from_rpc(error)
        named = meaning.retry_after_s if isinstance(meaning, ResourceExhausted) else None
        # Without a time from the server, a limit is final: waiting would not help.
        return None if named is None else named * random.uniform(1.0, 1.1)  # noqa: S311
    return None


def was_ended_during_write(error: grpc.RpcError) -> bool:
    """True if the server ended a stream while this client was writing to it.

    In this case, grpc.aio reports an internal error, and the server's status is lost. A repeated
    call gets the server's status.
    """
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
    return code_of(error) is grpc.StatusCode.INTERNAL and details == "Internal error from Core"


def raise_if_closed() -> None:
    """Raises an error if a call was cancelled because its channel had been closed.

    If the call was cancelled because the current task is being cancelled, the function only
    returns.

    Raises:
        FailedPrecondition: the channel was closed, and the current task is not being cancelled.
    """
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise FailedPrecondition("the client was closed", reason=Reason.CONFIGURATION) from None


async def call_with_retries(
    attempt: Callable[[float], Awaitable[T]],
    *,
    where: Callable[[], str],
    policy: RetryPolicy,
    after_unavailable: Callable[[int], Awaitable[None]] | None = None,
    redirect: Redirect | None = None,
) -> T:
    """Makes a unary call with retries and returns its answer.

    Args:
        attempt: a function that makes the call with the given deadline, in seconds.
        where: a function that returns the address of the server, for error messages.
        policy: budget and delays.
        after_unavailable: a function that is called before each retry. Its argument is the number
            of failed tries.
        redirect: a function that is called with the error of an unavailable server. If the function
            returns True, the retry does not wait.

    Raises:
        FinegrainError: the call failed with an error that is not retried, or the budget is used up.
    """
    end = time.monotonic() + policy.budget_s
    backoff = Backoff(policy)
    last: grpc.RpcError | None = None
    while True:
        remaining_s = end - time.monotonic()
        try:
            # The deadline must be positive, even if the budget has just run out.
            return await attempt(max(remaining_s, 0.001))
        except grpc.RpcError as error:
            delay_s = delay_before_retry(error, backoff)
            if delay_s is None or time.monotonic() + delay_s >= end:
                # If the budget ran out, report the previous failure, which explains more than the
                # timeout.
                late = code_of(error) is grpc.StatusCode.DEADLINE_EXCEEDED
                raise error_from_rpc(last if late and last else error, where()) from None
            last = error
            if redirect is not None and code_of(error) is grpc.StatusCode.UNAVAILABLE:
                delay_s = 0.0 if redirect(error_from_rpc(error, where())) else delay_s
        except asyncio.CancelledError:
            raise_if_closed()
            raise
        await asyncio.sleep(delay_s)
        if after_unavailable is not None:
            await after_unavailable(backoff.failures)


class StreamCall(Protocol[T_co]):
    """A server stream in progress."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def cancel(self) -> bool: ...


async def resumed(
    open_stream: Callable[[], StreamCall[T]],
    *,
    where: Callable[[], str],
    policy: RetryPolicy,
    after_break: Callable[[int], Awaitable[None]] | None = None,
    redirect: Redirect | None = None,
    is_complete: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[T, None]:
    """Yields the messages of a server stream, and opens the stream again whenever it breaks or
    ends.

    There are two ways to end the iteration: the reader closes this generator after the last
    message, or `is_complete` returns True after the server has ended the stream.

    Args:
        open_stream: a function that opens the stream at the reader's current position.
        where: a function that returns the address of the server, for error messages.
        policy: the delays. The budget does not apply to streams.
        after_break: a function that is called after each break. Its argument is the number of
            breaks since the last message.
        redirect: a function that is called after the stream has ended. Its argument is the error
            that broke the stream, or None if the server ended the stream. If the function returns
            True, the next try does not wait.
        is_complete: a function that is called when the server has ended the stream without an
            error. It returns True if the stream must not be opened again.

    Raises:
        FinegrainError: the stream failed with an error that is not retried.
    """
    backoff = Backoff(policy)
    while True:
        error: grpc.RpcError | None = None
        call = open_stream()
        try:
            async for message in call:
                # The server works, so the next break starts with the shortest delay again.
                backoff.reset()
                yield message
        except grpc.RpcError as failure:
            error = failure
        except asyncio.CancelledError:
            raise_if_closed()
            raise
        finally:
            # Cancel the call, because gRPC never collects an abandoned call, and its handler at the
            # server would continue to run.
            call.cancel()
        if error is None and is_complete():
            return
        delay_s = backoff.next_s() if error is None else _stream_delay(error, backoff, where())
        if redirect is not None and redirect(error_from_rpc(error, where()) if error else None):
            delay_s = 0.0
        if after_break is not None:
            await after_break(backoff.failures)
        await asyncio.sleep(delay_s)


async def follow(messages: AsyncGenerator[T, None], take: Callable[[T], Awaitable[bool]]) -> None:
    """Passes every message to `take` until `take` returns True."""
    async with aclosing(messages):
        async for message in messages:
            if await take(message):
                return


def _stream_delay(error: grpc.RpcError, backoff: Backoff, address: str) -> float:
    delay_s = delay_before_retry(error, backoff)
    if delay_s is None:
        meaning: FinegrainError = error_from_rpc(error, address)
        raise meaning from None
    return delay_s
