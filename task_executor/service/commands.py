"""Executes the commands of the resource manager (RM), and answers with the resulting state.

The executor runs one command at a time, and each command only once. When the fence has admitted a
command, the executor runs the command to the end, even if the caller disconnects. The executor
records the answer, and a retry gets the same answer.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from finegrain.errors import AlreadyExists, FinegrainError, InvalidArgument, Reason, Unavailable
from finegrain.ids import check_id
from finegrain.logs import get_logger
from finegrain.rpc.wire import duration_ms_from_proto
from finegrain.v1 import slots_pb2, task_executor_pb2
from finegrain.v1.identity_pb2 import EpochProof
from finegrain.values.bounds import COUNTER_MAX, GRACE_MS_MAX
from task_executor.engine.command_fence import CommandNumbers
from task_executor.engine.report_log import DoneCommand, NumberedState
from task_executor.engine.slot_table import Outcome
from task_executor.engine.slots import Slot, SlotKey, SlotSpec
from task_executor.service.encoding import result, state_to_proto
from task_executor.service.messages import (
    change_from_proto,
    check_generation,
    spec_from_proto,
)
from task_executor.service.resizing import resize_slot
from task_executor.service.slot_keeper import SlotKeeper

ITEMS_MAX = 10_000
FREE_WAIT_S = 1.0
REGISTRATION_WAIT_S = 5.0

Answer = TypeVar("Answer")
Command = (
    task_executor_pb2.AllocateSlotsRequest
    | task_executor_pb2.FreeSlotsRequest
    | task_executor_pb2.TaskExecutorServiceResizeSlotRequest
)

log = get_logger(__name__)


class CommandRunner:
    """Executes AllocateSlots, FreeSlots and ResizeSlot, one at a time.

    Args:
        keeper: the slots of this executor.
        pids_max: the limit of processes for a slot whose order names no limit.
        registered: a function that waits for a registration in progress. A command must wait,
            because an RM can send it before the RM's answer to the registration has arrived.
        offer: a function that is called with all carved slots. If a slot has a target address, the
            function offers the slot to its job master.
        refresh_host: a function that reads the host's cpus and the kubelet's state again.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        *,
        pids_max: int,
        registered: Callable[[float], Awaitable[None]],
        offer: Callable[[Sequence[Slot]], None],
        refresh_host: Callable[[], Awaitable[None]],
    ) -> None:
        self._keeper = keeper
        self._pids_max = pids_max
        self._registered = registered
        self._offer = offer
        self._refresh_host = refresh_host
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def allocate(
        self, request: task_executor_pb2.AllocateSlotsRequest
    ) -> task_executor_pb2.AllocateSlotsResponse:
        """Executes AllocateSlots; see task_executor.proto."""
        self._check_meant_for_us(request)
        _check_count("allocations", len(request.allocations))
        numbers = numbers_of(request)
        return await self._run_once(
            numbers, request.epoch_proof, lambda: self._allocate(request, numbers)
        )

    async def free(
        self, request: task_executor_pb2.FreeSlotsRequest
    ) -> task_executor_pb2.FreeSlotsResponse:
        """Executes FreeSlots; see task_executor.proto."""
        self._check_meant_for_us(request)
        _check_count("slots", len(request.slots))
        numbers = numbers_of(request)
        return await self._run_once(
            numbers, request.epoch_proof, lambda: self._free(request, numbers)
        )

    async def resize(
        self, request: task_executor_pb2.TaskExecutorServiceResizeSlotRequest
    ) -> task_executor_pb2.TaskExecutorServiceResizeSlotResponse:
        """Executes ResizeSlot; see task_executor.proto."""
        self._check_meant_for_us(request)
        numbers = numbers_of(request)
        return await self._run_once(
            numbers, request.epoch_proof, lambda: self._resize(request, numbers)
        )

    def _check_meant_for_us(self, request: Command) -> None:
        """Raises AlreadyExists if the command names another executor.

        By mistake, another executor can advertise the address of this executor. Both executors can
        have the same epoch and registration number, so only the name shows the mistake.
        """
        own = self._keeper.identity.executor_id
        if request.executor_id not in ("", own):
            raise AlreadyExists(
                f"the command is for executor {request.executor_id}, but {own} listens here",
                reason=Reason.INSTANCE_CONFLICT,
                details={"executor_id": own},
            )

    async def close(self) -> None:
        """Accepts no more commands, and waits for the command in progress."""
        self._closed = True
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run_once(
        self, numbers: CommandNumbers, proof: EpochProof, work: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        # If the caller disconnects, the shield lets the command continue, so that no command is
        # executed only partly.
        running = asyncio.create_task(self._admit(numbers, proof, work))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.shield(running)

    async def _admit(
        self, numbers: CommandNumbers, proof: EpochProof, work: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        fence = self._keeper.fence
        # Wait without the lock, so that other commands can continue.
        if numbers.registration_number > fence.registration_number:
            await self._registered(REGISTRATION_WAIT_S)
        async with self._lock:
            if self._closed:
                raise Unavailable("this executor is stopping")
            # A higher epoch must be durable before `admit` accepts it. `admit` rejects a command of
            # another registration, so such a command must not raise the stored epoch.
            if numbers.registration_number == fence.registration_number:
                await self._keep_epoch(numbers.rm_epoch, proof)
            try:
                recorded: Answer | None = fence.admit(numbers)
            except FinegrainError as error:
                log.warning("command_refused", reason=error.reason.value, error=error.message)
                raise
            return recorded if recorded is not None else await work()

    async def _keep_epoch(self, rm_epoch: int, proof: EpochProof) -> None:
        try:
            await self._keeper.keep_epoch(rm_epoch, proof)
        except OSError as error:
            raise Unavailable(
                f"the new epoch could not be stored in {self._keeper.directory.path}: "
                f"{error.strerror}; free some space there",
                reason=Reason.DISK_FULL,
            ) from None

    async def _allocate(
        self, request: task_executor_pb2.AllocateSlotsRequest, numbers: CommandNumbers
    ) -> task_executor_pb2.AllocateSlotsResponse:
        # If one order is malformed, reject only this order, and carve the slots of all other
        # orders.
        parsed = [
            self._parse(message, f"allocations[{index}]")
            for index, message in enumerate(request.allocations)
        ]
        specs = [each for each in parsed if isinstance(each, SlotSpec)]
        if any(spec.is_pinned for spec in specs):
            # Dedicated cpus must be online, and a kubelet must not have given them to a container.
            await self._refresh_host()
        carved = await self._keeper.carve(specs)
        # `carved` has outcomes only for orders that could be read. The results follow the sequence
        # of the orders in the message.
        outcomes = iter(carved)
        results = [
            result(
                message.slot.allocation_id,
                next(outcomes).error if isinstance(each, SlotSpec) else each,
            )
            for message, each in zip(request.allocations, parsed, strict=True)
        ]
        # Set the command's number first, because the report in the answer contains it.
        self._keeper.fence.contained(numbers)
        state = self._answer_state(request, results, [spec.key for spec in specs], allocates=True)
        answer = task_executor_pb2.AllocateSlotsResponse(
            results=() if state.as_ordered else results, report=state_to_proto(state)
        )
        self._keeper.fence.record(numbers, answer)
        self._log_outcomes(carved)
        return answer

    def _parse(
        self, message: task_executor_pb2.SlotAllocation, field: str
    ) -> SlotSpec | FinegrainError:
        try:
            return spec_from_proto(message, field, pids_max_default=self._pids_max)
        except InvalidArgument as error:
            return error

    def _log_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            key = outcome.key
            if outcome.error is not None:
                log.warning(
                    "slot_refused",
                    allocation_id=key.allocation_id,
                    generation=key.generation,
                    reason=outcome.error.reason.value,
                    error=outcome.error.message,
                )
            elif outcome.slot is not None:
                log.info(
                    "slot_allocated",
                    allocation_id=key.allocation_id,
                    generation=key.generation,
                    job_id=outcome.slot.spec.job_id,
                    cpu_milli=outcome.slot.spec.profile.cpu_milli,
                    memory_bytes=outcome.slot.spec.memory_bytes,
                )
        self._offer([o.slot for o in outcomes if o.slot is not None and o.error is None])

    async def _free(
        self, request: task_executor_pb2.FreeSlotsRequest, numbers: CommandNumbers
    ) -> task_executor_pb2.FreeSlotsResponse:
        wanted: list[tuple[SlotKey, int | None]] = []
        results = []
        for index, message in enumerate(request.slots):
            error: FinegrainError | None = None
            try:
                wanted.append(_free_from_proto(message, f"slots[{index}]"))
            except InvalidArgument as bad:
                error = bad
            results.append(result(message.allocation_id, error))
        await self._keeper.free(wanted)
        # Most slots are removed within this time, and the answer then shows their capacity as free.
        await self._keeper.wait_freed([key for key, _ in wanted], FREE_WAIT_S)
        self._keeper.fence.contained(numbers)
        state = self._answer_state(request, results, [key for key, _ in wanted], allocates=False)
        answer = task_executor_pb2.FreeSlotsResponse(
            results=() if state.as_ordered else results, report=state_to_proto(state)
        )
        self._keeper.fence.record(numbers, answer)
        return answer

    def _answer_state(
        self,
        request: task_executor_pb2.AllocateSlotsRequest | task_executor_pb2.FreeSlotsRequest,
        results: Sequence[slots_pb2.ItemResult],
        keys: Sequence[SlotKey],
        *,
        allocates: bool,
    ) -> NumberedState:
        """Returns the report for the answer to a command. It is short if no slot has an error, and
        the RM knows the last report.
        """
        if any(each.HasField("error") for each in results):
            return self._keeper.answer_state()
        return self._keeper.answer_state(DoneCommand(request.known_report_number, keys, allocates))

    async def _resize(
        self,
        request: task_executor_pb2.TaskExecutorServiceResizeSlotRequest,
        numbers: CommandNumbers,
    ) -> task_executor_pb2.TaskExecutorServiceResizeSlotResponse:
        try:
            change, assignment = change_from_proto(request)
        except InvalidArgument as bad:
            error: FinegrainError | None = bad
        else:
            if assignment is not None and assignment.cpus:
                await self._refresh_host()
            error = (await resize_slot(self._keeper, *change, assignment=assignment)).error
        if error is not None and error.reason is Reason.UNREACHABLE:
            raise error  # the outcome is unknown, so record no answer: a retry must be executed
        self._keeper.fence.contained(numbers)
        answer = task_executor_pb2.TaskExecutorServiceResizeSlotResponse(
            result=result(request.allocation_id, error),
            report=state_to_proto(self._keeper.answer_state()),
        )
        self._keeper.fence.record(numbers, answer)
        return answer


def numbers_of(request: Command) -> CommandNumbers:
    """Returns the numbers of a command and the digest of its content.

    Raises:
        InvalidArgument: a number is negative, or is so high that no later number can exceed it.
    """
    for name in ("rm_epoch", "registration_number", "command_number"):
        if not 0 <= (number := getattr(request, name)) <= COUNTER_MAX:
            raise InvalidArgument(name, number, f"0 to {COUNTER_MAX}")
    # Leave out the proof: only the first commands contain it, so a repeated command possibly has
    # none.
    bare = request
    if request.HasField("epoch_proof"):
        bare = copy.copy(request)
        bare.ClearField("epoch_proof")
    content = bare.SerializeToString(deterministic=True)
    return CommandNumbers(
        rm_epoch=request.rm_epoch,
        registration_number=request.registration_number,
        command_number=request.command_number,
        # The type is part of the digest, because two types of messages can have the same bytes.
        digest=hashlib.sha256(type(request).__name__.encode() + content).hexdigest(),
    )


def _free_from_proto(message: task_executor_pb2.SlotFree, field: str) -> tuple[SlotKey, int | None]:
    check_id(f"{field}.allocation_id", message.allocation_id)
    check_generation(message.generation, f"{field}.generation")
    grace_ms = None
    if message.HasField("grace"):
        grace_ms = duration_ms_from_proto(message.grace, f"{field}.grace", largest_ms=GRACE_MS_MAX)
    return SlotKey(message.allocation_id, message.generation), grace_ms


def _check_count(field: str, count: int) -> None:
    if not 1 <= count <= ITEMS_MAX:
        raise InvalidArgument(field, f"{count} items", f"1 to {ITEMS_MAX} items")
