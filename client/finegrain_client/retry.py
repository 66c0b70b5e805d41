"""When a call is tried again: the one place that decides.

UNAVAILABLE is tried again with capped, jittered back-off, and so is CANCELLED, with which a server
ends what is under way when it stops; RESOURCE_EXHAUSTED after the time that the server names
(RetryInfo); nothing else is. All tries share one deadline budget. Every call of this library may be
repeated, because the ids in it make it the same call. Streams have no deadline; they are resumed by
`resumed` from where they stood.
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
"""After these a call has certainly changed nothing; after any other error it may have."""


Redirect = Callable[[FinegrainError | None], bool]
"""Turns to another server after a failure. True: it is worth calling at once."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often to try."""

    budget_s: float = BUDGET_DEFAULT_S  # all tries of one call together
    first_delay_s: float = 0.1
    longest_delay_s: float = 2.0
    growth: float = 2.0  # of the delay, from one try to the next


class Backoff:
    """Delays that grow up to a cap, each between half and all of its value."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.failures = 0

    def reset(self) -> None:
        """Start again with the shortest delay: something worked."""
        self.failures = 0

    def next_s(self) -> float:
        """The delay before the next try, in seconds."""
        grown_s = self._policy.first_delay_s * self._policy.growth ** min(self.failures, 16)
        self.failures += 1
        longest_s = min(grown_s, self._policy.longest_delay_s)
        return float(longest_s * random.uniform(0.5, 1.0))  # noqa: S311


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status of a failed call."""
    code: grpc.StatusCode = error.code()
    return code


def delay_before_retry(error: grpc.RpcError, backoff: Backoff) -> float | None:
    """Seconds to wait before the call may be tried again; None: never."""
    code = code_of(error)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return backoff.next_s()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        meaning = error_from_rpc(error)
        named = meaning.retry_after_s if isinstance(meaning, ResourceExhausted) else None
        return None if named is None else named * random.uniform(1.0, 1.1)  # noqa: S311
    return None


def raise_if_closed() -> None:
    """Tells a call that was cancelled because its channel was closed from one that we cancelled.

    Raises:
        FailedPrecondition: nobody cancelled the present task.
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
    """The answer of a unary call.

    Args:
        attempt: makes the call with the deadline given, in seconds.
        where: address of the server, for the message of an error.
        policy: budget and delays.
        after_unavailable: told, before the next try, how many tries found nobody.
        redirect: called with the error of an unavailable server. True: the next try need not wait.

    Raises:
        FinegrainError: the call failed for good, or the budget is used up.
    """
    end = time.monotonic() + policy.budget_s
    backoff = Backoff(policy)
    last: grpc.RpcError | None = None
    while True:
        remaining_s = end - time.monotonic()
        try:
            return await attempt(max(remaining_s, 0.001))
        except grpc.RpcError as error:
            delay_s = delay_before_retry(error, backoff)
            if delay_s is None or time.monotonic() + delay_s >= end:
                # What failed before the time was up says more than that it is up.
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
    """A running server stream."""

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
    """The messages of a server stream, opened again whenever it breaks or ends.

    The reader closes this after the last message, or says by `is_complete` that a stream that the
    server ended is not to be opened again.

    Args:
        open_stream: opens it from where the reader stands by now.
        where: address of the server, for the message of an error.
        policy: delays; the budget does not count.
        after_break: told, after each break, how many there were since the last message.
        redirect: called with the error that broke the stream, None where the server ended it.
            True: the next try need not wait.
        is_complete: asked when the server has ended the stream properly.

    Raises:
        FinegrainError: the stream failed with something that is not worth another try.
    """
    backoff = Backoff(policy)
    while True:
        error: grpc.RpcError | None = None
        call = open_stream()
        try:
            async for message in call:
                backoff.reset()
                yield message
        except grpc.RpcError as failure:
            error = failure
        except asyncio.CancelledError:
            raise_if_closed()
            raise
        finally:
            # An abandoned call is never collected and keeps its handler at the server alive.
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
    """Gives every message to `take` until that says that it was the last."""
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
