"""Implements the part of a slot that calls its executor: calls, retries, and errors after the
slot's end.

The executor and the resource manager's watch stream both report the end of a slot, in any order.
Only the watch stream knows the reason, so the client waits for it before it raises an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    NotFound,
    PermissionDenied,
    Reason,
)
from finegrain.v1 import cluster_pb2
from finegrain_client.errors import SlotLost
from finegrain_client.internal import internal
from finegrain_client.job.background import unless
from finegrain_client.job.context import END_REPORT_S, JobContext
from finegrain_client.retry import call_with_retries
from finegrain_client.slot.size import SlotSize
from finegrain_client.slot.tokens import new_token, showing
from finegrain_client.types.status import SlotStatus

if TYPE_CHECKING:
    from finegrain.v1.task_executor_pb2_grpc import TaskExecutorServiceAsyncStub
    from finegrain_client.connection import ExecutorLink

T = TypeVar("T")

FAILURES_AFTER_RELEASE_MAX = 12
"""Number of failed tries (about 20 s) after which the client gives up the tasks of a released slot.

The number is high: only the executor knows how the tasks ended, and the executor is possibly
restarting.
"""

TOKEN_PAUSE_S = 10.0
"""Smallest time between two renewals of a slot's allocation token."""

FAILURES_BEFORE_ASKING = 3
"""Number of failed tries after which the client requests the executor's address from the resource
manager.
"""


class SlotAtExecutor:
    """A slot on its executor, until it is lost or released.

    Attributes:
        lost: an event that is set when the client learns that the slot is lost. Callers that wait
            for the slot's tasks then get `SlotLost`.
        error: the reason why the slot ended; None if the slot has not ended.
    """

    lost: asyncio.Event
    error: FinegrainError | None

    def __init__(self, context: JobContext, status: SlotStatus) -> None:
        self._context = context
        self._size = SlotSize(context, status)
        self._address = status.executor_address
        self._token = context.tokens.pop((status.allocation_id, status.generation), b"")
        self._token_renewed_at = -TOKEN_PAUSE_S
        self._link: ExecutorLink | None = None  # opened on first use
        self._stub: TaskExecutorServiceAsyncStub | None = None
        self._former: list[ExecutorLink] = []
        self._readers = 0
        self.lost = asyncio.Event()
        self._ended = asyncio.Event()
        self.error = None

    @property
    def status(self) -> SlotStatus:
        """The newest known status of the slot."""
        return self._size.status

    @property
    def allocation_id(self) -> str:
        """Identity of the slot. The request has the same allocation id."""
        return self.status.allocation_id

    @property
    def generation(self) -> int:
        """Number of the placement of the request: 1 for the first slot, 2 for the slot that
        replaces it.
        """
        return self.status.generation

    @property
    def executor_id(self) -> str:
        """Id of the executor that hosts the slot."""
        return self.status.executor_id

    @property
    def executor_address(self) -> str:
        """Address of the executor, "host:port"."""
        return self._address

    @property
    def is_lost(self) -> bool:
        """True if the slot is known to be lost."""
        return self.lost.is_set()

    @property
    def has_ended(self) -> bool:
        """True if the slot was lost or released."""
        return self.error is not None

    @internal
    def end(self, error: FinegrainError, *, at_once: bool) -> None:
        """Marks the slot as ended. If `at_once` is true, callers that wait for a task return at
        once. Otherwise these callers return when the task's stream ends.
        """
        if self.error is None:
            self.error = error
            self._size.end(error)
        if at_once:
            self.lost.set()
        self._ended.set()
        self._hang_up()

    @internal
    async def await_end(self) -> None:
        """Waits until the watch stream reports the end of the slot, because its executor has
        already reported the end.

        Only the watch stream knows why the slot ends. The wait makes the outcome independent of the
        order in which the two reports arrive. It ends after `END_REPORT_S`, for example because the
        resource manager is down.

        Raises:
            SlotLost: the slot is lost, not only released.
            JobEnded: the job has ended.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(END_REPORT_S):
                await self._ended.wait()
        if self.is_lost:
            raise self._why()

    @property
    @internal
    def stub(self) -> TaskExecutorServiceAsyncStub:
        """The executor's service.

        Raises:
            Unauthenticated: the client's certificate has expired.
        """
        connection = self._context.connection
        if self._link is None:
            self._link = connection.acquire_executor(self._address, self.executor_id)
        elif not connection.is_current(self._link):
            # The certificate was renewed, and the executor will refuse the old certificate when it
            # expires. Keep the old channel for the streams on it.
            self._former.append(self._link)
            self._link = connection.acquire_executor(self._address, self.executor_id)
            self._stub = None
        if self._stub is None:
            self._stub = showing(self._link.stub, self._token)
        return self._stub

    @internal
    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the channel to the executor open, even if the slot ends in the meantime."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if self.has_ended:
                self._hang_up()

    def _hang_up(self) -> None:
        # Keep the channel while tasks of a released slot are still being read.
        if self._readers == 0:
            links, self._link, self._former = [*self._former, self._link], None, []
            self._stub = None
            for link in links:
                if link is not None:
                    self._context.connection.release_executor(link)

    @internal
    async def guard(self, work: Awaitable[T]) -> T:
        """Returns the result of `work`, unless the slot is lost first.

        Raises:
            SlotLost: `work` failed because the slot has ended.
        """
        try:
            return await unless(self.lost, work, self._why)
        except (NotFound, FailedPrecondition) as error:
            ends = _reports_end(error)
            if ends:
                # The executor can end a slot before the watch stream reports why.
                await self.await_end()
            if self.error is not None and (ends or isinstance(error, NotFound)):
                raise self.error from error
            if not ends:
                raise
            raise SlotLost(
                self.allocation_id,
                self.generation,
                self.executor_id,
                Reason.SLOT_MISSING,
                "its executor does not have it",
            ) from error

    @internal
    async def call(
        self, attempt: Callable[[TaskExecutorServiceAsyncStub, float], Awaitable[T]]
    ) -> T:
        """Makes a unary call to the executor, with retries, until the slot is lost.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: see `call_with_retries`.
        """
        while True:
            try:
                return await self.guard(
                    call_with_retries(
                        lambda timeout_s: attempt(self.stub, timeout_s),
                        where=lambda: self._address,
                        policy=self._context.connection.policy,
                        after_unavailable=self.after_break,
                    )
                )
            except PermissionDenied as error:
                await self.renew_token(error)

    @internal
    async def renew_token(self, error: FinegrainError) -> None:
        """Gets a new allocation token, if the executor has refused the known token. The caller then
        repeats its call.

        The executor refuses the token if the cluster's authority was replaced after the token was
        signed. The client has no token if the slot was granted before the client attached to the
        job.

        Args:
            error: the error of the call.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the given `error`, if a new token does not help. Another error, if the
                resource manager gives no token.
        """
        now = asyncio.get_running_loop().time()
        if error.reason is not Reason.TOKEN_REFUSED or now - self._token_renewed_at < TOKEN_PAUSE_S:
            raise error
        self._token_renewed_at = now
        # After the end of the slot, only the output of its tasks can be read.
        ended = self.has_ended
        self._token = await self.guard(
            new_token(
                self._context,
                self._context.job_id,
                self.executor_id,
                allocation_id="" if ended else self.allocation_id,
                generation=0 if ended else self.generation,
            )
        )
        self._stub = None

    @internal
    async def after_break(self, failures: int) -> None:
        """Checks that another try makes sense, and finds the executor's new address if needed.

        Raises:
            SlotLost: the slot is lost, or it was released and too many tries have failed.
        """
        given_up = self.is_lost or failures >= FAILURES_AFTER_RELEASE_MAX
        if self.error is not None and given_up:
            raise self.error
        if failures % FAILURES_BEFORE_ASKING == 0:
            await self._find_executor()

    async def _find_executor(self) -> None:
        message = cluster_pb2.GetExecutorRequest(executor_id=self.executor_id)
        connection = self._context.connection
        try:
            answer: Any = await connection.cluster.GetExecutor(message, timeout=2.0)
        except grpc.RpcError:
            return  # a later try will read the address again
        # An executor that was restarted can listen on another port.
        address = answer.executor.address
        if address and address != self._address and not self.is_lost:
            if self._link is not None:
                connection.release_executor(self._link)
            self._address, self._link, self._stub = address, None, None

    def _why(self) -> FinegrainError:
        return self.error or SlotLost(self.allocation_id, self.generation, self.executor_id, "", "")


_SLOT_IS_THERE = ("", "CARVING", "ALLOCATED", "PARKED")
"""States in which a slot does not end. An empty state is unknown."""


def _reports_end(error: FinegrainError) -> bool:
    """True if an error means that the slot ends or has ended."""
    if error.reason is Reason.SLOT_NOT_READY:
        return error.details.get("state", "") not in _SLOT_IS_THERE
    return error.reason in (Reason.ALLOCATION_UNKNOWN, Reason.STALE_GENERATION)
