"""Runs checks over many entities, with pauses. One sweep runs all checks once.

A check yields one sentence for each problem, and None at each point where it may pause. The state
may change during a pause. After a pause, a check reads the values again. Or it first checks that
the values have not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

Finding = str | None
"""A problem in one sentence; None: the check may pause here."""

PART = 500
"""Number of entries after which a sum may pause."""

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


def each(keys: Iterable[_Key], check: Callable[[_Key], Iterator[Finding]]) -> Iterator[Finding]:
    """Checks many entities, with a pause after each entity.

    Args:
        keys: keys of the entities. The state may change in a pause. So the keys must be a copy, or
            come from a list to which entries are only appended.
        check: checks one entity. The function must accept the key of an entity that was deleted
            during a pause.
    """
    for key in keys:
        yield from check(key)
        yield None


def add_up(
    entries: Iterable[_Entry], add: Callable[[_Entry], None], version: Callable[[], object]
) -> Generator[None, None, bool]:
    """Adds up a sum, with pauses.

    Args:
        entries: the entries to add up. If they change in a pause, `version` must change, too.
        add: adds one entry.
        version: returns a value that changes whenever the sum may have changed.

    Returns:
        True if the sum is complete. False if the version changed in a pause. The sum may then be
        wrong, and the next sweep computes it again.
    """
    before = version()
    for at, entry in enumerate(entries, start=1):
        add(entry)
        if at % PART == 0:
            yield None
            if version() != before:
                return False
    return True
