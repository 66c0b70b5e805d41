"""How much of one job may be under way at once: calls, signs of life, open streams.

Counted before a call costs anything: a job that keeps too many open is told to come back, and its
keep-alives are counted apart, so that it does not lose its lease over that. Knows job ids and
numbers only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from finegrain.errors import ResourceExhausted


@dataclass(frozen=True, slots=True)
class JobLimits:
    """At once, of one job."""

    calls: int = 64  # unary calls that are not answered yet
    keep_alives: int = 16  # likewise
    streams: int = 32  # open watch streams
    retry_s: float = 0.5  # when a caller is told to come back


class Kind(StrEnum):
    """What is counted."""

    CALL = "calls"
    KEEP_ALIVE = "keep-alives"
    STREAM = "watch streams"


@dataclass(slots=True)
class _Place:
    """Where the large calls of one job take turns."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # the one inside and those who wait: a lock alone does not tell


class JobAdmission:
    """What is under way, by job."""

    def __init__(self, limits: JobLimits | None = None) -> None:
        limits = limits or JobLimits()
        self._retry_s = limits.retry_s
        self._limits = {
            Kind.CALL: limits.calls,
            Kind.KEEP_ALIVE: limits.keep_alives,
            Kind.STREAM: limits.streams,
        }
        self._under_way: dict[tuple[Kind, str], int] = {}
        self._preparing: dict[str, _Place] = {}

    @contextmanager
    def entered(self, kind: Kind, job_id: str) -> Iterator[None]:
        """Counts something of a job while it lasts.

        Raises:
            ResourceExhausted: there is as much as may be.
        """
        key = kind, job_id
        count = self._under_way.get(key, 0)
        if count >= self._limits[kind]:
            raise ResourceExhausted(
                f"job {job_id} has {count} {kind.value} under way, which is the limit; wait for"
                " some to end",
                details={"job_id": job_id, "under_way": count, "limit": self._limits[kind]},
                retry_after_s=self._retry_s,
            )
        self._under_way[key] = count + 1
        try:
            yield
        finally:
            left = self._under_way[key] - 1
            if left:
                self._under_way[key] = left
            else:
                del self._under_way[key]

    @asynccontextmanager
    async def preparing(self, job_id: str) -> AsyncIterator[None]:
        """One large call of a job at a time: many of them would share the loop with everybody."""
        place = self._preparing.setdefault(job_id, _Place())
        place.users += 1
        try:
            async with place.lock:
                yield
        finally:
            place.users -= 1
            if not place.users:
                del self._preparing[job_id]
