"""Moves slots on the host to the cpus that the ledger assigns to them.

A slot never runs on dedicated cpus of another slot, and always has at least one cpu. Before a
shared cpu becomes dedicated, the executor moves the slots that share the cpu to other cpus. The
executor moves these slots back only when nothing is left of the slot that had the dedicated cpu.

Each move of a slot is one write, from one non-empty cpu set to another. Only the slot's own cgroup
limits cpus, so parent cgroups need no change.
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
    """Tracks on which cpus slots run, and moves slots whose cpus differ from the ledger.

    Code that changes where slots run must hold `lock`: from the moment when it reads the ledger
    until the helper has confirmed the change.
    """

    def __init__(self, table: SlotTable, helper: Mover) -> None:
        self._table = table
        self._helper = helper
        self._applied: dict[SlotKey, CpuBinding] = {}  # the last confirmed binding of each slot
        self._version = -1  # version of the ledger that all slots follow; -1: unknown
        self.lock = asyncio.Lock()

    @property
    def is_out_of_sync(self) -> bool:
        """Returns True while slots possibly run on other cpus than in the ledger, because a move
        has failed or is due.
        """
        return self._version != self._table.cpus.version

    def applied(self, key: SlotKey, binding: CpuBinding) -> None:
        """Records that carving or resizing has bound a slot to these cpus."""
        self._applied[key] = binding

    def forget(self, key: SlotKey) -> None:
        """Records that it is unknown where a slot runs on the host."""
        self._applied.pop(key, None)
        self._version = -1

    def removed(self, key: SlotKey) -> None:
        """Forgets a slot of which nothing is left on the host."""
        self._applied.pop(key, None)

    async def sync(self, *, force: bool = False) -> None:
        """Moves every slot whose cpus have changed. The caller must hold `lock`.

        Args:
            force: True to write the cpus of all slots, including slots whose cpus have not changed.

        Raises:
            FinegrainError, OSError: a move failed. As far as possible, all slots are back on their
                old cpus.
        """
        if not self.is_out_of_sync and not force:
            return
        # Read the version before the move. A change during the move then needs another sync.
        version, applied = self._table.cpus.version, {} if force else self._applied
        moves = {key: binding for key, binding in self._desired() if applied.get(key) != binding}
        before = {key: self._applied[key] for key in moves if key in self._applied}
        try:
            await self._move(moves)
        except (FinegrainError, OSError):
            # Some slots have possibly moved. If one of them cannot be moved back, it is not known
            # where the slots run. The next sync then writes the cpus of all slots.
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
        """Takes `lock` and calls `sync`. If this fails, logs the error; a later sync tries
        again.
        """
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
        """Yields each slot with its cpus, slots with dedicated cpus first.

        In this order, the cpus that a slot with dedicated cpus leaves are free before other slots
        move there.
        """
        slots = [slot for slot in self._table if self._is_movable(slot)]
        slots.sort(key=lambda slot: not slot.spec.is_pinned)
        for slot in slots:
            binding = self._table.cpus.binding_of(slot.spec)
            if binding.cpus:  # an empty set would leave the slot without any cpu
                yield slot.key, binding

    def _is_movable(self, slot: Slot) -> bool:
        """Returns True if the slot is on the host and no resize is changing its dedicated cpus."""
        if slot.becoming is not None and slot.spec.is_pinned:
            return False
        # A slot that is being carved can be moved when its group exists on the host.
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
