"""Computes the slot profiles and the fractions of managed memory of slot sharing groups.

Fractions are exact rationals. Only the last step computes bytes: the fraction times the managed
memory of the slot, rounded down. So the quotas of a group never add up to more than its managed
memory. Rounding loses less than one byte for each operator. The lost bytes stay free in the slot.

Example: three equal operators without resources share a slot with 100 bytes of managed memory. Each
operator has the fraction 1/3 and a quota of 33 bytes. One byte stays free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from finegrain.values.bounds import AMOUNT_MAX
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.values import GraphSpec, JobOptions, OperatorSpec, ResourceSpec, summed


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProfile:
    """The resources of a slot of a group, or of a task.

    A group can reuse the slots of another group if their profiles are equal.

    Attributes:
        is_default: True if the slot is a default slot of its executor. All amounts are then 0.
        managed_memory_bytes: managed memory, on-heap and off-heap together.
        managed_on_heap_memory_bytes: the part of the managed memory that is on the heap.
        extended: countable resources, sorted by name.
        devices: devices in hundredths, sorted by name.
        ports: number of network ports.
        default_managed_memory_percent: part of a default slot that is managed memory.
        default_managed_on_heap_memory_percent: part of this managed memory that is on the heap.
    """

    is_default: bool = False
    cpu_milli: int = 0
    task_heap_memory_bytes: int = 0
    task_off_heap_memory_bytes: int = 0
    managed_memory_bytes: int = 0
    managed_on_heap_memory_bytes: int = 0
    network_memory_bytes: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    devices: tuple[tuple[str, int], ...] = ()
    ports: int = 0
    default_managed_memory_percent: int = 0
    default_managed_on_heap_memory_percent: int = 0

    @property
    def memory_bytes(self) -> int:
        """Sum of the memory parts; 0 for a default slot."""
        return (
            self.task_heap_memory_bytes
            + self.task_off_heap_memory_bytes
            + self.managed_memory_bytes
            + self.network_memory_bytes
        )


@dataclass(frozen=True, slots=True)
class ManagedShare:
    """The share of a slot's managed memory that one operator gets.

    Attributes:
        on_heap: fraction of the slot's on-heap managed memory.
        off_heap: fraction of the slot's off-heap managed memory.
    """

    on_heap: Fraction = Fraction(0)
    off_heap: Fraction = Fraction(0)

    def quota_bytes(self, managed_memory_bytes: int, managed_on_heap_memory_bytes: int = 0) -> int:
        """Returns the operator's quota in a slot. On-heap and off-heap parts are rounded down.

        Args:
            managed_memory_bytes: managed memory of the slot, on-heap and off-heap together.
            managed_on_heap_memory_bytes: the part of this memory that is on the heap.
        """
        off_heap_bytes = managed_memory_bytes - managed_on_heap_memory_bytes
        return int(self.on_heap * managed_on_heap_memory_bytes) + int(
            self.off_heap * off_heap_bytes
        )


def check_all_or_none(operators: Iterable[OperatorSpec]) -> None:
    """Checks that all operators have resources, or that no operator has resources.

    Raises:
        GraphError: some operators have resources and some do not. The error names the first
            operator of each kind.
    """
    first: dict[bool, str] = {}
    for operator in operators:
        first.setdefault(operator.resources is not None, operator.name)
    if len(first) == 2:
        raise GraphError(
            f"operator {first[True]} has resources, but operator {first[False]} has none; give all"
            " operators of a job resources, or none of them",
            operators=(first[True], first[False]),
        )


def managed_shares(members: Sequence[OperatorSpec]) -> dict[str, ManagedShare]:
    """Returns the shares of the operators of one group, by name.

    All operators have resources, or no operator has resources. If a group has no on-heap managed
    memory, the on-heap fractions are 0. If the group has no off-heap managed memory, the off-heap
    fractions are 0.
    """
    on_heap = [_on_heap_part(each) for each in members]
    off_heap = [_off_heap_part(each) for each in members]
    return {
        each.name: ManagedShare(_fraction(one, sum(on_heap)), _fraction(two, sum(off_heap)))
        for each, one, two in zip(members, on_heap, off_heap, strict=True)
    }


def _fraction(part: int, whole: int) -> Fraction:
    return Fraction(part, whole) if whole else Fraction(0)


def _on_heap_part(operator: OperatorSpec) -> int:
    """Returns the operator's bytes on the heap, or its weight if it has no resources."""
    if operator.resources is not None:
        return operator.resources.managed_on_heap_memory_bytes
    return operator.managed_memory_weight if operator.uses_managed_on_heap_memory else 0


def _off_heap_part(operator: OperatorSpec) -> int:
    """Returns the operator's bytes off the heap, or its weight if it has no resources."""
    if operator.resources is not None:
        return operator.resources.managed_off_heap_memory_bytes
    return operator.managed_memory_weight if operator.uses_managed_memory else 0


def specified_profile(
    members: Sequence[OperatorSpec], network_memory_bytes: int, name: str
) -> SlotProfile:
    """Returns the sum of the resources of operators, with the network memory of their tasks.

    Args:
        members: the operators. All of them have resources.
        network_memory_bytes: network memory of one task of each chain of the operators.
        name: the name of the profile, for errors.

    Raises:
        GraphError: an amount is larger than any slot can have.
    """
    specs = [each.resources or ResourceSpec() for each in members]
    profile = SlotProfile(
        cpu_milli=sum(each.cpu_milli or 0 for each in specs),
        task_heap_memory_bytes=sum(each.task_heap_memory_bytes or 0 for each in specs),
        task_off_heap_memory_bytes=sum(each.task_off_heap_memory_bytes for each in specs),
        managed_memory_bytes=sum(each.managed_memory_bytes for each in specs),
        managed_on_heap_memory_bytes=sum(each.managed_on_heap_memory_bytes for each in specs),
        network_memory_bytes=network_memory_bytes,
        extended=summed(each.extended for each in specs),
        devices=summed(each.devices for each in specs),
        ports=sum(each.ports for each in members),
    )
    amounts = (profile.cpu_milli, profile.memory_bytes)
    largest = max(*amounts, *(amount for _, amount in profile.extended + profile.devices))
    if largest > AMOUNT_MAX:
        raise GraphError(
            f"the resources of {name} add up to {largest}; at most {AMOUNT_MAX} is possible; give"
            " its operators less, or put them into different slot sharing groups",
            operators=[each.name for each in members],
        )
    return profile


def memory_share(
    members: Sequence[OperatorSpec],
    profile: SlotProfile | None,
    slot: SlotProfile,
    group_weight: int,
) -> Fraction:
    """Returns the memory limit of a task, as a fraction of the slot's memory. The result is 0 if
    only the slot's limit applies.

    The limit of a task with resources is the memory of these resources. The limit of a task without
    resources is in proportion to the weights of its operators.

    Args:
        members: the operators of the task.
        profile: the resources of the task; None if its operators have no resources.
        slot: the profile of the task's group.
        group_weight: sum of the weights of all operators of the group.
    """
    if not any(each.program for each in members):
        return Fraction(0)
    if profile is not None:
        return Fraction(profile.memory_bytes, slot.memory_bytes)
    return Fraction(sum(each.managed_memory_weight for each in members), group_weight)


def default_profile(members: Sequence[OperatorSpec], options: JobOptions) -> SlotProfile:
    """Returns the profile of a group whose operators have no resources: the default slot."""
    on_heap = any(each.uses_managed_on_heap_memory for each in members)
    off_heap = any(each.uses_managed_memory for each in members)
    ports = sum(each.ports for each in members)
    if not (on_heap or off_heap):
        return SlotProfile(is_default=True, ports=ports)
    split = options.default_managed_on_heap_memory_percent
    if split is None:
        # Give no memory to a part, on-heap or off-heap, that no operator uses.
        split = 50 if on_heap and off_heap else 100 * on_heap
    return SlotProfile(
        is_default=True,
        ports=ports,
        default_managed_memory_percent=options.default_managed_memory_percent,
        default_managed_on_heap_memory_percent=split,
    )


def is_specified(graph: GraphSpec) -> bool:
    """Returns True if the operators have resources. `check_all_or_none` has checked that all or
    none have resources.
    """
    return graph.operators[0].resources is not None
