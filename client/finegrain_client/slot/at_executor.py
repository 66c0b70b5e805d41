"""A slot as its tasks know it: how its executor is called, and what calls mean when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from finegrain.errors import FinegrainError, NotFound, Reason
from finegrain.v1 import cluster_pb2
from finegrain_client.errors import SlotLost
from finegrain_client.internal import internal
from finegrain_client.job.background import unless
from finegrain_client.job.context import JobContext
from finegrain_client.retry import call_with_retries
from finegrain_client.slot.size import SlotSize
from finegrain_client.types.status import SlotStatus

if TYPE_CHECKING:
    from finegrain.v1.task_executor_pb2_grpc import TaskExecutorServiceAsyncStub

T = TypeVar("T")

FAILURES_AFTER_RELEASE_MAX = 12
"""Tries without an answer, about 20 s, after which tasks of a slot that was given back are given up
with it: their executor is the only one who knows how they ended, and may be restarting."""

FAILURES_BEFORE_ASKING = 3
"""After so many tries without an answer the RM is asked whether the executor has moved."""


class SlotAtExecutor:
    """A slot on the executor that hosts it, until it is lost or given back.

    Attributes:
        lost: set as soon as the slot is known to be lost; its tasks' waits then raise `SlotLost`.
        error: why it ended, once it has; None before.
    """

    lost: asyncio.Event
    error: FinegrainError | None

    def __init__(self, context: JobContext, status: SlotStatus) -> None:
        self._context = context
        self._size = SlotSize(context, status)
        self._address = status.executor_address
        self._stub: TaskExecutorServiceAsyncStub | None = None  # dialled when first needed
        self._readers = 0
        self.lost = asyncio.Event()
        self.error = None

    @property
    def status(self) -> SlotStatus:
        """The newest that is known of it."""
        return self._size.status

    @property
    def allocation_id(self) -> str:
        """Identity, the same as the request's."""
        return self.status.allocation_id

    @property
    def generation(self) -> int:
        """Which placement of the request this is."""
        return self.status.generation

    @property
    def executor_id(self) -> str:
        """The executor that hosts it."""
        return self.status.executor_id

    @property
    def executor_address(self) -> str:
        """Where that executor serves, "host:port"."""
        return self._address

    @property
    def is_lost(self) -> bool:
        """True once the slot is known to be lost."""
        return self.lost.is_set()

    @property
    def has_ended(self) -> bool:
        """True once the slot is lost or given back."""
        return self.error is not None

    @internal
    def end(self, error: FinegrainError, *, at_once: bool) -> None:
        """The slot is gone. Its tasks' waits end `at_once`, or when their streams end."""
        if self.error is None:
            self.error = error
            self._size.end(error)
        if at_once:
            self.lost.set()
        self._hang_up()

    @property
    @internal
    def stub(self) -> TaskExecutorServiceAsyncStub:
        """The executor's service.

        Raises:
            ConfigurationError: the job's secret would go over a network in clear.
        """
        if self._stub is None:
            self._stub = self._context.connection.acquire_executor(self._address)
        return self._stub

    @internal
    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the channel to the executor, also when the slot ends meanwhile."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if self.has_ended:
                self._hang_up()

    def _hang_up(self) -> None:
        if self._stub is not None and self._readers == 0:
            self._stub = None
            self._context.connection.release_executor(self._address)

    @internal
    async def guard(self, work: Awaitable[T]) -> T:
        """The result of `work`, unless the slot is lost before; errors say what they mean then.

        Raises:
            SlotLost: the slot is gone, which explains the failure.
        """
        try:
            return await unless(self.lost, work, self._why)
        except NotFound as error:
            if self.error is not None:
                raise self.error from error
            if error.reason is Reason.ALLOCATION_UNKNOWN:
                raise SlotLost(
                    self.allocation_id,
                    self.generation,
                    self.executor_id,
                    Reason.SLOT_MISSING,
                    "its executor does not have it",
                ) from error
            raise

    @internal
    async def call(
        self, attempt: Callable[[TaskExecutorServiceAsyncStub, float], Awaitable[T]]
    ) -> T:
        """A unary call to the executor, with retries, ended by the loss of the slot.

        Raises:
            SlotLost: the slot is gone.
            FinegrainError: see `call_with_retries`.
        """
        return await self.guard(
            call_with_retries(
                lambda timeout_s: attempt(self.stub, timeout_s),
                where=lambda: self._address,
                policy=self._context.connection.policy,
                after_unavailable=self.after_break,
            )
        )

    @internal
    async def after_break(self, failures: int) -> None:
        """Between two tries: gives up if the slot is lost, or has ended and nobody answers for
        long; asks where the executor is by now.

        Raises:
            SlotLost: there is nobody left to answer.
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
            return  # a hint only; the next round asks again
        address = answer.executor.address
        if address and address != self._address and not self.is_lost:
            if self._stub is not None:
                connection.release_executor(self._address)
            self._address, self._stub = address, None

    def _why(self) -> FinegrainError:
        return self.error or SlotLost(self.allocation_id, self.generation, self.executor_id, "", "")
