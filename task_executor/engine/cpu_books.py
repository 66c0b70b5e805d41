"""Which cpus slots of this executor have to themselves, and where all the others run.

Decides whether the cpus, NUMA nodes and pools that a slot is to have can be its own here, and on
which cpus every slot runs at any moment; the arithmetic of the pools is `finegrain.cpu_pools`.
Refuses to know amounts, and how and in which order slots get to where they are to run.

A cpu is a slot's own from the order until nothing of the slot is left, and while the slot changes
its size both its old and its new cpus are. No slot may take the last cpu of a pool that others run
in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
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

PLAIN: Final = CpuAssignment()
"""What a slot has that was ordered without an assignment: the whole shared pool."""

UNSAID: Final = HostPolicy()
"""A layer of settings that says nothing."""


@dataclass(frozen=True, slots=True)
class HostCpus:
    """The host's cpus as they are counted at the start; what changes is in `CpuConditions`."""

    slot_cpus: CpuSet  # that the total counts
    reserved: CpuSet = EMPTY  # kept back by the configuration, not counted
    isolated: CpuSet = EMPTY  # of `slot_cpus`, from the kernel's load balancing
    places: tuple[tuple[PoolName, CpuSet], ...] = ()  # of both; none: one pool
    memory_nodes: NodeSet = EMPTY  # that memory can be bound to; empty: not known
    policy: HostPolicy = UNSAID  # of the configuration

    @property
    def pooled(self) -> tuple[tuple[PoolName, CpuSet], ...]:
        """Where its cpus lie."""
        return self.places or ((PoolName(0, NODE_UNKNOWN), self.slot_cpus | self.reserved),)


@dataclass(frozen=True, slots=True)
class CpuConditions:
    """What changes about a host's cpus while slots run on them."""

    offline: CpuSet = EMPTY  # of the host's cpus those that do not run any more
    kubelet_cpus: CpuSet = EMPTY  # that a kubelet gave to containers
    kubelet_policy: HostPolicy = UNSAID
    kubelet: object = None  # what else is told of it; not looked at here
    operator_policy: HostPolicy = UNSAID  # set at runtime, for this host
    policy_number: int = 0  # of that; 0: none was ever set
    squeezed: CpuSet | None = None  # all that best-effort slots may use at present
    notes: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where a slot runs."""

    cpus: CpuSet  # empty: nothing is left for it; it stays where it is
    memory_nodes: NodeSet = EMPTY  # empty: all


@dataclass
class CpuBooks:
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
            holders = [(each.qos, each.cpus) for many in self._slots.values() for each in many]
            self._pools = self.version, self._pools_beside(holders)
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
        return union(each.cpus for many in self._slots.values() for each in many)

    def place_of(self, spec: SlotSpec) -> Place:
        """Where a slot runs at present."""
        assignment = spec.assignment or PLAIN
        cpus = self.pools.cpus_of(assignment)
        if assignment.qos is QosClass.BE and self.conditions.squeezed is not None:
            cpus = confined(cpus, self.conditions.squeezed)
        if spec.cpus and not assignment.cpus:
            cpus = cpus & CpuSet.parse(spec.cpus) or cpus
        return Place(cpus, assignment.memory_nodes)

    # -- what is known of the host -------------------------------------------------------------

    def change(self, **changes: Any) -> bool:
        """Takes in other conditions, by the names of `CpuConditions`; False if they are the
        present ones.
        """
        conditions = replace(self.conditions, **changes)
        if conditions == self.conditions:
            return False
        moving = any(
            getattr(conditions, each.name) != getattr(self.conditions, each.name)
            for each in fields(conditions)
            if each.name not in _ONLY_TOLD
        )
        self.conditions = conditions
        self.version += moving
        return True

    # -- who has what ----------------------------------------------------------------------------

    def put(self, key: SlotKey, assignments: Iterable[CpuAssignment]) -> None:
        """What a slot has, and what it is to have besides."""
        many = tuple(assignments)
        if _own(many) != _own(self._slots.get(key, ())):
            self.version += 1
        self._slots[key] = many

    def drop(self, key: SlotKey) -> None:
        """Nothing of the slot is left."""
        if _own(self._slots.pop(key, ())):
            self.version += 1

    def check(self, key: SlotKey, spec: SlotSpec) -> None:
        """Whether a slot can have what its order says, beside all others.

        Raises:
            InvalidArgument: it makes no sense, here or anywhere.
            ResourceExhausted: CPUS_UNAVAILABLE; the details say which cpus, and why.
        """
        assignment = spec.assignment or PLAIN
        self._check_sense(assignment, spec.profile.cpu_milli)
        ours = self.host.slot_cpus | self.host.reserved
        if spec.cpus and not CpuSet.parse(spec.cpus) <= ours:
            raise InvalidArgument("cpus", spec.cpus, f"cpus out of this executor's {ours}")
        if assignment.cpus:
            self._check_own(key, spec.allocation_id, assignment)
        elif not self._room_for(assignment, self.pools):
            pools = ", ".join(map(_name, assignment.pools)) or "its pool"
            raise _unavailable(
                f"slot {spec.allocation_id} would have no cpu to run on: nothing is left of "
                f"{pools} for class {assignment.qos}",
                {"available.cpus": ""},
            )

    def _check_sense(self, assignment: CpuAssignment, cpu_milli: int) -> None:
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
        names = {name for name, _ in self.host.pooled} if assignment.pools else set()
        unknown = [name for name in assignment.pools if name not in names]
        if unknown:
            expected = "pools of this host: " + ", ".join(map(_name, sorted(names)))
            raise refuse("pools", ", ".join(map(_name, unknown)), expected)

    def _check_own(self, key: SlotKey, allocation_id: str, wanted: CpuAssignment) -> None:
        """That nobody else has a say over its cpus, and that those who share keep one."""
        others = {other: many for other, many in self._slots.items() if other != key}
        held = {
            other: common
            for other, many in others.items()
            if (common := union(each.cpus for each in many) & wanted.cpus)
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
        holders = [(each.qos, each.cpus) for many in self._slots.values() for each in many]
        pools = self._pools_beside([*holders, (wanted.qos, wanted.cpus)])
        sharing = {each for many in others.values() for each in many if not each.cpus}
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

    def _pools_beside(self, holders: Iterable[tuple[QosClass, CpuSet]]) -> Pools:
        host, now = self.host, self.conditions
        return pools_of(
            Pooled(
                places=host.pooled,
                kubelet_pinned=now.kubelet_cpus,
                strictly_reserved=self.policy.strictly_reserved_cpus,
                isolated=host.isolated,
                offline=now.offline,
            ),
            holders,
        )

    def check_invariants(self) -> None:
        """Raises:
        InvariantBroken: two slots have the same cpu to themselves.
        """
        taken = EMPTY
        for key, many in self._slots.items():
            own = _own(many)
            mine = union(cpus for _, cpus in own)
            if not mine.isdisjoint(taken):
                raise InvariantBroken(f"slot {key} has cpus of another one: {mine & taken}")
            taken |= mine


_ONLY_TOLD: Final = frozenset({"kubelet", "policy_number", "notes"})
"""Of conditions: what changes nothing for any slot."""


def _own(assignments: tuple[CpuAssignment, ...]) -> list[tuple[QosClass, CpuSet]]:
    return [(each.qos, each.cpus) for each in assignments if each.cpus]


def _name(pool: PoolName) -> str:
    return f"package {pool.package} node {pool.node}"


def _unavailable(message: str, details: dict[str, str]) -> ResourceExhausted:
    return ResourceExhausted(
        f"{message}; place it elsewhere or on other cpus",
        reason=Reason.CPUS_UNAVAILABLE,
        details=details,
    )
