"""Moves slots on the host so that they run on the cpus that the ledger assigns to them.

The order of moves guarantees that no slot runs on another slot's dedicated cpus and that none is
ever without a cpu. Sharing slots are moved off cpus before these become dedicated, and moved back
only when nothing of the slot that had them is left.

Every move is one write per slot, from one non-empty cpu set to another. Only the slot's own cgroup
limits cpus. So no parent cgroup needs the old and the new cpus together during a move.
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
    """The calls of the helper that this module uses."""

    async def place_slots(self, bindings: Iterable[SlotPlace]) -> None: ...


class CpuBindings:
    """Tracks on which cpus slots run on the host, and moves those that differ from the ledger.

    Code that changes where slots run must hold `lock` from reading the ledger until the helper has
    confirmed the change.
    """

    def __init__(self, table: SlotTable, helper: Mover) -> None:
        self._table = table
        self._helper = helper
        self._applied: dict[SlotKey, CpuBinding] = {}  # the last confirmed binding of each slot
        self._version = -1  # ledger version that all slots follow; -1: unknown
        self.lock = asyncio.Lock()

    @property
    def is_out_of_sync(self) -> bool:
        """True while slots may run elsewhere than the ledger says: a move has failed or is due."""
        return self._version != self._table.cpus.version

    def applied(self, key: SlotKey, binding: CpuBinding) -> None:
        """Records that a slot was bound by another call: it was carved or resized."""
        self._applied[key] = binding

    def forget(self, key: SlotKey) -> None:
        """Records that it is unknown where a slot runs on the host."""
        self._applied.pop(key, None)
        self._version = -1

    def removed(self, key: SlotKey) -> None:
        """Removes a slot of which nothing is left on the host."""
        self._applied.pop(key, None)

    async def sync(self, *, force: bool = False) -> None:
        """Moves every slot whose cpus have changed. The caller must hold `lock`.

        Args:
            force: True: writes the cpus of all slots, also of those that have not changed.

        Raises:
            FinegrainError, OSError: a move failed; all slots are back where they were, if possible.
        """
        if not self.is_out_of_sync and not force:
            return
        # The version is read before the move, so that a change during the move needs another sync.
        version, applied = self._table.cpus.version, {} if force else self._applied
        moves = {key: binding for key, binding in self._desired() if applied.get(key) != binding}
        before = {key: self._applied[key] for key in moves if key in self._applied}
        try:
            await self._move(moves)
        except (FinegrainError, OSError):
            # Some of them may have been moved. If they cannot be moved back, it stays unknown where
            # they run, and the next sync writes them all.
            for key in moves:
                self._applied.pop(key, None)
            with contextlib.suppress(FinegrainError, OSError):
                await self._move(before)
                self._applied |= before
            raise
        # A slot can be removed while the helper moves it.
        self._applied |= {key: binding for key, binding in moves.items() if self._table.get(key)}
        self._version = version
        if moves and not force:
            log.info("slots_moved", slots=len(moves), **self._pools())

    async def sync_or_log(self, *, force: bool = False) -> None:
        """Like `sync`, but takes `lock` and logs an error; a later sync retries."""
        async with self.lock:
            try:
                await self.sync(force=force)
            except (FinegrainError, OSError) as error:
                log.error("slots_not_moved", error=str(error), **self._pools())

    async def resync(self) -> None:
        """Writes the cpus of all slots again, after the front or the helper was unavailable."""
        self._version = -1  # out of sync until the write has succeeded
        await self.sync_or_log(force=True)

    def _desired(self) -> Iterator[tuple[SlotKey, CpuBinding]]:
        """Yields slots with dedicated cpus first, so that cpus they leave are free for others."""
        slots = [slot for slot in self._table if self._is_movable(slot)]
        slots.sort(key=lambda slot: not slot.spec.is_pinned)
        for slot in slots:
            binding = self._table.cpus.binding_of(slot.spec)
            if binding.cpus:  # an empty set would leave the slot without any cpu
                yield slot.key, binding

    def _is_movable(self, slot: Slot) -> bool:
        """True if the slot is on the host and no resize is changing its dedicated cpus."""
        if slot.becoming is not None and slot.spec.is_pinned:
            return False
        # A slot that is being carved counts once its group exists on the host.
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
