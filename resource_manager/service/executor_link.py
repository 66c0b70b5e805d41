"""Sends the engine's commands to executors and submits the answers as events.

At most one command per executor is in flight (the engine ensures that). A command whose outcome is
unknown is reported as undelivered, and the engine sends it again with the same number. Nothing here
retries beyond the channel's own attempts within the deadline. Why an executor cannot be dialled is
logged once, and again only when the cause changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    Reason,
)
from finegrain.logs import get_logger
from finegrain.options import TlsOptions
from finegrain.rpc.channels import open_channel
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import slots_pb2, task_executor_pb2
from finegrain.v1.task_executor_pb2_grpc import TaskExecutorServiceStub
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.effects import ProbeExecutor, SendAllocate, SendFree, SendResize
from resource_manager.engine.model.events import (
    CommandAnswered,
    CommandRefused,
    CommandUndelivered,
    ExecutorProbed,
)
from resource_manager.engine.model.reported import Report
from resource_manager.service.dialling import Obstacle, cause_of, obstacle_of, was_reached
from resource_manager.service.engine_driver import MakeEvent
from resource_manager.service.leadership import may_command
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner
from resource_manager.service.wire import decoding
from resource_manager.service.wire.encoding import write

COMMAND_DEADLINE_S = 10.0
PROBE_DEADLINE_S = 5.0
COMMANDS_IN_FLIGHT_MAX = 1_000  # over all executors, probes not counted

_log = get_logger("finegrain.rm.executor_link")

Command = SendAllocate | SendFree | SendResize


_NAMES = {SendAllocate: "allocate", SendFree: "free", SendResize: "resize"}  # labels in metrics


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How executors are dialled. Without `tls` and `insecure` only loopback addresses work."""

    token: str
    tls: TlsOptions | None = None
    insecure: bool = False
    deadline_s: float = COMMAND_DEADLINE_S


@dataclass(frozen=True, slots=True)
class _Link:
    """A channel, its address, and its stub. The stub is kept: making one costs more than a call."""

    address: str
    channel: grpc.aio.Channel
    stub: Any


class ExecutorLinks:
    """Keeps one channel per executor: opens it at the first command, closes it at `forget`."""

    def __init__(
        self, runner: Runner, metrics: ResourceManagerMetrics, options: LinkOptions
    ) -> None:
        self._runner = runner
        self._metrics = metrics
        self._options = options
        self._channels: dict[str, _Link] = {}
        self._obstacles: dict[str, Obstacle] = {}  # last obstacle logged, by executor
        self._slots = asyncio.Semaphore(COMMANDS_IN_FLIGHT_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def send(self, command: Command) -> None:
        """Begins to deliver a command. Its outcome comes back as an event."""
        # The epoch of the state that decided the command. After a reload the command must not
        # carry the newer epoch.
        self._spawn(self._deliver(command, self._runner.rm_epoch))

    def probe(self, probe: ProbeExecutor) -> None:
        """Begins to check whether an executor can be dialled. The outcome is an event, too."""
        self._spawn(self._probe(probe))

    def drop_all(self) -> None:
        """Cancels all calls in flight: the state that ordered them was dropped."""
        for task in list(self._tasks):
            task.cancel()

    def forget(self, executor_id: str) -> None:
        """Closes the channel to an executor that was deleted from the state."""
        self._obstacles.pop(executor_id, None)
        self._close(executor_id)

    def _close(self, executor_id: str) -> None:
        known = self._channels.pop(executor_id, None)
        if known is not None:
            self._spawn(known.channel.close())

    async def stop(self) -> None:
        """Cancels all calls in flight and closes all channels.

        Commands that are decided afterwards are not sent; the next leader sends them again.
        """
        self._stopped = True
        self.drop_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._channels.values():
            await link.channel.close()
        self._channels.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped:
            # Closed, because Python warns of a coroutine that nothing awaits.
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, command: Command, rm_epoch: int) -> None:
        async with self._slots:
            # Checked after the wait for a place, right before the call: leadership may be lost
            # meanwhile.
            if not await may_command(self._runner):
                return
            make = await self._outcome(command, rm_epoch)
        # Submitted after the place is given back: a busy writer must not delay other commands.
        await self._tell(command.executor_id, make)

    async def _tell(self, executor_id: str, make: MakeEvent) -> None:
        try:
            await self._runner.submit(make, render=lambda _none: None, urgent=True)
        except FinegrainError as error:  # the state has changed; the engine repeats what it needs
            _log.info("command_outcome_dropped", executor_id=executor_id, error=error.message)

    async def _probe(self, probe: ProbeExecutor) -> None:
        """Makes a call that changes nothing. Any answer of the executor itself is a success."""
        cause = ""
        try:
            stub = self._stub(probe.executor_id, probe.address)
            try:
                await stub.ListTasks(task_executor_pb2.ListTasksRequest(), timeout=PROBE_DEADLINE_S)
            except grpc.RpcError as error:
                raise error_from_rpc(error, probe.address) from None
        except FinegrainError as error:
            if not was_reached(error):
                cause = self._not_reached(probe.executor_id, probe.address, error)
        if not cause:
            self._reached(probe.executor_id, probe.address)
        await self._tell(
            probe.executor_id,
            lambda at: ExecutorProbed(at, probe.executor_id, probe.address, cause),
        )

    async def _outcome(self, command: Command, rm_epoch: int) -> MakeEvent:
        name = _NAMES[type(command)]
        outcome = self._metrics.commands.labels
        try:
            # Refused: the executor has decided, and the engine must know. Undelivered: the engine
            # sends the same command again.
            answered = await self._call(command, rm_epoch)
        except FailedPrecondition as error:
            if error.reason is Reason.VERSION_MISMATCH:
                if isinstance(command, SendResize):
                    outcome(name, "refused").inc()
                    self._note(command, error, "resize_not_known")
                    return _not_known(command)
                # Every executor knows this call, so something else listens at the address.
                outcome(name, "undelivered").inc()
                return self._undelivered(command, error)
            outcome(name, "refused").inc()
            self._note(command, error, "command_refused")
            return _refused(command, error)
        except (
            InvalidArgument
        ) as error:  # the answer is malformed, or the executor calls the command so
            outcome(name, "refused").inc()
            self._note(command, error, "command_answer_unusable")
            return _refused(command, error)
        except FinegrainError as error:
            outcome(name, "undelivered").inc()
            return self._undelivered(command, error)
        outcome(name, "answered").inc()
        self._reached(command.executor_id, command.address)
        return answered

    async def _call(self, command: Command, rm_epoch: int) -> MakeEvent:
        stub = self._stub(command.executor_id, command.address)
        timeout_s = self._options.deadline_s
        try:
            # Send the command, and note the ids of its items in the order sent.
            match command:
                case SendAllocate():
                    answer = await stub.AllocateSlots(
                        write(task_executor_pb2.AllocateSlotsRequest, command, rm_epoch=rm_epoch),
                        timeout=timeout_s,
                    )
                    ids = [order.slot.allocation_id for order in command.orders]
                case SendFree():
                    answer = await stub.FreeSlots(
                        write(task_executor_pb2.FreeSlotsRequest, command, rm_epoch=rm_epoch),
                        timeout=timeout_s,
                    )
                    ids = [allocation_id for allocation_id, _, _ in command.slots]
                case SendResize():
                    answer = await stub.ResizeSlot(
                        write(
                            task_executor_pb2.TaskExecutorServiceResizeSlotRequest,
                            command,
                            rm_epoch=rm_epoch,
                        ),
                        timeout=timeout_s,
                    )
                    ids = [command.allocation_id]
        except grpc.RpcError as error:
            raise error_from_rpc(error, command.address) from None
        results = [answer.result] if isinstance(command, SendResize) else answer.results
        # Check the whole answer before any of it becomes an event.
        outcomes = _outcomes(results, ids)
        report = decoding.report(answer.report, "report")
        return lambda at: CommandAnswered(
            at=at,
            executor_id=command.executor_id,
            registration_number=command.registration_number,
            command_number=command.command_number,
            outcomes=outcomes,
            report=report,
        )

    def _stub(self, executor_id: str, address: str) -> Any:
        known = self._channels.get(executor_id)
        if known is not None and known.address == address:
            return known.stub
        # The executor has another address now. Its old channel would reach the wrong process.
        self._close(executor_id)
        options = self._options
        channel = open_channel(
            address, tls=options.tls, token=options.token, insecure=options.insecure
        )
        link = _Link(address, channel, TaskExecutorServiceStub(channel))
        self._channels[executor_id] = link
        return link.stub

    def _undelivered(self, command: Command, error: FinegrainError) -> MakeEvent:
        cause = self._not_reached(command.executor_id, command.address, error)
        return lambda at: CommandUndelivered(
            at=at,
            executor_id=command.executor_id,
            registration_number=command.registration_number,
            command_number=command.command_number,
            cause=cause,
        )

    def _not_reached(self, executor_id: str, address: str, error: FinegrainError) -> str:
        """Logs an obstacle unless it was logged last. Returns the cause with a hint."""
        obstacle = obstacle_of(error)
        if self._obstacles.get(executor_id) is not obstacle:
            self._obstacles[executor_id] = obstacle
            _log.warning(
                "executor_not_reached",
                executor_id=executor_id,
                address=address,
                error=error.message,
                hint=obstacle.value,
            )
        return cause_of(error, address)

    def _reached(self, executor_id: str, address: str) -> None:
        if self._obstacles.pop(executor_id, None) is not None:
            _log.info("executor_reached_again", executor_id=executor_id, address=address)

    def _note(self, command: Command, error: FinegrainError, what: str) -> None:
        _log.warning(
            what,
            executor_id=command.executor_id,
            address=command.address,
            command_number=command.command_number,
            reason=error.reason.value,
            error=error.message,
        )


def _outcomes(
    results: Sequence[slots_pb2.ItemResult], ids: Sequence[str]
) -> tuple[ItemOutcome, ...]:
    """Returns one outcome per item, in the order sent.

    Raises:
        InvalidArgument: the answer does not match the command.
    """
    # Outcomes are matched by position below, so each result must name the item at its place.
    if [each.id for each in results] != list(ids):
        raise InvalidArgument("results", f"{len(results)} results", f"one for each of {len(ids)}")
    return tuple(
        ItemOutcome(
            each.id,
            each.error.reason,
            each.error.message,
            tuple(sorted(each.error.details.items())),
        )
        if each.HasField("error")
        else ItemOutcome(allocation_id)
        for allocation_id, each in zip(ids, results, strict=True)
    )


def _not_known(command: SendResize) -> Callable[[Any], CommandAnswered]:
    """Returns a refusal of the resize by an executor that does not know the call.

    Older executors cannot resize slots. The command must not be repeated indefinitely, because all
    later commands to the executor wait behind it; so the resize counts as refused. The executor
    has not counted this command number. It refuses the next number, then registers again.
    """
    message = f"executor {command.executor_id} does not support resizing slots"
    refused = ItemOutcome(command.allocation_id, Reason.VERSION_MISMATCH, message)
    return lambda at: CommandAnswered(
        at=at,
        executor_id=command.executor_id,
        registration_number=command.registration_number,
        command_number=command.command_number,
        outcomes=(refused,),
        report=Report(report_number=0, rm_epoch=0, command_number=0),  # older than any other report
    )


def _refused(command: Command, error: FinegrainError) -> Callable[[Any], CommandRefused]:
    """Returns a refusal by the executor, with the newer epoch that it knows (0: not the reason)."""
    known = error.details.get("known_rm_epoch", "") if error.reason is Reason.STALE_EPOCH else ""
    return lambda at: CommandRefused(
        at=at,
        executor_id=command.executor_id,
        registration_number=command.registration_number,
        command_number=command.command_number,
        reason=error.reason.value,
        known_rm_epoch=int(known) if known.isdecimal() else 0,
    )
