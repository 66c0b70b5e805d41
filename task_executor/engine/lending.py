"""Lends managed memory that some operators of a slot do not use to operators that need more.

Only pools that have joined lend and borrow memory. Each of them reports the amount of memory that
it wants, and the limit that it obeys at present. Each pool can always have the memory that it
wants, up to its quota. Pools that want more than their quota borrow the unused memory of other
pools. The pool that joined first borrows first. One pool's limit is raised only after another pool
has confirmed a lower limit. So the sum of the limits that pools obey is never higher than the
slot's managed memory.

Example: a slot has 100 pages, and "sort" and "join" have quotas of 50 pages. Sort wants 20 pages,
and join wants 80. Join gets 80 pages when sort has confirmed a limit of 20. Later sort wants 40
pages. Join must then return to 60 pages, and sort gets 40 pages when join has confirmed its lower
limit. If a pool does not confirm in time, it is overdue, and its task is ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class PoolKey(NamedTuple):
    """A pool: one operator of one task."""

    task_id: str
    operator_id: str


@dataclass(slots=True)
class _Pool:
    """The state of one pool. All amounts are in bytes.

    Attributes:
        quota: the memory that the pool can always have.
        wanted: the memory that the pool wants to use.
        limit: the memory that the pool is allowed to use.
        kept: the limit that the pool obeys at present. It is above `limit` until the pool has
            confirmed a lower limit.
        borrows: True if the pool can use more memory than its quota.
        revoked_at: the time when the pool was ordered to obey a lower limit; None if the pool has
            confirmed all orders.
    """

    quota: int
    wanted: int
    limit: int
    kept: int
    borrows: bool
    revoked_at: float | None = None


class Lending:
    """The pools of one slot that lend and borrow memory.

    Args:
        deadline_s: time in seconds that a pool has to confirm a lower limit.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._room = 0
        self._pools: dict[PoolKey, _Pool] = {}

    def __contains__(self, key: PoolKey) -> bool:
        return key in self._pools

    def limit(self, key: PoolKey) -> int:
        """Returns the memory that a pool is allowed to use, in bytes."""
        return self._pools[key].limit

    def revoked(self, key: PoolKey) -> int:
        """Returns the bytes that a pool must still give back: the limit that it obeys now, minus
        its new limit.
        """
        pool = self._pools[key]
        return pool.kept - pool.limit

    def overdue(self, now: float) -> list[PoolKey]:
        """Returns the pools that have not confirmed a lower limit in time."""
        return [
            key
            for key, each in self._pools.items()
            if each.revoked_at is not None and now >= each.revoked_at + self._deadline_s
        ]

    def next_deadline(self) -> float | None:
        """Returns the time when the next pool will be overdue; None if all pools have confirmed
        their limits.
        """
        times = [each.revoked_at for each in self._pools.values() if each.revoked_at is not None]
        return min(times) + self._deadline_s if times else None

    def join(self, key: PoolKey, quota: int, kept: int, *, borrows: bool) -> None:
        """Adds a pool, which can then lend memory.

        Args:
            key: the pool.
            quota: the quota of the pool, in bytes.
            kept: the limit that the pool obeys. This is the quota of the pool, unless the pool had
                already joined before a restart of the executor.
            borrows: True if the pool can use more memory than its quota.
        """
        self._pools[key] = _Pool(quota, quota, kept, kept, borrows)

    def report(self, key: PoolKey, wanted: int, kept: int, now: float) -> None:
        """Updates a pool from its report.

        Args:
            key: the pool.
            wanted: the bytes that the pool wants to use.
            kept: the limit that the pool obeys. While the pool uses more than its limit, `kept` is
                above the limit.
            now: the present time in seconds.
        """
        pool = self._pools[key]
        pool.wanted = wanted
        # If the executor has raised the limit after the pool sent this report, the pool possibly
        # uses the higher limit already.
        pool.kept = max(kept, pool.limit)
        self._settle(now)

    def leaves(self, key: PoolKey, now: float) -> None:
        """Handles a pool that stops reporting. From now on, the limit of the pool is its quota, and
        the pool must return borrowed memory.
        """
        pool = self._pools[key]
        self.report(key, pool.quota, pool.kept, now)

    def changed(self, room: int, quotas: Mapping[PoolKey, int], now: float) -> None:
        """Updates the quotas. Pools without a quota have ended and are removed.

        Args:
            room: the bytes that the pools share. This is the slot's managed memory minus the quotas
                of operators whose pools have not joined.
            quotas: the quota of each pool, in bytes.
            now: the present time in seconds.
        """
        self._room = room
        self._pools = {key: each for key, each in self._pools.items() if key in quotas}
        for key, each in self._pools.items():
            # A pool that wanted exactly its quota now wants exactly its new quota.
            each.wanted = quotas[key] if each.wanted == each.quota else each.wanted
            each.quota = quotas[key]
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Lowers the limits that are too high. Raises the limits that are too low, as far as there
        is room.
        """
        targets = self._targets()
        for pool, target in targets:
            pool.limit = min(pool.limit, target)
        left = self._room - sum(pool.kept for pool, _ in targets)
        # Pools within their quota come first, because they can always have their quota.
        for pool, target in sorted(targets, key=lambda each: each[1] > each[0].quota):
            raised = min(target, pool.kept + max(left, 0))
            if raised > pool.limit:
                left -= max(raised - pool.kept, 0)
                pool.limit = raised
                pool.kept = max(pool.kept, raised)
        for pool, _ in targets:
            if pool.kept == pool.limit:
                pool.revoked_at = None
            elif pool.revoked_at is None:
                pool.revoked_at = now

    def _targets(self) -> list[tuple[_Pool, int]]:
        """Returns the limit that each pool should have."""
        pools = list(self._pools.values())
        unclaimed = max(self._room - sum(each.quota for each in pools), 0)
        idle = [max(each.quota - each.wanted, 0) for each in pools]
        left = unclaimed + sum(idle)
        extras = []
        for each in pools:
            extra = min(max(each.wanted - each.quota, 0), left) if each.borrows else 0
            left -= extra
            extras.append(extra)
        lent = max(sum(extras) - unclaimed, 0)
        targets = []
        for each, extra, unused in zip(pools, extras, idle, strict=True):
            part = min(unused, lent)
            lent -= part
            targets.append((each, each.quota + extra - part))
        return targets
