"""Runs checks over many entities, with pauses. One sweep runs all checks once.

A check yields one sentence for each problem, and None at each point where it can pause. The state
can change during a pause. After a pause, a check either reads the values again, or makes sure that
the values have not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

Finding = str | None
"""One problem as a sentence, or None at a point where the check can pause."""

PART = 500
"""A sum can pause each time after this number of entries."""

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


def each(keys: Iterable[_Key], check: Callable[[_Key], Iterator[Finding]]) -> Iterator[Finding]:
    """Checks many entities, with a pause after each entity.

    Args:
        keys: keys of the entities. The state can change in a pause. So the keys must be a copy, or
            come from a list that changes only at its end.
        check: checks one entity. The function must accept the key of an entity that was deleted
            during a pause.
    """
    for key in keys:
        yield from check(key)
        yield None


def add_up(
    entries: Iterable[_Entry], add: Callable[[_Entry], None], version: Callable[[], object]
) -> Generator[None, None, bool]:
    """Adds up entries, with pauses.

    Args:
        entries: the entries to add up. If an entry changes in a pause, the result of `version` must
            change, too.
        add: adds one entry.
        version: returns a value that changes whenever the sum can have changed.

    Returns:
        True if the sum is complete. False if the version changed in a pause: the sum is possibly
        wrong, and the next sweep computes the sum again.
    """
    before = version()
    for at, entry in enumerate(entries, start=1):
        add(entry)
        if at % PART == 0:
            yield None
            if version() != before:
                return False
    return True
