"""Decides which slots use more memory of a GPU than they have, from one reading after another.

One reading above the share is not enough: a process that has just ended may still be counted, and
one that replaces it as well. The next reading must confirm it.

Example: a slot has 10 GiB. Readings of 8, 12, 9, 12 and 13 GiB say something at the last one only,
and the slot was last within its share at the third one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from task_executor.engine.slots import SlotKey


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What the processes of a slot use of the memory of one GPU, and what the slot has."""

    key: SlotKey
    uuid: str
    used_bytes: int
    share_bytes: int

    @property
    def excess_bytes(self) -> int:
        return max(self.used_bytes - self.share_bytes, 0)


@dataclass(frozen=True, slots=True)
class Overuse:
    """A confirmed use above the share.

    Attributes:
        use: the use at the reading that has confirmed it.
        within_at_s: time of the last reading in which the slot was within its share. If there was
            none, that of the first one.
    """

    use: MemoryUse
    within_at_s: float


class MemoryWatch:
    """Compares uses with shares, reading by reading.

    Attributes:
        must_confirm: the last reading has found a slot above its share for the first time, so the
            next one should follow soon.
    """

    def __init__(self) -> None:
        self.must_confirm = False
        self._within_at_s: dict[tuple[SlotKey, str], float] = {}
        self._above: set[tuple[SlotKey, str]] = set()

    def observe(self, at_s: float, uses: Iterable[MemoryUse]) -> tuple[Overuse, ...]:
        """Takes in a new reading.

        Args:
            at_s: its time, in seconds.
            uses: the use of each slot and GPU that is watched, also of those that use nothing.

        Returns:
            Slots that are above their share now and were in the reading before, at each reading
            until they are within it.
        """
        before, self._above = self._above, set()
        within_before, self._within_at_s = self._within_at_s, {}
        found = []
        for use in uses:
            at = (use.key, use.uuid)
            if not use.excess_bytes:
                self._within_at_s[at] = at_s
                continue
            self._above.add(at)
            within_at_s = self._within_at_s[at] = within_before.get(at, at_s)
            if at in before:
                found.append(Overuse(use, within_at_s))
        self.must_confirm = not self._above <= before
        return tuple(found)
