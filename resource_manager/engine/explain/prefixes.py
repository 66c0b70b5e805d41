"""Beginnings of names, and which names begin so. Knows texts only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Beginnings:
    """Whether a text begins with one of many, found in the logarithm of how many there are."""

    def __init__(self, beginnings: Iterable[str]) -> None:
        self._sorted: list[str] = []
        for each in sorted(beginnings):  # those that begin with another one add nothing
            if not self._sorted or not each.startswith(self._sorted[-1]):
                self._sorted.append(each)

    def __call__(self, text: str) -> bool:
        at = bisect_right(self._sorted, text)
        return at > 0 and text.startswith(self._sorted[at - 1])

    def tell_apart(self, prefix: str) -> bool:
        """True if of the texts with this prefix they may be the beginnings of some only."""
        at = bisect_right(self._sorted, prefix)
        return at < len(self._sorted) and self._sorted[at].startswith(prefix)
