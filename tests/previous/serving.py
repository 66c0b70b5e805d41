"""Runs a resource manager in this process. It serves a stored database, at the moment at which the
database was stored.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import finegrain_client as fg
from finegrain.mapping.value import SHOWN
from resource_manager import wiring as parts
from resource_manager.service import engine_driver as books
from tests.support.engine_cluster import START_TIME_MS
from tests.support.rm_service import RunningRm, running_rm

TAKEN_TIME_MS = START_TIME_MS + 60_000
"""A moment after the last stored event, and before the first stored timer is due."""

ALL_STATES = ("PENDING", "ALLOCATING", "GRANTED", "RELEASED", "CANCELLED", "REJECTED", "LOST")
CHANGES_BY_ITSELF = {
    "service", "share_now", "share_entitled", "tally", "reason", "oldest_wait_time",
}  # fmt: skip
"""Fields that depend on the time since the start, or on the rules of this version."""


@contextmanager
def at_the_time_of_the_evidence() -> Iterator[None]:
    """The wall clock of a resource manager in this process stands still."""
    real = books.now

    def then() -> Any:
        return dataclasses.replace(real(), time_ms=TAKEN_TIME_MS)

    with patch.object(books, "now", then), patch.object(parts, "now", then):
        yield


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[RunningRm]:
    """A resource manager on this database. No executor of it is ever lost."""
    with tempfile.TemporaryDirectory(prefix="fg-") as folder, at_the_time_of_the_evidence():
        async with running_rm(Path(folder), database_url=url, lost_timeout_ms=3_600_000) as manager:
            yield manager


async def listed(manager: RunningRm) -> dict[str, Any]:
    """Returns what a client reads from a resource manager, in the form of the command line, without
    fields that change by themselves.
    """
    own = manager.own("operator/root").credentials
    async with fg.connect(manager.address, credentials=own) as cluster:
        found = {
            "requests": await cluster.requests(states=ALL_STATES),
            "slots": await cluster.slots(),
            "jobs": await cluster.jobs(include_ended=True),
            "executors": await cluster.executors(),
            "groups": (await cluster.groups()).groups,
            "host-policy": await cluster.host_policy("host-n"),
            "default-policy": await cluster.host_policy(None),
        }
    return {name: stable(SHOWN.to_json(each)) for name, each in found.items()}


def stable(value: Any) -> Any:
    """The document without fields that change by themselves."""
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in CHANGES_BY_ITSELF}
    return [stable(each) for each in value] if isinstance(value, list) else value
