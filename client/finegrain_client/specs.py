"""What a job master asks for: slot specifications, and how they become batches.

Here are the defaults of a specification, and where a large batch is cut. Whether anything fits, the
RM decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaPolicy, QosClass
from finegrain.cpu_words import DEFAULT, policy_text, read_policy, read_word
from finegrain.errors import InvalidArgument
from finegrain.ids import check_id, new_id
from finegrain.resources import AMOUNT_MAX, MIB
from finegrain.rpc.wire_cpu_words import BIND, EXCLUSIVE, NUMA, QOS
from finegrain.v1 import cpus_pb2, slots_pb2

CPU_MILLI_DEFAULT = 1000
MEMORY_BYTES_DEFAULT = 256 * MIB
BATCH_ITEMS_MAX = 10_000
BATCH_BYTES_MAX = 4 * MIB - 64 * 1024  # 4 MiB at the server; the rest is for the envelope
RANGE_MAX = 1_000_000

_AMOUNTS = (
    "cpu_milli",
    "memory_bytes",
    "task_off_heap_memory_bytes",
    "managed_memory_bytes",
    "network_memory_bytes",
    "cpu_limit_milli",
    "pids_max",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """One slot request, `count` times.

    With no amount given at all the slot is *unknown*: it gets the default slot profile of the
    executor it is placed on. As soon as one amount is given, a missing CPU becomes 1000 milli and
    missing memory becomes 256 MiB. Within one job either all requests are specified or none is.

    Attributes:
        cpu_milli: CPU time booked, and the hard cap, in thousandths of a core.
        memory_bytes: memory for the task's own objects. All memory parts add up to the limit.
        extended: countable resources by name.
        cpu_limit_milli: a higher cap than what is booked; 0: the same.
        pids_max: most processes and threads; 0: the executor's default.
        labels: only executors that carry all of these.
        target_address: where executors also offer the slot directly (`Job.serve_offers`).
        allow_pending: wait for an executor that may come, where none could ever host this.
        restart_on_loss: go back into the line at the old place if the slot is lost.
        qos: how exclusive its cpus are: "LSE" (its own), "LSR" (its own, but for best-effort
            slots), "LS" (shared), "BE" (shared, best effort). LSE and LSR need `cpu_milli` in
            multiples of 1000.
        cpu_bind: which cpus: "FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst" or "None"; empty: as
            its host is configured. With ":required" a host that cannot do so is no host for it;
            else it is preferred.
        cpu_exclusive: what not to share with others that say the same: "PCPULevel" (cores),
            "NUMANodeLevel" or "None"; likewise.
        numa: how it lies on NUMA nodes: "SingleNUMANode" or "Restricted" (both required unless
            ":preferred" stands behind them), "BestEffort" or "None"; empty: as its host says.
        count: how many slots like this.
        allocation_id: identity of the request, only with count 1; made up where absent.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    task_off_heap_memory_bytes: int = 0
    managed_memory_bytes: int = 0
    network_memory_bytes: int = 0
    extended: Mapping[str, int] = field(default_factory=dict)
    cpu_limit_milli: int = 0
    pids_max: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    target_address: str = ""
    allow_pending: bool = False
    restart_on_loss: bool = False
    qos: QosClass | str = QosClass.LS
    cpu_bind: BindPolicy | str = ""
    cpu_exclusive: ExclusivePolicy | str = ""
    numa: NumaPolicy | str = ""
    count: int = 1
    allocation_id: str = ""

    def __post_init__(self) -> None:
        for name in _AMOUNTS:
            _check_amount(name, getattr(self, name))
        for name, amount in self.extended.items():
            _check_amount(f"extended[{name!r}]", amount)
        object.__setattr__(self, "qos", read_word("qos", _text("qos", self.qos), QosClass))
        for name, kind in _POLICIES.items():
            object.__setattr__(self, name, _policy(name, getattr(self, name), kind))
        if type(self.count) is not int or not 1 <= self.count <= RANGE_MAX:
            raise InvalidArgument("count", self.count, f"an integer from 1 to {RANGE_MAX}")
        if self.allocation_id:
            check_id("allocation_id", self.allocation_id)
            if self.count > 1:
                raise InvalidArgument("count", self.count, "1 where an allocation_id is given")

    @property
    def is_unknown(self) -> bool:
        """True where no amount is given: the executor's default slot profile."""
        parts = self.task_off_heap_memory_bytes, self.managed_memory_bytes
        return (
            self.cpu_milli is None
            and self.memory_bytes is None
            and not any((*parts, self.network_memory_bytes, *self.extended.values()))
        )

    def messages(self) -> Iterator[slots_pb2.SlotRequest]:
        """One protocol message per slot, each with an id of its own."""
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
            )
            if not self.is_unknown:
                self._fill(message)
            if policy is not None:
                message.cpu_policy.CopyFrom(policy)
            yield message

    def _cpu_policy(self) -> cpus_pb2.CpuPolicy | None:
        """What it says about its cpus; None: nothing."""
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
        )
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
            heap = 0 if other_than_heap else MEMORY_BYTES_DEFAULT
        profile.task_heap_memory_bytes = heap
        profile.extended.update({name: amount for name, amount in self.extended.items() if amount})


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
    """The policy as it is written; empty: nothing is said."""
    text = policy_text(*read_policy(name, _text(name, value) or DEFAULT, kind))
    return "" if text == DEFAULT else text


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(name, value, "a word as text")
    return value


def _check_amount(name: str, value: object) -> None:
    if value is None:
        return
    if type(value) is not int or not 0 <= value <= AMOUNT_MAX:
        raise InvalidArgument(
            name, value, f"an integer from 0 to {AMOUNT_MAX} (half a core is cpu_milli=500)"
        )


def id_batches(ids: Sequence[str], *, items_max: int = BATCH_ITEMS_MAX) -> Iterator[Sequence[str]]:
    """Cuts ids, in order, into batches that one call may carry (10,000 ids stay below 2 MiB)."""
    for start in range(0, len(ids), items_max):
        yield ids[start : start + items_max]
