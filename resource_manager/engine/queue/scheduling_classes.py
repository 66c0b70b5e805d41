"""Equal requests, and what is known of them. Knows what one asks for and how it is counted; whether
there is room is not its business, nor who waits.

Requests that ask for the same (profile, labels and CPU policy) form a *shape*: where one of them
does not fit, none does, so a failed search is remembered once per shape.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrain.cpu_policy import PLAIN, BindPolicy, CpuPolicy
from finegrain.intervals import Run
from finegrain.resources import (
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    Amounts,
    ResourceProfile,
    booking,
)
from resource_manager.engine.cpus.columns import amounts_only, cpu_need
from resource_manager.engine.queue.non_batchable import Labels

if TYPE_CHECKING:
    from resource_manager.engine.model.entities import RequestSpec
    from resource_manager.engine.queue.job_queues import Line

SLOTS = "slots"
"""Index column: slots that a host may still take."""

DEFAULT_SLOTS = "default_slots"
"""Index column: default slots that a host may still take."""

_NEVER = 1 << 62
"""Above every arrival number."""

_MEMORY = frozenset({MEMORY_BYTES, *MEMORY_PARTS})

STALE_MAX = 64
"""Places at which nobody stands any more that a heap may have beside as many as are of use."""

CpuKey = tuple[CpuPolicy, int]
"""What a request says of its cpus: its policy, and its cpu limit where a host is chosen by that."""

ShapeKey = tuple[ResourceProfile | None, Labels, CpuKey | None]
"""All by which a host is chosen. Requests that say nothing of their cpus have None there."""


def cpu_key(policy: CpuPolicy, cpu_limit_milli: int) -> CpuKey | None:
    """What tells requests apart that ask for the same amounts; None: nothing."""
    if policy is PLAIN or policy == PLAIN:
        return None
    burst = policy.bind is BindPolicy.CONSTRAINED_BURST
    return policy, cpu_limit_milli if burst else 0


def shape_key(spec: RequestSpec) -> ShapeKey:
    """Requests with the same key are of one shape."""
    policy = spec.cpu_policy
    cpus = None if policy is PLAIN else cpu_key(policy, spec.cpu_limit_milli)
    return spec.profile, spec.required_labels, cpus


def is_exact(profile: ResourceProfile | None, cpus: CpuKey | None) -> bool:
    """True if amounts alone never say whether a host can serve who asks for this. (Nor do they of a
    default slot of best-effort cpu: the index counts those of the other kind.)
    """
    if cpus is None:
        return False
    return cpus[0].is_exact or (cpus[0].best_effort and profile is None)


@dataclass(slots=True, eq=False)
class Cursor:
    """How far a shape's search has come in its index: no host before `frontier` fits, but perhaps
    those at the positions `again`, as of `log_length`.
    """

    version: int = -1
    log_length: int = 0
    frontier: int = 0
    again: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Shape:
    """Equal requests that wait.

    Attributes:
        cpus: what they say of their cpus; None: nothing.
        pooled_need: columns of the index and amounts that a host with one memory pool must have;
            where `exact`, more may be needed.
        separate_need: the same on a host with a pool per memory part.
        waiting: how many.
        lines: by job.
        parked: those that were found waiting in vain while nothing fitted.
        tried: since somebody began to wait with it.
        verdict: (version of the cluster, feasibility) as last judged.
        reason: (state of the books, why it waits) as last asked.
        need: (version of the cluster, what one books at most) as last asked.
    """

    number: int  # order of making; for ties
    profile: ResourceProfile | None
    labels: Labels
    pooled_need: dict[str, int]
    separate_need: dict[str, int]
    cpus: CpuKey | None = None
    waiting: int = 0
    lines: dict[str, Line] = field(default_factory=dict)
    parked: dict[Line, None] = field(default_factory=dict)
    tried: bool = True
    cursor: Cursor = field(default_factory=Cursor)
    strict_cursor: Cursor = field(default_factory=Cursor)  # among hosts that look exactly at all
    verdict: tuple[int, str] | None = None
    reason: tuple[int, str] | None = None
    need: tuple[int, dict[str, int]] | None = None
    heads: list[tuple[int, Line]] = field(default_factory=list)  # see `head`

    @property
    def key(self) -> ShapeKey:
        """What all of them ask for."""
        return self.profile, self.labels, self.cpus

    @property
    def amounts(self) -> tuple[dict[str, int], dict[str, int]]:
        """`pooled_need` and `separate_need` without columns of cpus: as far as amounts can tell."""
        if self.cpus is None:
            return self.pooled_need, self.separate_need
        return amounts_only(self.pooled_need), amounts_only(self.separate_need)

    @property
    def policy(self) -> CpuPolicy:
        """What they say of their cpus."""
        return PLAIN if self.cpus is None else self.cpus[0]

    @property
    def best_effort(self) -> bool:
        """True if they book best-effort cpu."""
        return self.cpus is not None and self.cpus[0].best_effort

    @property
    def exact(self) -> bool:
        """True if amounts alone never say whether a host can serve one."""
        return self.cpus is not None and is_exact(self.profile, self.cpus)

    def head(self) -> int | None:
        """Arrival number of who waits longest with it; None: nobody waits."""
        heads = self.heads
        while heads:
            number, line = heads[0]
            if not line.numbers:
                heapq.heappop(heads)
            elif line.numbers.first != number:
                heapq.heapreplace(heads, (line.numbers.first, line))
            else:
                return number
        return None

    def first_lines(self, most: int) -> list[Line]:
        """The lines of those who wait longest with it, one line each, in their order; so many at
        most. All others are not looked at.
        """
        found: dict[Line, None] = {}
        while len(found) < most and self.head() is not None:
            found[heapq.heappop(self.heads)[1]] = None  # some stand there more than once
        for line in found:
            heapq.heappush(self.heads, (line.numbers.first, line))
        return list(found)

    def stand(self, line: Line, number: int) -> None:
        """Who waits longest in a line of this shape has this number now, which is lower than it
        was.
        """
        heapq.heappush(self.heads, (number, line))
        if len(self.heads) > STALE_MAX + 2 * len(self.lines):
            self.heads = [(line.numbers.first, line) for line in self.lines.values()]
            heapq.heapify(self.heads)

    def runs(self) -> Iterator[Run]:
        """Arrival numbers of those who wait, in order, as runs that follow one another (and may
        touch). Nobody may come or leave meanwhile.
        """
        self.head()
        left = list(self.heads)
        while left:
            number, line = heapq.heappop(left)
            start = line.numbers.next_from(number)
            if start is None:
                continue
            if left and left[0][0] <= start:  # at the earliest
                if left[0][1] is not line or left[0][0] != start:
                    heapq.heappush(left, (start, line))
                continue  # the same once more
            _, end = next(line.numbers.runs_within(start, _NEVER))
            if left:
                end = min(end, left[0][0])
            yield start, end
            heapq.heappush(left, (end, line))

    def numbers(self) -> Iterator[int]:
        """Arrival numbers of those who wait, in order. Likewise."""
        for start, end in self.runs():
            yield from range(start, end)

    def count_before(self, number: int) -> int:
        """How many wait with it who came before a number."""
        return sum(line.numbers.count_within(0, number) for line in self.lines.values())


def make_shape(number: int, key: ShapeKey) -> Shape:
    """The shape of requests that ask for this."""
    profile, labels, cpus = key
    return Shape(
        number=number,
        profile=profile,
        labels=labels,
        pooled_need=_need(profile, cpus, separate_pools=False),
        separate_need=_need(profile, cpus, separate_pools=True),
        cpus=cpus,
    )


def _need(
    profile: ResourceProfile | None, cpus: CpuKey | None, *, separate_pools: bool
) -> dict[str, int]:
    best_effort = cpus is not None and cpus[0].best_effort
    if profile is None:
        return {SLOTS: 1} if best_effort else {DEFAULT_SLOTS: 1}
    booked = booking(profile, separate_pools=separate_pools, best_effort=best_effort)
    need = {**in_grains(booked), SLOTS: 1}
    return need if cpus is None else {**need, **cpu_need(profile, cpus[0])}


def in_grains(amounts: Amounts) -> dict[str, int]:
    """Amounts as the index counts them: memory in whole `MEMORY_GRAIN_BYTES`.

    Small numbers are quicker to reckon with. Nothing is lost by it: bookings are multiples of the
    grain.
    """
    return {
        name: amount // MEMORY_GRAIN_BYTES if name in _MEMORY else amount
        for name, amount in amounts.items()
    }
