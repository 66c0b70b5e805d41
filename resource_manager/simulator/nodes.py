"""Nodes of a simulated cluster, and the executors that run on them.

A simulated executor carries out each command completely and at once, and numbers its reports as
task_executor.proto requires.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import (
    GPU,
    GPU_CORE,
    GPU_MEMORY_RATIO,
    WHOLE,
    Device,
    DeviceShare,
    HostDevices,
)
from finegrain.errors import InvariantBroken
from finegrain.resources import (
    CPU_MILLI,
    MEMORY_BYTES,
    Amounts,
    ResourceProfile,
    booking,
    fits,
    has_separate_pools,
    total_of_devices,
)
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import SlotState
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.engine.model.entities import Instant, Registration, Slot
from resource_manager.engine.model.events import (
    CommandAnswered,
    ExecutorRegistered,
    RegistrationAnswer,
)
from resource_manager.engine.model.reported import Report, ReportedSlot

Labels = tuple[tuple[str, str], ...]
Command = SendAllocate | SendFree | SendResize
SlotKey = tuple[str, int]


NO_DEVICES = HostDevices()


@dataclass(frozen=True, slots=True)
class Node:
    """One host.

    Attributes:
        name: name of the host.
        total: capacity for slots, without devices.
        labels: labels of the host, sorted.
        speed: a thread runs for its duration divided by this number.
        devices: devices for slots.
    """

    name: str
    total: Amounts
    labels: Labels = ()
    speed: float = 1.0
    devices: HostDevices = NO_DEVICES

    @property
    def capacity(self) -> Amounts:
        """The capacity for slots, with the sums over the devices."""
        return {**self.total, **total_of_devices(self.devices.devices)}


def equal_gpus(count: int, model: str = "") -> HostDevices:
    """Returns GPUs without known memory size and links. The model is also a label of each GPU."""
    whole = ((GPU_CORE, WHOLE), (GPU_MEMORY_RATIO, WHOLE))
    labels = (("model", model),) if model else ()
    return HostDevices(
        tuple(
            Device(GPU, f"GPU-{minor}", minor, whole, model=model, labels=labels)
            for minor in range(count)
        )
    )


def equal_nodes(count: int, cpus: int = 1, memory_bytes: int = 0) -> list[Node]:
    """Returns `count` nodes with `cpus` cores each: node-000, node-001, ..."""
    total = {CPU_MILLI: cpus * 1_000}
    if memory_bytes:
        total[MEMORY_BYTES] = memory_bytes
    # Use leading zeros, because hosts with equal capacity are tried in the order of their names.
    digits = max(3, len(str(count - 1)))
    return [Node(f"node-{number:0{digits}}", total) for number in range(count)]


@dataclass(slots=True, eq=False)
class SimulatedExecutor:
    """The slot table of one node. A lane is a row of the timeline; a new slot gets the lowest free
    lane.
    """

    node: Node
    rm_epoch: int = 0  # 0: the executor has not registered yet
    free: dict[str, int] = field(default_factory=dict)
    slots: dict[SlotKey, ReportedSlot] = field(default_factory=dict)
    lanes: dict[SlotKey, int] = field(default_factory=dict)
    # the free amounts of each device, by type and UUID
    shares: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    registration_number: int = 0
    report_number: int = 0
    command_number: int = 0
    _free_lanes: list[int] = field(default_factory=list)  # the numbers of free lanes, as a heap
    _separate: bool = False

    def __post_init__(self) -> None:
        node = self.node
        self.free = dict(node.capacity)
        self.shares = {(each.type, each.uuid): dict(each.capacity) for each in node.devices.devices}
        self._separate = has_separate_pools(node.total)

    def register(self, at: Instant) -> ExecutorRegistered:
        """Returns the event that registers the executor."""
        name = self.node.name
        registration = Registration(
            executor_id=name,
            instance_id=name,
            address=name,
            total=dict(self.node.capacity),
            reserved={},
            default_profile=ResourceProfile(1_000),
            labels=self.node.labels,
            topology=described(self.node.devices),
            host_cpus=_TIME_SHARED if self.node.devices.devices else "{}",
        )
        return ExecutorRegistered(at, registration, self._report())

    def registered(self, answer: RegistrationAnswer, rm_epoch: int) -> None:
        """Applies the answer to the registration."""
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
            raise InvariantBroken(f"{self.node.name}: command {command.command_number} skips one")
        # The command is counted before the work, because the report in the answer includes the
        # command.
        self.command_number = command.command_number
        if isinstance(command, SendResize):
            raise InvariantBroken(f"{self.node.name}: no resize was requested")
        if isinstance(command, SendAllocate):
            for order in command.orders:
                self._carve(order.slot)
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

    def _carve(self, slot: Slot) -> None:
        key = slot.allocation_id, slot.generation
        for dimension, amount in self._booking(slot.profile).items():
            left = self.free.get(dimension, 0) - amount
            if left < 0:
                raise InvariantBroken(f"{self.node.name}: slot {key} lacks {-left} of {dimension}")
            self.free[dimension] = left
        for share in _devices_of(slot.assignment):
            left_there = self.shares[share.type, share.uuid]
            if not fits(dict(share.amounts), left_there):
                raise InvariantBroken(f"{self.node.name}: slot {key} does not fit on {share}")
            for dimension, amount in share.amounts:
                left_there[dimension] -= amount
        self.slots[key] = ReportedSlot(
            *key, slot.job_id, slot.profile, SlotState.ALLOCATED, assignment=slot.assignment
        )
        lanes = self._free_lanes
        # If no lower lane is free, the next lane has the number of lanes in use.
        self.lanes[key] = heapq.heappop(lanes) if lanes else len(self.lanes)

    def _free(self, key: SlotKey) -> None:
        slot = self.slots.pop(key)
        for dimension, amount in self._booking(slot.profile).items():
            self.free[dimension] += amount
        for share in _devices_of(slot.assignment):
            left_there = self.shares[share.type, share.uuid]
            for dimension, amount in share.amounts:
                left_there[dimension] += amount
        heapq.heappush(self._free_lanes, self.lanes.pop(key))

    def _booking(self, profile: ResourceProfile) -> dict[str, int]:
        return booking(profile, separate_pools=self._separate)

    def _report(self) -> Report:
        self.report_number += 1
        return Report(
            report_number=self.report_number,
            rm_epoch=self.rm_epoch,
            command_number=self.command_number,
            slots=tuple(self.slots.values()),
            available={name: amount for name, amount in self.free.items() if amount},
        )


_TIME_SHARED = json.dumps({"time_shared": True, "slot_cpus": "0"})
"""The cpus that hosts with devices register. Slots get shares of cpu time, but no particular
cpus.
"""


def described(devices: HostDevices) -> str:
    """Returns the topology of a time-shared host with these devices, in the form of a
    registration.
    """
    if not devices.devices:
        return "{}"
    listed = [
        {
            "kind": each.type,
            "uuid": each.uuid,
            "minor": each.minor,
            "capacity": dict(each.capacity),
            "model": each.model,
            "labels": dict(each.labels),
            "numa_node_id": -1 if each.numa_node is None else each.numa_node,
        }
        for each in devices.devices
    ]
    # One core is enough, because slots get only shares of cpu time.
    cores = [{"cpus": "0"}]
    node = {"numa_node_id": 0, "cpus": "0"}
    return json.dumps(
        {
            "online_cpus": "0",
            "allowed_cpus": "0",
            "cores": cores,
            "numa_nodes": [node],
            "devices": listed,
        }
    )


def _devices_of(assignment: CpuAssignment | None) -> Iterable[DeviceShare]:
    return assignment.devices if assignment is not None else ()
