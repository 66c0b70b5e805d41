"""Nodes of a simulated cluster, and the executors that run on them.

A simulated executor carries out each command completely and at once, and numbers its reports as
task_executor.proto requires.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from finegrain.errors import InvariantBroken
from finegrain.resources import (
    CPU_MILLI,
    MEMORY_BYTES,
    Amounts,
    ResourceProfile,
    booking,
    has_separate_pools,
)
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import SlotState
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.engine.model.entities import Instant, Registration
from resource_manager.engine.model.events import (
    CommandAnswered,
    ExecutorRegistered,
    RegistrationAnswer,
)
from resource_manager.engine.model.reported import Report, ReportedSlot

Labels = tuple[tuple[str, str], ...]
Command = SendAllocate | SendFree | SendResize
SlotKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Node:
    """One host. `labels` are sorted. A thread runs for its duration divided by `speed`."""

    name: str
    total: Amounts
    labels: Labels = ()
    speed: float = 1.0


def equal_nodes(count: int, cpus: int = 1, memory_bytes: int = 0) -> list[Node]:
    """Returns `count` nodes with `cpus` cores each: node-000, node-001, ..."""
    total = {CPU_MILLI: cpus * 1_000}
    if memory_bytes:
        total[MEMORY_BYTES] = memory_bytes
    # Leading zeros, because hosts with equal capacity are tried in the order of their names.
    digits = max(3, len(str(count - 1)))
    return [Node(f"node-{number:0{digits}}", total) for number in range(count)]


@dataclass(slots=True, eq=False)
class SimulatedExecutor:
    """The slot table of one node. A lane is a row of the timeline: each slot has the lowest free
    one.
    """

    node: Node
    rm_epoch: int = 0  # 0 until it has registered
    free: dict[str, int] = field(default_factory=dict)
    slots: dict[SlotKey, ReportedSlot] = field(default_factory=dict)
    lanes: dict[SlotKey, int] = field(default_factory=dict)
    registration_number: int = 0
    report_number: int = 0
    command_number: int = 0
    _free_lanes: list[int] = field(default_factory=list)  # heap, below the highest in use
    _separate: bool = False

    def __post_init__(self) -> None:
        self.free = dict(self.node.total)
        self._separate = has_separate_pools(self.node.total)

    def register(self, at: Instant) -> ExecutorRegistered:
        """Returns the event that registers the executor."""
        name = self.node.name
        registration = Registration(
            executor_id=name,
            instance_id=name,
            address=name,
            total=dict(self.node.total),
            reserved={},
            default_profile=ResourceProfile(1_000),
            labels=self.node.labels,
        )
        return ExecutorRegistered(at, registration, self._report())

    def registered(self, answer: RegistrationAnswer, rm_epoch: int) -> None:
        """Takes the answer to its registration."""
        self.rm_epoch = rm_epoch
        self.registration_number = answer.registration_number

    def carry_out(self, command: Command, at: Instant) -> CommandAnswered:
        """Carries out a command at once and returns its answer.

        Raises:
            InvariantBroken: the engine's command does not fit, or is out of order.
        """
        if (command.registration_number, command.command_number) != (
            self.registration_number,
            self.command_number + 1,
        ):
            raise InvariantBroken(f"{self.node.name}: command {command.command_number} is no next")
        # Counted before the work, because the report in the answer includes the command.
        self.command_number = command.command_number
        if isinstance(command, SendResize):
            raise InvariantBroken(f"{self.node.name}: no resize was requested")
        if isinstance(command, SendAllocate):
            for order in command.orders:
                slot = order.slot
                self._carve((slot.allocation_id, slot.generation), slot.job_id, slot.profile)
            names = [order.slot.allocation_id for order in command.orders]
        else:
            for name, generation, _ in command.slots:
                self._free((name, generation))
            names = [name for name, _, _ in command.slots]
        return CommandAnswered(
            at,
            self.node.name,
            self.registration_number,
            self.command_number,
            tuple(ItemOutcome(name) for name in names),
            self._report(),
        )

    def _carve(self, key: SlotKey, job_id: str, profile: ResourceProfile) -> None:
        for dimension, amount in booking(profile, separate_pools=self._separate).items():
            left = self.free.get(dimension, 0) - amount
            if left < 0:
                raise InvariantBroken(f"{self.node.name}: slot {key} lacks {-left} of {dimension}")
            self.free[dimension] = left
        self.slots[key] = ReportedSlot(*key, job_id, profile, SlotState.ALLOCATED)
        lanes = self._free_lanes
        # Without a free lane below, all lanes up to the number in use are taken.
        self.lanes[key] = heapq.heappop(lanes) if lanes else len(self.lanes)

    def _free(self, key: SlotKey) -> None:
        slot = self.slots.pop(key)
        for dimension, amount in booking(slot.profile, separate_pools=self._separate).items():
            self.free[dimension] += amount
        heapq.heappush(self._free_lanes, self.lanes.pop(key))

    def _report(self) -> Report:
        self.report_number += 1
        return Report(
            report_number=self.report_number,
            rm_epoch=self.rm_epoch,
            command_number=self.command_number,
            slots=tuple(self.slots.values()),
            available={name: amount for name, amount in self.free.items() if amount},
        )
