"""Decides which slots use more memory of a GPU than their share, from a sequence of readings.

One reading above the share is not enough. When a new process replaces another process, one reading
can count both processes. A second reading must confirm the overuse.

Example: a slot has 10 GiB. The readings are 8, 12, 9, 12 and 13 GiB. Only the fifth reading shows a
confirmed overuse. The third reading is the last reading in which the slot is within its share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from task_executor.engine.slots import SlotKey


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of one GPU that the processes of a slot use, and the slot's share of this
    memory.
    """

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
        use: the use in the reading that confirmed the overuse.
        within_at_s: the time of the last reading in which the slot was within its share. If the
            slot was never within its share, this is the time of the first reading.
    """

    use: MemoryUse
    within_at_s: float


class MemoryWatch:
    """Compares the use of each slot with its share, in each reading.

    Attributes:
        must_confirm: True if the last reading found a slot above its share for the first time. The
            next reading should then follow soon.
    """

    def __init__(self) -> None:
        self.must_confirm = False
        self._within_at_s: dict[tuple[SlotKey, str], float] = {}
        self._above: set[tuple[SlotKey, str]] = set()

    def observe(self, at_s: float, uses: Iterable[MemoryUse]) -> tuple[Overuse, ...]:
        """Evaluates a new reading.

        Args:
            at_s: the time of the reading, in seconds.
            uses: the use of each watched slot on each of its GPUs, even if the slot uses no memory
                of the GPU.

        Returns:
            The slots that are above their share both in this reading and in the reading before it.
            Every later reading returns such a slot again, until the slot is within its share.
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
