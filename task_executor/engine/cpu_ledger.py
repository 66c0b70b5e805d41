"""Records which cpus are dedicated to slots of this executor, and which cpus other slots share.

A cpu is dedicated to a slot from the moment of the order for the slot. It stays dedicated until the
slot's last process has ended and its cgroup is removed. During a resize, both the old cpus and the
new cpus are dedicated. No slot can take the last cpu of a pool that other slots run in.
`finegrain.cpu_pools` computes the pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Final, NamedTuple

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import (
    EffectivePolicy,
    HostPolicy,
    PolicyOrigin,
    QosClass,
    settle,
)
from finegrain.cpu_pools import NODE_UNKNOWN, Pooled, Pools, pools_of
from finegrain.cpuset import EMPTY, CpuSet, NodeSet, union
from finegrain.errors import InvalidArgument, InvariantBroken, Reason, ResourceExhausted
from task_executor.engine.slots import SlotKey, SlotSpec
from task_executor.engine.squeeze import confined

WHOLE_SHARED_POOL: Final = CpuAssignment()
"""The assignment of a slot whose order has no assignment: the whole shared pool."""

NO_SETTINGS: Final = HostPolicy()
"""A host policy without any setting."""


@dataclass(frozen=True, slots=True)
class HostCpus:
    """The host's cpus as found at the start. `CpuConditions` contains later changes."""

    slot_cpus: CpuSet  # cpus that count in the executor's total
    reserved: CpuSet = EMPTY  # cpus that the configuration reserves; not in the total
    # Cpus on which the kernel does no load balancing. Some of them can also be reserved.
    isolated: CpuSet = EMPTY
    # Cpus of each pool; empty if there is only one pool.
    pools: tuple[tuple[PoolName, CpuSet], ...] = ()
    memory_nodes: NodeSet = EMPTY  # NUMA nodes that memory can be bound to; empty if unknown
    policy: HostPolicy = NO_SETTINGS  # settings from the configuration

    @property
    def cpus_by_pool(self) -> tuple[tuple[PoolName, CpuSet], ...]:
        """The executor's cpus by pool; a single pool if the host does not report NUMA nodes."""
        return self.pools or ((PoolName(0, NODE_UNKNOWN), self.slot_cpus | self.reserved),)


@dataclass(frozen=True, slots=True)
class CpuConditions:
    """Conditions of a host's cpus that can change while slots run."""

    offline: CpuSet = EMPTY  # cpus of this executor that have gone offline
    kubelet_cpus: CpuSet = EMPTY  # cpus that a kubelet has dedicated to containers
    kubelet_policy: HostPolicy = NO_SETTINGS  # settings that follow from a kubelet
    kubelet: object = None  # the kubelet's complete state, only for reports
    operator_policy: HostPolicy = NO_SETTINGS  # settings that an administrator made at runtime
    policy_number: int = 0  # number of `operator_policy`; 0 if an administrator made no settings
    # Cpus to which best-effort slots are confined; None if there is no limit.
    squeezed: CpuSet | None = None
    notes: tuple[str, ...] = ()


class CpuBinding(NamedTuple):
    """The cpus and memory nodes that a slot is bound to."""

    cpus: CpuSet  # empty if no cpu is left; the slot then stays on its present cpus
    memory_nodes: NodeSet = EMPTY  # empty means all nodes


@dataclass
class CpuLedger:
    """Assignments of all slots, and the conditions of the host's cpus.

    `version` increases with every change that can move a slot to other cpus.
    """

    host: HostCpus
    conditions: CpuConditions = CpuConditions()
    version: int = 0
    _slots: dict[SlotKey, tuple[CpuAssignment, ...]] = field(default_factory=dict)
    # Cached pools, and the version for which they are valid.
    _pools: tuple[int, Pools] | None = None

    @property
    def pools(self) -> Pools:
        """The present shared pools. The result is cached until `version` changes."""
        if self._pools is None or self._pools[0] != self.version:
            self._pools = self.version, self._pools_with(self._assignments())
        return self._pools[1]

    @property
    def policy(self) -> EffectivePolicy:
        """The settings in effect.

        A setting of an administrator comes first, then the configuration, then the kubelet. Only
        reserved cpus are combined: a cpu is reserved if at least one of these sources reserves it.
        """
        # The policy with the highest priority is first: for each setting, the first policy that
        # sets a value decides.
        return settle(
            [
                (PolicyOrigin.OPERATOR, self.conditions.operator_policy),
                (PolicyOrigin.CONFIGURATION, self.host.policy),
                (PolicyOrigin.KUBELET, self.conditions.kubelet_policy),
            ]
        )

    @property
    def pinned(self) -> CpuSet:
        """All dedicated cpus."""
        return union(each.cpus for each in self._assignments())

    def binding_of(self, spec: SlotSpec) -> CpuBinding:
        """Returns the cpus and memory nodes that a slot with this spec runs on at present."""
        assignment = spec.assignment or WHOLE_SHARED_POOL
        cpus = self.pools.cpus_of(assignment)
        if assignment.qos is QosClass.BE and self.conditions.squeezed is not None:
            cpus = confined(cpus, self.conditions.squeezed)
        # `spec.cpus` restricts a slot to a part of its pool. If no cpu of this part is left, the
        # slot uses the whole pool, because a slot needs at least one cpu.
        if spec.cpus and not assignment.cpus:
            cpus = cpus & CpuSet.parse(spec.cpus) or cpus
        return CpuBinding(cpus, assignment.memory_nodes)

    # -- conditions of the host ----------------------------------------------------------------

    def update_conditions(self, **changes: Any) -> bool:
        """Applies new conditions.

        Args:
            changes: the new values, by name of a field of `CpuConditions`.

        Returns:
            False if nothing changed.
        """
        conditions = replace(self.conditions, **changes)
        if conditions == self.conditions:
            return False
        # A field that is only reported never moves a slot. So its change does not change `version`.
        moving = any(
            getattr(conditions, each.name) != getattr(self.conditions, each.name)
            for each in fields(conditions)
            if each.name not in _REPORTED_ONLY
        )
        self.conditions = conditions
        self.version += moving
        return True

    # -- assignments -----------------------------------------------------------------------------

    def put(self, key: SlotKey, assignments: Iterable[CpuAssignment]) -> None:
        """Sets the assignments of a slot: during a resize, the old and the new assignment."""
        held = tuple(assignments)
        # Only dedicated cpus change the pools. A slot without dedicated cpus never moves another
        # slot.
        if _dedicated(held) != _dedicated(self._slots.get(key, ())):
            self.version += 1
        self._slots[key] = held

    def drop(self, key: SlotKey) -> None:
        """Removes a slot. Its processes and its cgroup must not exist any more."""
        if _dedicated(self._slots.pop(key, ())):
            self.version += 1

    def check(self, key: SlotKey, spec: SlotSpec) -> None:
        """Checks that a slot can get the cpus, NUMA nodes and pools of its order.

        Args:
            key: the slot. Cpus that this slot already has do not count as taken.
            spec: the spec of the order.

        Raises:
            InvalidArgument: the order is inconsistent, or names cpus, nodes or pools that this host
                does not have.
            ResourceExhausted: CPUS_UNAVAILABLE. The details name the cpus and the reason.
        """
        assignment = spec.assignment or WHOLE_SHARED_POOL
        self._check_assignment(assignment, spec.profile.cpu_milli)
        cpus_here = self.host.slot_cpus | self.host.reserved
        # `spec.cpus` can also name reserved cpus, because reserved cpus are in the shared pools
        # unless `reserved_cpus_strict` is set.
        if spec.cpus and not CpuSet.parse(spec.cpus) <= cpus_here:
            raise InvalidArgument("cpus", spec.cpus, f"cpus of this executor ({cpus_here})")
        if assignment.cpus:
            self._check_dedicated(key, spec.allocation_id, assignment)
        # A slot without dedicated cpus needs only one cpu in its pool. The slot table checks the
        # free CPU time.
        elif not self._room_for(assignment, self.pools):
            pools = ", ".join(map(_name, assignment.pools)) or "its pool"
            raise _unavailable(
                f"slot {spec.allocation_id} would have no cpu to run on: {pools} has no cpu "
                f"left for class {assignment.qos}",
                {"available.cpus": ""},
            )

    def _check_assignment(self, assignment: CpuAssignment, cpu_milli: int) -> None:
        def refuse(field_: str, value: object, expected: str) -> InvalidArgument:
            return InvalidArgument(f"assignment.{field_}", str(value), expected)

        cpus = assignment.cpus
        if bool(cpus) != assignment.qos.is_pinned:
            expected = "dedicated cpus" if assignment.qos.is_pinned else "no cpus: it runs in pools"
            raise refuse("cpus", cpus, f"for class {assignment.qos} {expected}")
        if cpus and 1000 * len(cpus) != cpu_milli:
            raise refuse("cpus", cpus, f"one for each 1000 of the booked cpu_milli ({cpu_milli})")
        if not cpus <= self.host.slot_cpus:
            raise refuse("cpus", cpus, f"cpus of this executor ({self.host.slot_cpus})")
        # If the memory nodes of this host are not known, the choice of the RM cannot be checked.
        known = self.host.memory_nodes
        if known and not assignment.memory_nodes <= known:
            raise refuse("memory_nodes", assignment.memory_nodes, f"nodes of this host: {known}")
        names = {name for name, _ in self.host.cpus_by_pool} if assignment.pools else set()
        unknown = [name for name in assignment.pools if name not in names]
        if unknown:
            expected = "pools of this host: " + ", ".join(map(_name, sorted(names)))
            raise refuse("pools", ", ".join(map(_name, unknown)), expected)

    def _check_dedicated(self, key: SlotKey, allocation_id: str, wanted: CpuAssignment) -> None:
        """Checks that the cpus are free. Also checks that each slot that runs on them now keeps at
        least one cpu.
        """
        # Part 1: each cpu must be free. It must not be reserved, offline, or used by a kubelet.
        others = {other: assignments for other, assignments in self._slots.items() if other != key}
        held = {
            other: common
            for other, assignments in others.items()
            if (common := union(each.cpus for each in assignments) & wanted.cpus)
        }
        parts = [f"{cpus} of slot {other.allocation_id}" for other, cpus in held.items()]
        before = union(each.cpus for each in self._slots.get(key, ()))
        blocked = {"held": union(held.values())}
        for name, cpus in self._blocked().items():
            blocked[name] = cpus & wanted.cpus - before  # the slot keeps the cpus that it has
            parts += [f"{blocked[name]} {name}"] if blocked[name] else []
        if parts:
            details = {f"{name}.cpus": str(cpus) for name, cpus in blocked.items() if cpus}
            raise _unavailable(
                f"cpus {wanted.cpus} cannot be dedicated to slot {allocation_id}: "
                + "; ".join(parts),
                details | {"asked.cpus": str(wanted.cpus)},
            )
        # During a resize the old cpus count as well, until the resize is complete.
        pools = self._pools_with([*self._assignments(), wanted])
        # Part 2: each pool keeps a cpu. A set is used, because thousands of slots have few
        # different assignments.
        sharing = {each for each in chain.from_iterable(others.values()) if not each.cpus}
        # Sort the assignments. So the error names the same pool at every attempt.
        for each in sorted(sharing, key=lambda one: (one.qos, one.pools)):
            # If a pool was already empty before, this slot is not the cause. So ignore the pool.
            if not self._room_for(each, pools) and self._room_for(each, self.pools):
                which = ", ".join(map(_name, each.pools)) or "the whole pool"
                raise _unavailable(
                    f"cpus {wanted.cpus} are the last cpus of this host on which slots of class "
                    f"{each.qos} in {which} can run",
                    {"asked.cpus": str(wanted.cpus), "last.cpus": str(wanted.cpus)},
                )

    def _blocked(self) -> dict[str, CpuSet]:
        """Returns the cpus that cannot be dedicated to a slot, by their description in errors."""
        return {
            "reserved": self.policy.reserved_cpus,
            "offline": self.conditions.offline,
            "a kubelet's": self.conditions.kubelet_cpus,
        }

    def _room_for(self, assignment: CpuAssignment, pools: Pools) -> bool:
        return bool(pools.of_class(assignment.qos, assignment.pools))

    def _assignments(self) -> Iterator[CpuAssignment]:
        return chain.from_iterable(self._slots.values())

    def _pools_with(self, assignments: Iterable[CpuAssignment]) -> Pools:
        host, now = self.host, self.conditions
        return pools_of(
            Pooled(
                places=host.cpus_by_pool,
                kubelet_pinned=now.kubelet_cpus,
                strictly_reserved=self.policy.strictly_reserved_cpus,
                isolated=host.isolated,
                offline=now.offline,
            ),
            [(each.qos, each.cpus) for each in assignments],
        )

    def check_invariants(self) -> None:
        """Checks that no cpu is dedicated to two slots.

        Raises:
            InvariantBroken: a cpu is dedicated to two slots.
        """
        taken = EMPTY
        for key, assignments in self._slots.items():
            # During a resize, the old and the new cpus of one slot can overlap. So join them before
            # the comparison with other slots.
            dedicated = _dedicated(assignments)
            mine = union(cpus for _, cpus in dedicated)
            if not mine.isdisjoint(taken):
                raise InvariantBroken(f"slot {key} has cpus of another one: {mine & taken}")
            taken |= mine


_REPORTED_ONLY: Final = frozenset({"kubelet", "policy_number", "notes"})
"""Fields of `CpuConditions` that are only reported and never move a slot."""


def _dedicated(assignments: tuple[CpuAssignment, ...]) -> list[tuple[QosClass, CpuSet]]:
    return [(each.qos, each.cpus) for each in assignments if each.cpus]


def _name(pool: PoolName) -> str:
    return f"package {pool.package} node {pool.node}"


def _unavailable(message: str, details: dict[str, str]) -> ResourceExhausted:
    return ResourceExhausted(
        f"{message}; place it on other cpus or on another executor",
        reason=Reason.CPUS_UNAVAILABLE,
        details=details,
    )
