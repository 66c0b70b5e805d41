"""A host with its real slot table and report log, and the checkpoint; how slots come down there.

The host's groups (`on_host`) and the checkpoint survive a restart of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.cpuset import CpuSet
from finegrain.errors import Reason
from finegrain.resources import Amounts, ResourceProfile
from task_executor.engine.command_fence import CommandFence
from task_executor.engine.report_log import ReportLog
from task_executor.engine.slot_table import HostShare, SlotTable
from task_executor.engine.slots import EndedSlot, SlotKey, SlotSpec, SlotState
from tests.simulation.network import Loop, Network, Node

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.manager import Manager


@dataclass
class Disk:
    """The checkpoint."""

    instance_id: str
    starts: int = 0
    rm_epoch: int = 0
    slots: list[dict[str, Any]] = field(default_factory=list)
    ended: list[EndedSlot] = field(default_factory=list)


@dataclass
class Troubles:
    """What goes wrong on hosts, in chances."""

    carve_fails: float = 0.0
    offer_declined: float = 0.0
    resized: float = 0.0


class SlotHost(Node):
    """What an executor keeps in step."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        rng: Random,
        network: Network,
        manager: Manager,
        checks: Checks,
        log: Callable[[str], None],
        *,
        total: Amounts,
        default_profile: ResourceProfile,
        labels: tuple[tuple[str, str], ...],
        slots_max: int,
        orphan_ms: int | None,
        troubles: Troubles,
    ) -> None:
        super().__init__(name, loop)
        self.rng, self.network, self.manager, self.checks, self.log = (
            rng,
            network,
            manager,
            checks,
            log,
        )
        self.share = HostShare(total, CpuSet.parse("0-63"), slots_max)
        self.default_profile, self.labels = default_profile, labels
        self.orphan_ms, self.troubles = orphan_ms, troubles
        self.disk = Disk(f"instance-of-{name}")
        self.on_host: dict[SlotKey, SlotSpec] = {}
        self.table, self.reports = SlotTable(self.share), ReportLog()
        self.fence: CommandFence[Any] = CommandFence()

    def _change(self) -> None:
        """There is news for the manager."""
        raise NotImplementedError

    def _save(self) -> None:
        self.disk.rm_epoch = max(self.disk.rm_epoch, self.fence.rm_epoch)
        self.disk.slots = [slot.to_dict() for slot in self.table.visible()]
        self.disk.ended = list(self.reports.all_ended())

    def _keep_epoch(self, rm_epoch: int) -> None:
        self.disk.rm_epoch = max(self.disk.rm_epoch, rm_epoch)

    def _numbers(self) -> dict[str, int]:
        return {"rm_epoch": self.fence.rm_epoch, "command_number": self.fence.command_number}

    # -- freeing ---------------------------------------------------------------------------

    def _free(self, keys: Iterable[SlotKey], *, reason: str = "") -> None:
        before = {slot.key for slot in self.table if slot.state is SlotState.FREEING}
        wanted = list(keys)
        begun = [k for k in wanted if self.table.begin_free(k, end_reason=reason) is not None]
        if not begun:
            return
        self._save()
        for slot in list(self.table):
            if slot.state is SlotState.FREEING and slot.key not in before:
                if slot.key not in wanted:
                    self.checks.require([f"{self.name} frees {slot.key}, but was told {wanted}"])
                self._take_down(slot.key)
        self._change()

    def _take_down(self, key: SlotKey) -> None:
        self.after(self.rng.choice((1, 20, 300, 2_500)), lambda: self._gone(key))

    def _gone(self, key: SlotKey) -> None:
        slot = self.table.get(key)
        if slot is None or slot.state is not SlotState.FREEING:
            return
        del self.on_host[key]
        self.table.freed(key)
        if slot.end_reason:
            self.reports.ended(EndedSlot(key, slot.end_reason))
        self._change()
        self._save()
        self.checks.host(self)

    def break_slot(self) -> bool:
        """A slot's group vanishes from the host. False if there is none."""
        keys = [slot.key for slot in self.table if slot.state is SlotState.ALLOCATED]
        if not self.up or not keys:
            return False
        key = self.rng.choice(keys)
        self.log(f"{self.name} loses {key.allocation_id}/{key.generation}")
        del self.on_host[key]
        slot = self.table.vanished(key)
        self.reports.ended(EndedSlot(key, slot.end_reason or Reason.SLOT_BROKEN.value))
        self._change()
        self._save()
        return True
