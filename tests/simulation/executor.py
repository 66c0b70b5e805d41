"""An executor in virtual time: real fence and slot table, and a simple model of all other parts.

It follows `task_executor/service/agent.py` (registration, reports, loss of contact), and
host_sync.py when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from finegrain.cpuset import EMPTY
from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, MEMORY_BYTES
from resource_manager.engine.model.entities import Registration
from resource_manager.engine.model.events import (
    ExecutorRegistered,
    RegistrationAnswer,
    ReportAnswer,
    SlotsReported,
)
from resource_manager.service.wire import decoding
from task_executor.engine.command_fence import CommandFence
from task_executor.engine.report_log import ReportLog
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import CarveState, EndedSlot, SlotKey, SlotSpec
from task_executor.service.encoding import state_to_proto
from tests.simulation.host_commands import CommandedHost
from tests.simulation.manager import Manager
from tests.simulation.network import Reply, Unreached
from tests.simulation.some_settings import REPORT_MS

CALL_WAIT_MS = 1_500
LIMIT_CHECK_MS = 100
CONFLICT_PAUSE_MS = 2_500
DESTROY_WAIT_MS = 5_000


class Executor(CommandedHost):
    """The executor of one host."""

    report_ms = REPORT_MS
    provided_as = ""  # the executor shape of the provider that started it
    is_destroyed = False  # together with its machine

    # -- starts and ends ---------------------------------------------------------------------

    def start(self) -> None:
        """Recovers from the checkpoint and the slots on the host, once the helper runs."""
        away_ms = self.helper_until_ms - self.loop.now_ms
        if self.up or self.is_destroyed:
            return None
        if away_ms > 0:
            return self.loop.after(away_ms + 1, self.start)
        self.life += 1
        self.up = True
        self.stopped_until_ms = 0
        self._configure()
        self._recover()
        self._rests = 0
        self.registered = False
        self._waiting = self._changed = False
        self._contact_ms = self.loop.now_ms
        self._look_at_cpus()
        self._look_at_devices()
        self.checks.contact(self)
        self.checks.times.starts(self)
        self.log(f"{self.name} starts with {[f'{k[0]}/{k[1]}' for k in self.on_host]}")
        return self._settle(self.loop.now_ms)

    def _recover(self) -> None:
        """Adopts known slots, removes unknown slots, and reports missing slots as broken."""
        saved = self._read_checkpoint()
        self._begin_saving()
        self.instance_id, self.starts = saved.instance_id, saved.starts + 1
        self.table, self.reports = SlotTable(self.share), ReportLog()
        self.reports.start_numbering(self.starts)
        self.fence = CommandFence()
        self.fence.raise_epoch(saved.rm_epoch)
        self.table.update_conditions(
            operator_policy=saved.policy, policy_number=saved.policy_number
        )
        for ended in saved.ended:
            self.reports.ended(ended)
        self._tearing_down.clear()
        self._begin_commands()
        rebooted = saved.boot_id not in ("", f"boot-{self.boots}")
        why_missing = Reason.SLOT_MISSING if rebooted else Reason.SLOT_BROKEN
        for slot in saved.slots:
            if slot.key in self.on_host:
                self.table.adopt(slot)
            elif slot.state is CarveState.ALLOCATED or slot.end_reason:
                self.reports.ended(EndedSlot(slot.key, slot.end_reason or why_missing.value))
        self.checks.recovered(self)
        for key, spec in self.on_host.items():
            if self.table.get(key) is None:
                self._withhold(key, spec)
                self._clean(key)

    def _withhold(self, key: SlotKey, spec: SlotSpec) -> None:
        """Withholds the capacity of an unknown slot, as far as the host's limits show it."""
        amounts = {CPU_MILLI: 0, BEST_EFFORT_CPU_MILLI: 0} | self.table.booking_of(spec)
        names = (CPU_MILLI, BEST_EFFORT_CPU_MILLI, MEMORY_BYTES)
        known = {name: amounts.get(name, 0) for name in names}
        cpus = spec.assignment.cpus if spec.assignment is not None else EMPTY
        self.table.withhold(key, known, cpus)

    def _settle(self, since_ms: int) -> None:
        """Waits for the removal of unknown slots, up to a time limit. Then saves the slots that are
        left.
        """
        if self._cleaning and self.loop.now_ms < since_ms + DESTROY_WAIT_MS:
            return self.after(10, lambda: self._settle(since_ms))
        for slot in self.table:
            if slot.state is CarveState.FREEING:
                self._take_down(slot.key)
        return self._settle_sizes(lambda: self._save(self._serve_others))

    def _serve_others(self, kept: bool) -> None:
        """Starts serving; a new identity that could not be saved crashes instead."""
        if not kept and self.starts == 1:
            self.log(f"{self.name} cannot keep its identity")
            return self.crash()
        for slot in list(self.table):
            if slot.state is CarveState.ALLOCATED:
                self._offer(slot)
        self.checks.times.starts(self)
        self._end_at_limits()
        return self._turn()

    def crash(self, *, reboot: bool = False) -> None:
        """Kills the front; with `reboot` also everything on the host."""
        self.log(f"{self.name} {'reboots' if reboot else 'dies'}")
        self.up = False
        full = self.loop.now_ms < self.full_until_ms
        if self._writing is not None and not full and self.rng.random() < 0.5:
            self.checkpoint = self._writing  # already renamed, but not known to be
        if reboot:
            self.on_host.clear()
            self.offline = EMPTY
            self.boots += 1
            self.helper_lives += 1
        self.loop.after(self.rng.choice((20, 300, 2_000, 7_000)), self.start)

    def destroy(self) -> None:
        """Destroys the machine."""
        self.log(f"{self.name} is no more")
        self.up, self.is_destroyed = False, True
        self.on_host.clear()

    def _configure(self) -> None:
        """Decides at random whether an administrator has changed the share since the last start."""
        if self.life > 1 and self.rng.random() < self.troubles.resized:
            total = dict(self.share.total)
            cpu_milli = self.rng.choice((1_000, 4_000, 8_000))
            if self.machine is None:  # with a machine, its cpus determine the amount
                total["cpu_milli"] = cpu_milli
            self.share = replace(self.share, total=total, slots_max=self.rng.choice((0, 2)))
            self.labels = (("zone", self.rng.choice("abc")),)
            self.log(f"{self.name} is given {total}, at most {self.share.slots_max} slots")
        self.look_for_devices()

    # -- the agent -------------------------------------------------------------------------

    def _turn(self) -> None:
        self._waiting = False
        if self.registered:
            self._changed = False
            state = self.reports.next(self.table, **self._numbers())
            names = (self.executor_id, self.instance_id, self.fence.registration_number)
            message = state_to_proto(state)
            self._call(
                lambda to, reply: self._serve_report(to, names, message, reply),
                lambda answer: self._reported(answer, state.report_number),
            )
        else:
            self.reports.require_full_report()
            state = self.reports.full(self.table, **self._numbers())
            registration, report_number = self._registration(), state.report_number
            message = state_to_proto(state)
            self._call(
                lambda to, reply: self._serve_registration(to, registration, message, reply),
                lambda answer: self._took_registration(answer, report_number),
            )

    def _call(self, serve: Callable[[Manager, Reply], None], done: Reply) -> None:
        def take(result: Any) -> None:
            try:
                if isinstance(result, Exception):
                    raise result
                self._sent_ms = sent_ms
                done(result)
            except (FinegrainError, Unreached) as error:
                self._handle_failure(error)

        sent_ms = self.loop.now_ms
        manager = self.managers[0]
        self.network.call(self, manager, lambda reply: serve(manager, reply), take, CALL_WAIT_MS)

    def _registration(self) -> Registration:
        """Returns the registration of this start."""
        topology, host_cpus = ("{}", "{}")
        if self.machine is not None:
            topology, host_cpus = self.machine.texts(self.share.devices)
        return Registration(
            executor_id=self.executor_id,
            instance_id=self.instance_id,
            address=f"{self.name}:7000",
            total=dict(self.share.total),
            reserved={},
            default_profile=self.default_profile,
            labels=self.labels,
            slots_max=self.share.slots_max,
            boot_id=f"boot-{self.boots}",
            provided_as=self.provided_as,
            topology=topology,
            host_cpus=host_cpus,
        )

    def _serve_registration(
        self, manager: Manager, registration: Registration, message: Any, reply: Reply
    ) -> None:
        """Serves at the manager, perhaps after the sending process died."""
        self._serve(
            manager,
            message,
            lambda report: lambda at: ExecutorRegistered(at, registration, report),
            reply,
        )

    def _serve_report(
        self, manager: Manager, names: tuple[str, str, int], message: Any, reply: Reply
    ) -> None:
        """Serves at the manager, perhaps after the sending process died."""
        self._serve(
            manager, message, lambda report: lambda at: SlotsReported(at, *names, report), reply
        )

    def _serve(
        self, manager: Manager, message: Any, make: Callable[[Any], Any], reply: Reply
    ) -> None:
        try:
            report = decoding.report(message, "report")
        except InvalidArgument as error:
            return reply(error)
        return manager.submit(
            make(report),
            lambda answer: reply(
                answer if isinstance(answer, Exception) else (manager.state.rm_epoch, answer)
            ),
        )

    def _took_registration(self, result: Any, report_number: int) -> None:
        rm_epoch, answer = result
        assert isinstance(answer, RegistrationAnswer)
        self.fence.check_epoch(rm_epoch)
        self._keep_epoch(rm_epoch, lambda ok: self._register(result, report_number, kept=ok))

    def _register(self, result: Any, report_number: int, *, kept: bool) -> None:
        rm_epoch, answer = result
        if not kept:
            return self._rest(1_000)
        try:
            self.fence.register(rm_epoch, answer.registration_number)
        except FinegrainError as error:
            return self._handle_failure(error)
        self.registered = True
        self._met(reported_ms=self._sent_ms)
        self.log(f"{self.name} has registration {answer.registration_number} of epoch {rm_epoch}")
        if self.reports.acknowledge(report_number):
            self._save()
        self._follow(answer.host_policy, answer.host_policy_number)
        self._free_unowned(answer.unowned)
        return self._turn()

    def _reported(self, result: Any, report_number: int) -> None:
        rm_epoch, answer = result
        assert isinstance(answer, ReportAnswer)
        self.fence.check_epoch(rm_epoch)
        self._keep_epoch(rm_epoch, lambda ok: self._take_answer(result, report_number, kept=ok))

    def _take_answer(self, result: Any, report_number: int, *, kept: bool) -> None:
        rm_epoch, answer = result
        if not kept:
            return self._rest(1_000)
        self.fence.raise_epoch(rm_epoch)
        taken = answer.acknowledged_report_number >= report_number and not answer.register_again
        self._met(reported_ms=self._sent_ms if taken else None)
        if answer.register_again:
            self.registered = False
            return self._turn()
        if self.reports.acknowledge(answer.acknowledged_report_number):
            self._save()
        if answer.host_policy_number:  # else the policy is unchanged
            self._follow(answer.host_policy, answer.host_policy_number)
        self._free_unowned(answer.unowned)
        if answer.send_full_report:
            self.reports.require_full_report()
        if answer.reused_slots:
            return self._restart_limits(answer)
        return self._continue(answer)

    def _continue(self, answer: ReportAnswer) -> None:
        if answer.send_full_report:
            return self._turn()
        return self._rest(20 if self._changed else self.report_ms, wakeable=True)

    # -- time limits -----------------------------------------------------------------------

    def _restart_limits(self, answer: ReportAnswer) -> None:
        """Starts the time limits of reused slots again."""
        reuses = [(SlotKey(name, number), reuse) for name, number, reuse in answer.reused_slots]
        for key, reuse in reuses:
            self.checks.times.reused(self, key, reuse)
            self.table.reused(key, reuse, self.loop.now_ms)
        self._change()

        def saved(fine: bool) -> None:
            for key, reuse in reuses if fine else ():
                self.checks.times.kept(key, reuse)
            self._continue(answer)

        self._save(saved)

    def _end_at_limits(self) -> None:
        """Ends slots whose time limit is over; see `task_executor/service/time_limits.py`.

        A reboot ends all slots. So the clock of the simulation serves as the boot clock.
        """
        now_ms = self.loop.now_ms
        due = [s.key for s in self.table if s.ends_at_ms is not None and s.ends_at_ms <= now_ms]
        if due:
            self.log(f"{self.name} ends {[f'{k[0]}/{k[1]}' for k in due]} at their time limit")
            self.checks.require(self.checks.times.over(self, due))
            self._free(due, reason=Reason.TIME_LIMIT.value)
        self.after(LIMIT_CHECK_MS, self._end_at_limits)

    def _met(self, reported_ms: int | None) -> None:
        self._contact_ms = self.loop.now_ms
        self.checks.contact(self, reported_ms=reported_ms)

    def _handle_failure(self, error: Exception) -> None:
        pause_ms = self.rng.randint(50, 500)
        if isinstance(error, FinegrainError):
            if error.reason in (Reason.STALE_REGISTRATION, Reason.EXECUTOR_UNKNOWN):
                self.registered = False
            if error.reason in (Reason.INVALID_ARGUMENT, Reason.INSTANCE_CONFLICT):
                pause_ms = CONFLICT_PAUSE_MS
            if error.reason is not Reason.NOT_LEADER:
                self.log(f"{self.name} is refused: {error}")
            if "report_number" in error.details:
                self.reports.continue_after(int(str(error.details["report_number"])))
                return self._turn()
        self.managers = [*self.managers[1:], self.managers[0]]
        self._free_orphans()
        return self._rest(pause_ms)

    def _free_orphans(self) -> None:
        alone_ms = self.loop.now_ms - self._contact_ms
        if self.orphan_ms is not None and alone_ms > self.orphan_ms:
            orphans = [slot.key for slot in self.table if slot.state is CarveState.ALLOCATED]
            self._free(orphans, reason=Reason.ORPHANED.value)

    def _rest(self, pause_ms: int, *, wakeable: bool = False) -> None:
        self._waiting = wakeable
        self._rests += 1
        rest = self._rests
        self.after(pause_ms, lambda: self._turn() if self._rests == rest else None)

    def _change(self) -> None:
        self._changed = True
        if self._waiting:
            self._rest(20)

    def _free_unowned(self, unowned: Iterable[tuple[str, int]]) -> None:
        if unowned:
            self.log(f"{self.name} frees unowned {list(unowned)}")
            self._free([SlotKey(*key) for key in unowned])
