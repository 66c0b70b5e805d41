"""Defines slot specifications with their defaults, and the limits of one call.

Only the resource manager knows whether a request fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaPolicy, QosClass
from finegrain.cpu_words import DEFAULT, policy_text, read_policy, read_word
from finegrain.errors import InvalidArgument
from finegrain.ids import check_id, new_id
from finegrain.neighbors import read_rule, rule_text
from finegrain.resources import MIB, PORTS
from finegrain.rpc.wire_cpu_words import BIND, EXCLUSIVE, NUMA, QOS
from finegrain.rpc.wire_cpus import rule_message
from finegrain.v1 import cpus_pb2, devices_pb2, slots_pb2
from finegrain.values.bounds import (
    AMOUNT_MAX,
    CPU_MILLI_MAX,
    PIDS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from finegrain_client.durations import duration
from finegrain_client.run_times import check_run_times, check_time

CPU_MILLI_DEFAULT = 1000
MEMORY_BYTES_DEFAULT = 256 * MIB
RANGE_MAX = 1_000_000

_AMOUNTS = (
    "cpu_milli",
    "memory_bytes",
    "task_off_heap_memory_bytes",
    "managed_memory_bytes",
    "network_memory_bytes",
    "cpu_limit_milli",
    "pids_max",
    "ports",
)
_MOST = {"cpu_milli": CPU_MILLI_MAX, "cpu_limit_milli": CPU_MILLI_MAX, "pids_max": PIDS_MAX}
"""Largest amounts of the fields whose limit is below `AMOUNT_MAX`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHint:
    """The way in which the devices of one type are chosen.

    Attributes:
        type: "gpu", "rdma", "fpga", or a type from the configuration of executors.
        vendor: vendor of the devices, such as "nvidia"; an empty value means any vendor.
        model: words that the name of the devices' model must contain, such as "H100"; an empty
            value means any model.
        labels: labels that the devices must have.
        every: if true, the slot gets the requested amount of each device of its host that meets the
            conditions.
        near: type of other devices of the slot, such as "gpu". The devices of `type` should be near
            the other devices. An empty value means that there is no such condition.
        near_required: if true, each device of `type` must be at a PCIe switch of the devices that
            `near` names.
        per_group: if true, the devices of `type` are spread over the PCIe switches of the devices
            that `near` names: one at each switch, as far as possible.
        scope: with "numa", all GPUs must be at one NUMA node. With "pcie", all GPUs must be at one
            PCIe switch. An empty value means no condition.
        virtual_function: if true, the slot gets a dedicated virtual function of each device.
    """

    type: str
    vendor: str = ""
    model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    every: bool = False
    near: str = ""
    near_required: bool = False
    per_group: bool = False
    scope: str = ""
    virtual_function: bool = False

    def message(self) -> devices_pb2.DeviceHint:
        """Returns the hint as a protocol message."""
        return devices_pb2.DeviceHint(
            type=self.type,
            vendor=self.vendor,
            model=self.model,
            selector=[
                devices_pb2.LabelRule(name=name, values=[value])
                for name, value in self.labels.items()
            ],
            every=self.every,
            near=self.near,
            near_required=self.near_required,
            per_group=self.per_group,
            scope=self.scope,
            virtual_function=self.virtual_function,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """One slot request, or `count` equal slot requests.

    If the caller gives no amount and no `require_isolation`, the request is *unknown*: its slot
    gets the default slot profile of the executor. Otherwise the request is *specified*. A specified
    request without CPU gets 1000 milli, and a specified request without any part of memory gets 256
    MiB. Within one job, either all requests are specified or all are unknown.

    Attributes:
        cpu_milli: guaranteed CPU in thousandths of a core; also the hard limit, unless
            `cpu_limit_milli` is higher.
        memory_bytes: memory for the task's own objects. The memory limit is the sum of all parts.
        task_off_heap_memory_bytes: off-heap memory of the task; part of the memory limit.
        managed_memory_bytes: managed memory; part of the memory limit.
        network_memory_bytes: network memory; part of the memory limit.
        extended: countable resources by name.
        ports: number of network ports. The executor chooses the port numbers (`Slot.ports`).
        devices: amounts of devices by name of the resource, in hundredths of a device: {"gpu": 50}
            is half of a GPU, {"gpu": 200} is two GPUs. "gpu-memory" is in bytes. docs/devices.md
            has all names.
        device_hints: hints for the choice of devices, at most one for each type.
        require_isolation: lowest level of enforcement that the slot accepts, by dimension:
            {"memory": "kernel", "gpu-memory": "mps"}. Hosts with a lower level are not used.
            docs/devices.md has the levels.
        cpu_limit_milli: CPU limit in thousandths of a core, if it is higher than `cpu_milli`; 0
            means that `cpu_milli` is the limit.
        pids_max: largest number of processes and threads; 0 means the executor's default.
        labels: only executors with all of these labels are used.
        target_address: address to which executors also offer the slot directly
            (`Job.serve_offers`).
        allow_pending: if true, and if no known executor could ever host the slot, the request waits
            for a new executor.
        restart_on_loss: if true, and if the slot is lost, the request is queued again at its old
            position.
        restart_on_device_loss: if true, and if a device of the slot fails so that tasks cannot use
            it any more, the slot ends, and the request is queued again at its old position.
        qos: how exclusive the slot's cpus are: "LSE" (dedicated), "LSR" (dedicated, but best-effort
            slots may also use them), "LS" (shared), "BE" (shared, best effort). LSE and LSR need
            `cpu_milli` in multiples of 1000.
        cpu_bind: which cpus the slot gets: "FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst" or
            "None"; an empty value means the setting of the host. The policy is preferred. If
            ":required" is appended, the slot is placed only on hosts that satisfy the policy.
        cpu_exclusive: which part of a host the slot does not share with slots that have the same
            policy: "PCPULevel" (cores), "NUMANodeLevel" (NUMA nodes) or "None". An empty value and
            ":required" have the same meaning as for `cpu_bind`.
        numa: placement on NUMA nodes: "SingleNUMANode", "Restricted", "BestEffort" or "None"; an
            empty value means the setting of the host. The first two policies are required, unless
            ":preferred" is appended.
        slot_labels: labels of the slots, for the rules `near` and `apart` of other slots of the
            job.
        near: rules about slots of the same job: the slot is near one of the slots with these
            labels. A rule is "KEY=VALUE[,KEY=VALUE...][@LEVEL][:STRENGTH]", for example
            "app=db@numa:preferred". LEVEL is host (default), numa, l3 or core; levels below the
            host need dedicated cpus. STRENGTH is required (default) or preferred.
        apart: rules like `near`: the slot is apart from all slots with these labels.
        time_limit_s: longest time of the slot in seconds, 1 s to 10 years; None means no limit. The
            executor ends the slot after this time. The request then ends with reason TIME_LIMIT.
        expected_run_time_s: the probable duration of the work in the slot, in seconds; at most
            `time_limit_s`. This is a hint for the scheduler; None means that the duration is not
            known.
        wait_timeout_s: longest time in seconds that the request may wait for a slot, up to 10
            years. After this time, the request is rejected with reason TIMED_OUT, even if this
            client has ended. None means that the request waits indefinitely. Members of a gang have
            the timeout of the gang instead.
        priority: order within the job, -100 to 100; the highest is served first.
        revocable: if true, and if revocation is on in the cluster, the resource manager may take
            the slot back for a request that is not revocable and fits on no executor. The tasks get
            SIGTERM and a grace time, and the request returns to its place in the queue with reason
            REVOKED. All members of a gang must have the same value. A member follows the rules of
            its gang for a lost slot: with `restart_on_loss`, the whole gang is queued again.
            Otherwise the member ends in state LOST.
        count: number of equal slots.
        allocation_id: id of the request, only with count 1; an empty value means that the client
            generates an id.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    task_off_heap_memory_bytes: int = 0
    managed_memory_bytes: int = 0
    network_memory_bytes: int = 0
    extended: Mapping[str, int] = field(default_factory=dict)
    ports: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)
    device_hints: tuple[DeviceHint, ...] = ()
    require_isolation: Mapping[str, str] = field(default_factory=dict)
    cpu_limit_milli: int = 0
    pids_max: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    target_address: str = ""
    allow_pending: bool = False
    restart_on_loss: bool = False
    restart_on_device_loss: bool = False
    qos: QosClass | str = QosClass.LS
    cpu_bind: BindPolicy | str = ""
    cpu_exclusive: ExclusivePolicy | str = ""
    numa: NumaPolicy | str = ""
    slot_labels: Mapping[str, str] = field(default_factory=dict)
    near: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    time_limit_s: float | None = None
    expected_run_time_s: float | None = None
    wait_timeout_s: float | None = None
    priority: int = 0
    revocable: bool = False
    count: int = 1
    allocation_id: str = ""

    def __post_init__(self) -> None:
        for name in _AMOUNTS:
            _check_amount(name, getattr(self, name), _MOST.get(name, AMOUNT_MAX))
        for name, amount in self.extended.items():
            _check_amount(f"extended[{name!r}]", amount)
        object.__setattr__(self, "device_hints", tuple(self.device_hints))
        for name, amount in self.devices.items():
            _check_amount(f"devices[{name!r}]", amount)
        # Store policies in their normal form, so that equal specs compare as equal. The dataclass
        # is frozen, so set the fields with `object.__setattr__`.
        object.__setattr__(self, "qos", read_word("qos", _text("qos", self.qos), QosClass))
        for name, kind in _POLICIES.items():
            object.__setattr__(self, name, _policy(name, getattr(self, name), kind))
        for name in ("near", "apart"):
            rules = [read_rule(name, each, apart=name == "apart") for each in getattr(self, name)]
            object.__setattr__(self, name, tuple(rule_text(each) for each in rules))
        check_priority("priority", self.priority)
        check_time("wait_timeout_s", self.wait_timeout_s, 0.001)
        check_run_times(self.time_limit_s, self.expected_run_time_s)
        if type(self.count) is not int or not 1 <= self.count <= RANGE_MAX:
            raise InvalidArgument("count", self.count, f"an integer from 1 to {RANGE_MAX}")
        if self.allocation_id:
            check_id("allocation_id", self.allocation_id)
            if self.count > 1:
                raise InvalidArgument("count", self.count, "1 if an allocation_id is given")

    @property
    def is_unknown(self) -> bool:
        """True if the caller gave no amount and no `require_isolation`.

        The slot then gets the executor's default slot profile.
        """
        parts = self.task_off_heap_memory_bytes, self.managed_memory_bytes, self.ports
        return (
            self.cpu_milli is None
            and self.memory_bytes is None
            and not any((*parts, self.network_memory_bytes, *self.extended.values()))
            and not any(self.devices.values())
            and not self.require_isolation
        )

    def messages(self) -> Iterator[slots_pb2.SlotRequest]:
        """Yields one protocol message per slot, each with its own id."""
        policy = self._cpu_policy()
        for _ in range(self.count):
            message = slots_pb2.SlotRequest(
                allocation_id=self.allocation_id or new_id(),
                cpu_limit_milli=self.cpu_limit_milli,
                pids_max=self.pids_max,
                required_labels=self.labels,
                target_address=self.target_address,
                allow_pending=self.allow_pending,
                restart_on_loss=self.restart_on_loss,
                restart_on_device_loss=self.restart_on_device_loss,
                time_limit=duration(self.time_limit_s),
                expected_run_time=duration(self.expected_run_time_s),
                wait_timeout=duration(self.wait_timeout_s),
                priority=self.priority,
                revocable=self.revocable,
            )
            if not self.is_unknown:
                self._fill(message)
            if policy is not None:
                message.cpu_policy.CopyFrom(policy)
            yield message

    def _cpu_policy(self) -> cpus_pb2.CpuPolicy | None:
        """Returns the CPU policy as a message, or None if the policy has only defaults."""
        bind, bind_required = read_policy("cpu_bind", self.cpu_bind or DEFAULT, BindPolicy)
        exclusive, exclusive_required = read_policy(
            "cpu_exclusive", self.cpu_exclusive or DEFAULT, ExclusivePolicy
        )
        numa, numa_required = read_policy("numa", self.numa or DEFAULT, NumaPolicy)
        shared = self.qos == QosClass.LS
        message = cpus_pb2.CpuPolicy(
            qos=cpus_pb2.QOS_CLASS_UNSPECIFIED if shared else QOS.number(QosClass(self.qos)),
            bind=BIND.number(bind),
            bind_strength=_STRENGTHS[bind_required],
            exclusive=EXCLUSIVE.number(exclusive),
            exclusive_strength=_STRENGTHS[exclusive_required],
            numa=NUMA.number(numa),
            numa_strength=_STRENGTHS[numa_required],
            slot_labels=self.slot_labels,
            neighbors=[
                rule_message(read_rule(name, text, apart=name == "apart"))
                for name, texts in (("near", self.near), ("apart", self.apart))
                for text in texts
            ],
        )
        # An absent message means the same as an empty message, and is smaller.
        return message if message.ByteSize() else None

    def _fill(self, message: slots_pb2.SlotRequest) -> None:
        profile = message.profile
        profile.cpu_milli = CPU_MILLI_DEFAULT if self.cpu_milli is None else self.cpu_milli
        profile.task_off_heap_memory_bytes = self.task_off_heap_memory_bytes
        profile.managed_memory_bytes = self.managed_memory_bytes
        profile.network_memory_bytes = self.network_memory_bytes
        other_than_heap = (
            self.task_off_heap_memory_bytes + self.managed_memory_bytes + self.network_memory_bytes
        )
        heap = self.memory_bytes
        if heap is None:
            # If the caller gives another part of memory, add no default: this part is all the
            # memory that the slot needs.
            heap = 0 if other_than_heap else MEMORY_BYTES_DEFAULT
        profile.task_heap_memory_bytes = heap
        amounts = {**self.extended, **({PORTS: self.ports} if self.ports else {})}
        profile.extended.update({name: amount for name, amount in amounts.items() if amount})
        profile.devices.update({name: amount for name, amount in self.devices.items() if amount})
        profile.device_hints.extend(each.message() for each in self.device_hints)
        profile.require_isolation.update(self.require_isolation)


_POLICIES: dict[str, type[StrEnum]] = {
    "cpu_bind": BindPolicy,
    "cpu_exclusive": ExclusivePolicy,
    "numa": NumaPolicy,
}
_STRENGTHS = {
    None: cpus_pb2.STRENGTH_UNSPECIFIED,
    False: cpus_pb2.STRENGTH_PREFERRED,
    True: cpus_pb2.STRENGTH_REQUIRED,
}


def _policy(name: str, value: object, kind: type[StrEnum]) -> str:
    """Returns the policy in its normal form; empty if no policy is set."""
    text = policy_text(*read_policy(name, _text(name, value) or DEFAULT, kind))
    return "" if text == DEFAULT else text


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(name, value, "a string")
    return value


def _check_amount(name: str, value: object, most: int = AMOUNT_MAX) -> None:
    if value is None:
        return
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidArgument(
            name, value, f"an integer from 0 to {most} (half a core is cpu_milli=500)"
        )


def check_priority(name: str, value: object) -> None:
    """Raises InvalidArgument if a priority is not allowed."""
    if type(value) is not int or not PRIORITY_MIN <= value <= PRIORITY_MAX:
        raise InvalidArgument(name, value, f"an integer from {PRIORITY_MIN} to {PRIORITY_MAX}")
