"""Where slots run on the host, kept in step with the books: pools follow who has cpus of his own.

Decides the order of moves, so that nobody runs on another's own cpus and nobody is ever without a
cpu: before a slot gets cpus of its own those who share are moved off them, and only when nothing of
it is left they are moved back. Refuses to know whose cpus are whose: the books say that.

Every move is one write per slot, from one set that is not empty to another. A slot is the only
level that names cpus, so there is no level above it that would have to hold the union meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from task_executor.engine.cpu_books import Place
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import CarveState, Slot, SlotKey
from task_executor.host.helper_messages import SlotPlace

log = get_logger(__name__)


class Mover(Protocol):
    """The helper, as far as it matters here."""

    async def place_slots(self, places: Iterable[SlotPlace]) -> None: ...


class Places:
    """`lock` is held by whoever changes where slots run on the host: from asking the books where,
    until the host has been told.
    """

    def __init__(self, table: SlotTable, helper: Mover) -> None:
        self._table = table
        self._helper = helper
        self._told: dict[SlotKey, Place] = {}  # of slots that are on the host
        self._version = -1  # of the books that all of them follow
        self.lock = asyncio.Lock()

    @property
    def behind(self) -> bool:
        """True while slots may run elsewhere than the books say: a move failed, or is to come."""
        return self._version != self._table.cpus.version

    def told(self, key: SlotKey, place: Place) -> None:
        """The host was told of one slot by itself: it was carved, or has changed its size."""
        self._told[key] = place

    def unknown(self, key: SlotKey) -> None:
        """What the host does with one slot is not known."""
        self._told.pop(key, None)
        self._version = -1

    def gone(self, key: SlotKey) -> None:
        """Nothing of the slot is left on the host."""
        self._told.pop(key, None)

    async def follow(self, *, anew: bool = False) -> None:
        """Moves every slot whose pools have changed; `anew`: tells those of all, though they have
        not. The caller holds the lock.

        Raises:
            FinegrainError, OSError: a move failed; everybody is where he was, as far as the host
                can be told.
        """
        if not self.behind and not anew:
            return
        version, told = self._table.cpus.version, {} if anew else self._told
        moves = {key: place for key, place in self._wanted() if told.get(key) != place}
        before = {key: self._told[key] for key in moves if key in self._told}
        try:
            await self._move(moves)
        except (FinegrainError, OSError):
            for key in moves:
                self._told.pop(key, None)
            with contextlib.suppress(FinegrainError, OSError):
                await self._move(before)
                self._told |= before
            raise
        self._told |= {key: place for key, place in moves.items() if self._table.get(key)}
        self._version = version
        if moves and not anew:
            log.info("slots_moved", slots=len(moves), **self._pools())

    async def settle(self, *, anew: bool = False) -> None:
        """The same for whoever has no use for an error: it is tried again later (`behind`)."""
        async with self.lock:
            try:
                await self.follow(anew=anew)
            except (FinegrainError, OSError) as error:
                log.error("slots_not_moved", error=str(error), **self._pools())

    async def restore(self) -> None:
        """After the front or the helper was away: all slots are told anew where they are to run,
        whatever records say.
        """
        self._version = -1  # until that has worked
        await self.settle(anew=True)

    def _wanted(self) -> Iterator[tuple[SlotKey, Place]]:
        """Those with cpus of their own first: what they have left is for the others."""
        slots = [slot for slot in self._table if self._is_movable(slot)]
        slots.sort(key=lambda slot: not slot.spec.is_pinned)
        for slot in slots:
            place = self._table.cpus.place_of(slot.spec)
            if place.cpus:  # else there is nowhere to go
                yield slot.key, place

    def _is_movable(self, slot: Slot) -> bool:
        """It is on the host, and its cpus are not what is being changed there."""
        if slot.becoming is not None and slot.spec.is_pinned:
            return False
        return slot.state is not CarveState.CARVING or slot.key in self._told

    async def _move(self, moves: Mapping[SlotKey, Place]) -> None:
        if moves:
            await self._helper.place_slots(
                SlotPlace(*key, cpus=str(place.cpus), mems=str(place.memory_nodes))
                for key, place in moves.items()
            )

    def _pools(self) -> dict[str, str]:
        books = self._table.cpus
        pools = books.pools
        return {
            "own_cpus": str(books.pinned),
            "shared_pool": str(pools.shared),
            "best_effort_pool": str(pools.best_effort),
        }
