"""An executor: the real fence and slot table under a thin model of the shell, in virtual time.

Follows `task_executor/service`: agent.py (register, report, hold out), commands.py and keeper.py.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from finegrain.errors import FailedPrecondition, FinegrainError, InvalidArgument, Reason
from finegrain.v1 import task_executor_pb2
from resource_manager.engine.effects import SendAllocate, SendFree
from resource_manager.engine.entities import Registration
from resource_manager.engine.events import (
    ExecutorRegistered,
    ItemOutcome,
    RegistrationAnswer,
    ReportAnswer,
    SlotsReported,
)
from resource_manager.service import from_wire, to_wire
from task_executor.engine.command_fence import CommandFence, CommandNumbers
from task_executor.engine.report_log import ReportLog
from task_executor.engine.slot_table import Outcome, SlotTable
from task_executor.engine.slots import EndedSlot, Slot, SlotKey, SlotState
from task_executor.service.messages import spec_from_proto, state_to_proto
from tests.simulation.network import Reply, Unreached
from tests.simulation.slot_host import SlotHost

REPORT_MS = 800
CALL_WAIT_MS = 1_500
FREE_WAIT_MS = 1_000
CONFLICT_PAUSE_MS = 2_500


class Executor(SlotHost):
    """One host's executor."""

    # -- life and death --------------------------------------------------------------------

    def start(self) -> None:
        """Recovers from the checkpoint and what runs on the host."""
        self.life += 1
        self.up = True
        self.disk.starts += 1
        self._configure()
        self.table, self.reports = SlotTable(self.share), ReportLog()
        self.reports.begin_life(self.disk.starts)
        self.fence = CommandFence()
        self.fence.raise_epoch(self.disk.rm_epoch)
        for ended in self.disk.ended:
            self.reports.ended(ended)
        self.registered = False
        self._waiting = self._changed = False
        self._cleaning: set[SlotKey] = set()
        self._lock: deque[Callable[[], None]] = deque()
        self._locked = False
        self._contact_ms = self.loop.now_ms
        for slot in map(Slot.from_dict, self.disk.slots):
            if slot.key in self.on_host:
                self.table.adopt(slot)
            elif slot.state is SlotState.ALLOCATED or slot.end_reason:
                self.reports.ended(EndedSlot(slot.key, slot.end_reason or Reason.SLOT_BROKEN.value))
        self.on_host = {k: s for k, s in self.on_host.items() if self.table.get(k) is not None}
        self.log(f"{self.name} starts with {[f'{k[0]}/{k[1]}' for k in self.on_host]}")
        for slot in list(self.table):
            if slot.state is SlotState.FREEING:
                self._take_down(slot.key)
        self._save()
        self.after(1, self._turn)

    def crash(self, *, reboot: bool = False) -> None:
        """The process dies; with `reboot` everything on the host does."""
        self.log(f"{self.name} {'reboots' if reboot else 'dies'}")
        self.up = False
        if reboot:
            self.on_host.clear()
        self.loop.after(self.rng.choice((20, 300, 2_000, 7_000)), self.start)

    def _configure(self) -> None:
        """An operator may have given this host another share meanwhile."""
        if self.life > 1 and self.rng.random() < self.troubles.resized:
            total = dict(self.share.total)
            total["cpu_milli"] = self.rng.choice((1_000, 4_000, 8_000))
            self.share = replace(self.share, total=total, slots_max=self.rng.choice((0, 2)))
            self.labels = (("zone", self.rng.choice("abc")),)
            self.log(f"{self.name} is given {total}, at most {self.share.slots_max} slots")

    # -- the agent -------------------------------------------------------------------------

    def _turn(self) -> None:
        self._waiting = False
        if self.registered:
            self._changed = False
            state = self.reports.next(self.table, **self._numbers())
            message, number = state_to_proto(state), self.fence.registration_number
            report_number = state.report_number
            self._call(
                lambda reply: self._serve_report(message, number, reply),
                self._reported,
            )
        else:
            self.reports.distrust()
            state = self.reports.full(self.table, **self._numbers())
            message, report_number = state_to_proto(state), state.report_number
            self._call(
                lambda reply: self._serve_registration(message, reply),
                lambda answer: self._took_registration(answer, report_number),
            )

    def _call(self, serve: Callable[[Reply], None], done: Reply) -> None:
        def take(result: Any) -> None:
            try:
                if isinstance(result, Exception):
                    raise result
                done(result)
            except (FinegrainError, Unreached) as error:
                self._hold_out(error)

        self.network.call(self, self.manager, serve, take, CALL_WAIT_MS)

    def _serve_registration(self, message: Any, reply: Reply) -> None:
        """At the manager."""
        manager = self.manager
        registration = Registration(
            executor_id=self.name,
            instance_id=self.disk.instance_id,
            address=f"{self.name}:7000",
            total=dict(self.share.total),
            reserved={},
            default_profile=self.default_profile,
            labels=self.labels,
            slots_max=self.share.slots_max,
        )
        self._serve(
            message,
            lambda report: lambda at: ExecutorRegistered(at, registration, report),
            lambda answer: reply(
                answer if isinstance(answer, Exception) else (manager.state.rm_epoch, answer)
            ),
        )

    def _serve_report(self, message: Any, number: int, reply: Reply) -> None:
        """At the manager."""
        manager, instance_id = self.manager, self.disk.instance_id
        self._serve(
            message,
            lambda report: lambda at: SlotsReported(at, self.name, instance_id, number, report),
            lambda answer: reply(
                answer if isinstance(answer, Exception) else (manager.state.rm_epoch, answer)
            ),
        )

    def _serve(self, message: Any, make: Callable[[Any], Any], reply: Reply) -> None:
        try:
            report = from_wire.report(message, "report")
        except InvalidArgument as error:
            return reply(error)
        return self.manager.submit(make(report), reply)

    def _took_registration(self, result: Any, report_number: int) -> None:
        rm_epoch, answer = result
        assert isinstance(answer, RegistrationAnswer)
        self.fence.check_epoch(rm_epoch)
        self._keep_epoch(rm_epoch)
        self.fence.register(rm_epoch, answer.registration_number)
        self.registered = True
        self._contact_ms = self.loop.now_ms
        self.log(f"{self.name} has registration {answer.registration_number} of epoch {rm_epoch}")
        if self.reports.acknowledge(report_number):
            self._save()
        self._free_unowned(answer.unowned)
        self._turn()

    def _reported(self, result: Any) -> None:
        rm_epoch, answer = result
        assert isinstance(answer, ReportAnswer)
        self.fence.check_epoch(rm_epoch)
        self._keep_epoch(rm_epoch)
        self.fence.raise_epoch(rm_epoch)
        self._contact_ms = self.loop.now_ms
        if answer.register_again:
            self.registered = False
            return self._turn()
        if self.reports.acknowledge(answer.acknowledged_report_number):
            self._save()
        self._free_unowned(answer.unowned)
        if answer.send_full_report:
            self.reports.distrust()
            return self._turn()
        return self._rest(20 if self._changed else REPORT_MS)

    def _hold_out(self, error: Exception) -> None:
        pause_ms = self.rng.randint(50, 500)
        if isinstance(error, FinegrainError):
            if error.reason in (Reason.STALE_REGISTRATION, Reason.EXECUTOR_UNKNOWN):
                self.registered = False
            if error.reason in (Reason.INVALID_ARGUMENT, Reason.ALREADY_EXISTS):
                pause_ms = CONFLICT_PAUSE_MS
            self.log(f"{self.name} is refused: {error}")
            if "report_number" in error.details:
                self.reports.continue_after(int(str(error.details["report_number"])))
                return self._turn()
        alone_ms = self.loop.now_ms - self._contact_ms
        if self.orphan_ms is not None and alone_ms > self.orphan_ms:
            orphans = [slot.key for slot in self.table if slot.state is SlotState.ALLOCATED]
            self._free(orphans, reason=Reason.ORPHANED.value)
        return self._rest(pause_ms, wakeable=False)

    def _rest(self, pause_ms: int, *, wakeable: bool = True) -> None:
        self._waiting = wakeable
        self._rests = rest = getattr(self, "_rests", 0) + 1
        self.after(pause_ms, lambda: self._turn() if self._rests == rest else None)

    def _change(self) -> None:
        self._changed = True
        if self._waiting:
            self._rest(20, wakeable=False)

    def _free_unowned(self, unowned: Iterable[tuple[str, int]]) -> None:
        if unowned:
            self.log(f"{self.name} frees unowned {list(unowned)}")
            self._free([SlotKey(*key) for key in unowned])

    # -- commands --------------------------------------------------------------------------

    def command(self, effect: SendAllocate | SendFree, rm_epoch: int, reply: Reply) -> None:
        """Carries out a command of the manager, one at a time."""
        digest = hashlib.sha256(repr((rm_epoch, effect)).encode()).hexdigest()
        numbers = CommandNumbers(
            rm_epoch, effect.registration_number, effect.command_number, digest
        )
        if not self.registered and numbers.registration_number > self.fence.registration_number:
            self.after(200, lambda: self._enqueue(effect, numbers, reply))
        else:
            self._enqueue(effect, numbers, reply)

    def _enqueue(
        self, effect: SendAllocate | SendFree, numbers: CommandNumbers, reply: Reply
    ) -> None:
        self._lock.append(lambda: self._admit(effect, numbers, reply))
        if not self._locked:
            self._next_command()

    def _next_command(self) -> None:
        self._locked = bool(self._lock)
        if self._locked:
            self._lock.popleft()()

    def _admit(
        self, effect: SendAllocate | SendFree, numbers: CommandNumbers, reply: Reply
    ) -> None:
        if numbers.registration_number == self.fence.registration_number:
            self._keep_epoch(numbers.rm_epoch)
        try:
            recorded = self.fence.admit(numbers)
        except FinegrainError as error:
            reply(error)
            return self._next_command()
        if recorded is not None:
            reply(recorded)
            return self._next_command()
        if isinstance(effect, SendAllocate):
            return self._allocate(effect, numbers, reply)
        return self._free_slots(effect, numbers, reply)

    def _answer(
        self, numbers: CommandNumbers, outcomes: tuple[ItemOutcome, ...], reply: Reply
    ) -> None:
        self.fence.contained(numbers)
        state = self.reports.full(self.table, **self._numbers())
        answer = (outcomes, state_to_proto(state))
        self.fence.record(numbers, answer)
        reply(answer)
        self._next_command()

    def _allocate(self, effect: SendAllocate, numbers: CommandNumbers, reply: Reply) -> None:
        specs = [
            spec_from_proto(
                task_executor_pb2.SlotAllocation(
                    slot=to_wire.slot_status(order.slot), target_address=order.target_address
                ),
                "allocations",
                pids_max_default=512,
            )
            for order in effect.orders
        ]
        outcomes = [self._vetted(outcome) for outcome in self.table.allocate(specs)]
        new = [o.slot for o in outcomes if o.must_carve and o.slot is not None]
        self.on_host |= {slot.key: slot.spec for slot in new}
        self.checks.host(self)
        delay_ms = self.rng.choice((1, 5, 60, 900)) if new else 0
        self.after(delay_ms, lambda: self._carved(outcomes, new, numbers, reply))

    def _vetted(self, outcome: Outcome) -> Outcome:
        if outcome.key in self._cleaning and outcome.slot is not None:
            error = FailedPrecondition("being cleaned", reason=Reason.CARVE_FAILED)
            return Outcome(outcome.key, error=error)
        return outcome

    def _carved(
        self, outcomes: list[Outcome], new: list[Slot], numbers: CommandNumbers, reply: Reply
    ) -> None:
        failed: set[SlotKey] = set()
        for slot in new:
            if self.rng.random() < self.troubles.carve_fails:
                failed.add(slot.key)
                self._cleaning.add(slot.key)
                self.after(self.rng.randint(1, 400), lambda key=slot.key: self._cleaned(key))  # type: ignore[misc]
            else:
                self.table.carved(slot.key, {}, self.loop.now_ms)
                self._offer(slot)
        self._save()
        self._change()
        self.checks.host(self)
        results = tuple(_result(outcome, failed) for outcome in outcomes)
        self._answer(numbers, results, reply)

    def _cleaned(self, key: SlotKey) -> None:
        del self.on_host[key]
        self._cleaning.discard(key)
        self.table.carve_failed(key)
        self._change()

    def _offer(self, slot: Slot) -> None:
        if slot.spec.target_address and self.rng.random() < self.troubles.offer_declined:
            reason = Reason.OFFER_NOT_ACCEPTED.value
            self.after(self.rng.choice((0, 1, 300)), lambda: self._free([slot.key], reason=reason))

    def _free_slots(self, effect: SendFree, numbers: CommandNumbers, reply: Reply) -> None:
        keys = [SlotKey(name, generation) for name, generation, _ in effect.slots]
        self._free(keys)
        outcomes = tuple(ItemOutcome(key.allocation_id) for key in keys)
        self._wait_gone(keys, FREE_WAIT_MS, lambda: self._answer(numbers, outcomes, reply))

    def _wait_gone(self, keys: list[SlotKey], left_ms: int, then: Callable[[], None]) -> None:
        freeing = any(
            slot is not None and slot.state is SlotState.FREEING
            for slot in map(self.table.get, keys)
        )
        if freeing and left_ms > 0:
            self.after(50, lambda: self._wait_gone(keys, left_ms - 50, then))
        else:
            then()


def _result(outcome: Outcome, failed: set[SlotKey]) -> ItemOutcome:
    name = outcome.key.allocation_id
    if outcome.error is not None:
        return ItemOutcome(name, outcome.error.reason.value, outcome.error.message)
    if outcome.key in failed:
        return ItemOutcome(name, Reason.CARVE_FAILED.value, "it could not be carved")
    return ItemOutcome(name)
