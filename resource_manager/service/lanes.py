"""Which items the single writer serves next: fair queues between callers, and bounds on them.

There are two lanes. The urgent lane goes first, up to a bound per batch: keep-alives, answers of
executors and short reads of the resource manager itself. Everything else waits in one queue per
owner (a job, else a connection), and the queues are served in turn. So an owner that sends much
delays itself only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from finegrain.errors import ResourceExhausted
from resource_manager.service.engine_driver import Item


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How many items may wait, and how many one batch serves. Items are the rows of a call."""

    batch_items_max: int = 2_000  # of one batch, over all owners; a larger call fills one alone
    urgent_items_max: int = 200  # of one batch, in addition; each may concern another executor
    # Items that wait, over all owners. Above it, an owner that already has items waiting must
    # retry. Above twice as many, every owner must.
    queue_items_max: int = 200_000
    owner_items_max: int = 40_000  # items of one owner that wait; above it, the owner must retry
    retry_s: float = 0.5  # retry delay given to a refused caller


@dataclass(slots=True)
class _OwnerQueue:
    """Items of one owner that wait."""

    items: deque[Item] = field(default_factory=deque)
    waiting: int = 0  # sum of `Item.items`
    credit: int = 0  # items it may still take in this round; negative: overdrawn


class Lanes:
    """All items that wait for the writer.

    The owners' queues are served by a round robin with credit, counted in items, after M. Shreedhar
    and G. Varghese, "Efficient fair queueing using deficit round robin" (SIGCOMM 1995). Unlike
    there, a queue may overdraw its credit and pays that back in later rounds. A call of an owner
    with nothing else waiting is in the next batch or, with very many owners, is served after one
    round over all of them.
    """

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._urgent: deque[Item] = deque()
        self._queues: dict[str, _OwnerQueue] = {}  # in the order in which they are served
        self._promised: dict[str, int] = {}  # items admitted but not queued yet, by owner
        self.waiting_items = 0

    def __bool__(self) -> bool:
        return bool(self._urgent or self._queues)

    def put_urgent(self, item: Item) -> None:
        """Queues an item for the very next batch."""
        self._urgent.append(item)
        self.waiting_items += item.items

    def put(self, item: Item, owner: str) -> None:
        """Queues an item in its owner's queue."""
        queue = self._queues.get(owner)
        if queue is None:
            queue = self._queues[owner] = _OwnerQueue()
        queue.items.append(item)
        queue.waiting += item.items
        self.waiting_items += item.items

    def check(self, owner: str, items: int) -> None:
        """Returns normally if this many more items may wait.

        Args:
            owner: whose items they are.
            items: how many.

        Raises:
            ResourceExhausted: too many items wait, of this owner or in all.
        """
        limits = self._limits
        queue = self._queues.get(owner)
        mine = self._promised.get(owner, 0) + (queue.waiting if queue is not None else 0)
        # An owner with nothing waiting may send a call of any size. Else it could never be served.
        if mine and mine + items > limits.owner_items_max:
            raise ResourceExhausted(
                f"{mine} items of this caller are waiting to be written, and the limit is "
                f"{limits.owner_items_max}; wait for answers before you send more",
                details={"waiting": mine, "limit": limits.owner_items_max},
                retry_after_s=limits.retry_s,
            )
        waiting = self.waiting_items + sum(self._promised.values())
        # An owner with nothing waiting is not refused because of what others send.
        most = limits.queue_items_max if mine else 2 * limits.queue_items_max
        if waiting and waiting + items > most:
            raise ResourceExhausted(
                f"{waiting} items are waiting to be written, which is the limit; try again",
                details={"limit": limits.queue_items_max},
                retry_after_s=limits.retry_s,
            )

    @contextmanager
    def promised(self, owner: str, items: int) -> Iterator[None]:
        """Counts items that were admitted and will be queued when the context ends."""
        if not items:
            yield
            return
        self._promised[owner] = self._promised.get(owner, 0) + items
        try:
            yield
        finally:
            left = self._promised[owner] - items
            if left:
                self._promised[owner] = left
            else:
                del self._promised[owner]

    def gather(self) -> list[Item]:
        """Returns the next batch. Items whose caller has given up are skipped."""
        return [*self._next_urgent(), *self._next_fair()]

    def drain(self) -> list[Item]:
        """Removes and returns all items, for the caller to refuse."""
        waiting = list(self._urgent)
        for queue in self._queues.values():
            waiting += queue.items
        self._urgent.clear()
        self._queues.clear()
        self.waiting_items = 0
        return waiting

    def _next_urgent(self) -> Iterator[Item]:
        left = self._limits.urgent_items_max
        while self._urgent and left > 0:
            item = self._urgent.popleft()
            self.waiting_items -= item.items
            if not item.future.cancelled():
                left -= item.items
                yield item

    def _next_fair(self) -> Iterator[Item]:
        """Serves the owners' queues round by round, until the batch is full or all are empty.

        In each round a queue's credit grows by an equal share of a batch, to at most that share. A
        queue with credit gives items until the credit is used up. The last item may overdraw it.

        Example: with a batch of 2,000 and two owners the share is 1,000. Owner A has calls of 900
        and 900 items, owner B calls of 10. In the first round A's credit is 1,000: A gives its
        first call (credit 100) and, since that is above 0, its second one (credit -800). B then
        gives calls from the 200 items that are left of the batch.
        """
        left = self._limits.batch_items_max
        alone = True  # the batch is empty so far: even an item larger than a batch may go
        while self._queues and left > 0:
            # At least 1, so that very many owners still make progress in every pass.
            share = max(1, self._limits.batch_items_max // len(self._queues))
            served = False
            for owner in list(self._queues):
                queue = self._queues[owner]
                queue.credit = min(queue.credit + share, share)
                while queue.items and queue.credit > 0 and (alone or queue.items[0].items <= left):
                    item = self._take(queue)
                    if item.future.cancelled():
                        continue
                    queue.credit -= item.items
                    left -= item.items
                    alone, served = False, True
                    yield item
                if not queue.items:
                    # The credit goes with the queue: an owner that comes back starts like a new
                    # one.
                    del self._queues[owner]
                # An owner with credit left keeps its place. Only the size of the batch has stopped
                # it.
                elif queue.credit <= 0:
                    self._queues[owner] = self._queues.pop(owner)  # to the end of the order
                if left <= 0:
                    return
            if not served and self._queues:
                if any(queue.credit > 0 for queue in self._queues.values()):
                    return  # those with credit have items too large for the rest of the batch
                least = min(-queue.credit for queue in self._queues.values())
                for queue in self._queues.values():
                    # All are overdrawn. Skip the rounds in which none could be served.
                    queue.credit += least

    def _take(self, queue: _OwnerQueue) -> Item:
        item = queue.items.popleft()
        queue.waiting -= item.items
        self.waiting_items -= item.items
        return item
