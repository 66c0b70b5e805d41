"""The scheduling key, by which equal requests form a scheduling class, and the common columns of
the capacity index.

The index counts memory in grains (`in_grains`). Constraints can add further columns; see
`placement/constraint.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from finegrain.cpu_policy import PLAIN, BindPolicy, CpuPolicy
from finegrain.resources import (
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    Amounts,
    ResourceProfile,
)

if TYPE_CHECKING:
    from resource_manager.engine.model.entities import RequestSpec

Labels = tuple[tuple[str, str], ...]
"""Pairs of name and value, sorted."""

SLOTS = "slots"
"""Index column: the number of additional slots that a host can get."""

DEFAULT_SLOTS = "default_slots"
"""Index column: how many more default slots fit on a host."""

IN_USE = "in_use"
"""Index column: 1 if the host has slots. If a host gets its first slots in a placement pass, this
column and `EMPTY` are both 0 for the host until the pass ends.
"""

EMPTY = "empty"
"""Index column: 1 if the host has no slots."""

ALIGNING = "aligning"
"""Index column: 1 if the host aligns every slot to NUMA nodes."""

WITH_GPUS = "with_gpus"
"""Index column: 1 if the host has GPUs."""

WITHOUT_GPUS = "without_gpus"
"""Index column: 1 if the host has no GPUs."""

_MEMORY = frozenset({MEMORY_BYTES, *MEMORY_PARTS})


class Needs(NamedTuple):
    """The lowest values that a host must have in the columns of the index to serve one request.

    A host with a lower value in one column cannot serve the request. A host that has at least these
    values in all columns can serve the request. There is one exception: a `topology_constrained`
    request needs more checks.

    Attributes:
        pooled: the columns for a host with one memory pool.
        separate: the columns for a host with a pool for each memory part.
        amounts: the columns of `pooled` and `separate` that are amounts. Amounts can be added up
            over hosts. Amounts are also known for executors that have not started yet.
        preferred: for each preferred policy, the columns and values with which a host meets the
            policy; empty for a policy without a column in the index.
        never_met: number of preferred policies that no host can meet.
        kinds: see `kinds_of`.
    """

    pooled: dict[str, int]
    separate: dict[str, int]
    amounts: tuple[dict[str, int], dict[str, int]]
    preferred: tuple[tuple[tuple[str, int], ...], ...]
    never_met: int
    kinds: list[dict[str, int]]


def kinds_of(pooled: dict[str, int], separate: dict[str, int]) -> list[dict[str, int]]:
    """Returns the needs for the two kinds of hosts (`Needs`). The result has one item if the needs
    are equal for the two kinds, and otherwise two items.
    """
    return [pooled] if pooled == separate else [pooled, separate]


CpuKey = tuple[CpuPolicy, int]
"""The CPU policy of a request, and its cpu limit. The limit is 0 if the choice of a host does not
depend on the limit.
"""

SchedulingKey = tuple[ResourceProfile | None, Labels, CpuKey | None]
"""All attributes of a request that matter for the choice of a host: profile, labels, CPU policy.
The CPU policy is None if the request has none.
"""


def cpu_key(policy: CpuPolicy, cpu_limit_milli: int) -> CpuKey | None:
    """Returns the CPU part of a scheduling key; None for a request without a CPU policy."""
    if policy is PLAIN or policy == PLAIN:
        return None
    burst = policy.bind is BindPolicy.CONSTRAINED_BURST
    return policy, cpu_limit_milli if burst else 0


def scheduling_key(spec: RequestSpec) -> SchedulingKey:
    """Returns the key of a request. Requests with equal keys are in the same scheduling class."""
    policy = spec.cpu_policy
    cpus = None if policy is PLAIN else cpu_key(policy, spec.cpu_limit_milli)
    return spec.profile, spec.required_labels, cpus


class Lane(NamedTuple):
    """The attributes of requests that divide a scheduling class, although they do not matter for
    the choice of a host.

    Attributes:
        priority: the order within the job, the highest first.
        revocable: if true, the slots can be taken back for requests that are not revocable.
    """

    priority: int = 0
    revocable: bool = False


DEFAULT_LANE = Lane()

WaitingKey = tuple[SchedulingKey, Lane]
"""The key of a scheduling class: requests with equal keys wait together."""


def waiting_key(spec: RequestSpec) -> WaitingKey:
    """Returns the key of the scheduling class in which a request waits."""
    lane = DEFAULT_LANE
    if spec.priority or spec.revocable:
        lane = Lane(spec.priority, spec.revocable)
    return scheduling_key(spec), lane


def wait_together(one: RequestSpec, other: RequestSpec) -> bool:
    """Returns True if two requests are certainly equal for the queue: they are outside gangs, wait
    in one scheduling class, and are equally valid, and both or neither can be rejected as
    infeasible. A comparison of these attributes takes less time than a comparison of the keys.
    """
    return (
        (one.profile is other.profile or one.profile == other.profile)
        and one.required_labels == other.required_labels
        and one.cpu_policy is other.cpu_policy
        and one.cpu_limit_milli == other.cpu_limit_milli
        and one.allow_pending == other.allow_pending
        and one.priority == other.priority
        and one.revocable == other.revocable
        and one.gang_id == other.gang_id == ""
    )


PRIORITY_STEP = 1 << 48
"""The distance between the places of two priorities. The distance is larger than every arrival
number.
"""


def place_of(number: int, priority: int) -> int:
    """Returns the place of a request or non-batchable item in its job. The lowest place is served
    first. Places are ordered by priority, the highest first, and then by arrival number. With
    priority 0, the place is the arrival number.
    """
    return number - priority * PRIORITY_STEP


def number_at(place: int) -> int:
    """Returns the arrival number of a place: the inverse of `place_of`."""
    return place % PRIORITY_STEP


def is_topology_constrained(profile: ResourceProfile | None, cpus: CpuKey | None) -> bool:
    """Returns True if amounts alone are not sufficient to decide whether a host can serve the
    request.

    The result is also True for best-effort default slots, because `DEFAULT_SLOTS` does not count
    default slots that use best-effort cpu.
    """
    if profile is not None and profile.devices:
        return True
    if cpus is None:
        return False
    return cpus[0].topology_constrained or (cpus[0].best_effort and profile is None)


def in_grains(amounts: Amounts) -> dict[str, int]:
    """Returns amounts in the units of the index: memory in multiples of `MEMORY_GRAIN_BYTES`.

    Computing with small numbers is faster. The result is exact, because bookings are multiples of
    the grain.
    """
    return {
        name: amount // MEMORY_GRAIN_BYTES if name in _MEMORY else amount
        for name, amount in amounts.items()
    }


def from_grains(amounts: Amounts) -> dict[str, int]:
    """Converts memory amounts of the index from grains to bytes: the inverse of `in_grains`."""
    return {
        name: amount * MEMORY_GRAIN_BYTES if name in _MEMORY else amount
        for name, amount in amounts.items()
    }
