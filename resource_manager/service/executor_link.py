"""Sends the engine's commands to executors, and submits the answers as events.

The engine ensures that at most one command per executor is in flight. If the outcome of a command
is unknown, this module reports the command as undelivered. The engine then sends the command again
with the same number. So this module does not retry; only the gRPC channel retries within the
deadline. If an executor cannot be reached, the cause is logged once. It is logged again only when
the cause changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import grpc
import grpc.aio

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    Reason,
)
from finegrain.identity import Identity, Role
from finegrain.logs import get_logger
from finegrain.rpc.channels import open_channel
from finegrain.rpc.own_certificate import OwnCertificate
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
from resource_manager.service.engine_driver import LIGHT_ITEMS_MAX, MakeEvent
from resource_manager.service.identities.epochs import EpochProofs
from resource_manager.service.leadership import may_command
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner
from resource_manager.service.wire import decoding
from resource_manager.service.wire.encoding import write

COMMAND_DEADLINE_S = 10.0
PROBE_DEADLINE_S = 5.0
COMMANDS_IN_FLIGHT_MAX = 1_000  # limit for all executors together; probes do not count

_log = get_logger("finegrain.rm.executor_link")

Command = SendAllocate | SendFree | SendResize


_NAMES = {SendAllocate: "allocate", SendFree: "free", SendResize: "resize"}  # labels in metrics


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options of connections to executors.

    Attributes:
        own: the certificate of this resource manager.
        proofs: signs the epoch of this process.
        deadline_s: time limit of a command.
    """

    own: OwnCertificate
    proofs: EpochProofs
    deadline_s: float = COMMAND_DEADLINE_S


@dataclass(frozen=True, slots=True)
class _Link:
    """A channel with its address and its stub. The stub is kept, because making it costs more than
    a call."""

    address: str
    version: int  # version of the certificate with which the channel was opened
    channel: grpc.aio.Channel
    stub: Any


class ExecutorLinks:
    """Keeps one channel per executor. The first command opens the channel, and `forget` closes
    it.
    """

    def __init__(
        self, runner: Runner, metrics: ResourceManagerMetrics, options: LinkOptions
    ) -> None:
        self._runner = runner
        self._commands = cache(metrics.commands.labels)
        self._options = options
        self._channels: dict[str, _Link] = {}
        # For each executor id, the epoch of which the executor has the proof.
        self._proven: dict[str, int] = {}
        # by executor id: the obstacle that was last logged
        self._obstacles: dict[str, Obstacle] = {}
        self._slots = asyncio.Semaphore(COMMANDS_IN_FLIGHT_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def send(self, command: Command) -> None:
        """Starts to deliver a command. The outcome is submitted as an event."""
        # The command gets the epoch of the state in which it was decided. After a reload, the epoch
        # of the runner can be newer.
        self._spawn(self._deliver(command, self._runner.rm_epoch))

    def probe(self, probe: ProbeExecutor) -> None:
        """Starts to check whether an executor can be reached.

        The outcome is submitted as an event.
        """
        self._spawn(self._probe(probe))

    def drop_all(self) -> None:
        """Cancels all calls in flight. The state in which they were decided was dropped."""
        for task in list(self._tasks):
            task.cancel()

    def forget(self, executor_id: str) -> None:
        """Closes the channel to an executor that was deleted from the state."""
        self._obstacles.pop(executor_id, None)
        self._proven.pop(executor_id, None)
        self._close(executor_id)

    def _close(self, executor_id: str) -> None:
        known = self._channels.pop(executor_id, None)
        if known is not None:
            self._spawn(known.channel.close(COMMAND_DEADLINE_S))

    async def stop(self) -> None:
        """Cancels all calls in flight and closes all channels.

        Commands of later decisions are not sent. The next leader sends them.
        """
        self._stopped = True
        self.drop_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._channels.values():
            await link.channel.close()
        self._channels.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped:
            # Close the coroutine: Python warns about a coroutine that is never awaited.
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, command: Command, rm_epoch: int) -> None:
        async with self._slots:
            # Check right before the call that this process still leads, because the wait for the
            # semaphore can be long.
            if not await may_command(self._runner):
                return
            make, light = await self._outcome(command, rm_epoch)
        # Submit the outcome after the semaphore is released. So a busy writer does not delay other
        # commands.
        await self._submit(command.executor_id, make, light=light)

    async def _submit(self, executor_id: str, make: MakeEvent, *, light: bool = False) -> None:
        try:
            await self._runner.submit(make, render=lambda _none: None, urgent=True, light=light)
        except (
            FinegrainError
        ) as error:  # the state has changed; the engine repeats commands if needed
            _log.info("command_outcome_dropped", executor_id=executor_id, error=error.message)

    async def _probe(self, probe: ProbeExecutor) -> None:
        """Makes a call without effect. Every answer of the executor counts as a success."""
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
        await self._submit(
            probe.executor_id,
            lambda at: ExecutorProbed(at, probe.executor_id, probe.address, cause),
        )

    async def _outcome(self, command: Command, rm_epoch: int) -> tuple[MakeEvent, bool]:
        """Returns the outcome of a command as an event, and whether the event is light."""
        name = _NAMES[type(command)]
        outcome = self._commands
        try:
            # A rejected command and an undelivered command are different outcomes: the engine sends
            # only the undelivered command again.
            answered = await self._call(command, rm_epoch)
        except FailedPrecondition as error:
            if error.reason is Reason.VERSION_MISMATCH:
                if isinstance(command, SendResize):
                    outcome(name, "refused").inc()
                    self._note(command, error, "resize_not_known")
                    return _not_known(command), False
                # Every executor knows this call, so another program listens at the address.
                outcome(name, "undelivered").inc()
                return self._undelivered(command, error), False
            outcome(name, "refused").inc()
            self._note(command, error, "command_refused")
            return _refused(command, error), False
        except InvalidArgument as error:  # the answer or the command is malformed
            outcome(name, "refused").inc()
            self._note(command, error, "command_answer_unusable")
            return _refused(command, error), False
        except FinegrainError as error:
            outcome(name, "undelivered").inc()
            return self._undelivered(command, error), False
        outcome(name, "answered").inc()
        self._reached(command.executor_id, command.address)
        return answered

    async def _call(self, command: Command, rm_epoch: int) -> tuple[MakeEvent, bool]:
        stub = self._stub(command.executor_id, command.address)
        timeout_s = self._options.deadline_s
        # The proof is larger than most commands. So the proof is sent only until the executor has
        # answered one command.
        proof = (
            None
            if self._proven.get(command.executor_id) == rm_epoch
            else self._options.proofs.proof_of(rm_epoch)
        )
        given = {"rm_epoch": rm_epoch, "epoch_proof": proof}
        try:
            # Send the command, and record the ids of its items in their order.
            match command:
                case SendAllocate():
                    answer = await stub.AllocateSlots(
                        write(task_executor_pb2.AllocateSlotsRequest, command, **given),
                        timeout=timeout_s,
                    )
                    ids = [order.slot.allocation_id for order in command.orders]
                case SendFree():
                    answer = await stub.FreeSlots(
                        write(task_executor_pb2.FreeSlotsRequest, command, **given),
                        timeout=timeout_s,
                    )
                    ids = [allocation_id for allocation_id, _, _ in command.slots]
                case SendResize():
                    answer = await stub.ResizeSlot(
                        write(
                            task_executor_pb2.TaskExecutorServiceResizeSlotRequest,
                            command,
                            **given,
                        ),
                        timeout=timeout_s,
                    )
                    ids = [command.allocation_id]
        except grpc.RpcError as error:
            raise error_from_rpc(error, command.address) from None
        self._proven[command.executor_id] = rm_epoch
        results = [answer.result] if isinstance(command, SendResize) else answer.results
        # The whole answer is checked before a part of it becomes an event.
        report = decoding.report(answer.report, "report")
        # The executor has carried out the command completely, so the answer omits the results.
        outcomes = _outcomes(results, () if report.as_ordered else ids)
        # The engine compares each slot in the report.
        light = len(ids) <= LIGHT_ITEMS_MAX and len(report.slots) <= 8 * LIGHT_ITEMS_MAX
        make = partial(
            CommandAnswered,
            executor_id=command.executor_id,
            registration_number=command.registration_number,
            command_number=command.command_number,
            outcomes=outcomes,
            report=report,
        )
        return make, light

    def _stub(self, executor_id: str, address: str) -> Any:
        known = self._channels.get(executor_id)
        own = self._options.own
        if known is not None and known.address == address and known.version == own.version:
            return known.stub
        # The executor has a new address, or this process has a new certificate.
        self._close(executor_id)
        server = Identity(own.credentials.who.cluster, Role.EXECUTOR, executor_id)
        channel = open_channel(address, own, server)
        link = _Link(address, own.version, channel, TaskExecutorServiceStub(channel))
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
        """Returns the cause with a hint. Logs the cause, unless the last logged cause of this
        executor was the same obstacle.
        """
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
    """Returns one outcome per item, in the order of the command.

    Raises:
        InvalidArgument: the answer does not match the command.
    """
    # Outcomes are assigned by position, so each result must name the item at the same position.
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
    """Makes the event for a resize that an executor rejected because it does not know the call.

    Older executors cannot resize slots. All later commands to the executor wait for this command,
    so it must not be repeated indefinitely. So the resize counts as rejected. The executor has not
    counted this command number. So the executor rejects the next command, and then registers again.
    """
    message = f"executor {command.executor_id} does not support resizing slots"
    refused = ItemOutcome(command.allocation_id, Reason.VERSION_MISMATCH, message)
    return lambda at: CommandAnswered(
        at=at,
        executor_id=command.executor_id,
        registration_number=command.registration_number,
        command_number=command.command_number,
        outcomes=(refused,),
        # This report counts as older than all other reports.
        report=Report(report_number=0, rm_epoch=0, command_number=0),
    )


def _refused(command: Command, error: FinegrainError) -> Callable[[Any], CommandRefused]:
    """Makes the event for a command that an executor rejected.

    An executor that rejects the epoch must register again, and then shows the proof of the newer
    epoch.
    """
    return lambda at: CommandRefused(
        at=at,
        executor_id=command.executor_id,
        registration_number=command.registration_number,
        command_number=command.command_number,
        reason=error.reason.value,
    )
