"""Chooses the slot of the slot sharing group in which each subtask runs.

A group has as many slots as its highest parallelism. A chain with this parallelism has one subtask
in each slot. The subtasks of a smaller chain are in slots at equal distances. The first slot is
chosen so that the chain gets slots with few subtasks. Chains of a co-location group are spread
together, as one chain.

Example: a group has 4 slots, and chains with 4, 2 and 1 subtasks. The second chain gets slots 0 and
2, and the third chain gets slot 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OFFSETS_MAX = 1_000
"""Maximum number of offsets to try. In a group with more slots, 1,000 chains of one subtask each
still get different slots.
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """The slots of one chain's subtasks.

    Attributes:
        slots: number of slots of the group.
        steps: number of subtasks. The distance between their slots is `slots` / `steps`.
        offset: slot of subtask 0.
    """

    slots: int
    steps: int
    offset: int = 0

    def slot_of(self, index: int) -> int:
        """Returns the slot of a subtask, 0 to `slots` - 1."""
        return (self.offset + index * self.slots // self.steps) % self.slots


def spread_evenly(slots: int, parallelisms: Sequence[int]) -> Iterator[Spread]:
    """Yields the slots of each chain. Co-located chains count as one chain.

    Args:
        slots: number of slots of the group.
        parallelisms: number of subtasks of each chain. For co-located chains, this is the largest
            number.
    """
    load = [0] * slots
    for parallelism in parallelisms:
        # Larger offsets give the same slots again.
        offsets = range(min(-(-slots // parallelism), OFFSETS_MAX))
        spreads = [Spread(slots, parallelism, offset) for offset in offsets]
        best = min(spreads, key=lambda each: (_load(load, each), each.offset))
        for index in range(parallelism):
            load[best.slot_of(index)] += 1
        yield best


def _load(load: Sequence[int], spread: Spread) -> tuple[int, int]:
    found = [load[spread.slot_of(index)] for index in range(spread.steps)]
    return max(found), sum(found)
