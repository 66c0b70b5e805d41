"""Simulated executor: runs commands of a manager, one at a time, and offers slots directly.

It follows `task_executor/service/commands.py`, the carving of slot_keeper.py, and offers.py.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any

from finegrain.errors import FailedPrecondition, FinegrainError, Reason, Unavailable
from finegrain.v1 import task_executor_pb2
from finegrain.values.isolation import NOTHING_REPORTED
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.service.wire import encoding
from task_executor.engine.command_fence import CommandNumbers
from task_executor.engine.report_log import DoneCommand
from task_executor.engine.slot_table import Outcome
from task_executor.engine.slots import CarveState, Slot, SlotKey
from task_executor.service.encoding import state_to_proto
from task_executor.service.messages import spec_from_proto
from tests.simulation.network import Reply, Unreached
from tests.simulation.parking_host import ParkingHost

FREE_WAIT_MS = 1_000
OFFER_MS = 3_000

Command = SendAllocate | SendFree | SendResize


class CommandedHost(ParkingHost):
    """A host that executes commands while it is up."""

    registered = False

    def _begin_commands(self) -> None:
        self._lock: deque[Callable[[], None]] = deque()
        self._locked = False
        self._cleaning: set[SlotKey] = set()
        self._begin_sizes()

    def command(self, effect: Command, rm_epoch: int, reply: Reply) -> None:
        """Executes a command of a manager, after all earlier commands."""
        digest = hashlib.sha256(repr((rm_epoch, effect)).encode()).hexdigest()
        numbers = CommandNumbers(
            rm_epoch, effect.registration_number, effect.command_number, digest
        )
        if not self.registered and numbers.registration_number > self.fence.registration_number:
            self.after(200, lambda: self._enqueue(effect, numbers, reply))
        else:
            self._enqueue(effect, numbers, reply)

    def _enqueue(self, effect: Command, numbers: CommandNumbers, reply: Reply) -> None:
        self._lock.append(lambda: self._keep_and_admit(effect, numbers, reply))
        if not self._locked:
            self._next_command()

    def _next_command(self) -> None:
        self._locked = bool(self._lock)
        if self._locked:
            self._lock.popleft()()

    def _keep_and_admit(self, effect: Command, numbers: CommandNumbers, reply: Reply) -> None:
        if numbers.registration_number == self.fence.registration_number:
            self._keep_epoch(
                numbers.rm_epoch, lambda ok: self._admit(effect, numbers, reply, kept=ok)
            )
        else:
            self._admit(effect, numbers, reply, kept=True)

    def _admit(self, effect: Command, numbers: CommandNumbers, reply: Reply, *, kept: bool) -> None:
        try:
            if not kept:
                raise Unavailable("the new epoch could not be kept", reason=Reason.DISK_FULL)
            recorded = self.fence.admit(numbers)
        except FinegrainError as error:
            reply(error)
            return self._next_command()
        self.checks.admitted(self, numbers.rm_epoch)
        if recorded is not None:
            reply(recorded)
            return self._next_command()
        if isinstance(effect, SendAllocate):
            return self._allocate(effect, numbers, reply)
        if isinstance(effect, SendResize):
            return self._resize(effect, numbers, reply)
        return self._free_slots(effect, numbers, reply)

    def _answer(
        self,
        numbers: CommandNumbers,
        outcomes: tuple[ItemOutcome, ...],
        reply: Reply,
        done: DoneCommand | None = None,
    ) -> None:
        self.fence.contained(numbers)
        if any(outcome.reason for outcome in outcomes):
            done = None
        state = self.reports.answer(self.table, **self._numbers(), done=done)
        answer = (() if state.as_ordered else outcomes, state_to_proto(state))
        self.fence.record(numbers, answer)
        reply(answer)
        self._next_command()

    def _allocate(self, effect: SendAllocate, numbers: CommandNumbers, reply: Reply) -> None:
        specs = [
            spec_from_proto(
                task_executor_pb2.SlotAllocation(
                    slot=encoding.slot_status(order.slot), target_address=order.target_address
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
        helper = self.helper_lives if self.loop.now_ms >= self.helper_until_ms else -1
        known = effect.known_report_number
        self.after(delay_ms, lambda: self._carved(outcomes, new, helper, numbers, reply, known))

    def _vetted(self, outcome: Outcome) -> Outcome:
        if outcome.key in self._cleaning and outcome.slot is not None:
            error = FailedPrecondition("being cleaned", reason=Reason.CARVE_FAILED)
            return Outcome(outcome.key, error=error)
        return outcome

    def _carved(
        self,
        outcomes: list[Outcome],
        new: list[Slot],
        helper: int,
        numbers: CommandNumbers,
        reply: Reply,
        known: int,
    ) -> None:
        failed: set[SlotKey] = set()
        for slot in new:
            if helper != self.helper_lives or self.rng.random() < self.troubles.carve_fails:
                failed.add(slot.key)
                self._clean(slot.key)
            else:
                limited = slot.spec.time_limit_ms is not None
                since_ms = self.loop.now_ms if limited else None
                moved = slot.with_state(
                    CarveState.ALLOCATED,
                    allocated_time_ms=self.time_ms,
                    limited_since_ms=since_ms,
                )
                self._enforced[slot.key] = moved
                self.checks.times.carved(moved)
        carved = [slot.key for slot in new if slot.key not in failed]
        since = {key: self._enforced[key].limited_since_ms for key in carved}

        def saved(fine: bool) -> None:
            for key in carved:
                del self._enforced[key]
                if fine:
                    slot = self.table.carved(key, NOTHING_REPORTED, self.time_ms, since[key])
                    self._offer(slot)
                else:
                    failed.add(key)
                    self._clean(key)
            self._change()
            self.checks.host(self)
            results = tuple(_result(outcome, failed) for outcome in outcomes)
            done = DoneCommand(known, [outcome.key for outcome in outcomes], allocates=True)
            self._answer(numbers, results, reply, done)

        if carved:
            self._save(saved)
        else:
            saved(True)

    def _clean(self, key: SlotKey) -> None:
        """Removes the remains of an unknown slot, or of a slot whose carving failed."""
        self._cleaning.add(key)
        self.after(self.rng.randint(1, 400), lambda: self._by_helper(lambda: self._cleaned(key)))

    def _cleaned(self, key: SlotKey) -> None:
        self.on_host.pop(key, None)
        self._cleaning.discard(key)
        self.table.release_withheld(key)
        if self.table.get(key) is not None:
            self.table.carve_failed(key)
        self._change()

    def _free_slots(self, effect: SendFree, numbers: CommandNumbers, reply: Reply) -> None:
        keys = [SlotKey(name, generation) for name, generation, _ in effect.slots]
        outcomes = tuple(ItemOutcome(key.allocation_id) for key in keys)

        def answer() -> None:
            done = DoneCommand(effect.known_report_number, keys, allocates=False)
            self._answer(numbers, outcomes, reply, done)

        self._free(keys, then=lambda: self._wait_gone(keys, FREE_WAIT_MS, answer))

    def _wait_gone(self, keys: list[SlotKey], left_ms: int, then: Callable[[], None]) -> None:
        freeing = any(
            slot is not None and slot.state is CarveState.FREEING
            for slot in map(self.table.get, keys)
        )
        if freeing and left_ms > 0:
            self.after(50, lambda: self._wait_gone(keys, left_ms - 50, then))
        else:
            then()

    def _resize(self, effect: SendResize, numbers: CommandNumbers, reply: Reply) -> None:
        name = effect.allocation_id

        def done(error: FinegrainError | None) -> None:
            if isinstance(error, Unavailable):  # unknown outcome: the same command may come again
                reply(error)
                return self._next_command()
            return self._answer(numbers, (_item(name, error),), reply)

        self._change_size(SlotKey(name, effect.generation), effect.resize, done)

    # -- direct offers ---------------------------------------------------------------------

    def _offer(self, slot: Slot) -> None:
        """Offers a slot to the job master until the job master answers. If it does not answer for
        some time, frees the slot.
        """
        master = self.checks.masters.get(slot.spec.job_id)
        if not slot.spec.target_address or slot.accepted or master is None:
            return
        until_ms = self.loop.now_ms + OFFER_MS

        def ask() -> None:
            if self.loop.now_ms >= until_ms:
                take(False)
            else:
                self.network.call(self, master, lambda r: master.offered(slot.key, r), take, 1_000)

        def take(result: Any) -> None:
            if isinstance(result, Unreached):
                self.after(self.rng.randint(50, 500), ask)
            elif result is True and self.table.accept(slot.key):
                self._save()
            elif result is not True:
                self._free([slot.key], reason=Reason.OFFER_NOT_ACCEPTED.value)

        ask()


def _result(outcome: Outcome, failed: set[SlotKey]) -> ItemOutcome:
    name = outcome.key.allocation_id
    if outcome.error is not None:
        return _item(name, outcome.error)
    if outcome.key in failed:
        return ItemOutcome(name, Reason.CARVE_FAILED.value, "it could not be carved")
    return ItemOutcome(name)


def _item(name: str, error: FinegrainError | None) -> ItemOutcome:
    if error is None:
        return ItemOutcome(name)
    details = tuple((key, str(value)) for key, value in error.details.items())
    return ItemOutcome(name, error.reason.value, error.message, details)
