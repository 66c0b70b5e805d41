"""Which cpus slots of this executor have to themselves, and where all the others run.

Decides whether the cpus, NUMA nodes and pools that a slot is to have can be its own here, and on
which cpus every slot runs at any moment; the arithmetic of the pools is `finegrain.cpu_pools`.
Refuses to know amounts, and how and in which order slots get to where they are to run.

A cpu is a slot's own from the order until nothing of the slot is left, and while the slot changes
its size both its old and its new cpus are. No slot may take the last cpu of a pool that others run
in.
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
"""What a slot has that was ordered without an assignment: the whole shared pool."""

NO_SETTINGS: Final = HostPolicy()
"""A layer of settings that says nothing."""


@dataclass(frozen=True, slots=True)
class HostCpus:
    """The host's cpus as they are counted at the start; what changes is in `CpuConditions`."""

    slot_cpus: CpuSet  # that the total counts
    reserved: CpuSet = EMPTY  # kept back by the configuration, not counted
    isolated: CpuSet = EMPTY  # of both, from the kernel's load balancing
    pools: tuple[tuple[PoolName, CpuSet], ...] = ()  # of both; none: one pool
    memory_nodes: NodeSet = EMPTY  # that memory can be bound to; empty: not known
    policy: HostPolicy = NO_SETTINGS  # of the configuration

    @property
    def cpus_by_pool(self) -> tuple[tuple[PoolName, CpuSet], ...]:
        """Where its cpus lie."""
        return self.pools or ((PoolName(0, NODE_UNKNOWN), self.slot_cpus | self.reserved),)


@dataclass(frozen=True, slots=True)
class CpuConditions:
    """What changes about a host's cpus while slots run on them."""

    offline: CpuSet = EMPTY  # of the host's cpus those that do not run any more
    kubelet_cpus: CpuSet = EMPTY  # that a kubelet gave to containers
    kubelet_policy: HostPolicy = NO_SETTINGS
    kubelet: object = None  # what else is told of it; not looked at here
    operator_policy: HostPolicy = NO_SETTINGS  # set at runtime, for this host
    policy_number: int = 0  # of that; 0: none was ever set
    squeezed: CpuSet | None = None  # all that best-effort slots may use at present
    notes: tuple[str, ...] = ()


class CpuBinding(NamedTuple):
    """Where a slot runs."""

    cpus: CpuSet  # empty: nothing is left for it; it stays where it is
    memory_nodes: NodeSet = EMPTY  # empty: all


@dataclass
class CpuLedger:
    """`version` rises with whatever may change the place of a slot."""

    host: HostCpus
    conditions: CpuConditions = CpuConditions()
    version: int = 0
    _slots: dict[SlotKey, tuple[CpuAssignment, ...]] = field(default_factory=dict)
    _pools: tuple[int, Pools] | None = None  # with the version that they are of

    @property
    def pools(self) -> Pools:
        """What is shared at present."""
        if self._pools is None or self._pools[0] != self.version:
            self._pools = self.version, self._pools_with(self._assignments())
        return self._pools[1]

    @property
    def policy(self) -> EffectivePolicy:
        """What of the layers that are known here holds."""
        return settle(
            [
                (PolicyOrigin.OPERATOR, self.conditions.operator_policy),
                (PolicyOrigin.CONFIGURATION, self.host.policy),
                (PolicyOrigin.KUBELET, self.conditions.kubelet_policy),
            ]
        )

    @property
    def pinned(self) -> CpuSet:
        """All that slots have to themselves."""
        return union(each.cpus for each in self._assignments())

    def binding_of(self, spec: SlotSpec) -> CpuBinding:
        """Where a slot runs at present."""
        assignment = spec.assignment or WHOLE_SHARED_POOL
        cpus = self.pools.cpus_of(assignment)
        if assignment.qos is QosClass.BE and self.conditions.squeezed is not None:
            cpus = confined(cpus, self.conditions.squeezed)
        if spec.cpus and not assignment.cpus:
            cpus = cpus & CpuSet.parse(spec.cpus) or cpus
        return CpuBinding(cpus, assignment.memory_nodes)

    # -- what is known of the host -------------------------------------------------------------

    def update_conditions(self, **changes: Any) -> bool:
        """Takes in other conditions, by the names of `CpuConditions`; False if they are the
        present ones.
        """
        conditions = replace(self.conditions, **changes)
        if conditions == self.conditions:
            return False
        moving = any(
            getattr(conditions, each.name) != getattr(self.conditions, each.name)
            for each in fields(conditions)
            if each.name not in _REPORTED_ONLY
        )
        self.conditions = conditions
        self.version += moving
        return True

    # -- who has what ----------------------------------------------------------------------------

    def put(self, key: SlotKey, assignments: Iterable[CpuAssignment]) -> None:
        """What a slot has, and what it is to have besides."""
        held = tuple(assignments)
        if _dedicated(held) != _dedicated(self._slots.get(key, ())):
            self.version += 1
        self._slots[key] = held

    def drop(self, key: SlotKey) -> None:
        """Nothing of the slot is left."""
        if _dedicated(self._slots.pop(key, ())):
            self.version += 1

    def check(self, key: SlotKey, spec: SlotSpec) -> None:
        """Whether a slot can have what its order says, beside all others.

        Raises:
            InvalidArgument: it makes no sense, here or anywhere.
            ResourceExhausted: CPUS_UNAVAILABLE; the details say which cpus, and why.
        """
        assignment = spec.assignment or WHOLE_SHARED_POOL
        self._check_assignment(assignment, spec.profile.cpu_milli)
        cpus_here = self.host.slot_cpus | self.host.reserved
        if spec.cpus and not CpuSet.parse(spec.cpus) <= cpus_here:
            raise InvalidArgument("cpus", spec.cpus, f"cpus out of this executor's {cpus_here}")
        if assignment.cpus:
            self._check_dedicated(key, spec.allocation_id, assignment)
        elif not self._room_for(assignment, self.pools):
            pools = ", ".join(map(_name, assignment.pools)) or "its pool"
            raise _unavailable(
                f"slot {spec.allocation_id} would have no cpu to run on: nothing is left of "
                f"{pools} for class {assignment.qos}",
                {"available.cpus": ""},
            )

    def _check_assignment(self, assignment: CpuAssignment, cpu_milli: int) -> None:
        def refuse(field_: str, value: object, expected: str) -> InvalidArgument:
            return InvalidArgument(f"assignment.{field_}", str(value), expected)

        cpus = assignment.cpus
        if bool(cpus) != assignment.qos.is_pinned:
            expected = "cpus of its own" if assignment.qos.is_pinned else "none: it runs in pools"
            raise refuse("cpus", cpus, f"for class {assignment.qos} {expected}")
        if cpus and 1000 * len(cpus) != cpu_milli:
            raise refuse("cpus", cpus, f"one for each 1000 of the booked cpu_milli ({cpu_milli})")
        if not cpus <= self.host.slot_cpus:
            raise refuse("cpus", cpus, f"cpus out of this executor's {self.host.slot_cpus}")
        known = self.host.memory_nodes
        if known and not assignment.memory_nodes <= known:
            raise refuse("memory_nodes", assignment.memory_nodes, f"nodes of this host: {known}")
        names = {name for name, _ in self.host.cpus_by_pool} if assignment.pools else set()
        unknown = [name for name in assignment.pools if name not in names]
        if unknown:
            expected = "pools of this host: " + ", ".join(map(_name, sorted(names)))
            raise refuse("pools", ", ".join(map(_name, unknown)), expected)

    def _check_dedicated(self, key: SlotKey, allocation_id: str, wanted: CpuAssignment) -> None:
        """That nobody else has a say over its cpus, and that those who share keep one."""
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
            blocked[name] = cpus & wanted.cpus - before  # what a slot has it keeps
            parts += [f"{blocked[name]} {name}"] if blocked[name] else []
        if parts:
            details = {f"{name}.cpus": str(cpus) for name, cpus in blocked.items() if cpus}
            raise _unavailable(
                f"cpus {wanted.cpus} cannot be slot {allocation_id}'s own: " + "; ".join(parts),
                details | {"asked.cpus": str(wanted.cpus)},
            )
        # With what it has now: until it has changed its size both are its own.
        pools = self._pools_with([*self._assignments(), wanted])
        sharing = {each for each in chain.from_iterable(others.values()) if not each.cpus}
        for each in sorted(sharing, key=lambda one: (one.qos, one.pools)):
            if not self._room_for(each, pools) and self._room_for(each, self.pools):
                which = ", ".join(map(_name, each.pools)) or "the whole pool"
                raise _unavailable(
                    f"cpus {wanted.cpus} are the last ones that slots of class {each.qos} in "
                    f"{which} have here",
                    {"asked.cpus": str(wanted.cpus), "last.cpus": str(wanted.cpus)},
                )

    def _blocked(self) -> dict[str, CpuSet]:
        """Why a cpu can be no slot's own."""
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
        """Raises:
        InvariantBroken: two slots have the same cpu to themselves.
        """
        taken = EMPTY
        for key, assignments in self._slots.items():
            dedicated = _dedicated(assignments)
            mine = union(cpus for _, cpus in dedicated)
            if not mine.isdisjoint(taken):
                raise InvariantBroken(f"slot {key} has cpus of another one: {mine & taken}")
            taken |= mine


_REPORTED_ONLY: Final = frozenset({"kubelet", "policy_number", "notes"})
"""Of conditions: what changes nothing for any slot."""


def _dedicated(assignments: tuple[CpuAssignment, ...]) -> list[tuple[QosClass, CpuSet]]:
    return [(each.qos, each.cpus) for each in assignments if each.cpus]


def _name(pool: PoolName) -> str:
    return f"package {pool.package} node {pool.node}"


def _unavailable(message: str, details: dict[str, str]) -> ResourceExhausted:
    return ResourceExhausted(
        f"{message}; place it elsewhere or on other cpus",
        reason=Reason.CPUS_UNAVAILABLE,
        details=details,
    )
