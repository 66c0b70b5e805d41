"""Caches what is made from plain data that many values share.

Data such as a dict has no hash, so it is compared by identity. Shared data must never change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def by_identity(make: Callable[[Any], T], most: int) -> Callable[[Any], T]:
    """Returns `make` with a cache. The cache compares data by identity, not by value.

    This is safe, because the cache also keeps the data. So Python cannot use the id of the data for
    another object.

    Args:
        make: the function whose results are cached.
        most: largest number of results in the cache.
    """
    known: dict[int, tuple[Any, T]] = {}

    def made(data: Any) -> T:
        found = known.get(id(data))
        if found is None:
            if len(known) >= most:
                known.clear()
            found = known[id(data)] = data, make(data)
        return found[1]

    return made
