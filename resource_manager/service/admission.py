"""Limits how many calls, keep-alives and watch streams of each job are open at the same time.

A call is counted before it causes any work. A job with too many calls in progress must retry later.
Keep-alives are counted separately. So a busy job does not lose its lease.
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
    """Limits that apply to each job at any moment."""

    calls: int = 64  # unary calls in progress
    keep_alives: int = 16  # keep-alive calls in progress
    streams: int = 32  # open watch streams
    retry_s: float = 0.5  # delay after which a rejected caller should retry


class Kind(StrEnum):
    """Kinds of activity that are counted. The value names the kind in error messages."""

    CALL = "calls"
    KEEP_ALIVE = "keep-alives"
    STREAM = "watch streams"


@dataclass(slots=True)
class _Place:
    """A lock that ensures that only one large call of a job is prepared at a time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # The number of calls that hold the lock or wait for it; an unused lock is deleted.
    users: int = 0


class JobAdmission:
    """Counts the calls, keep-alives and watch streams of each job that are open now."""

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
        """Counts one call, keep-alive or stream of a job until the context ends.

        Raises:
            ResourceExhausted: the job has reached its limit.
        """
        key = kind, job_id
        count = self._under_way.get(key, 0)
        if count >= self._limits[kind]:
            raise ResourceExhausted(
                f"job {job_id} has {count} {kind.value} in progress, which is the limit; wait "
                "until some of them have ended",
                details={"job_id": job_id, "under_way": count, "limit": self._limits[kind]},
                retry_after_s=self._retry_s,
            )
        self._under_way[key] = count + 1
        try:
            yield
        finally:
            left = self._under_way[key] - 1
            # Only jobs with calls or streams in progress have an entry, so the table stays small.
            if left:
                self._under_way[key] = left
            else:
                del self._under_way[key]

    @asynccontextmanager
    async def preparing(self, job_id: str) -> AsyncIterator[None]:
        """Admits one large call of a job at a time.

        While a large call is decoded, the event loop also serves other callers. If many large calls
        of one job were decoded at the same time, the other callers would get only a small part of
        the loop's time.
        """
        place = self._preparing.setdefault(job_id, _Place())
        # Count the call before the wait. So no other call deletes the lock during the wait.
        place.users += 1
        try:
            async with place.lock:
                yield
        finally:
            place.users -= 1
            if not place.users:
                del self._preparing[job_id]
