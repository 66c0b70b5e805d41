"""Limits of one call with many items, and the division of ids into several calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BATCH_ITEMS_MAX = 10_000
# the server allows 4 MiB; 64 KiB are left for the other fields of the message
BATCH_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024


def id_batches(ids: Sequence[str], *, items_max: int = BATCH_ITEMS_MAX) -> Iterator[Sequence[str]]:
    """Splits ids, in order, into groups that fit into one call each.

    10,000 ids are less than 2 MiB.
    """
    for start in range(0, len(ids), items_max):
        yield ids[start : start + items_max]
