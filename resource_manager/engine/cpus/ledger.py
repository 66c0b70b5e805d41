"""Who holds which cpus and how much of which NUMA node on one host.

Knows arithmetic, not policy: what is there, what is taken, what is left. Every change costs a few
operations on integers, whatever the host's size, and whatever hangs on all holdings is derived once
per `version`. Refuses to know why a slot holds what it holds, and amounts that lie on no node:
those are in the host's own books.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import EffectivePolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.numa import MILLI, node_capacities
from resource_manager.engine.model.entities import SlotKey


@dataclass(frozen=True, slots=True)
class PinRoom:
    """How much is left to slots with cpus of their own, for rough comparisons."""

    cpus: int  # free ones
    whole_cores: int  # cores that are free altogether
    whole_core_cpus: int  # their cpus
    most_on_a_node: int  # free cpus of the node that has most


class CpuLedger:
    """The cpus and NUMA nodes of one host and what slots hold of them."""

    __slots__ = (
        "_announced_best_effort",
        "_capacities",
        "_kubelet",
        "_kubelet_memory",
        "_offline",
        "_overdrawn",
        "_overlapping",
        "_pin_room",
        "_used",
        "best_effort_count",
        "claimed_cores",
        "claimed_nodes",
        "exclusive",
        "holdings",
        "layout",
        "pinnable",
        "pinned",
        "policy",
        "pool_cpus",
        "reported_layout",
        "shared_count",
        "version",
    )

    def __init__(
        self,
        layout: CpuLayout,
        policy: EffectivePolicy | None = None,
        *,
        best_effort_milli: int | None = None,
    ) -> None:
        """Books without slots.

        Args:
            layout: of the host as it was reported, offline cpus included.
            policy: the settings that hold there; without it the built-in ones.
            best_effort_milli: what the host announced for best-effort slots on all cpus that its
                configuration leaves to them (`pinnable` and `kept_back` ones), in thousandths of a
                cpu; None: as much as these are.
        """
        self.layout = self.reported_layout = layout
        self.policy = policy or EffectivePolicy()
        self._announced_best_effort = best_effort_milli
        self._offline = self._kubelet = 0
        self._kubelet_memory: tuple[tuple[int, int], ...] = ()
        self._overdrawn: frozenset[tuple[int, str]] = frozenset()
        self.version = 0
        self.holdings: dict[SlotKey, CpuAssignment | None] = {}
        self._derive()
        self._recount()

    _pin_room: PinRoom | None  # derived, unless a change has come since

    def _derive(self) -> None:
        """What settings and circumstances leave to slots."""
        base = self.reported_layout
        self.layout = base.without(self._offline)
        policy = self.policy
        unavailable = self._offline | self._kubelet
        self.pinnable = base.pinnable & ~unavailable & ~policy.reserved_cpus.bits
        offered = base.pinnable | base.kept_back
        self.pool_cpus = (
            offered & ~unavailable & ~policy.strictly_reserved_cpus.bits & ~base.isolated
        )
        count, announced = self.pool_cpus.bit_count(), self._announced_best_effort
        best_effort = count * MILLI
        if announced is not None:
            best_effort = announced * count // max(offered.bit_count(), 1)
        position = self.layout.position_of_node
        self._capacities = node_capacities(
            self.layout,
            self.pinnable & ~base.isolated,
            (self.pool_cpus, best_effort),
            {position[node]: taken for node, taken in self._kubelet_memory if node in position},
        )

    def set_policy(self, policy: EffectivePolicy) -> None:
        """Other settings hold; nobody loses what he has."""
        if policy != self.policy:
            self.policy = policy
            self._settings_changed()
        self.policy = policy  # it may say by whom, which is not compared

    def set_unavailable(
        self,
        *,
        offline: CpuSet = EMPTY,
        kubelet: CpuSet = EMPTY,
        kubelet_memory: Iterable[tuple[int, int]] = (),
    ) -> None:
        """What slots cannot have at present; nobody loses what he has.

        Args:
            offline: cpus that do not run.
            kubelet: cpus that a kubelet of the same host gave to containers of its own.
            kubelet_memory: bytes that it did, by the node's id.
        """
        circumstances = (offline.bits, kubelet.bits, tuple(sorted(kubelet_memory)))
        if circumstances != (self._offline, self._kubelet, self._kubelet_memory):
            self._offline, self._kubelet, self._kubelet_memory = circumstances
            self._settings_changed()

    def _settings_changed(self) -> None:
        self._derive()
        self._changed()
        self.tolerate()

    @property
    def free(self) -> int:
        """Cpus that a slot could have to itself, as far as nodes have promised none to pools."""
        return self.pinnable & ~self.pinned

    @property
    def shared_cpus(self) -> int:
        """The shared pool, cpus that are reserved and shared included."""
        return self.pool_cpus & ~self.pinned

    @property
    def best_effort_cpus(self) -> int:
        """Likewise the best-effort pool."""
        return self.pool_cpus & ~self.exclusive

    @property
    def unavailable(self) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """What `set_unavailable` was told: equal for equal circumstances."""
        return self._offline, self._kubelet, self._kubelet_memory

    @property
    def best_effort_milli(self) -> int | None:
        """As given."""
        return self._announced_best_effort

    def capacity(self, node: int, dimension: str) -> int:
        """What a node (a position) has for slots, taken or not; of cpu what pools could have."""
        return self._capacities[node].get(dimension, 0)

    def reports(self, dimension: str) -> bool:
        """Whether any node has some of a dimension: what none has lies on no node."""
        return any(dimension in capacities for capacities in self._capacities)

    def used(self, node: int, dimension: str) -> int:
        """What slots have of a node. Cpus of slots' own are not counted here."""
        return self._used[node].get(dimension, 0)

    def available(self, node: int, dimension: str) -> int:
        """What slots in shared pools can still have of a node; not below 0."""
        if dimension == CPU_MILLI:
            shared = self.shared_cpus & self.pinnable & self.layout.nodes[node].mask
            return max(shared.bit_count() * MILLI - self.used(node, dimension), 0)
        pool_is_empty = not self.best_effort_cpus & self.layout.nodes[node].mask
        if dimension == BEST_EFFORT_CPU_MILLI and pool_is_empty:
            return 0
        return max(self.capacity(node, dimension) - self.used(node, dimension), 0)

    def pool_spare(self, node: int, qos: QosClass) -> int:
        """How many cpus of the shared pool of a node slots of a class could have to themselves
        without taking what slots that are bound to its pools were promised.
        """
        mask = self.layout.nodes[node].mask
        used = self._used[node]
        spare = (self.free & self.pool_cpus & mask).bit_count()
        spare -= -(-used.get(CPU_MILLI, 0) // MILLI)
        if qos is QosClass.LSE and used.get(BEST_EFFORT_CPU_MILLI, 0):
            spare = min(spare, (self.best_effort_cpus & mask).bit_count() - 1)
        return max(spare, 0)

    def pools(self, node: int) -> tuple[PoolName, ...]:
        """The shared pools that the cpus of a node (a position) belong to."""
        cores = self.layout.cores
        return tuple(sorted({core.place for core in cores if core.node == node}))

    def pin_room(self) -> PinRoom:
        """What is left to slots with cpus of their own."""
        if self._pin_room is None:
            free = self.free
            whole = self.layout.whole(free)
            nodes = [(free & node.mask).bit_count() for node in self.layout.nodes]
            cores = sum(1 for mask in self.layout.core_masks if not mask & ~whole)
            self._pin_room = PinRoom(free.bit_count(), cores, whole.bit_count(), max(nodes))
        return self._pin_room

    def add(self, key: SlotKey, assignment: CpuAssignment | None) -> None:
        """A slot has come. Without an assignment it runs in the whole shared pool.

        Raises:
            ValueError: there is such a slot.
        """
        if key in self.holdings:
            raise ValueError(f"slot {key} has its cpus already")
        self.holdings[key] = assignment
        self._count(assignment)
        self._changed()

    def remove(self, key: SlotKey) -> None:
        """A slot has gone.

        Raises:
            KeyError: there is no such slot.
        """
        assignment = self.holdings.pop(key)
        if self._overlapping:  # what this slot had may be another's as well
            self._recount()
        else:
            self._uncount(assignment)
        self._changed()
        if self._overdrawn:
            self._overdrawn &= self.overcommitted()

    def replace(self, key: SlotKey, assignment: CpuAssignment | None) -> None:
        """A slot has other cpus now.

        Raises:
            KeyError: there is no such slot.
        """
        if self.holdings[key] == assignment:
            self.holdings[key] = assignment
            return
        tolerated = self._overdrawn
        self.remove(key)
        self.holdings[key] = assignment
        self._count(assignment)
        self._changed()
        if tolerated:
            self._overdrawn = tolerated & self.overcommitted()

    def scratch(self) -> CpuLedger:
        """A copy to try things out on."""
        copy = CpuLedger.__new__(CpuLedger)
        for name in CpuLedger.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.holdings = dict(self.holdings)
        copy._used = [dict(used) for used in self._used]
        return copy

    def empty(self) -> CpuLedger:
        """Books of this host, under the same settings and circumstances, without slots."""
        copy = self.scratch()
        copy.holdings = {}
        copy._overdrawn = frozenset()
        copy._recount()
        copy._changed()
        return copy

    def _changed(self) -> None:
        self.version += 1
        self._pin_room = None

    def _recount(self) -> None:
        self.pinned = self.exclusive = self.claimed_cores = self.claimed_nodes = 0
        self.shared_count = self.best_effort_count = 0
        self._overlapping = False
        self._pin_room = None
        self._used: list[dict[str, int]] = [{} for _ in self.layout.nodes]
        for assignment in self.holdings.values():
            self._count(assignment)

    def _count(self, assignment: CpuAssignment | None) -> None:
        if assignment is None:
            self.shared_count += 1
            return
        cpus = assignment.cpus.bits
        self._overlapping |= bool(self.pinned & cpus)
        self.pinned |= cpus
        if assignment.qos is QosClass.LSE:
            self.exclusive |= cpus
        if assignment.exclusive is ExclusivePolicy.PCPU_LEVEL:
            self.claimed_cores |= cpus
        elif assignment.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
            self.claimed_nodes |= cpus
        self.shared_count += assignment.qos is QosClass.LS
        self.best_effort_count += assignment.qos is QosClass.BE
        for used, name, amount in self._shares(assignment):
            used[name] = used.get(name, 0) + amount

    def _uncount(self, assignment: CpuAssignment | None) -> None:
        if assignment is None:
            self.shared_count -= 1
            return
        kept = ~assignment.cpus.bits
        self.pinned &= kept
        self.exclusive &= kept
        self.claimed_cores &= kept
        self.claimed_nodes &= kept
        self.shared_count -= assignment.qos is QosClass.LS
        self.best_effort_count -= assignment.qos is QosClass.BE
        for used, name, amount in self._shares(assignment):
            used[name] -= amount
            if not used[name]:
                del used[name]

    def _shares(self, assignment: CpuAssignment) -> Iterator[tuple[dict[str, int], str, int]]:
        """What a slot takes of each node, beside cpus of its own, and where it is counted. A node
        that the host no longer reports counts nowhere.
        """
        position: Mapping[int, int] = self.layout.position_of_node
        for share in assignment.numa:
            at = position.get(share.node)
            if at is None:
                continue
            for name, amount in share.amounts:
                if not (assignment.cpus and name == CPU_MILLI):
                    yield self._used[at], name, amount

    def tolerate(self) -> None:
        """What is taken beyond what there is was taken before there was less: no problem."""
        self._overdrawn = self.overcommitted()

    def problems(self) -> list[str]:
        """What must not be, a sentence each: cpus that two slots have, nodes that have given more
        than they have although they never had less, tallies that are not those of the holdings.
        """
        found = [
            f"cpus {CpuSet.from_bits(twice)} belong to slot {key} and to another one"
            for key, twice in self._assigned_twice()
        ]
        for node, name in sorted(self.overcommitted() - self._overdrawn):
            numa_node = self.layout.nodes[node].id
            used, has = self.used(node, name), self._present(node, name)
            found.append(f"NUMA node {numa_node} has given {used} {name} and has {has}")
        recounted = self.scratch()
        recounted._recount()
        found += [
            f"the tally {name} of the cpus is not that of their holders"
            for name in _COUNTERS
            if getattr(recounted, name) != getattr(self, name)
        ]
        return found

    def _assigned_twice(self) -> Iterator[tuple[SlotKey, int]]:
        seen = 0
        for key, assignment in self.holdings.items():
            if assignment is not None:
                cpus = assignment.cpus.bits
                if seen & cpus:
                    yield key, seen & cpus
                seen |= cpus

    def _present(self, node: int, name: str) -> int:
        if name == CPU_MILLI:
            shared = self.shared_cpus & self.pinnable & self.layout.nodes[node].mask
            return shared.bit_count() * MILLI
        return self.capacity(node, name)

    def overcommitted(self) -> frozenset[tuple[int, str]]:
        """Where nodes have given more than they have."""
        return frozenset(
            (node, name)
            for node, used in enumerate(self._used)
            for name, amount in used.items()
            if amount > self._present(node, name)
        )


_COUNTERS = (
    "pinned",
    "exclusive",
    "claimed_cores",
    "claimed_nodes",
    "shared_count",
    "best_effort_count",
    "_used",
)
