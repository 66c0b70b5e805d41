"""How checks go through many entities, with pauses: one sweep over all invariants.

A check yields one sentence for each finding, and None wherever it may pause: the state may change
before it goes on, because what follows is consistent by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

Finding = str | None
"""What is wrong; None: the check may pause here."""

PART = 500
"""After how many entries a sum may pause."""

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


def each(keys: Iterable[_Key], check: Callable[[_Key], Iterator[Finding]]) -> Iterator[Finding]:
    """Checks many entities, with a pause after each.

    Args:
        keys: of the entities. They are copied, or fetched one at a time from a list that changes at
            its end only, because the state may change in a pause.
        check: checks one entity, unless it was deleted since the keys were copied.
    """
    for key in keys:
        yield from check(key)
        yield None


def add_up(
    entries: Iterable[_Entry], add: Callable[[_Entry], None], version: Callable[[], object]
) -> Generator[None, None, bool]:
    """Adds up a sum, with pauses.

    Args:
        entries: what is added up; it may change in a pause if `version` does.
        add: adds one entry.
        version: changes whenever the sum may have changed.

    Returns:
        False if the version changed in a pause, so that the sum says nothing. The next sweep adds
        it up again.
    """
    before = version()
    for at, entry in enumerate(entries, start=1):
        add(entry)
        if at % PART == 0:
            yield None
            if version() != before:
                return False
    return True
