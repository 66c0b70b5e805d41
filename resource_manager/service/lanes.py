"""Decides which items the single writer serves next, with fair queues and limits.

There are two lanes. The urgent lane is served first, up to a limit per batch. This lane contains
keep-alives, answers of executors, and short reads of the resource manager itself. All other items
wait in queues. There is one queue per owner (a job, or a connection without a job), and the queues
are served one after the other. So an owner that sends many items delays only itself.
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
    """Limits of waiting items and of one batch. Items are the rows of a call."""

    batch_items_max: int = (
        2_000  # items of all owners in one batch; a call with more items gets its own batch
    )
    urgent_items_max: int = 200  # additional urgent items in one batch
    # Waiting items of all owners. Above this limit, an owner with waiting items must retry. Above
    # twice this limit, every owner must retry.
    queue_items_max: int = 200_000
    owner_items_max: int = 40_000  # waiting items of one owner, above which the owner must retry
    retry_s: float = 0.5  # delay after which a rejected caller should retry


@dataclass(slots=True)
class _OwnerQueue:
    """The waiting items of one owner."""

    items: deque[Item] = field(default_factory=deque)
    waiting: int = 0  # the sum of `Item.items` over the queue
    credit: int = 0  # items that the queue can still give in this round; below 0: overdrawn


class Lanes:
    """All items that wait for the writer.

    The owners' queues are served by deficit round robin (M. Shreedhar and G. Varghese, "Efficient
    fair queueing using deficit round robin", SIGCOMM 1995). Credit is counted in items. One detail
    differs from the paper: a queue can spend more than its credit, and pays its debt back in later
    rounds. If an owner has no other waiting items, its call is served in the next batch. With very
    many owners, this call is served after one round over all owners.
    """

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._urgent: deque[Item] = deque()
        self._queues: dict[str, _OwnerQueue] = {}  # the queues, in the order of service
        self._promised: dict[str, int] = {}  # items admitted but not queued yet, by owner
        self.waiting_items = 0

    def __bool__(self) -> bool:
        return bool(self._urgent or self._queues)

    def put_urgent(self, item: Item) -> None:
        """Queues an item for the next batch."""
        self._urgent.append(item)
        self.waiting_items += item.items

    def put(self, item: Item, owner: str) -> None:
        """Adds an item to its owner's queue."""
        queue = self._queues.get(owner)
        if queue is None:
            queue = self._queues[owner] = _OwnerQueue()
        queue.items.append(item)
        queue.waiting += item.items
        self.waiting_items += item.items

    def check(self, owner: str, items: int) -> None:
        """Checks that more items are allowed to wait.

        Args:
            owner: the owner of the items.
            items: the number of items.

        Raises:
            ResourceExhausted: too many items of this owner, or of all owners, are waiting.
        """
        limits = self._limits
        queue = self._queues.get(owner)
        mine = self._promised.get(owner, 0) + (queue.waiting if queue is not None else 0)
        # An owner without waiting items is allowed to send a call of any size. Otherwise a large
        # call could never be served.
        if mine and mine + items > limits.owner_items_max:
            raise ResourceExhausted(
                f"{mine} items of this caller are waiting to be written, and the limit is "
                f"{limits.owner_items_max}; wait for answers before you send more",
                details={"waiting": mine, "limit": limits.owner_items_max},
                retry_after_s=limits.retry_s,
            )
        waiting = self.waiting_items + sum(self._promised.values())
        # An owner without waiting items gets a higher limit. So the items of other owners do not
        # block it.
        most = limits.queue_items_max if mine else 2 * limits.queue_items_max
        if waiting and waiting + items > most:
            raise ResourceExhausted(
                f"{waiting} items are waiting to be written, which is the limit; try again",
                details={"limit": limits.queue_items_max},
                retry_after_s=limits.retry_s,
            )

    @contextmanager
    def promised(self, owner: str, items: int) -> Iterator[None]:
        """Counts items that were admitted but are not queued yet. These items will be queued when
        the context ends.
        """
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
        """Returns the next batch, without items whose caller has cancelled the call."""
        return [*self._next_urgent(), *self._next_fair()]

    def drain(self) -> list[Item]:
        """Removes and returns all items. The caller rejects them."""
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
        """Serves the owners' queues round by round, until the batch is full or all queues are
        empty.

        In each round, the credit of each queue grows by an equal share of a batch, up to this
        share. A queue with credit gives items until its credit is used. The last item can overdraw
        the credit.

        Example: with a batch of 2,000 items and two owners, the share is 1,000. Owner A has two
        calls of 900 items, and owner B has calls of 10 items. In the first round, A has a credit of
        1,000. A gives its first call, which leaves a credit of 100. Because this credit is above 0,
        A also gives its second call, which leaves a credit of -800. Then 200 items of the batch are
        left for calls of B.
        """
        left = self._limits.batch_items_max
        # The batch is still empty, so even an item that is larger than a batch is allowed.
        alone = True
        while self._queues and left > 0:
            # The share is at least 1. So each owner makes progress even if there are very many
            # owners.
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
                    # The credit is deleted with the queue. If the owner returns, it starts like a
                    # new owner.
                    del self._queues[owner]
                # An owner that still has credit keeps its place. It gives no more items now only
                # because the batch is full.
                elif queue.credit <= 0:
                    self._queues[owner] = self._queues.pop(owner)  # the owner is now served last
                if left <= 0:
                    return
            if not served and self._queues:
                if any(queue.credit > 0 for queue in self._queues.values()):
                    return  # the items of all queues with credit are too large for this batch
                least = min(-queue.credit for queue in self._queues.values())
                for queue in self._queues.values():
                    # All queues have spent more than their credit. The rounds in which no queue
                    # could be served are skipped.
                    queue.credit += least

    def _take(self, queue: _OwnerQueue) -> Item:
        item = queue.items.popleft()
        queue.waiting -= item.items
        self.waiting_items -= item.items
        return item
