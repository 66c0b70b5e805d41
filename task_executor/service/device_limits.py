"""Limits the memory of GPUs for each slot: the level "kernel" of a share.

To set limits, the helper runs a short process (`task_executor/device_agent.py`), because a limit
needs root and a library of the driver. The kernel or the driver then refuses memory above the
share. A limit belongs to the group of its slot, and ends with the group.

If a limit cannot be set, the share has the next lower level, and a note gives the reason. The
executor sets all limits again after a start of the front or of the helper, and about once a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from finegrain.devices.device import GPU, GPU_MEMORY, Pairs
from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from task_executor.engine.slots import CarveState, SlotKey, SlotSpec
from task_executor.host.helper_messages import SlotMemory
from task_executor.host.memory_regions import limited_as
from task_executor.service.slot_keeper import SlotKeeper

NEEDS_V2: Final = "limits of GPU memory need cgroup v2, but the cgroup driver here is {driver}"
NEEDS_ROOT: Final = "limits of GPU memory need root: run the executor, or its helper, as root"
_MIB: Final = 1 << 20

log = get_logger(__name__)


class DeviceLimits:
    """The limits of one executor.

    Args:
        keeper: the slots. Its `enforcement` has the GPUs whose memory can be limited.
        root: replaces "/" in tests.
    """

    def __init__(self, keeper: SlotKeeper, root: Path = Path("/")) -> None:
        self._keeper = keeper
        self._root = root
        self._names: dict[str, str] = {}  # names of GPUs for the helper, by UUID
        self._lock = asyncio.Lock()

    async def refresh(self) -> bool:
        """Determines the GPUs whose memory can be limited, and sets the limits of all slots again.

        Returns:
            True if levels or reasons have changed.
        """
        keeper = self._keeper
        async with self._lock:
            before, host = keeper.enforcement, keeper.table.devices.host
            # Find the names again: the kernel's name of a GPU's memory changes with the GPU's PCI
            # address.
            self._names, obstacles = limited_as(host, self._root)
            if self._names:
                obstacles |= await self._set_all()
            known = {slot.key for slot in keeper.table}
            unlimited = keeper.enforcement.unlimited
            keeper.enforcement = replace(
                keeper.enforcement,
                limited=frozenset(self._names.keys() - obstacles.keys()),
                obstacles=obstacles,
                unlimited={key: each for key, each in unlimited.items() if key in known},
            )
            if obstacles != before.obstacles:
                log.info("gpu_memory_not_limited", reasons=obstacles)
        return before != keeper.enforcement

    async def set(self, specs: Iterable[SlotSpec]) -> None:
        """Sets the limits of slots. Callers use this method before slots get tasks, and after the
        shares of slots change.
        """
        async with self._lock:
            wanted = self._wanted(specs, self._keeper.enforcement.limited)
            if not wanted:
                return
            try:
                problems, _ = await self._keeper.helper.limit_device_memory(wanted, {})
            except (FinegrainError, OSError) as error:
                problems = [dict.fromkeys(each.limits, str(error)) for each in wanted]
            self._note(wanted, problems)

    async def _set_all(self) -> dict[str, str]:
        """Sets the limits of all slots. Returns the reasons for GPUs that cannot be limited, by
        UUID.
        """
        helper, table = self._keeper.helper, self._keeper.table
        # Leave out slots with a resize in progress, because the resize sets their limits itself.
        slots = [s for s in table if s.state is CarveState.ALLOCATED and s.becoming is None]
        probe = {
            self._names[each.uuid]: _whole_mib(each.capacity)
            for each in table.devices.host.devices
            if each.uuid in self._names
        }
        try:
            info = await helper.hello()
            if info.isolation.driver != "v2":
                return dict.fromkeys(self._names, NEEDS_V2.format(driver=info.isolation.driver))
            if info.uid != 0:
                return dict.fromkeys(self._names, NEEDS_ROOT)
            wanted = self._wanted((slot.spec for slot in slots), self._names)
            problems, failed = await helper.limit_device_memory(wanted, probe)
        except (FinegrainError, OSError) as error:
            return dict.fromkeys(self._names, str(error))
        self._note(wanted, problems)
        uuids = {name: uuid for uuid, name in self._names.items()}
        return {uuids[name]: why for name, why in failed.items()}

    def _wanted(self, specs: Iterable[SlotSpec], uuids: Container[str]) -> list[SlotMemory]:
        """Returns the limits of slots that have shares of these GPUs."""
        found = []
        for spec in specs:
            shares = spec.assignment.devices if spec.assignment is not None else ()
            limits = {
                self._names[each.uuid]: _whole_mib(each.amounts)
                for each in shares
                if each.type == GPU and each.uuid in uuids
            }
            if limits:
                found.append(SlotMemory(spec.allocation_id, spec.generation, limits))
        return found

    def _note(self, wanted: Iterable[SlotMemory], problems: Iterable[Mapping[str, str]]) -> None:
        """Records which limits could not be set, by slot."""
        uuids = {name: uuid for uuid, name in self._names.items()}
        unlimited = dict(self._keeper.enforcement.unlimited)
        for slot, failed in zip(wanted, problems, strict=True):
            key = SlotKey(slot.allocation_id, slot.generation)
            before = unlimited.pop(key, {})
            if failed:
                unlimited[key] = {uuids[name]: why for name, why in failed.items()}
            if unlimited.get(key, {}) != before:
                log.warning(
                    "gpu_memory_limits_changed",
                    allocation_id=key.allocation_id,
                    generation=key.generation,
                    not_set=unlimited.get(key, {}),
                )
        self._keeper.enforcement = replace(self._keeper.enforcement, unlimited=unlimited)


def _whole_mib(amounts: Pairs) -> int:
    """Returns bytes of memory, rounded down to MiB. Drivers can count in units that are larger than
    bytes. With the rounding, the driver returns exactly the limit that was written.
    """
    return dict(amounts).get(GPU_MEMORY, 0) // _MIB * _MIB
