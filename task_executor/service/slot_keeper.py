"""Keeps the slot table, the checkpoint and the helper in step.

Every change follows one order: booked in the table, enforced on the host, durable on disk, and only
then reported. Freed capacity is released after the helper has confirmed that no process of the slot
is left (`_tear_down`). If freeing fails, it is retried indefinitely, and the slot stays booked
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from finegrain.cpu_policy import HostPolicy
from finegrain.devices.device import DeviceShare
from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.logs import get_logger
from finegrain.mapping.stored import STORED
from finegrain.resources import PORTS
from finegrain.values.isolation import Isolation
from task_executor.engine.command_fence import CommandFence
from task_executor.engine.cpu_ledger import CpuBinding
from task_executor.engine.report_log import NumberedState, ReportLog
from task_executor.engine.slot_table import Outcome, SlotTable
from task_executor.engine.slots import CarveState, EndedSlot, Slot, SlotKey, SlotSpec
from task_executor.host.device_nodes import NO_NODES
from task_executor.host.helper_messages import IsolationReport, SlotLimits
from task_executor.host.network_ports import NetworkPorts
from task_executor.service.checkpoint import SavedState, Saver, StateDirectory
from task_executor.service.cpu_bindings import CpuBindings
from task_executor.service.device_levels import (
    NO_ENFORCEMENT,
    DeviceEnforcement,
    unmet_levels,
)
from task_executor.service.failures import carve_failed
from task_executor.service.isolation import isolation_of
from task_executor.service.limits import amounts_of, dedicated_cpus, limits_of
from task_executor.service.operators import PAGE_BYTES, Operators
from task_executor.service.ports import Helper
from task_executor.service.task_table import TaskTable

CARVES_AT_ONCE_MAX = 16  # calls of the helper at a time
RETRY_S_MIN, RETRY_S_MAX = 0.2, 10.0  # between attempts to destroy a slot

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this executor is."""

    executor_id: str
    instance_id: str
    boot_id: str


async def _prepare_nothing(_specs: Sequence[SlotSpec]) -> None:
    """Nothing has to be ready."""


class SlotMover(Protocol):
    """Parks and unparks slots; see `task_executor.service.parking`."""

    def begin(self, slot: Slot) -> FinegrainError:
        """Begins to park or unpark a slot; returns IN_PROGRESS."""

    def outcome(self, key: SlotKey, number: int) -> FinegrainError | None:
        """Returns what is known of a resize that parks or unparks a slot."""


class _NoMover:
    """Parks no slots."""

    def begin(self, slot: Slot) -> FinegrainError:
        return FailedPrecondition(f"slot {slot.key} cannot be parked", reason=Reason.PARK_FAILED)

    def outcome(self, key: SlotKey, number: int) -> FinegrainError | None:
        return None


async def _no_wait(_key: SlotKey) -> None:
    return


class SlotKeeper:
    """All state that must survive a restart, and the only writer of it.

    Args:
        identity: who this executor is.
        table: the slots.
        helper: the connection to the helper.
        directory: where the checkpoint is written.
        default_grace_ms: time between SIGTERM and SIGKILL if an order does not say.
        enforcement: what can be enforced of devices.
        page_bytes: size of a page of managed memory.
        ports: network ports that slots can have.
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
        ports: Iterable[int] = (),
    ) -> None:
        self.identity = identity
        self.table = table
        self.helper = helper
        self.directory = directory
        self.default_grace_ms = default_grace_ms
        self.enforcement = enforcement
        self.closes_devices = False  # the helper does so; one of an earlier version cannot
        self.cpu_bindings = CpuBindings(table, helper)
        self.ports = NetworkPorts(ports)
        self.tasks = TaskTable()
        self.operators = Operators(table, self.tasks, page_bytes)
        self.reports = ReportLog()
        self.starts = 0  # fronts started with this identity, including this one
        self.user_token_sha256 = ""  # from the last registration; empty: not known
        self.fence: CommandFence[Any] = CommandFence()
        self.on_change: Callable[[], None] = lambda: None  # wakes the report loop
        # Starts the time after which the tasks of the removed slot are deleted.
        self.on_slot_removed: Callable[[SlotKey], None] = lambda _key: None
        # Waits until tasks had time to give managed memory back that a resize takes away.
        self.before_shrink: Callable[[SlotKey], Awaitable[None]] = _no_wait
        self.on_carve: Callable[[float, bool], None] = lambda _seconds, _ok: None
        self.on_free: Callable[[float], None] = lambda _seconds: None
        self.on_resize: Callable[[float, FinegrainError | None], None] = lambda _s, _error: None
        self.own_slots: set[SlotKey] = set()  # tests and daemons of devices; not in the table
        # Makes ready what shares of devices need.
        self.prepare_devices: Callable[[Sequence[SlotSpec]], Awaitable[None]] = _prepare_nothing
        self.mover: SlotMover = _NoMover()
        self.resize_lock = asyncio.Lock()  # held while a slot is being resized
        self._epoch_to_save = 0
        self._saver = Saver(directory, self._snapshot)
        self._teardowns: dict[SlotKey, asyncio.Task[None]] = {}
        self._grace_ms: dict[SlotKey, int] = {}  # of the slots in `_teardowns`
        self._background: set[asyncio.Task[None]] = set()  # other background work
        self._cleaning: dict[SlotKey, asyncio.Task[None]] = {}  # removing remains
        self._enforced: dict[SlotKey, Slot] = {}  # being saved; ALLOCATED after that
        self._carves = asyncio.Semaphore(CARVES_AT_ONCE_MAX)

    # -- reports -----------------------------------------------------------------------------

    def full_state(self) -> NumberedState:
        """Returns the next report with everything in it."""
        fence = self.fence
        return self.reports.full(
            self.table, rm_epoch=fence.rm_epoch, command_number=fence.command_number
        )

    def next_state(self) -> NumberedState:
        """Returns the next report; `unchanged` if the RM already has the present slots."""
        fence = self.fence
        return self.reports.next(
            self.table, rm_epoch=fence.rm_epoch, command_number=fence.command_number
        )

    # -- checkpoint --------------------------------------------------------------------------

    def _snapshot(self) -> SavedState:
        return SavedState(
            executor_id=self.identity.executor_id,
            instance_id=self.identity.instance_id,
            # An epoch is saved before the fence enters it.
            rm_epoch=max(self.fence.rm_epoch, self._epoch_to_save),
            boot_id=self.identity.boot_id,
            starts=self.starts,
            policy=self.table.cpus.conditions.operator_policy,
            policy_number=self.table.cpus.conditions.policy_number,
            user_token_sha256=self.user_token_sha256,
            # Slots that are being carved are left out: after a crash they are unknown, and are
            # destroyed.
            slots=(*self.table.visible(), *self._enforced.values()),
            ended=tuple(self.reports.all_ended()),
            operators=tuple(self.operators.of_slots()),
        )

    async def save(self) -> None:
        """Makes the present state durable.

        Raises:
            OSError: the checkpoint could not be written.
        """
        await self._saver.save()

    async def save_or_log(self) -> None:
        """Like `save`, but logs an error; for changes on the host that cannot be undone."""
        try:
            await self._saver.save()
        except OSError as error:
            log.error("checkpoint_not_written", error=str(error), path=str(self.directory.path))

    async def keep_epoch(self, rm_epoch: int) -> None:
        """Makes a higher epoch durable before it returns.

        Raises:
            OSError: the checkpoint could not be written.
        """
        if rm_epoch > self.fence.rm_epoch:
            self._epoch_to_save = max(self._epoch_to_save, rm_epoch)
            await self.save()

    # -- cpu conditions ----------------------------------------------------------------------

    async def update_conditions(self, **conditions: Any) -> None:
        """Applies new cpu conditions, and moves slots if needed.

        The names are those of the fields of `CpuConditions`.
        """
        if self.table.update_conditions(**conditions):
            self.on_change()
            await self.cpu_bindings.sync_or_log()

    async def apply_host_policy(self, policy: HostPolicy, number: int) -> None:
        """Applies the settings that an operator made for this host at runtime, and saves them.

        Slots are moved in the background, because the caller (the agent) must continue to report.
        The same number can mean other settings after the RM's database was restored from a backup,
        so both number and settings are compared.

        Args:
            policy: the settings.
            number: their number; increases with each change in the RM.

        Raises:
            OSError: the checkpoint could not be written; the settings are in effect nevertheless.
        """
        known = self.table.cpus.conditions
        if (number, policy) != (known.policy_number, known.operator_policy):
            log.info("host_policy", number=number, **STORED.to_json(policy))
            self.table.update_conditions(operator_policy=policy, policy_number=number)
            self.on_change()
            self.run_in_background(self.cpu_bindings.sync_or_log())
            await self.save()

    # -- what the helper enforces ------------------------------------------------------------

    def limits_of(self, spec: SlotSpec, binding: CpuBinding) -> SlotLimits:
        """Returns the limits of a slot that is bound to these cpus and memory nodes."""
        shares = spec.assignment.devices if spec.assignment is not None else ()
        return self.with_devices(limits_of(spec, binding), shares)

    def with_devices(self, limits: SlotLimits, shares: Iterable[DeviceShare]) -> SlotLimits:
        """Returns limits of a slot that can open the files of these devices."""
        nodes = self.enforcement.nodes if self.closes_devices else NO_NODES
        rules = nodes.rules(shares)
        return replace(limits, devices_open=rules.open, devices_closed=rules.closed)

    def isolation_of(self, report: IsolationReport, spec: SlotSpec | None = None) -> Isolation:
        """Returns the isolation of a slot, or of the host."""
        found = isolation_of(report, spec, self.table.devices.host, self.enforcement)
        return found if spec is None else replace(found, ports=self.ports.of(spec.key))

    def restate_isolation(self, report: IsolationReport) -> None:
        """Corrects what slots say about their devices, after `enforcement` has changed.

        Args:
            report: what the helper enforces.
        """
        for slot in list(self.table):
            if slot.state is CarveState.ALLOCATED and slot.spec.profile.devices:
                self.table.update_isolation(slot.key, self.isolation_of(report, slot.spec))
        self.on_change()

    # -- carving -----------------------------------------------------------------------------

    async def carve(self, specs: Sequence[SlotSpec]) -> list[Outcome]:
        """Books slots, enforces them on the host and saves them.

        When this returns, every slot in an outcome is ALLOCATED and on disk. A slot that could not
        be carved leaves nothing on the host.

        Returns:
            One outcome per spec, in order.
        """
        # Stage 1: book, and drop slots that are ordered twice in one call.
        outcomes = [self._refuse_while_cleaning(outcome) for outcome in self.table.allocate(specs)]
        new = list({o.key: o.slot for o in outcomes if o.must_carve and o.slot}.values())
        enforced: list[Slot] = []
        # Locked from reading the cpu ledger until the helper has confirmed; see `CpuBindings`.
        async with self.cpu_bindings.lock:
            failed = await self._clear_cpus(new)
            new = [slot for slot in new if slot.key not in failed]
            await self.prepare_devices([slot.spec for slot in new])
            # Stage 2: enforce all slots on the host, some at a time.
            isolations = await asyncio.gather(*(self._enforce(slot) for slot in new))
        # Stage 3: make durable what was enforced, and remove the remains of the others.
        now_ms = round(time.time() * 1000)
        for slot, isolation in zip(new, isolations, strict=True):
            if isinstance(isolation, IsolationReport) and (refused := self.give_ports(slot.spec)):
                failed[slot.key] = carve_failed(slot.spec, refused)
                self._clean_up(slot.key)
            elif isinstance(isolation, IsolationReport):
                known = self.isolation_of(isolation, slot.spec)
                if unmet := unmet_levels(slot.spec.profile, known):
                    failed[slot.key] = carve_failed(slot.spec, FailedPrecondition(unmet))
                    self._clean_up(slot.key)
                    continue
                allocated = slot.with_state(
                    CarveState.ALLOCATED, isolation=known, allocated_time_ms=now_ms
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
        """Gives a slot the number of ports that its size has; returns the error if there are none.

        Args:
            spec: the slot, in its new size.
        """
        try:
            self.ports.give(spec.key, dict(spec.profile.extended).get(PORTS, 0))
        except FinegrainError as error:
            log.warning("ports_missing", allocation_id=spec.allocation_id, error=error.message)
            return error
        return None

    async def _clear_cpus(self, new: Sequence[Slot]) -> dict[SlotKey, FinegrainError]:
        """Moves other slots off the cpus that new slots need as dedicated ones.

        If that fails, the new pinned slots are rejected and all other slots stay where they are.
        Returns the errors by slot.
        """
        failed: dict[SlotKey, FinegrainError] = {}
        try:
            await self.cpu_bindings.sync()
        except (FinegrainError, OSError) as error:
            for slot in new:
                if slot.spec.is_pinned:
                    # Nothing of it is on the host yet, so it leaves the table at once.
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
        # The helper has one thread. More calls at once would only delay its other work.
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
        """Saves slots that are enforced, and only then marks them as ALLOCATED.

        A report must not show a slot that a restarted front would not know. Returns the errors by
        slot.
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
                self.table.carved(slot.key, slot.isolation, slot.allocated_time_ms)
            return {}
        finally:
            for slot in slots:
                del self._enforced[slot.key]

    def _clean_up(self, key: SlotKey) -> None:
        """Removes in the background what a failed carve may have left on the host."""
        self._cleaning[key] = asyncio.create_task(self._clean(key))

    async def _clean(self, key: SlotKey) -> None:
        try:
            await self._destroy(key, grace_ms=0)
            # The slot is either in the table (its carve has failed), or unknown with its capacity
            # withheld.
            if self.table.get(key) is not None:
                self.table.carve_failed(key)
            self.table.release_withheld(key)
            self.ports.take_back(key)
            self.cpu_bindings.removed(key)
            self.on_change()
            # The cpus that the slot had return to the pools.
            await self.cpu_bindings.sync_or_log()
        finally:
            del self._cleaning[key]

    async def destroy_unknown(self, slots: Iterable[SlotLimits], timeout_s: float) -> None:
        """Destroys slots on the host that are not in the slot table.

        It returns when they are gone, or after the timeout. The rest is retried indefinitely, and
        its capacity is withheld meanwhile.

        Args:
            slots: limits of the unknown slots.
            timeout_s: how long to wait.
        """
        for limits in slots:
            key = SlotKey(limits.allocation_id, limits.generation)
            if key not in self._cleaning:
                self.table.withhold(key, amounts_of(limits), dedicated_cpus(limits))
                self._clean_up(key)
        if self._cleaning:
            await asyncio.wait(self._cleaning.values(), timeout=timeout_s)

    # -- freeing -----------------------------------------------------------------------------

    async def free(self, wanted: Sequence[tuple[SlotKey, int | None]], *, reason: str = "") -> None:
        """Begins to free slots; returns when that is durable. Unknown slots are ignored.

        Args:
            wanted: slots, each with its grace period in milliseconds (None: the default).
            reason: why, if the RM did not order it; the slot is then reported as ended.
        """
        begun = [
            (key, self.default_grace_ms if grace_ms is None else grace_ms)
            for key, grace_ms in wanted
            if self.table.begin_free(key, end_reason=reason) is not None
        ]
        if not begun:
            return
        # Marked before the kill, so that their ends are reported as cancelled.
        for key, _ in begun:
            for task in self.tasks.of_slot(key):
                task.cancelled = task.cancelled or not task.has_ended
        # Saved before the first signal: a front that restarts goes on freeing these slots.
        await self.save_or_log()
        for key, grace_ms in begun:
            self.begin_teardown(key, grace_ms=grace_ms)
        self.on_change()

    def begin_teardown(self, key: SlotKey, *, grace_ms: int) -> None:
        """Destroys a slot that is FREEING, in the background.

        Further calls only shorten the grace period. Never two teardowns of a slot run at once.
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
        """Terminates a slot's tasks sooner; it is destroyed when no process is left."""
        for task in self.tasks.of_slot(key):
            with contextlib.suppress(FinegrainError):  # it has ended meanwhile
                if not task.has_ended:
                    await self.helper.kill_task(task.task_id, grace_ms)

    async def wait_freed(self, keys: Iterable[SlotKey], timeout_s: float) -> None:
        """Waits at most `timeout_s` seconds until these slots are gone."""
        pending = [self._teardowns[key] for key in set(keys) if key in self._teardowns]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    async def _tear_down(self, key: SlotKey, grace_ms: int) -> None:
        begun = time.monotonic()
        try:
            await self._destroy(key, grace_ms=grace_ms)
            # The host can lose the slot while the teardown runs.
            slot = self.table.get(key)
            if slot is None or slot.state is not CarveState.FREEING:
                return
            self.table.freed(key)
            self.ports.take_back(key)
            self.cpu_bindings.removed(key)
            # The RM needs no report of an end that it has ordered.
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
            await self.save_or_log()
            await self.cpu_bindings.sync_or_log()
        finally:
            self._teardowns.pop(key, None)
            self._grace_ms.pop(key, None)

    async def _destroy(self, key: SlotKey, *, grace_ms: int) -> None:
        """Retries until the helper confirms that no process of the slot is left."""
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
            # The grace period has passed with the first attempt.
            pause_s, grace_ms = min(pause_s * 2, RETRY_S_MAX), 0

    # -- slots that the host lost --------------------------------------------------------------

    def slot_vanished(self, key: SlotKey) -> None:
        """Removes a slot that the host lost.

        It is reported as ended (SLOT_BROKEN, or why it was being freed), unless the RM had freed
        it.
        """
        slot = self.table.vanished(key)
        self.ports.take_back(key)
        self.cpu_bindings.removed(key)
        if slot.state is CarveState.ALLOCATED or slot.end_reason:
            self.reports.ended(EndedSlot(key, slot.end_reason or Reason.SLOT_BROKEN.value))
        self.on_slot_removed(key)
        self.on_change()

    async def close(self) -> None:
        """Cancels the background work; slots stay as they are."""
        self.ports.close()
        pending = [*self._teardowns.values(), *self._cleaning.values(), *self._background]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
