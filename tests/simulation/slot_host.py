"""A simulated host with real slot table, report log and checkpoint.

It follows `task_executor/service/slot_keeper.py` and `host_sync.py`. The host's groups (`on_host`)
survive front and helper, the checkpoint survives a reboot. The helper may be down while the front
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.devices.condition import DeviceCondition
from finegrain.devices.device import NO_DEVICES, HostDevices
from finegrain.errors import Reason
from finegrain.resources import GIB, MIB, Amounts, ResourceProfile
from task_executor.engine.command_fence import CommandFence
from task_executor.engine.report_log import ReportLog
from task_executor.engine.slot_table import HostShare, SlotTable
from task_executor.engine.slots import CarveState, EndedSlot, Slot, SlotKey, SlotSpec
from task_executor.service.checkpoint import (
    DamagedError,
    SavedState,
    decode_document,
    encode_document,
    parse_state,
    state_content,
)
from tests.simulation.cpu_machines import HostMachine, some_kubelet
from tests.simulation.device_machines import detected, total_with
from tests.simulation.network import Loop, Network, Node

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.manager import Manager

STATE_FILE = Path("state.json")

Saved = Callable[[bool], None]
"""Called when a state is durable, or with False when it could not be written."""


@dataclass
class Troubles:
    """Probabilities of trouble on hosts."""

    carve_fails: float = 0.0
    offer_declined: float = 0.0
    resized: float = 0.0  # of a host, between two starts
    use: float = 0.0  # largest share of its memory that a slot may be found to use
    # Chance that parking or unparking a slot fails; also the chance for each attempt to undo it.
    move_fails: float = 0.0


@dataclass(frozen=True)
class HostPlan:
    """The administrator's configuration of a host."""

    total: Amounts
    default_profile: ResourceProfile
    labels: tuple[tuple[str, str], ...]
    slots_max: int
    orphan_ms: int | None
    executor_id: str = ""  # empty: the host's name
    machine: HostMachine | None = None  # None: the host does not report its cpu topology
    devices: HostDevices = NO_DEVICES  # the devices of the hardware


def some_host(rng: Random) -> HostPlan:
    """Draws a host; some declare separate memory pools."""
    total: dict[str, int] = {
        "cpu_milli": rng.choice((2_000, 4_000, 8_000)),
        "memory_bytes": rng.choice((1, 2, 4)) * GIB,
        "extended.license": rng.randint(0, 2),
    }
    if rng.random() < 0.1:
        total["task_heap_memory_bytes"] = total.pop("memory_bytes")
        total["managed_memory_bytes"] = 128 * MIB
    return HostPlan(
        total={name: amount for name, amount in total.items() if amount},
        default_profile=ResourceProfile(total["cpu_milli"] // 4, 256 * MIB),
        labels=(("zone", rng.choice("abc")),),
        slots_max=rng.choice((0, 0, 3)),
        orphan_ms=rng.choice((None, 6_000)),
    )


class SlotHost(Node):
    """The state of an executor, and how slots are saved and freed."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        rng: Random,
        network: Network,
        managers: list[Manager],
        checks: Checks,
        log: Callable[[str], None],
        plan: HostPlan,
        troubles: Troubles,
    ) -> None:
        super().__init__(name, loop)
        self.executor_id = plan.executor_id or name
        self.rng, self.network, self.managers, self.checks = rng, network, managers, checks
        self.log, self.troubles = log, troubles
        self.machine = plan.machine
        self.share = HostShare(plan.total, CpuSet.parse("0-63"), plan.slots_max)
        if self.machine is not None:
            cpus = self.machine.host_cpus()
            self.share = HostShare(plan.total, cpus.slot_cpus, plan.slots_max, cpus)
        self.offline = self.kubelets = EMPTY  # sets of cpus
        self.hardware = plan.devices  # under the present minor numbers
        self.absent: set[str] = set()  # UUIDs of devices
        self.problems: dict[str, str] = {}  # problems of devices, by UUID
        self.device_conditions: tuple[DeviceCondition, ...] = ()
        self.default_profile, self.labels = plan.default_profile, plan.labels
        self.orphan_ms = plan.orphan_ms
        self.on_host: dict[SlotKey, SlotSpec] = {}
        self.table, self.reports = SlotTable(self.share), ReportLog()
        self.fence: CommandFence[Any] = CommandFence()
        self.instance_id = ""
        self.boots = self.identities = self.starts = 0
        self.checkpoint = ""  # the text of the checkpoint on disk
        self.epoch_kept = 0  # the epoch on disk
        self.dies_saving = False  # True: the front dies at the next checkpoint
        self.full_until_ms = 0  # writes to disk fail until then
        self.helper_until_ms = 0  # the helper is down until then
        self.helper_lives = 0
        self._tearing_down: set[SlotKey] = set()
        self._begin_saving()

    def _change(self) -> None:
        """Marks that the next report differs from the last one."""
        raise NotImplementedError

    def crash(self, *, reboot: bool = False) -> None:
        """Kills the front; with `reboot` also everything on the host."""
        raise NotImplementedError

    def _numbers(self) -> dict[str, int]:
        return {"rm_epoch": self.fence.rm_epoch, "command_number": self.fence.command_number}

    # -- the checkpoint ----------------------------------------------------------------------

    def _begin_saving(self) -> None:
        self._epoch_to_save = 0
        self._enforced: dict[SlotKey, Slot] = {}  # reported once they are durable
        self._writing: str | None = None
        self._to_save: list[Saved] = []

    def _read_checkpoint(self) -> SavedState:
        """Returns the saved state of the last run, or a new identity."""
        try:
            if self.checkpoint:
                return parse_state(decode_document(self.checkpoint, STATE_FILE), [])
        except DamagedError as error:
            self.log(f"{self.name} has a damaged checkpoint: {error}")
        self.identities += 1
        self.checks.identities[self.name] += 1  # a name may be used again by a different host
        number = self.checks.identities[self.name]
        return SavedState(self.executor_id, f"instance-{number}-of-{self.name}")

    def _snapshot(self) -> SavedState:
        return SavedState(
            executor_id=self.executor_id,
            instance_id=self.instance_id,
            rm_epoch=max(self.fence.rm_epoch, self._epoch_to_save),
            boot_id=f"boot-{self.boots}",
            starts=self.starts,
            policy=self.table.cpus.conditions.operator_policy,
            policy_number=self.table.cpus.conditions.policy_number,
            slots=(*self.table.visible(), *self._enforced.values()),
            ended=tuple(self.reports.all_ended()),
        )

    def _save(self, then: Saved = lambda _ok: None) -> None:
        """Saves the state. One write serves all callers that called before it began."""
        self._to_save.append(then)
        if self._writing is None:
            self._write()

    def _write(self) -> None:
        waiting, self._to_save = self._to_save, []
        self._writing = encode_document(state_content(self._snapshot()))
        if self.dies_saving:
            self.dies_saving = False
            self.after(self.rng.choice((100, 600)), self.crash)
            return
        self.after(self.rng.choice((1, 1, 3, 30)), lambda: self._written(waiting))

    def _written(self, waiting: list[Saved]) -> None:
        assert self._writing is not None
        fine = self.loop.now_ms >= self.full_until_ms
        if fine:
            self.checkpoint = self._writing
        self._writing = None
        for then in waiting:
            then(fine)
        if self._to_save and self._writing is None:
            self._write()

    def _keep_epoch(self, rm_epoch: int, then: Saved) -> None:
        """Saves a higher epoch before the executor uses it."""
        if rm_epoch > self.fence.rm_epoch:
            self._epoch_to_save = max(self._epoch_to_save, rm_epoch)
            self._save(then)
        else:
            then(True)

    def tear_checkpoint(self) -> None:
        """Keeps only a part of the checkpoint."""
        self.checkpoint = self.checkpoint[: self.rng.randint(1, max(1, len(self.checkpoint) - 1))]

    # -- its cpus ------------------------------------------------------------------------------

    def see_cpus(self, offline: CpuSet | None = None, kubelets: CpuSet | None = None) -> None:
        """Changes which cpus are offline, and which a kubelet has given to containers."""
        self.offline = self.offline if offline is None else offline
        self.kubelets = self.kubelets if kubelets is None else kubelets
        if self.up:
            self._look_at_cpus()

    def _look_at_cpus(self) -> None:
        if self.machine is None:
            return
        kubelet = some_kubelet(self.kubelets)
        changed = self.table.update_conditions(
            offline=self.offline,
            kubelet_cpus=kubelet.pinned_cpus,
            kubelet_policy=kubelet.policy,
            kubelet=kubelet,
        )
        if changed:
            self._change()

    def _follow(self, policy: HostPolicy | None, number: int) -> None:
        """Adopts a policy that an administrator has set at runtime."""
        if number != self.table.cpus.conditions.policy_number:
            self.table.update_conditions(
                operator_policy=policy or HostPolicy(), policy_number=number
            )
            self._change()
            self._save()

    def see_devices(self, conditions: tuple[DeviceCondition, ...]) -> None:
        """Changes the conditions of its devices. A front that starts sees these conditions, too."""
        self.device_conditions = conditions
        if self.up and self.machine is not None:
            self._look_at_devices()

    def _look_at_devices(self) -> None:
        if self.table.update_device_conditions(self.device_conditions):
            self._change()

    def look_for_devices(self) -> None:
        """Finds the devices that are there now. The front does this once, when it starts."""
        if self.hardware.devices:
            found = detected(self.hardware, self.absent, self.problems)
            total = total_with(self.share.total, found)
            self.share = replace(self.share, devices=found, total=total)

    # -- the helper --------------------------------------------------------------------------

    def helper_dies(self) -> None:
        """Kills the helper and its current work; a new one starts later."""
        self.log(f"{self.name}: its helper dies")
        self.helper_lives += 1
        self.helper_until_ms = self.loop.now_ms + self.rng.choice((20, 300, 2_000, 7_000))

    def _by_helper(self, action: Callable[[], None]) -> None:
        """Runs the action once the helper is up."""
        away_ms = self.helper_until_ms - self.loop.now_ms
        if away_ms > 0:
            self.after(away_ms + 1, lambda: self._by_helper(action))
        else:
            action()

    # -- freeing -----------------------------------------------------------------------------

    def _free(
        self,
        keys: Iterable[SlotKey],
        *,
        reason: str = "",
        then: Callable[[], None] = lambda: None,
    ) -> None:
        before = {slot.key for slot in self.table if slot.state is CarveState.FREEING}
        wanted = list(keys)
        begun = [k for k in wanted if self.table.begin_free(k, end_reason=reason) is not None]
        more = [
            slot.key
            for slot in self.table
            if slot.state is CarveState.FREEING and slot.key not in before
        ]
        if not set(more) <= set(wanted):
            self.checks.require([f"{self.name} frees {more}, but was told {wanted}"])

        def saved(_fine: bool) -> None:
            for key in [*begun, *more]:
                self._take_down(key)
            self._change()
            then()

        if begun:
            self._save(saved)
        else:
            then()

    def _take_down(self, key: SlotKey) -> None:
        if key not in self._tearing_down:
            self._tearing_down.add(key)
            pause_ms = self.rng.choice((1, 20, 300, 2_500))
            self.after(pause_ms, lambda: self._by_helper(lambda: self._gone(key)))

    def _gone(self, key: SlotKey) -> None:
        self._tearing_down.discard(key)
        slot = self.table.get(key)
        if slot is None or slot.state is not CarveState.FREEING:
            return
        self.on_host.pop(key, None)
        self.table.freed(key)
        if slot.end_reason:
            self.reports.ended(EndedSlot(key, slot.end_reason))
        self._change()
        self._save()
        self.checks.host(self)

    def break_slot(self) -> bool:
        """Removes a slot's group from the host; returns False if there is none."""
        keys = [slot.key for slot in self.table if slot.state is CarveState.ALLOCATED]
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
