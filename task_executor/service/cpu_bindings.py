"""Where slots run on the host, kept in step with the ledger: pools follow who has cpus of his own.

Decides the order of moves, so that nobody runs on another's own cpus and nobody is ever without a
cpu: before a slot gets cpus of its own those who share are moved off them, and only when nothing of
it is left they are moved back. Refuses to know whose cpus are whose: the ledger says that.

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
from task_executor.engine.cpu_ledger import CpuBinding
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import CarveState, Slot, SlotKey
from task_executor.host.helper_messages import SlotPlace

log = get_logger(__name__)


class Mover(Protocol):
    """The helper, as far as it matters here."""

    async def place_slots(self, bindings: Iterable[SlotPlace]) -> None: ...


class CpuBindings:
    """`lock` is held by whoever changes where slots run on the host: from asking the ledger where,
    until the host has been told.
    """

    def __init__(self, table: SlotTable, helper: Mover) -> None:
        self._table = table
        self._helper = helper
        self._applied: dict[SlotKey, CpuBinding] = {}  # of slots that are on the host
        self._version = -1  # of the ledger that all of them follow
        self.lock = asyncio.Lock()

    @property
    def is_out_of_sync(self) -> bool:
        """True while slots may run elsewhere than the ledger says: a move failed, or is to come."""
        return self._version != self._table.cpus.version

    def applied(self, key: SlotKey, binding: CpuBinding) -> None:
        """The host was told of one slot by itself: it was carved, or has changed its size."""
        self._applied[key] = binding

    def forget(self, key: SlotKey) -> None:
        """What the host does with one slot is not known."""
        self._applied.pop(key, None)
        self._version = -1

    def removed(self, key: SlotKey) -> None:
        """Nothing of the slot is left on the host."""
        self._applied.pop(key, None)

    async def sync(self, *, force: bool = False) -> None:
        """Moves every slot whose pools have changed; `force`: tells those of all, though they have
        not. The caller holds the lock.

        Raises:
            FinegrainError, OSError: a move failed; everybody is where he was, as far as the host
                can be told.
        """
        if not self.is_out_of_sync and not force:
            return
        version, applied = self._table.cpus.version, {} if force else self._applied
        moves = {key: binding for key, binding in self._desired() if applied.get(key) != binding}
        before = {key: self._applied[key] for key in moves if key in self._applied}
        try:
            await self._move(moves)
        except (FinegrainError, OSError):
            for key in moves:
                self._applied.pop(key, None)
            with contextlib.suppress(FinegrainError, OSError):
                await self._move(before)
                self._applied |= before
            raise
        self._applied |= {key: binding for key, binding in moves.items() if self._table.get(key)}
        self._version = version
        if moves and not force:
            log.info("slots_moved", slots=len(moves), **self._pools())

    async def sync_or_log(self, *, force: bool = False) -> None:
        """The same, but logs an error; it is tried again later, see `is_out_of_sync`."""
        async with self.lock:
            try:
                await self.sync(force=force)
            except (FinegrainError, OSError) as error:
                log.error("slots_not_moved", error=str(error), **self._pools())

    async def resync(self) -> None:
        """After the front or the helper was away: all slots are told anew where they are to run,
        whatever records say.
        """
        self._version = -1  # until that has worked
        await self.sync_or_log(force=True)

    def _desired(self) -> Iterator[tuple[SlotKey, CpuBinding]]:
        """Those with cpus of their own first: what they have left is for the others."""
        slots = [slot for slot in self._table if self._is_movable(slot)]
        slots.sort(key=lambda slot: not slot.spec.is_pinned)
        for slot in slots:
            binding = self._table.cpus.binding_of(slot.spec)
            if binding.cpus:  # else there is nowhere to go
                yield slot.key, binding

    def _is_movable(self, slot: Slot) -> bool:
        """It is on the host, and its cpus are not what is being changed there."""
        if slot.becoming is not None and slot.spec.is_pinned:
            return False
        return slot.state is not CarveState.CARVING or slot.key in self._applied

    async def _move(self, moves: Mapping[SlotKey, CpuBinding]) -> None:
        if moves:
            await self._helper.place_slots(
                SlotPlace(*key, cpus=str(binding.cpus), mems=str(binding.memory_nodes))
                for key, binding in moves.items()
            )

    def _pools(self) -> dict[str, str]:
        ledger = self._table.cpus
        pools = ledger.pools
        return {
            "dedicated_cpus": str(ledger.pinned),
            "shared_pool": str(pools.shared),
            "best_effort_pool": str(pools.best_effort),
        }
