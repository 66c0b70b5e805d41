"""Keeps the slot table, the checkpoint and the helper in step.

Every change of a slot has the same four steps: book the change in the table, enforce it on the
host, save it on disk, and report it. When a slot is freed, its capacity becomes free only after the
helper has confirmed that no process of the slot is left (`_tear_down`). If freeing fails, the
keeper tries again indefinitely, and the slot stays booked until freeing succeeds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from finegrain.cpu_policy import HostPolicy
from finegrain.devices.device import DeviceShare
from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.logs import get_logger
from finegrain.mapping.stored import STORED
from finegrain.resources import PORTS
from finegrain.v1.identity_pb2 import EpochProof
from finegrain.values.isolation import Isolation
from task_executor.engine.command_fence import CommandFence
from task_executor.engine.cpu_ledger import CpuBinding
from task_executor.engine.report_log import DoneCommand, NumberedState, ReportLog
from task_executor.engine.slot_table import Outcome, SlotTable
from task_executor.engine.slots import CarveState, EndedSlot, Slot, SlotKey, SlotSpec
from task_executor.host.boot_clock import boot_ms
from task_executor.host.device_nodes import NO_NODES
from task_executor.host.helper_messages import IsolationReport, SlotLimits
from task_executor.host.network_ports import NetworkPorts
from task_executor.service.admin_calls import AdminCalls
from task_executor.service.checkpoint import SavedState, StateDirectory
from task_executor.service.cpu_bindings import CpuBindings
from task_executor.service.denials import Denials
from task_executor.service.device_levels import (
    NO_ENFORCEMENT,
    DeviceEnforcement,
    unmet_levels,
)
from task_executor.service.failures import carve_failed
from task_executor.service.group_commit import GroupCommit
from task_executor.service.isolation import isolation_of
from task_executor.service.limits import amounts_of, dedicated_cpus, limits_of
from task_executor.service.operators import PAGE_BYTES, Operators
from task_executor.service.ports import Helper
from task_executor.service.task_table import TaskTable

CARVES_AT_ONCE_MAX = 16  # maximum number of concurrent calls of the helper
SAVE_PAUSE_S = 0.5
RETRY_S_MIN, RETRY_S_MAX = 0.2, 10.0  # pause between attempts to destroy a slot

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """The ids of this executor, of its installation, and of the host's boot."""

    executor_id: str
    instance_id: str
    boot_id: str


async def _prepare_nothing(_specs: Iterable[SlotSpec]) -> None:
    """Does nothing. The default of `prepare_devices` and `limit_devices`."""


class SlotMover(Protocol):
    """Parks and unparks slots; see `task_executor.service.parking`."""

    def begin(self, slot: Slot) -> FinegrainError:
        """Begins to park or unpark a slot. Returns IN_PROGRESS."""

    def outcome(self, key: SlotKey, number: int) -> FinegrainError | None:
        """Returns the error of a resize that parks or unparks a slot; None: no error is known."""


class _NoMover:
    """Parks no slots."""

    def begin(self, slot: Slot) -> FinegrainError:
        return FailedPrecondition(f"slot {slot.key} cannot be parked", reason=Reason.PARK_FAILED)

    def outcome(self, key: SlotKey, number: int) -> FinegrainError | None:
        return None


async def _no_wait(_key: SlotKey) -> None:
    return


class SlotKeeper:
    """Keeps all state that must survive a restart. Only this class writes this state.

    Args:
        identity: the ids of this executor.
        table: the slot table.
        helper: the connection to the helper.
        directory: the directory of the checkpoint.
        default_grace_ms: the time between SIGTERM and SIGKILL, if an order does not name a time.
        enforcement: the limits on the use of devices that this executor can enforce.
        page_bytes: the size of a page of managed memory.
        ports: the network ports that slots can have.
        boot_ms: returns the time in milliseconds of the boot clock, for time limits.
    """

    def __init__(
        self,
        identity: Identity,
        table: SlotTable,
        helper: Helper,
        directory: StateDirectory,
        *,
        default_grace_ms: int,
        enforcement: DeviceEnforcement = NO_ENFORCEMENT,
        page_bytes: int = PAGE_BYTES,
        ports: Sequence[int] = (),
        users_note: str = "",
        boot_ms: Callable[[], int] = boot_ms,
    ) -> None:
        self.identity = identity
        self.table = table
        self.helper = helper
        self.directory = directory
        self.default_grace_ms = default_grace_ms
        self.enforcement = enforcement
        self.boot_ms = boot_ms
        self._users_note = users_note  # a note for all slots: `UserPolicy.note`
        self.closes_devices = False  # True if the helper can limit access to device files
        self.cpu_bindings = CpuBindings(table, helper)
        # quotas of best-effort slots, in thousandths of a cpu, while they are squeezed
        self.cpu_quotas: dict[SlotKey, int] = {}
        self.ports = NetworkPorts(ports)
        self.tasks = TaskTable()
        self.operators = Operators(table, self.tasks, page_bytes)
        self.reports = ReportLog()
        self.starts = 0  # number of fronts started with this identity, including this front
        self.epoch_proof = EpochProof()  # the proof of the highest epoch that an RM has proven
        self.denials = Denials()  # identities to reject, from the last list of the RM
        self.admin_calls = AdminCalls()
        self.fence: CommandFence[Any] = CommandFence()
        self.on_change: Callable[[], None] = lambda: None  # wakes the report loop
        # Called when a slot is removed. The slot's tasks are deleted some time later.
        self.on_slot_removed: Callable[[SlotKey], None] = lambda _key: None
        # Called before a resize lowers limits. The function gives tasks time to return managed
        # memory.
        self.before_shrink: Callable[[SlotKey], Awaitable[None]] = _no_wait
        self.on_carve: Callable[[float, bool], None] = lambda _seconds, _ok: None
        self.on_free: Callable[[float], None] = lambda _seconds: None
        self.on_resize: Callable[[float, FinegrainError | None], None] = lambda _s, _error: None
        self.own_slots: set[SlotKey] = set()  # slots of device tests and daemons; not in the table
        # Called before slots are carved. The function starts the daemons for the slots' device
        # shares.
        self.prepare_devices: Callable[[Sequence[SlotSpec]], Awaitable[None]] = _prepare_nothing
        # Limits the memory of devices for slots that exist on the host.
        self.limit_devices: Callable[[Iterable[SlotSpec]], Awaitable[None]] = _prepare_nothing
        # Returns the reason why a slot of one size cannot get the shares of another size; None: the
        # slot can get the shares.
        self.refuse_shares: Callable[[SlotSpec, SlotSpec], FinegrainError | None] = (
            lambda _current, _wanted: None
        )
        self.mover: SlotMover = _NoMover()
        self.resize_lock = asyncio.Lock()  # held while a slot is being resized
        self._epoch_to_save = 0
        self._state = GroupCommit(lambda: partial(directory.save, self._snapshot()))
        self._is_save_due = False
        # Makes the lines of tasks durable that were written to `directory.tasks`.
        self.task_lines = GroupCommit(directory.tasks.prepare_sync)
        self._teardowns: dict[SlotKey, asyncio.Task[None]] = {}
        self._grace_ms: dict[SlotKey, int] = {}  # grace periods of the slots in `_teardowns`
        self._background: set[asyncio.Task[None]] = set()  # other work in the background
        self._cleaning: dict[SlotKey, asyncio.Task[None]] = {}  # clean-ups after failed carves
        self._enforced: dict[SlotKey, Slot] = {}  # slots that become ALLOCATED once they are saved
        self._carves = asyncio.Semaphore(CARVES_AT_ONCE_MAX)

    # -- reports -----------------------------------------------------------------------------

    def full_state(self) -> NumberedState:
        """Returns the next report, with the complete state."""
        fence = self.fence
        return self.reports.full(
            self.table, rm_epoch=fence.rm_epoch, command_number=fence.command_number
        )

    def answer_state(self, done: DoneCommand | None = None) -> NumberedState:
        """Returns the next report, for the answer to a command; see `ReportLog.answer`."""
        fence = self.fence
        return self.reports.answer(
            self.table, rm_epoch=fence.rm_epoch, command_number=fence.command_number, done=done
        )

    def has_news(self) -> bool:
        """Returns True if the RM needs a report, because no answer to a command has the present
        state.
        """
        return bool(self.admin_calls.first()) or self.reports.has_news(self.table)

    def next_state(self) -> NumberedState:
        """Returns the next report. It is `unchanged` if the RM already knows the present state."""
        fence = self.fence
        return self.reports.next(
            self.table, rm_epoch=fence.rm_epoch, command_number=fence.command_number
        )

    # -- checkpoint --------------------------------------------------------------------------

    def _snapshot(self) -> SavedState:
        return SavedState(
            executor_id=self.identity.executor_id,
            instance_id=self.identity.instance_id,
            # An epoch is saved before the fence accepts it.
            rm_epoch=max(self.fence.rm_epoch, self._epoch_to_save),
            epoch_proof=base64.b64encode(self.epoch_proof.SerializeToString()).decode(),
            boot_id=self.identity.boot_id,
            starts=self.starts,
            policy=self.table.cpus.conditions.operator_policy,
            policy_number=self.table.cpus.conditions.policy_number,
            denials=self.denials,
            # Leave out slots that are being carved. After a crash, these slots are unknown, and the
            # next front destroys them.
            slots=(*self.table.visible(), *self._enforced.values()),
            ended=tuple(self.reports.all_ended()),
            operators=tuple(self.operators.of_slots()),
        )

    async def save(self) -> None:
        """Makes the present state durable.

        Raises:
            OSError: the checkpoint could not be written.
        """
        await self._state.commit()

    async def save_or_log(self) -> None:
        """Saves the state, but only logs errors. Callers use this after changes on the host that
        cannot be undone.
        """
        try:
            await self._state.commit()
        except OSError as error:
            log.error("checkpoint_not_written", error=str(error), path=str(self.directory.path))

    def _save_later(self) -> None:
        """Saves the state after a pause, once for all changes of the pause.

        The keeper calls this method when slots end that the RM has freed. Until the save, the
        checkpoint contains these slots in the state FREEING. After a crash, such a slot counts as
        ended if it is not on the host.
        """
        if not self._is_save_due:
            self._is_save_due = True
            self.run_in_background(self._save_after_pause())

    async def _save_after_pause(self) -> None:
        await asyncio.sleep(SAVE_PAUSE_S)
        self._is_save_due = False
        await self.save_or_log()

    async def keep_epoch(self, rm_epoch: int, proof: EpochProof) -> None:
        """Saves a higher epoch and its proof, and returns when both are durable.

        Args:
            rm_epoch: the epoch of an RM.
            proof: the proof of the epoch; empty: the RM has already sent the proof.

        Raises:
            OSError: the checkpoint could not be written.
        """
        is_proven = proof.rm_epoch == rm_epoch > self.epoch_proof.rm_epoch
        if is_proven:
            self.epoch_proof = proof
        if rm_epoch > self.fence.rm_epoch:
            self._epoch_to_save = max(self._epoch_to_save, rm_epoch)
        elif not is_proven:
            return
        await self.save()

    # -- cpu conditions ----------------------------------------------------------------------

    async def update_conditions(self, **conditions: Any) -> None:
        """Applies new cpu conditions, and moves slots if necessary.

        Args:
            conditions: the new values, by name of a field of `CpuConditions`.
        """
        if self.table.update_conditions(**conditions):
            self.on_change()
            await self.cpu_bindings.sync_or_log()

    async def apply_host_policy(self, policy: HostPolicy, number: int) -> None:
        """Applies the settings that an administrator made for this host at runtime, and saves them.

        The caller (the agent) must continue to report. So the method moves slots in the background.
        The method compares both the number and the settings with the present number and settings.
        After the RM's database was restored from a backup, the same number can mean other settings.

        Args:
            policy: the settings.
            number: the number of the settings. The RM increases it with each change.

        Raises:
            OSError: the checkpoint could not be written. The settings are in effect in spite of
                this.
        """
        known = self.table.cpus.conditions
        if (number, policy) != (known.policy_number, known.operator_policy):
            log.info("host_policy_applied", number=number, **STORED.to_json(policy))
            self.table.update_conditions(operator_policy=policy, policy_number=number)
            self.on_change()
            self.run_in_background(self.cpu_bindings.sync_or_log())
            await self.save()

    # -- limits and isolation ----------------------------------------------------------------

    def limits_of(self, spec: SlotSpec, binding: CpuBinding) -> SlotLimits:
        """Returns the limits of a slot that is bound to these cpus and memory nodes."""
        shares = spec.assignment.devices if spec.assignment is not None else ()
        limits = self.with_devices(limits_of(spec, binding), shares)
        quota = self.cpu_quotas.get(spec.key)
        if quota is not None:
            limits = replace(limits, cpu_limit_milli=min(quota, spec.cpu_limit_milli))
        return limits

    def set_cpu_quota(self, key: SlotKey, milli: int | None) -> None:
        """Sets the quota of a slot in thousandths of a cpu, for `limits_of`; None: the slot has the
        limit of its size.
        """
        if milli is None:
            self.cpu_quotas.pop(key, None)
        else:
            self.cpu_quotas[key] = milli

    def with_devices(self, limits: SlotLimits, shares: Iterable[DeviceShare]) -> SlotLimits:
        """Returns the limits with permission to open the files of these devices."""
        nodes = self.enforcement.nodes if self.closes_devices else NO_NODES
        rules = nodes.rules(shares)
        return replace(limits, devices_open=rules.open, devices_closed=rules.closed)

    def isolation_of(self, report: IsolationReport, spec: SlotSpec | None = None) -> Isolation:
        """Returns the isolation of a slot, or of the host if `spec` is None."""
        found = isolation_of(report, spec, self.table.devices.host, self.enforcement)
        if self._users_note:
            found = replace(found, notes=(*found.notes, self._users_note))
        return found if spec is None else replace(found, ports=self.ports.of(spec.key))

    def unmet_levels(self, spec: SlotSpec, isolation: Isolation) -> str:
        """Returns the required levels that a slot does not have, with the reasons; empty: the slot
        has all required levels.
        """
        return unmet_levels(spec.profile, isolation, self.enforcement.not_limited(spec.key))

    def restate_isolation(self, report: IsolationReport) -> None:
        """Updates the device isolation of all slots, after `enforcement` has changed.

        Args:
            report: the helper's isolation report.
        """
        for slot in list(self.table):
            if slot.state is CarveState.ALLOCATED and slot.spec.profile.devices:
                self.table.update_isolation(slot.key, self.isolation_of(report, slot.spec))
        self.on_change()

    # -- carving -----------------------------------------------------------------------------

    async def carve(self, specs: Sequence[SlotSpec]) -> list[Outcome]:
        """Books slots, enforces them on the host and saves them.

        When this method returns, every slot in an outcome is ALLOCATED and saved. If a slot could
        not be carved, nothing of the slot stays on the host.

        Returns:
            One outcome per spec, in order.
        """
        # Stage 1: book the slots. A slot that is ordered twice in one call is booked once.
        outcomes = [self._refuse_while_cleaning(outcome) for outcome in self.table.allocate(specs)]
        new = list({o.key: o.slot for o in outcomes if o.must_carve and o.slot}.values())
        enforced: list[Slot] = []
        # Hold the lock from the moment when the cpus are read from the ledger, until the helper has
        # confirmed the cpus (see `CpuBindings`).
        async with self.cpu_bindings.lock:
            failed = await self._clear_cpus(new)
            new = [slot for slot in new if slot.key not in failed]
            await self.prepare_devices([slot.spec for slot in new])
            # Stage 2: enforce all slots on the host, several at a time.
            isolations = await asyncio.gather(*(self._enforce(slot) for slot in new))
        await self.limit_devices(
            slot.spec
            for slot, isolation in zip(new, isolations, strict=True)
            if isinstance(isolation, IsolationReport)
        )
        # Stage 3: save the enforced slots, and remove the remains of slots that failed.
        now_ms, boot_ms = round(time.time() * 1000), self.boot_ms()
        for slot, isolation in zip(new, isolations, strict=True):
            if isinstance(isolation, IsolationReport) and (refused := self.give_ports(slot.spec)):
                failed[slot.key] = carve_failed(slot.spec, refused)
                self._clean_up(slot.key)
            elif isinstance(isolation, IsolationReport):
                known = self.isolation_of(isolation, slot.spec)
                if unmet := self.unmet_levels(slot.spec, known):
                    failed[slot.key] = carve_failed(slot.spec, FailedPrecondition(unmet))
                    self._clean_up(slot.key)
                    continue
                allocated = slot.with_state(
                    CarveState.ALLOCATED,
                    isolation=known,
                    allocated_time_ms=now_ms,
                    limited_since_ms=None if slot.spec.time_limit_ms is None else boot_ms,
                )
                enforced.append(allocated)
            else:
                failed[slot.key] = isolation
                self._clean_up(slot.key)
        if enforced:
            failed |= await self._make_durable(enforced)
        self.on_change()
        return [self._final_outcome(outcome, failed) for outcome in outcomes]

    def give_ports(self, spec: SlotSpec) -> FinegrainError | None:
        """Gives a slot the number of ports in its profile. Returns an error if too few are free.

        Args:
            spec: the spec of the slot, with its new size.
        """
        try:
            self.ports.give(spec.key, dict(spec.profile.extended).get(PORTS, 0))
        except FinegrainError as error:
            log.warning("ports_missing", allocation_id=spec.allocation_id, error=error.message)
            return error
        return None

    async def _clear_cpus(self, new: Sequence[Slot]) -> dict[SlotKey, FinegrainError]:
        """Moves other slots off the cpus that become dedicated cpus of new slots.

        If this fails, the new pinned slots are rejected, and all other slots stay on their cpus.

        Returns:
            The errors of rejected slots.
        """
        failed: dict[SlotKey, FinegrainError] = {}
        try:
            await self.cpu_bindings.sync()
        except (FinegrainError, OSError) as error:
            for slot in new:
                if slot.spec.is_pinned:
                    # The slot is not on the host yet, so remove it from the table at once.
                    self.table.carve_failed(slot.key)
                    self.on_carve(0.0, False)
                    failed[slot.key] = carve_failed(slot.spec, error)
            log.error("cpus_not_cleared", error=str(error), refused=len(failed))
        return failed

    def _refuse_while_cleaning(self, outcome: Outcome) -> Outcome:
        """Rejects a slot while the remains of its failed carve are being removed."""
        if outcome.key not in self._cleaning or outcome.slot is None:
            return outcome
        error = FailedPrecondition(
            f"the remains of slot {outcome.key.allocation_id} are being removed; place the "
            "request again with a higher generation",
            reason=Reason.CARVE_FAILED,
        )
        return Outcome(outcome.key, error=error)

    def _final_outcome(self, outcome: Outcome, failed: dict[SlotKey, FinegrainError]) -> Outcome:
        if outcome.error is not None:
            return outcome
        error = failed.get(outcome.key)
        if error is not None:
            return Outcome(outcome.key, error=error)
        return Outcome(outcome.key, slot=self.table.get(outcome.key))

    async def _enforce(self, slot: Slot) -> IsolationReport | FinegrainError:
        # The helper has one thread, so more concurrent calls would only delay its other work.
        async with self._carves:
            begun, binding = time.monotonic(), self.table.cpus.binding_of(slot.spec)
            try:
                isolation = await self.helper.create_slot(self.limits_of(slot.spec, binding))
            except (FinegrainError, OSError) as error:
                self.on_carve(time.monotonic() - begun, False)
                log.error("carve_failed", allocation_id=slot.spec.allocation_id, error=str(error))
                return carve_failed(slot.spec, error)
            self.on_carve(time.monotonic() - begun, True)
            self.cpu_bindings.applied(slot.key, binding)
            return isolation

    async def _make_durable(self, slots: Sequence[Slot]) -> dict[SlotKey, FinegrainError]:
        """Saves slots that are enforced, and marks them as ALLOCATED only after the save.

        A report must contain a slot only after the slot is in the checkpoint. Otherwise a restarted
        front would not know a slot that was reported.

        Returns:
            The errors of slots that could not be saved.
        """
        self._enforced |= {slot.key: slot for slot in slots}
        try:
            await self.save()
        except OSError as error:
            log.error("checkpoint_not_written", error=str(error), path=str(self.directory.path))
            for slot in slots:
                self._clean_up(slot.key)
            return {slot.key: carve_failed(slot.spec, error) for slot in slots}
        else:
            for slot in slots:
                self.table.carved(
                    slot.key, slot.isolation, slot.allocated_time_ms, slot.limited_since_ms
                )
            return {}
        finally:
            for slot in slots:
                del self._enforced[slot.key]

    def _clean_up(self, key: SlotKey) -> None:
        """Removes the remains of a failed carve from the host, in the background."""
        self._cleaning[key] = asyncio.create_task(self._clean(key))

    async def _clean(self, key: SlotKey) -> None:
        try:
            await self._destroy(key, grace_ms=0)
            # The slot is in the table if its carve failed. If it is not in the table, it is an
            # unknown slot, and its capacity was withheld.
            if self.table.get(key) is not None:
                self.table.carve_failed(key)
            self.table.release_withheld(key)
            self.ports.take_back(key)
            self.cpu_bindings.removed(key)
            self.on_change()
            # The dedicated cpus of the slot return to the pools.
            await self.cpu_bindings.sync_or_log()
        finally:
            del self._cleaning[key]

    async def destroy_unknown(self, slots: Iterable[SlotLimits], timeout_s: float) -> None:
        """Destroys slots on the host that are not in the slot table.

        The method returns when all these slots are destroyed, or after the timeout. After the
        timeout, the work continues in the background. The capacity of each slot is withheld until
        the slot is destroyed.

        Args:
            slots: the limits of the unknown slots.
            timeout_s: the maximum time to wait, in seconds.
        """
        for limits in slots:
            key = SlotKey(limits.allocation_id, limits.generation)
            if key not in self._cleaning:
                self.table.withhold(key, amounts_of(limits), dedicated_cpus(limits))
                self._clean_up(key)
        if self._cleaning:
            await asyncio.wait(self._cleaning.values(), timeout=timeout_s)

    async def restart_time_limits(self, reuses: Sequence[tuple[SlotKey, int]]) -> None:
        """Starts the time limits of reused slots again, once for each reuse, and saves the new
        starts.

        Args:
            reuses: the slots, each with the number of its last reuse.

        Raises:
            OSError: the checkpoint could not be written. The limits have started again in spite of
                this.
        """
        now_ms = self.boot_ms()
        restarted = [self.table.reused(key, number, now_ms) for key, number in reuses]
        if any(restarted):
            self.on_change()
            await self.save()

    # -- freeing -----------------------------------------------------------------------------

    async def free(self, wanted: Sequence[tuple[SlotKey, int | None]], *, reason: str = "") -> None:
        """Starts to free slots, and returns when their new state is saved. Ignores unknown slots.

        Args:
            wanted: the slots, each with its grace period in milliseconds (None: the default).
            reason: the reason, if the RM did not order to free the slots. The slots are then
                reported as ended.
        """
        begun = [
            (key, self.default_grace_ms if grace_ms is None else grace_ms)
            for key, grace_ms in wanted
            if self.table.begin_free(key, end_reason=reason) is not None
        ]
        if not begun:
            return
        # Mark the tasks before the kill, so that the executor reports the tasks as cancelled.
        for key, _ in begun:
            for task in self.tasks.of_slot(key):
                task.cancelled = task.cancelled or not task.has_ended
        # Save before the first signal, so that a restarted front continues to free these slots.
        await self.save_or_log()
        for key, grace_ms in begun:
            self.begin_teardown(key, grace_ms=grace_ms)
        self.on_change()

    def begin_teardown(self, key: SlotKey, *, grace_ms: int) -> None:
        """Destroys a slot in state FREEING, in the background.

        If the slot is already being destroyed, a further call only shortens the grace period.
        """
        if key not in self._teardowns:
            self._grace_ms[key] = grace_ms
            self._teardowns[key] = asyncio.create_task(self._tear_down(key, grace_ms))
        elif grace_ms < self._grace_ms[key]:
            self._grace_ms[key] = grace_ms
            self.run_in_background(self._shorten_grace(key, grace_ms))

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _shorten_grace(self, key: SlotKey, grace_ms: int) -> None:
        """Terminates a slot's tasks sooner. The slot is destroyed when no process is left."""
        for task in self.tasks.of_slot(key):
            with contextlib.suppress(FinegrainError):  # the task has ended during this loop
                if not task.has_ended:
                    await self.helper.kill_task(task.task_id, grace_ms)

    async def wait_freed(self, keys: Iterable[SlotKey], timeout_s: float) -> None:
        """Waits until these slots are removed, at most `timeout_s` seconds."""
        pending = [self._teardowns[key] for key in set(keys) if key in self._teardowns]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    async def _tear_down(self, key: SlotKey, grace_ms: int) -> None:
        begun = time.monotonic()
        try:
            await self._destroy(key, grace_ms=grace_ms)
            # The slot can vanish from the host while the teardown runs.
            slot = self.table.get(key)
            if slot is None or slot.state is not CarveState.FREEING:
                return
            self.table.freed(key)
            self.ports.take_back(key)
            self.cpu_bindings.removed(key)
            # If the RM ordered the end of the slot, the RM needs no report of the end.
            if slot.end_reason:
                self.reports.ended(EndedSlot(key, slot.end_reason))
            self.on_free(time.monotonic() - begun)
            self.on_slot_removed(key)
            log.info(
                "slot_freed",
                allocation_id=key.allocation_id,
                generation=key.generation,
                reason=slot.end_reason,
            )
            self.on_change()
            if slot.end_reason:
                await self.save_or_log()
            else:
                self._save_later()
            await self.cpu_bindings.sync_or_log()
        finally:
            self._teardowns.pop(key, None)
            self._grace_ms.pop(key, None)

    async def _destroy(self, key: SlotKey, *, grace_ms: int) -> None:
        """Destroys the slot, and tries again until the helper confirms that no process is left."""
        pause_s = RETRY_S_MIN
        while True:
            try:
                await self.helper.destroy_slot(*key, grace_ms=grace_ms)
                return
            except (FinegrainError, OSError) as error:
                log.error(
                    "slot_not_destroyed",
                    allocation_id=key.allocation_id,
                    generation=key.generation,
                    error=str(error),
                )
            await asyncio.sleep(pause_s)
            # The first attempt has used the grace period, so use no grace period for a retry.
            pause_s, grace_ms = min(pause_s * 2, RETRY_S_MAX), 0

    # -- slots that the host lost --------------------------------------------------------------

    def slot_vanished(self, key: SlotKey) -> None:
        """Removes a slot that no longer exists on the host.

        If the RM did not order to free the slot, the executor reports the slot as ended. The reason
        is SLOT_BROKEN, or the reason for which the slot was being freed.
        """
        slot = self.table.vanished(key)
        self.ports.take_back(key)
        self.cpu_bindings.removed(key)
        if slot.state is CarveState.ALLOCATED or slot.end_reason:
            self.reports.ended(EndedSlot(key, slot.end_reason or Reason.SLOT_BROKEN.value))
        self.on_slot_removed(key)
        self.on_change()

    async def close(self) -> None:
        """Cancels the background work. Slots stay as they are."""
        self.ports.close()
        pending = [*self._teardowns.values(), *self._cleaning.values(), *self._background]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
