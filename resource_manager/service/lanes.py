"""Who is served next by the one writer: fair turns between callers, and bounds on what waits.

Two lanes. Signs of life, answers of executors and small questions of the service itself go first,
up to a bound per batch. Everything else waits in a line per owner (a job, else a connection), and
owners take turns, weighted by items: a round robin with credit, after M. Shreedhar and G. Varghese,
"Efficient fair queueing using deficit round robin" (SIGCOMM 1995), in which an overdraft is paid
back. So whoever sends much waits for himself: a call of anybody else is in the next batch or, with
very many owners, after one turn of each. Knows items and owners; not what calls do, nor how a batch
is served.
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
    """How much may wait, and how much is served at once; in items, which are the rows of a call."""

    batch_items_max: int = 2_000  # of one batch, by all owners; a larger call goes alone
    urgent_items_max: int = 5_000  # of one batch, besides
    # Waiting; beyond it callers who have something waiting are told to come back, beyond twice as
    # many all are.
    queue_items_max: int = 200_000
    owner_items_max: int = 40_000  # waiting, of one owner; likewise
    retry_s: float = 0.5  # when they are told to come back


@dataclass(slots=True)
class _OwnerQueue:
    """What waits of one owner."""

    items: deque[Item] = field(default_factory=deque)
    waiting: int = 0
    credit: int = 0


class Lanes:
    """Everything that waits for the writer."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._urgent: deque[Item] = deque()
        self._queues: dict[str, _OwnerQueue] = {}  # in order of their turns
        self._promised: dict[str, int] = {}  # items that are let in and have not come yet
        self.waiting_items = 0

    def __bool__(self) -> bool:
        return bool(self._urgent or self._queues)

    def put_urgent(self, item: Item) -> None:
        """Lets an item wait for the very next batch."""
        self._urgent.append(item)
        self.waiting_items += item.items

    def put(self, item: Item, owner: str) -> None:
        """Lets an item wait in its owner's line."""
        queue = self._queues.get(owner)
        if queue is None:
            queue = self._queues[owner] = _OwnerQueue()
        queue.items.append(item)
        queue.waiting += item.items
        self.waiting_items += item.items

    def check(self, owner: str, items: int) -> None:
        """Returns if so many more may wait.

        Raises:
            ResourceExhausted: too much waits, of this owner or in all.
        """
        limits = self._limits
        queue = self._queues.get(owner)
        mine = self._promised.get(owner, 0) + (queue.waiting if queue is not None else 0)
        if mine and mine + items > limits.owner_items_max:
            raise ResourceExhausted(
                f"{mine} items of this caller wait to be written; at most"
                f" {limits.owner_items_max} may: wait for answers before you send more",
                details={"waiting": mine, "limit": limits.owner_items_max},
                retry_after_s=limits.retry_s,
            )
        waiting = self.waiting_items + sum(self._promised.values())
        # Whoever has nothing waiting is not refused over what others send.
        most = limits.queue_items_max if mine else 2 * limits.queue_items_max
        if waiting and waiting + items > most:
            raise ResourceExhausted(
                f"{waiting} items wait to be written, which is the limit; try again",
                details={"limit": limits.queue_items_max},
                retry_after_s=limits.retry_s,
            )

    @contextmanager
    def promised(self, owner: str, items: int) -> Iterator[None]:
        """Counts items of an owner that were let in and come when this ends."""
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
        """The next batch; whoever has gone meanwhile is passed over."""
        return [*self._next_urgent(), *self._next_fair()]

    def drain(self) -> list[Item]:
        """Everything, to be refused."""
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
        """Turn by turn, until the batch is full or nobody waits.

        At every turn an owner's credit grows by an equal share of a batch. Who has credit takes
        items until it is used up, and pays for the last one with later turns.
        """
        left = self._limits.batch_items_max
        alone = True
        while self._queues and left > 0:
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
                    del self._queues[owner]
                elif queue.credit <= 0:
                    self._queues[owner] = self._queues.pop(owner)  # behind the others
                if left <= 0:
                    return
            if not served and self._queues:
                if any(queue.credit > 0 for queue in self._queues.values()):
                    return  # what is left of the batch is too little for them
                least = min(-queue.credit for queue in self._queues.values())
                for queue in self._queues.values():
                    queue.credit += least  # as many turns as nobody could use

    def _take(self, queue: _OwnerQueue) -> Item:
        item = queue.items.popleft()
        queue.waiting -= item.items
        self.waiting_items -= item.items
        return item
