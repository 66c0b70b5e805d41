"""Keeps the ledger of the cpus and NUMA nodes of one host: their capacity, and the parts of the
capacity that slots hold.

The ledger contains no placement policy. A change costs a few operations on integers, independent of
the size of the host. Numbers that depend on all slots are computed at most once per `version`.
Amounts of the host as a whole are in `hosts/host.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import CpuPolicy, EffectivePolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.numa import MILLI, node_capacities
from resource_manager.engine.devices.layout import NO_LAYOUT, DeviceLayout
from resource_manager.engine.devices.ledger import DeviceKey, DeviceLedger
from resource_manager.engine.model.entities import SlotKey


@dataclass(frozen=True, slots=True)
class PinRoom:
    """Numbers of free cpus and cores for slots with dedicated cpus. These numbers can quickly show
    that a slot does not fit, but not that it fits.
    """

    cpus: int  # free cpus
    whole_cores: int  # cores whose threads are all free
    whole_core_cpus: int  # the cpus of these cores
    cores: int  # cores with at least one free cpu
    most_on_a_node: int  # free cpus of the node that has most free cpus


class CpuLedger:
    """The cpus and NUMA nodes of one host, and the parts that slots hold. A set of cpus is an
    integer whose bit n stands for cpu n.

    Attributes:
        layout: cores and nodes, without offline cpus.
        reported_layout: the layout that the host reported, with offline cpus.
        policy: the host's settings.
        pinnable: cpus that can be dedicated to slots, including cpus that are dedicated now.
        pool_cpus: cpus that shared pools can use while they are not dedicated.
        pinned: cpus that are dedicated to slots.
        exclusive: pinned cpus that best-effort slots must not use (cpus of LSE slots).
        claimed_cores: cpus of slots that claim their cores (`PCPULevel`).
        claimed_nodes: cpus of slots that claim their NUMA nodes (`NUMANodeLevel`).
        shared_count: number of slots in shared pools.
        best_effort_count: number of best-effort slots.
        holdings: the assignment of each slot. It is None for a slot that runs in the whole shared
            pool.
        neighbors: the policies of slots that have labels or rules about neighbors.
        devices: the ledger of devices, with the shares of the same slots.
        time_shared: True if other programs use the cpus, too. Slots then get no particular cpus.
        version: a number that increases with every change.
    """

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
        "devices",
        "exclusive",
        "holdings",
        "layout",
        "neighbors",
        "pinnable",
        "pinned",
        "policy",
        "pool_cpus",
        "reported_layout",
        "shared_count",
        "time_shared",
        "version",
    )

    def __init__(
        self,
        layout: CpuLayout,
        policy: EffectivePolicy | None = None,
        *,
        best_effort_milli: int | None = None,
        devices: DeviceLayout = NO_LAYOUT,
        time_shared: bool = False,
    ) -> None:
        """Makes a ledger without slots.

        Args:
            layout: the layout that the host reported, with offline cpus.
            policy: the host's settings. None stands for the built-in settings.
            best_effort_milli: the cpu that the host announced for best-effort slots, in
                thousandths. The amount is for all cpus that the host's configuration leaves to
                slots (pinnable and kept back). None stands for 1,000 for each of these cpus.
            devices: the layout of the host's devices.
            time_shared: True if other programs use the cpus, too. Slots then get no particular
                cpus.
        """
        self.layout = self.reported_layout = layout
        self.policy = policy or EffectivePolicy()
        self._announced_best_effort = best_effort_milli
        self._offline = self._kubelet = 0
        self._kubelet_memory: tuple[tuple[int, int], ...] = ()
        self._overdrawn: frozenset[tuple[int, str]] = frozenset()
        self.version = 0
        self.devices = DeviceLedger(devices)
        self.time_shared = time_shared
        self.holdings: dict[SlotKey, CpuAssignment | None] = {}
        self.neighbors: dict[SlotKey, CpuPolicy] = {}
        self._derive()
        self._recount()

    _pin_room: PinRoom | None  # None if the numbers must be computed again

    def _derive(self) -> None:
        """Computes the cpus that slots can have: all cpus except reserved cpus, offline cpus and
        cpus of a kubelet.
        """
        base = self.reported_layout
        self.layout = base.without(self._offline)
        policy = self.policy
        unavailable = self._offline | self._kubelet
        # Reserved cpus are never dedicated to slots. Strictly reserved cpus are also removed from
        # the pools.
        self.pinnable = base.pinnable & ~unavailable & ~policy.reserved_cpus.bits
        offered = base.pinnable | base.kept_back
        self.pool_cpus = (
            offered & ~unavailable & ~policy.strictly_reserved_cpus.bits & ~base.isolated
        )
        count, announced = self.pool_cpus.bit_count(), self._announced_best_effort
        best_effort = count * MILLI
        # Offline or strictly reserved cpus reduce the announced amount in proportion.
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
        """Changes the settings. Slots keep their cpus."""
        if policy != self.policy:
            self.policy = policy
            self._settings_changed()
        self.policy = policy  # an equal policy can still differ in the source of its settings

    def set_unavailable(
        self,
        *,
        offline: CpuSet = EMPTY,
        kubelet: CpuSet = EMPTY,
        kubelet_memory: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Sets the cpus and memory that slots cannot have at present. Slots keep their cpus and
        memory.

        Args:
            offline: cpus that do not run.
            kubelet: cpus that a kubelet on the same host gave to its own containers.
            kubelet_memory: bytes that the kubelet gave to these containers, by id of the NUMA node.
        """
        # Most reports do not change these values. Then the version must not increase, because a new
        # version makes all cached results invalid.
        circumstances = (offline.bits, kubelet.bits, tuple(sorted(kubelet_memory)))
        if circumstances != (self._offline, self._kubelet, self._kubelet_memory):
            self._offline, self._kubelet, self._kubelet_memory = circumstances
            self._settings_changed()

    def set_unusable_devices(
        self, unusable: Mapping[DeviceKey, str], foreign: frozenset[DeviceKey]
    ) -> None:
        """Sets which devices get no new slots, and why. Slots keep their devices.

        Args:
            unusable: the devices that get no new slots, with the reasons.
            foreign: the unusable devices that pods or processes outside slots use.
        """
        if self.devices.set_unusable(unusable, foreign):
            self._changed()

    def _settings_changed(self) -> None:
        self._derive()
        self._changed()
        self.tolerate()

    @property
    def free(self) -> int:
        """Cpus that are not dedicated to a slot. The cpu that is promised to slots in the pools of
        nodes is not subtracted.
        """
        return self.pinnable & ~self.pinned

    @property
    def shared_cpus(self) -> int:
        """The shared pool, including reserved cpus that are not strictly reserved."""
        return self.pool_cpus & ~self.pinned

    @property
    def best_effort_cpus(self) -> int:
        """The best-effort pool, including reserved cpus that are not strictly reserved."""
        return self.pool_cpus & ~self.exclusive

    @property
    def unavailable(self) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """The arguments of the last `set_unavailable`, in a form that can be compared."""
        return self._offline, self._kubelet, self._kubelet_memory

    @property
    def best_effort_milli(self) -> int | None:
        """The cpu that the host announced for best-effort slots, in thousandths. None if the host
        announced no such cpu.
        """
        return self._announced_best_effort

    def capacity(self, node: int, dimension: str) -> int:
        """Returns the total amount that a node has for slots, including amounts that slots hold.
        The node is given by its position. For cpu, the result is the amount that shared pools could
        have if no cpu were dedicated.
        """
        return self._capacities[node].get(dimension, 0)

    def reports(self, dimension: str) -> bool:
        """Returns True if some node has a capacity of this dimension. Dimensions without such a
        node are not bound to nodes.
        """
        return any(dimension in capacities for capacities in self._capacities)

    def used(self, node: int, dimension: str) -> int:
        """Returns the amount of a node that slots hold. Dedicated cpus are not counted."""
        return self._used[node].get(dimension, 0)

    def available(self, node: int, dimension: str) -> int:
        """Returns the amount of a node that slots in shared pools can still get, which is at least
        0.
        """
        if dimension == CPU_MILLI:
            # Pools also contain reserved cpus that are not strictly reserved. These cpus are not
            # promised to slots, so they are not counted.
            shared = self.shared_cpus & self.pinnable & self.layout.nodes[node].mask
            return max(shared.bit_count() * MILLI - self.used(node, dimension), 0)
        pool_is_empty = not self.best_effort_cpus & self.layout.nodes[node].mask
        if dimension == BEST_EFFORT_CPU_MILLI and pool_is_empty:
            return 0
        # `max` keeps the result at 0 or more: if a host has become smaller, its slots can hold more
        # than its capacity.
        return max(self.capacity(node, dimension) - self.used(node, dimension), 0)

    def pool_spare(self, node: int, qos: QosClass) -> int:
        """Returns how many cpus of a node's shared pool can be dedicated to slots of a QoS class.
        The remaining cpus of the pool are promised to slots that are bound to the pools of the
        node.
        """
        mask = self.layout.nodes[node].mask
        used = self._used[node]
        spare = (self.free & self.pool_cpus & mask).bit_count()
        # The promised amount is rounded up: if only a part of a cpu is promised, the whole cpu
        # stays in the pool.
        spare -= -(-used.get(CPU_MILLI, 0) // MILLI)
        # LSE slots also take cpus from the best-effort pool, and must leave one cpu in this pool.
        if qos is QosClass.LSE and used.get(BEST_EFFORT_CPU_MILLI, 0):
            spare = min(spare, (self.best_effort_cpus & mask).bit_count() - 1)
        return max(spare, 0)

    def pools(self, node: int) -> tuple[PoolName, ...]:
        """Returns the shared pools to which the cpus of a node belong. The node is given by its
        position.
        """
        cores = self.layout.cores
        return tuple(sorted({core.place for core in cores if core.node == node}))

    def pin_room(self) -> PinRoom:
        """Returns the free cpus and cores for slots with dedicated cpus."""
        if self._pin_room is None:
            free = self.free
            whole = self.layout.whole(free)
            nodes = [(free & node.mask).bit_count() for node in self.layout.nodes]
            entirely = sum(1 for mask in self.layout.core_masks if not mask & ~whole)
            cores = self.layout.first_threads(free).bit_count()
            self._pin_room = PinRoom(
                free.bit_count(), entirely, whole.bit_count(), cores, max(nodes)
            )
        return self._pin_room

    def add(
        self, key: SlotKey, assignment: CpuAssignment | None, policy: CpuPolicy | None = None
    ) -> None:
        """Adds a slot.

        Args:
            key: the slot.
            assignment: the slot's cpus, nodes and devices. None if the slot runs in the whole
                shared pool.
            policy: the policy of the slot's request. None if the slot has no labels and no rules
                about neighbors.

        Raises:
            ValueError: the ledger already has the slot.
        """
        if key in self.holdings:
            raise ValueError(f"slot {key} has its cpus already")
        self.holdings[key] = assignment
        if policy is not None and policy.neighbor_job:
            self.neighbors[key] = policy
        self._count(assignment)
        self._add_devices(assignment)
        self._changed()

    def remove(self, key: SlotKey) -> None:
        """Removes a slot.

        Raises:
            KeyError: the ledger does not have the slot.
        """
        assignment = self.holdings.pop(key)
        self.neighbors.pop(key, None)
        if self._overlapping:  # other slots possibly hold the same cpus
            self._recount()
        else:
            self._uncount(assignment)
        if assignment is not None and assignment.devices:
            self.devices.remove(assignment.devices)
        self._changed()
        # Only amounts that still exceed the capacity stay tolerated. If another amount exceeds the
        # capacity later, `problems` reports this amount.
        if self._overdrawn:
            self._overdrawn &= self.overcommitted()

    def replace(self, key: SlotKey, assignment: CpuAssignment | None) -> None:
        """Changes the assignment of a slot.

        Raises:
            KeyError: the ledger does not have the slot.
        """
        if self.holdings[key] == assignment:
            self.holdings[key] = assignment  # the notes of equal assignments can differ
            return
        # `remove` can end the tolerance while the slot is missing, so the tolerance is saved first.
        tolerated, policy = self._overdrawn, self.neighbors.get(key)
        self.remove(key)
        self.holdings[key] = assignment
        if policy is not None:
            self.neighbors[key] = policy
        self._count(assignment)
        self._add_devices(assignment)
        self._changed()
        if tolerated:
            self._overdrawn = tolerated & self.overcommitted()

    def scratch(self) -> CpuLedger:
        """Returns a copy that the caller may change, for example to try an assignment."""
        copy = CpuLedger.__new__(CpuLedger)
        for name in CpuLedger.__slots__:
            # The copy shares all values with this ledger, except for the values that are copied
            # below. Shared values are never changed in place.
            setattr(copy, name, getattr(self, name))
        copy.holdings = dict(self.holdings)
        copy.neighbors = dict(self.neighbors)
        copy.devices = self.devices.scratch()
        copy._used = [dict(used) for used in self._used]
        return copy

    def empty(self) -> CpuLedger:
        """Returns a ledger of this host with the same settings and without slots."""
        copy = self.scratch()
        copy.holdings = {}
        copy.neighbors = {}
        copy.devices = self.devices.empty()
        copy._overdrawn = frozenset()
        copy._recount()
        copy._changed()
        return copy

    def _add_devices(self, assignment: CpuAssignment | None) -> None:
        if assignment is not None and assignment.devices:
            self.devices.add(assignment.devices)

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
        # The overlap must be checked before the bits of this slot are set. Otherwise the slot would
        # overlap with itself.
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
        # The subtraction is correct only while no other slot holds these cpus; see `_overlapping`.
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
        """Yields the amounts that a slot holds on each node, without its dedicated cpus. Each item
        has the dict that counts the amount, the dimension and the amount. Nodes that the host no
        longer reports are left out.
        """
        position: Mapping[int, int] = self.layout.position_of_node
        for share in assignment.numa:
            at = position.get(share.node)
            if at is None:
                continue
            for name, amount in share.amounts:
                # `pinned` already counts dedicated cpus.
                if not (assignment.cpus and name == CPU_MILLI):
                    yield self._used[at], name, amount

    def tolerate(self) -> None:
        """Accepts that the slots now hold more than the capacity. Slots can do so if the host has
        become smaller after their placement.
        """
        self._overdrawn = self.overcommitted()
        self.devices.tolerate()

    def problems(self) -> list[str]:
        """Returns a sentence for each inconsistency. There are three kinds: a cpu that two slots
        hold, a node whose slots hold more than the tolerated amounts, and a counter that differs
        from the holdings.
        """
        found = [
            f"cpus {CpuSet.from_bits(twice)} belong to slot {key} and to another slot"
            for key, twice in self._assigned_twice()
        ]
        # If a host becomes smaller, its slots keep their amounts. Such tolerated amounts are not an
        # inconsistency.
        for node, name in sorted(self.overcommitted() - self._overdrawn):
            numa_node = self.layout.nodes[node].id
            used, has = self.used(node, name), self._present(node, name)
            found.append(f"NUMA node {numa_node}: slots hold {used} {name}, but it has {has}")
        recounted = self.scratch()
        recounted._recount()
        found += [
            f"the counter {name} does not match the assignments of slots"
            for name in _COUNTERS
            if getattr(recounted, name) != getattr(self, name)
        ]
        return [*found, *self._problems_of_devices()]

    def _problems_of_devices(self) -> list[str]:
        recounted = self.devices.empty()
        for assignment in self.holdings.values():
            if assignment is not None:
                recounted.add(assignment.devices)
        found = self.devices.problems()
        if (recounted.used, recounted.functions) != (self.devices.used, self.devices.functions):
            found.append("the shares of devices do not match the assignments of slots")
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
        """Returns the pairs (node, dimension) for which slots hold more than the capacity."""
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
