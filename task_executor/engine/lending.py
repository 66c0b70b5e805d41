"""Lends managed memory of a slot that its operators do not use to others that want more.

Only pools that take part lend and borrow. A pool says how much it wants and which limit it keeps
to. It may always have the smaller of its quota and what it wants; what other pools leave is lent
to those that want more than their quota, in order of asking. A limit is lowered first and raised
elsewhere only after the pool has confirmed that it keeps to the lower one. So limits never add up
to more than the slot has, whatever is on its way.

Example: a slot has 100 pages; "sort" and "join" have quotas of 50. Sort uses 10, join wants 80.
Join gets 80 as soon as sort has confirmed a limit of 20. Then sort wants 40: join must go back to
60, and when it has confirmed, sort gets 40. A pool that does not go back in time is overdue, and
its task is ended.
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
    """What is known of one pool, in bytes.

    Attributes:
        quota: what it can rely on.
        wanted: what it wants to use.
        limit: what it may use.
        kept: the limit that it keeps to, at most; more than `limit` until it has confirmed.
        borrows: whether it can have more than its quota.
        revoked_at: when its limit was first lowered, if it has not confirmed.
    """

    quota: int
    wanted: int
    limit: int
    kept: int
    borrows: bool
    revoked_at: float | None = None


class Lending:
    """The pools of one slot that take part.

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
        """Returns what a pool may use."""
        return self._pools[key].limit

    def revoked(self, key: PoolKey) -> int:
        """Returns how much less a pool must use than it has confirmed."""
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
        """Returns when the next pool will be overdue; None: all limits are confirmed."""
        times = [each.revoked_at for each in self._pools.values() if each.revoked_at is not None]
        return min(times) + self._deadline_s if times else None

    def join(self, key: PoolKey, quota: int, kept: int, *, borrows: bool) -> None:
        """Lets a pool take part; `kept` is the limit that it keeps to.

        That is its quota, or another limit if it took part before the executor was restarted.
        """
        self._pools[key] = _Pool(quota, quota, kept, kept, borrows)

    def says(self, key: PoolKey, wanted: int, kept: int, now: float) -> None:
        """Takes in what a pool wants, and the limit that it keeps to.

        Args:
            key: the pool.
            wanted: the bytes that it wants to use.
            kept: the limit that it keeps to; more than its limit while it uses more.
            now: the time in seconds.
        """
        pool = self._pools[key]
        pool.wanted = wanted
        # A limit that was raised meanwhile may be on its way.
        pool.kept = max(kept, pool.limit)
        self._settle(now)

    def leaves(self, key: PoolKey, now: float) -> None:
        """Takes in that a pool reports no more: it wants its quota, and must give back the rest."""
        pool = self._pools[key]
        self.says(key, pool.quota, pool.kept, now)

    def changed(self, room: int, quotas: Mapping[PoolKey, int], now: float) -> None:
        """Takes in new quotas; pools without one have ended.

        Args:
            room: bytes for these pools together: the managed memory without the quotas of others.
            quotas: quota of each pool.
            now: the time in seconds.
        """
        self._room = room
        self._pools = {key: each for key, each in self._pools.items() if key in quotas}
        for key, each in self._pools.items():
            # A pool that wants just what it can rely on still does.
            each.wanted = quotas[key] if each.wanted == each.quota else each.wanted
            each.quota = quotas[key]
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Lowers limits that are too high, and raises others as far as there is room."""
        targets = self._targets()
        for pool, target in targets:
            pool.limit = min(pool.limit, target)
        left = self._room - sum(pool.kept for pool, _ in targets)
        # Owners first: they can rely on their quotas.
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
