"""Registers the executor with the resource manager (RM) and sends slot reports to it.

The agent decides when to register and to report, and applies the RM's answers. When no RM has been
reachable for too long, the agent frees the slots as orphans. The gRPC service
(`executor_service.py`), not the agent, receives the commands of the RM.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    Reason,
    Unavailable,
)
from finegrain.logs import get_logger
from finegrain.rpc.wire import duration_ms_from_proto
from finegrain.rpc.wire_cpus import host_policy_from_proto
from finegrain.v1 import cpus_pb2, resource_manager_pb2, slots_pb2
from task_executor.engine.slots import CarveState, SlotKey
from task_executor.host.boot_clock import boot_seconds
from task_executor.service.denials import Denials
from task_executor.service.encoding import state_to_proto
from task_executor.service.manager_link import ManagerLink
from task_executor.service.slot_keeper import SlotKeeper

COALESCE_S = 0.02  # pause before a report, so that one report contains several changes
REPORT_INTERVAL_MS_DEFAULT = 2_000
REPORT_INTERVAL_MS_MIN, REPORT_INTERVAL_MS_MAX = 50, 3_600_000
CONFLICT_PAUSE_S = 10.0  # pause between attempts, after an error that an administrator must fix

NEEDS_OPERATOR = frozenset(
    {
        Reason.INSTANCE_CONFLICT,
        Reason.VERSION_MISMATCH,
        Reason.CERTIFICATE_MISSING,
        Reason.CERTIFICATE_WRONG,
        Reason.CERTIFICATE_DENIED,
        Reason.ROLE_MISSING,
        Reason.INVALID_ARGUMENT,
        Reason.ALREADY_EXISTS,
    }
)
"""Reasons of errors that an administrator must fix. After such an error, the agent tries again only
every `CONFLICT_PAUSE_S` seconds.
"""

Registration = Callable[[slots_pb2.SlotReport], resource_manager_pb2.RegisterExecutorRequest]
Measure = Callable[[], Awaitable[slots_pb2.UsageReport | None]]
Clock = Callable[[], float]

log = get_logger(__name__)


class _NextStep(Enum):
    """The next step of the agent after a report."""

    WAIT = "wait"  # wait for the end of the report interval, or for a change
    AT_ONCE = "at once"  # another report must be sent at once
    REGISTER = "register"  # the executor must register again


@dataclass(slots=True)
class AgentState:
    """State of the connection; for metrics, readiness and tests."""

    registered: bool = False
    connected: bool = False
    registration_number: int = 0
    contact_at: float = 0.0  # time of the RM's last answer, by `boot_seconds`
    report_interval_ms: int = REPORT_INTERVAL_MS_DEFAULT
    reports_sent: int = 0


class Agent:
    """Registers and reports until it is cancelled.

    Args:
        keeper: the slots, the command fence and the report numbers of this executor.
        link: the connection to the RM.
        registration: builds the registration request from the first report.
        measure: returns the measured usage of slots.
        denied: a function that is called after the list of denied identities has changed.
        authorities: a function that receives the SHA-256 of the authorities that the RM trusts.
        orphan_timeout_ms: the time for which slots are kept while no RM is reachable; None:
            indefinitely.
        clock: returns the current time in seconds.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        link: ManagerLink,
        *,
        registration: Registration,
        measure: Measure,
        denied: Callable[[], None],
        authorities: Callable[[str], None],
        orphan_timeout_ms: int | None,
        clock: Clock = boot_seconds,
    ) -> None:
        self._keeper = keeper
        self._link = link
        self._registration = registration
        self._measure = measure
        self._denied = denied
        self._authorities = authorities
        self._orphan_timeout_ms = orphan_timeout_ms
        self._clock = clock
        self._logged_reason: Reason | None = None  # the failure that was last logged
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()  # set while no registration is in progress
        self._settled.set()
        self.state = AgentState(contact_at=clock())
        keeper.on_change = self._changed.set

    async def run(self) -> None:
        """Registers and reports until cancelled."""
        while True:
            try:
                if not self.state.registered:
                    await self._register()
                step = await self._report()
                self._mark_connected()
            except FinegrainError as error:
                await self._handle_failure(error)
                continue
            # The agent must continue when the disk is full. It tries again after a pause.
            except OSError as error:
                log.error("checkpoint_not_written", error=str(error))
                await asyncio.sleep(1.0)
                continue
            if step is _NextStep.REGISTER:
                self.state.registered = False
            elif step is _NextStep.WAIT:
                await self._wait_for_change()

    async def wait_registered(self, timeout_s: float) -> None:
        """Waits for the end of a registration in progress, at most `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            return

    def register_again(self) -> None:
        """Makes the agent register again soon, because its capacity or devices changed."""
        self.state.registered = False
        self._changed.set()

    # -- register ----------------------------------------------------------------------------

    async def _register(self) -> None:
        self._settled.clear()
        try:
            # The report in the registration must be complete, because an `unchanged` report refers
            # to an earlier report of the same registration.
            self._keeper.reports.require_full_report()
            answer, report_number = await self._announce()
            await self._apply_registration(answer, report_number)
        finally:
            # Set the event after a failure, too. Waiting commands must continue at once.
            self._settled.set()
        log.info(
            "registered",
            manager=self._link.address,
            rm_epoch=answer.rm_epoch,
            registration_number=answer.registration_number,
        )
        await self._free_unowned(answer.unowned_slots)

    async def _announce(self) -> tuple[resource_manager_pb2.RegisterExecutorResponse, int]:
        """Sends the registration. Returns the answer, and the number of the report in the
        registration.

        If the checkpoint was lost before a restart, the report number can be lower than the highest
        number that the RM has received. The RM then rejects the registration as stale, and the
        agent sends it again with a higher number.
        """
        reports = self._keeper.reports
        for attempt in (1, 2):
            report = state_to_proto(self._keeper.full_state())
            try:
                return await self._link.register(self._registration(report)), report.report_number
            except FailedPrecondition as error:
                known = str(error.details.get("report_number", ""))
                # A higher report number does not help if the registration is stale for another
                # reason.
                if error.reason is not Reason.STALE_REGISTRATION or not known.isdecimal():
                    raise
                if attempt == 2:
                    raise
                reports.continue_after(int(known))
        raise AssertionError("unreachable")

    async def _apply_registration(
        self, answer: resource_manager_pb2.RegisterExecutorResponse, report_number: int
    ) -> None:
        """Applies the answer. The method stores the RM's epoch before any command of this epoch is
        admitted.
        """
        keeper = self._keeper
        keeper.fence.check_epoch(answer.rm_epoch)
        await keeper.keep_epoch(answer.rm_epoch, answer.epoch_proof)
        keeper.fence.register(answer.rm_epoch, answer.registration_number)
        await self._follow_denials(answer.denied)
        self.state.report_interval_ms = duration_ms_from_proto(
            answer.report_interval, "report_interval"
        )
        # If the interval is too short, reports overload the RM. If it is too long, the RM considers
        # this executor lost.
        self.state.report_interval_ms = min(
            max(self.state.report_interval_ms, REPORT_INTERVAL_MS_MIN), REPORT_INTERVAL_MS_MAX
        )
        self.state.registration_number = answer.registration_number
        self.state.registered = True
        self._mark_connected()
        # Without this save, a restarted front would report ended slots again, although the RM has
        # acknowledged their end.
        if keeper.reports.acknowledge(report_number):
            await keeper.save()
        await self._follow_policy(answer.host_policy, answer.host_policy_number)
        self._authorities(answer.authorities_sha256)

    # -- report ------------------------------------------------------------------------------

    async def _report(self) -> _NextStep:
        keeper = self._keeper
        usage = await self._measure()
        # Clear the event before the state is read. A later change then causes another report.
        self._changed.clear()
        admin_calls = keeper.admin_calls.first()
        request = resource_manager_pb2.ReportSlotsRequest(
            executor_id=keeper.identity.executor_id,
            instance_id=keeper.identity.instance_id,
            registration_number=keeper.fence.registration_number,
            report=state_to_proto(keeper.next_state()),
            usage=usage,
            denied_number=keeper.denials.number,
            admin_calls=admin_calls,
        )
        answer = await self._link.report(request)
        keeper.admin_calls.reported(admin_calls)
        self.state.reports_sent += 1
        return await self._handle_answer(answer)

    async def _handle_answer(self, answer: resource_manager_pb2.ReportSlotsResponse) -> _NextStep:
        keeper = self._keeper
        if answer.register_again and answer.rm_epoch < keeper.fence.rm_epoch:
            # This RM was replaced, or its database is older than the epoch that this executor
            # knows. Register again, because only a registration shows the RM the proof of the newer
            # epoch. The RM then stops.
            log.info("register_again", manager=self._link.address, rm_epoch=answer.rm_epoch)
            return _NextStep.REGISTER
        keeper.fence.check_epoch(answer.rm_epoch)
        if answer.rm_epoch > keeper.fence.rm_epoch:
            # Make the epoch durable first, because a command of this epoch can arrive at any
            # moment.
            await keeper.keep_epoch(answer.rm_epoch, answer.epoch_proof)
            keeper.fence.raise_epoch(answer.rm_epoch)
        if answer.HasField("denied"):
            await self._follow_denials(answer.denied)
        self._authorities(answer.authorities_sha256)
        # This answer acknowledges no report. The next registration contains a complete report.
        if answer.register_again:
            log.info("register_again", manager=self._link.address, rm_epoch=answer.rm_epoch)
            return _NextStep.REGISTER
        if keeper.reports.acknowledge(answer.acknowledged_report_number):
            await keeper.save()
        if answer.host_policy_number:  # 0 means unchanged
            await self._follow_policy(answer.host_policy, answer.host_policy_number)
        await self._free_unowned(answer.unowned_slots)
        await keeper.restart_time_limits(
            [
                (SlotKey(each.allocation_id, each.generation), each.reuse_number)
                for each in answer.reused_slots
            ]
        )
        if answer.send_full_report:
            keeper.reports.require_full_report()
            return _NextStep.AT_ONCE
        return _NextStep.WAIT

    async def _follow_denials(self, message: resource_manager_pb2.DeniedIdentities) -> None:
        """Rejects exactly the identities in this list from now on."""
        denials = Denials(message.number, tuple(sorted(set(message.subjects))))
        if denials == self._keeper.denials:
            return
        log.info("denials_changed", number=denials.number, subjects=len(denials.subjects))
        self._keeper.denials = denials
        self._denied()
        # Save the list: a front that restarts while the RM is unreachable needs it. If the disk is
        # full, a later checkpoint contains the list.
        await self._keeper.save_or_log()

    async def _follow_policy(self, message: cpus_pb2.HostPolicy, number: int) -> None:
        """Applies the settings that an administrator made for this host.

        Invalid settings are logged and ignored. Reports then still contain the number of the
        settings in effect.
        """
        try:
            policy = host_policy_from_proto(message, "host_policy")
        except InvalidArgument as error:
            log.error("host_policy_not_followed", number=number, error=error.message)
            return
        await self._keeper.apply_host_policy(policy, number)

    async def _free_unowned(self, slots: Iterable[resource_manager_pb2.SlotRelease]) -> None:
        wanted = []
        for each in slots:
            latest = self._keeper.table.latest(each.allocation_id)
            # Generation 0 means the latest generation on this executor.
            generation = each.generation or (latest.spec.generation if latest else 0)
            wanted.append((SlotKey(each.allocation_id, generation), None))
            log.warning("unowned_slot", allocation_id=each.allocation_id, generation=generation)
        if wanted:
            await self._keeper.free(wanted)

    async def _wait_for_change(self) -> None:
        """Waits for a change, at most one report interval. A change that the answer to a command
        contains does not count, because the RM gets it with this answer.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.state.report_interval_ms / 1000):
                while True:
                    await self._changed.wait()
                    await asyncio.sleep(COALESCE_S)  # several changes often follow each other
                    self._changed.clear()
                    if not self.state.registered or self._keeper.has_news():
                        return

    # -- without the resource manager --------------------------------------------------------

    def _mark_connected(self) -> None:
        if not self.state.connected:
            log.info("manager_connected", manager=self._link.address)
        self._logged_reason = None
        self.state.connected = True
        self.state.contact_at = self._clock()

    async def _handle_failure(self, error: FinegrainError) -> None:
        """Handles an RM that is unreachable or rejects this executor, and waits for the next try.

        Tasks continue until the orphan timeout.
        """
        if error.reason is not self._logged_reason or not self.state.registered:
            self._logged_reason = error.reason
            log.warning(
                "manager_not_reached",
                manager=self._link.address,
                reason=error.reason.value,
                error=error.message,
            )
        self.state.connected = False
        # The RM accepts no report until this executor has registered again.
        if error.reason in (Reason.STALE_REGISTRATION, Reason.EXECUTOR_UNKNOWN):
            self.state.registered = False
        pause_s = await self._link.next_address(error)
        # The pause is at most one report interval: a restarted RM marks this executor as lost when
        # the executor's report is late.
        pause_s = min(pause_s, self.state.report_interval_ms / 1000)
        # These errors remain until an administrator acts, so use a long pause. There is one
        # exception: if another process listens at the RM's address (`Unavailable`), the RM can
        # return at any moment, so use a short pause.
        if error.reason in NEEDS_OPERATOR and not isinstance(error, Unavailable):
            log.error("registration_refused", reason=error.reason.value, error=error.message)
            pause_s = CONFLICT_PAUSE_S
        await self._free_orphans()
        await asyncio.sleep(pause_s)

    async def _free_orphans(self) -> None:
        if self._orphan_timeout_ms is None:
            return
        disconnected_s = self._clock() - self.state.contact_at
        if disconnected_s * 1000 <= self._orphan_timeout_ms:
            return
        orphans = [
            (slot.key, None) for slot in self._keeper.table if slot.state is CarveState.ALLOCATED
        ]
        if orphans:
            log.error("orphans_freed", slots=len(orphans), disconnected_s=round(disconnected_s))
            await self._keeper.free(orphans, reason=Reason.ORPHANED.value)

    async def send_last_report(self, timeout_s: float) -> None:
        """Sends one more report before a planned stop. Waits at most `timeout_s` seconds."""
        if not self.state.registered:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._report()
        except (FinegrainError, OSError, TimeoutError) as error:
            log.warning("last_report_not_delivered", error=str(error))

    async def close(self) -> None:
        """Closes the connection to the RM."""
        await self._link.close()
