"""Random histories of a small cluster: the invariants hold after any events in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from finegrain.errors import FailedPrecondition, FinegrainError
from finegrain.resources import (
    GIB,
    MIB,
    ResourceProfile,
    booking,
    fits,
    shortfall,
    subtract,
    total_of,
)
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.invariants import sweep
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.lifecycle import journal
from resource_manager.engine.lifecycle.growth import growth
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, RequestSpec, Slot
from resource_manager.engine.model.events import (
    ExecutorProbed,
    ExecutorRegistered,
    ResizeRequested,
    SlotsReported,
)
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.restoring import restore
from resource_manager.engine.scheduling import cycle
from resource_manager.engine.state import State
from tests.support.engine_cluster import EngineCluster, FakeExecutor
from tests.support.properties import examples

JOBS = ("specified-job", "unknown-job")
HOSTS = ("host-a", "host-b", "host-c")
PROFILES = (
    ResourceProfile(1000, 256 * MIB),
    ResourceProfile(500, 100 * MIB, managed_memory_bytes=30 * MIB + 1),
    ResourceProfile(3000, GIB),
    ResourceProfile(100, 64 * MIB, extended=(("license-x", 1),)),
)
SIZES = (
    *PROFILES,
    ResourceProfile(1500, 128 * MIB),
    ResourceProfile(200, 512 * MIB, managed_memory_bytes=8 * MIB),
    ResourceProfile(2000, 256 * MIB, extended=(("license-x", 2),)),
)
REFUSALS_OF_A_SIZE = {
    "ALLOCATION_UNKNOWN",
    "INFEASIBLE_NEVER",
    "JOB_ENDED",
    "SLOT_NOT_READY",
    "STALE_GENERATION",
    "STALE_RESIZE",
}


def model_executor(name: str) -> FakeExecutor:
    total: dict[str, int] = {"cpu_milli": 4000, "memory_bytes": 2 * GIB, "extended.license-x": 2}
    if name == "host-c":  # declares separate memory pools
        total = {
            "cpu_milli": 4000,
            "task_heap_memory_bytes": GIB,
            "managed_memory_bytes": 64 * MIB,
        }
    return FakeExecutor(
        name,
        total,
        default_profile=ResourceProfile(1000, 256 * MIB),
        labels=(("zone", name[-1]),) if name != "host-c" else (),
        slots_max=3 if name == "host-b" else 0,
        frees_slowly=name == "host-b",
    )


class BooksStaySound(RuleBasedStateMachine):
    """Jobs, executors, time, and a network that loses, delays and repeats messages."""

    strategy = "pack"
    classes_tried_max = 1_000
    fairness = Fairness()
    short_steps = False

    def __init__(self) -> None:
        super().__init__()
        self.limits = pytest.MonkeyPatch()
        self.limits.setattr(sweep, "PART", 2)  # sums pause, too
        if self.short_steps:
            self.limits.setattr(journal, "STEP_ROWS_MAX", 4)
            self.limits.setattr(cycle, "PLACED_MAX", 1)
        self.cluster = EngineCluster(
            jobs=(),
            strategy=self.strategy,
            pack_candidates=2,
            command_items_max=3,
            classes_tried_max=self.classes_tried_max,
            unreachable_after_ms=1_000,
            fairness=self.fairness,
        )
        self.held: list[tuple[FakeExecutor, SlotsReported]] = []
        self.held_registrations: list[ExecutorRegistered] = []
        self.acknowledged: set[str] = set()
        self.made = 0
        for name in HOSTS:
            self.cluster.executors[name] = model_executor(name)
        for job_id in JOBS:
            self._register_job(job_id)
        self.cluster.register(self.cluster.executors["host-a"])

    def _register_job(self, job_id: str) -> None:
        self.cluster.job(job_id, lease_ms=60_000)

    @property
    def state(self) -> State:
        return self.cluster.state

    # What job masters do.

    @rule(
        profile=st.sampled_from(PROFILES),
        count=st.integers(1, 4),
        zone=st.sampled_from(["", "", "a", "b", "nowhere"]),
        restart=st.booleans(),
        allow_pending=st.booleans(),
    )
    def request(
        self, profile: ResourceProfile, count: int, zone: str, restart: bool, allow_pending: bool
    ) -> None:
        labels = (("zone", zone),) if zone else ()
        self._submit(JOBS[0], profile, count, labels, restart, allow_pending)

    @rule(count=st.integers(1, 3), restart=st.booleans())
    def request_default_slots(self, count: int, restart: bool) -> None:
        self._submit(JOBS[1], None, count, (), restart, True)

    def _submit(
        self, job_id: str, profile: Any, count: int, labels: Any, restart: bool, pending: bool
    ) -> None:
        if job_id not in self.state.jobs or self.state.jobs[job_id].state != "ACTIVE":
            return
        specs = tuple(
            RequestSpec(
                f"r{self.made + n}",
                profile,
                required_labels=labels,
                allow_pending=pending,
                restart_on_loss=restart,
            )
            for n in range(count)
        )
        self.made += count
        outcomes = self.cluster.submit(*specs, job=job_id)
        self.acknowledged.update(o.id for o in outcomes if not o.reason)

    @precondition(lambda self: self.made)
    @rule(data=st.data(), release=st.booleans(), operator=st.booleans())
    def give_up(self, data: st.DataObject, release: bool, operator: bool) -> None:
        name = f"r{data.draw(st.integers(0, self.made - 1))}"
        job_id = None if operator else JOBS[0]
        if release:
            self.cluster.release(name, job=job_id)
        else:
            self.cluster.cancel(name, job=job_id)

    @precondition(lambda self: self.state.slots)
    @rule(
        data=st.data(),
        profile=st.sampled_from(SIZES),
        number=st.sampled_from([0, 0, 0, 1, 2, 3]),
        generation=st.sampled_from([0, 0, 0, 1]),
        wait=st.booleans(),
        operator=st.booleans(),
    )
    def resize(
        self,
        data: st.DataObject,
        profile: ResourceProfile,
        number: int,
        generation: int,
        wait: bool,
        operator: bool,
    ) -> None:
        slot = self.state.slots[data.draw(st.sampled_from(sorted(self.state.slots)))]
        self._ask(slot, profile, number, generation, wait, operator=operator)

    def _ask(
        self,
        slot: Slot,
        profile: ResourceProfile,
        number: int,
        generation: int,
        wait: bool,
        *,
        operator: bool,
    ) -> None:
        event = ResizeRequested(
            self.cluster.at,
            None if operator else slot.job_id,
            slot.allocation_id,
            generation,
            number,
            profile,
            wait_for_use=wait,
        )
        before = slot.resize_number
        refused = ""
        try:
            self.cluster.batch(event)
        except FinegrainError as error:
            refused = error.reason
        assert refused in ("", *REFUSALS_OF_A_SIZE)
        assert slot.resize_number in ((before,) if refused else (before, before + 1))

    @rule(name=st.sampled_from(HOSTS), data=st.data(), mib=st.sampled_from([0, 0, 100, 200, 500]))
    def slots_use_memory(self, name: str, data: st.DataObject, mib: int) -> None:
        executor = self.cluster.executors[name]
        if executor.slots:
            allocation_id, _ = data.draw(st.sampled_from(sorted(executor.slots)))
            executor.used[allocation_id] = mib * MIB

    @rule(job_id=st.sampled_from(JOBS))
    def keep_alive(self, job_id: str) -> None:
        if self.state.jobs[job_id].state == "ACTIVE":
            self.cluster.keep_alive(job_id)

    @rule(really=st.sampled_from([False] * 5 + [True]))
    def end_job(self, really: bool) -> None:
        if really:
            self.cluster.end_job(JOBS[1])

    # What executors and the network do.

    @rule(name=st.sampled_from(HOSTS))
    def register(self, name: str) -> None:
        self.cluster.register(self.cluster.executors[name])

    @precondition(lambda self: self.cluster.wire)
    @rule(name=st.sampled_from(HOSTS), data=st.data())
    def register_while_a_command_arrives(self, name: str, data: st.DataObject) -> None:
        """The state in a registration may be older than the executor's table."""
        executor = self.cluster.executors[name]
        event = ExecutorRegistered(self.cluster.at, executor.registration(), executor.report())
        sent = data.draw(st.sampled_from(self.cluster.wire))
        if sent.command.executor_id == name:
            self.cluster.wire.remove(sent)
            executor.execute(sent.command, self.cluster.at, sent.rm_epoch)
        answer = self.cluster.batch(event)
        executor.registered(answer, self.state.rm_epoch)

    @rule(name=st.sampled_from(HOSTS))
    def hold_back_a_registration(self, name: str) -> None:
        executor = self.cluster.executors[name]
        report = executor.report()
        self.held_registrations.append(
            ExecutorRegistered(self.cluster.at, executor.registration(), report)
        )

    @precondition(lambda self: self.held_registrations)
    @rule(data=st.data())
    def late_registration(self, data: st.DataObject) -> None:
        """A registration arrives late: its sender does not wait any more. It is refused if newer
        states were accepted.
        """
        position = data.draw(st.integers(0, len(self.held_registrations) - 1))
        event = replace(self.held_registrations.pop(position), at=self.cluster.at)
        refused = ""
        try:
            self.cluster.batch(event)
        except FailedPrecondition as error:
            refused = error.reason
        assert refused in ("", "STALE_REGISTRATION")

    @rule(name=st.sampled_from(HOSTS))
    def lose_the_table(self, name: str) -> None:
        """A reboot: the executor registers without slots."""
        executor = self.cluster.executors[name]
        executor.slots.clear()
        self.cluster.register(executor)

    @precondition(lambda self: self.cluster.wire)
    @rule(data=st.data(), fate=st.sampled_from(["arrives", "arrives", "answer lost", "lost"]))
    def command(self, data: st.DataObject, fate: str) -> None:
        sent = data.draw(st.sampled_from(self.cluster.wire))
        if fate == "lost":
            self.cluster.fail(sent)
        else:
            self.cluster.deliver(sent, lose_answer=fate == "answer lost")

    @rule(name=st.sampled_from(HOSTS), cause=st.sampled_from(["", "", "refused"]))
    def probe(self, name: str, cause: str) -> None:
        """Reports whether an executor can be dialed, if the engine asks."""
        address = self.cluster.executors[name].registration().address
        self.cluster.batch(ExecutorProbed(self.cluster.at, name, address, cause))

    @rule()
    def everything_arrives(self) -> None:
        self.cluster.deliver_all()

    @rule(name=st.sampled_from(HOSTS))
    def host_falls_silent(self, name: str) -> None:
        """All others continue to report until this one is lost."""
        for _ in range(2):
            self.cluster.wait(8_000)
            for job_id in JOBS:
                self.keep_alive(job_id)
            for other in HOSTS:
                if other != name:
                    self.report(other)

    @rule(name=st.sampled_from(HOSTS))
    def report(self, name: str) -> None:
        executor = self.cluster.executors[name]
        if executor.registration_number == 0:
            return
        if executor.base[1] == executor.content():
            answer = self.cluster.short_report(executor)
        else:
            answer = self.cluster.report(executor)
        if answer.register_again:
            self.cluster.register(executor)

    @rule(name=st.sampled_from(HOSTS))
    def hold_back_a_report(self, name: str) -> None:
        executor = self.cluster.executors[name]
        if executor.registration_number:
            self.held.append((executor, self.cluster.report_of(executor)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def late_report(self, data: st.DataObject) -> None:
        executor, report = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cluster.report(executor, report)

    @rule(name=st.sampled_from(HOSTS), data=st.data())
    def slot_ends_by_itself(self, name: str, data: st.DataObject) -> None:
        executor = self.cluster.executors[name]
        if executor.slots:
            key = data.draw(st.sampled_from(sorted(executor.slots)))
            reason = data.draw(st.sampled_from(["OFFER_NOT_ACCEPTED", "SLOT_BROKEN", "ORPHANED"]))
            executor.end(key, reason)

    @rule(name=st.sampled_from(HOSTS))
    def processes_end(self, name: str) -> None:
        self.cluster.executors[name].finish_frees()

    @rule(name=st.sampled_from(HOSTS), amount=st.sampled_from([0, 2000, 4000]))
    def something_else_takes_cpu(self, name: str, amount: int) -> None:
        self.cluster.executors[name].hidden = {"cpu_milli": amount} if amount else {}

    @rule(name=st.sampled_from(HOSTS), data=st.data())
    def carving_breaks(self, name: str, data: st.DataObject) -> None:
        broken = data.draw(st.sets(st.integers(0, 20), max_size=3))
        self.cluster.executors[name].broken = {f"r{number}" for number in broken}

    # Administrators, time and restarts.

    @rule(
        name=st.sampled_from(HOSTS),
        deadline=st.sampled_from([None, 0, 5_000]),
        really=st.sampled_from([False, False, True]),
    )
    def drain(self, name: str, deadline: int | None, really: bool) -> None:
        if really and name in self.state.hosts:
            self.cluster.drain(name, deadline_ms=deadline, reason="test")

    @rule(name=st.sampled_from(HOSTS))
    def undrain(self, name: str) -> None:
        if name in self.state.hosts:
            self.cluster.undrain(name)

    @rule(name=st.sampled_from(HOSTS))
    def forget(self, name: str) -> None:
        host = self.state.hosts.get(name)
        if host is not None and host.executor.state is ExecutorState.LOST:
            self.cluster.forget(name)

    @rule(ms=st.sampled_from([1, 300, 300, 2_000, 2_000, 2_000, 2_000, 16_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.cluster.wait(ms)

    @rule()
    def restart_rm(self) -> None:
        self.held_registrations.clear()  # connections end with the process
        self.cluster.restart_rm()

    # What must always hold.

    @invariant()
    def books_are_sound(self) -> None:
        assert check_invariants(self.state) == []

    @invariant()
    def store_holds_what_the_books_hold(self) -> None:
        store = self.cluster.store
        restored = restore(store.snapshot(99), self.state.settings, self.cluster.at)
        assert durable(restored) == durable(self.state)
        assert check_invariants(restored) == []

    @invariant()
    def acknowledged_requests_are_never_forgotten(self) -> None:
        assert self.acknowledged <= set(self.state.requests)

    @invariant()
    def job_logs_have_no_gaps(self) -> None:
        for events in self.cluster.store.job_events.values():
            numbers = [event.sequence for event in events]
            assert numbers == list(range(1, len(numbers) + 1))

    @invariant()
    def no_executor_was_ordered_more_than_it_has(self) -> None:
        for executor in self.cluster.executors.values():
            separate = "memory_bytes" not in executor.total
            booked = total_of(
                booking(s.profile, separate_pools=separate) for s in executor.slots.values()
            )
            assert all(left >= 0 for left in subtract(executor.total, booked).values())

    @invariant()
    def nothing_that_is_enforced_is_promised_to_others(self) -> None:
        """What a slot really has is booked for it, in each dimension, at any moment."""
        for name, executor in self.cluster.executors.items():
            host = self.state.hosts.get(name)
            for key, slot in executor.slots.items():
                if host is not None and key in host.slots:
                    enforced = host.booking_of(slot.profile)
                    assert shortfall(enforced, host.slots[key].booked) == {}

    def teardown(self) -> None:
        """Without faults everything settles: nothing in transit, both sides agree, nothing idle."""
        self.limits.undo()
        for executor in self.cluster.executors.values():
            executor.hidden = {}
            executor.broken = set()
            executor.used = {}
            executor.frees_slowly = False
        for name, executor in self.cluster.executors.items():
            if executor.registration_number == 0 or name not in self.state.hosts:
                self.cluster.register(executor)
            self.cluster.undrain(name)
        for _ in range(8):
            self.cluster.deliver_all()
            self.cluster.wait(self.state.settings.command_retry_max_ms)
            self.cluster.deliver_all()
            for name, executor in self.cluster.executors.items():
                executor.finish_frees()
                self.report(name)
                self.probe(name, "")
        self.cluster.deliver_all()
        while self.state.unfinished:
            self.cluster.batch()
            self.cluster.deliver_all()
        self._both_sides_agree()
        self._nothing_that_fits_waits()
        self._sizes_are_settled()
        self._job_masters_know_the_sizes()

    def _both_sides_agree(self) -> None:
        for name, executor in self.cluster.executors.items():
            host = self.state.hosts[name]
            assert set(host.slots) == set(executor.slots)
            assert {slot.state for slot in host.slots.values()} <= {"ALLOCATED"}
        living = {r.state for r in self.state.requests.values()} - ENDED_REQUEST_STATES
        assert RequestState.ALLOCATING not in living

    def _nothing_that_fits_waits(self) -> None:
        for shape in self.state.queue.classes():
            index = self.state.hosts.indexes.main
            room = index.covering(needs_of(shape).kinds)
            hosts = [self.state.hosts[index.ids[position]] for position in room]
            assert not [host for host in hosts if host.carries(shape.labels)]

    def _sizes_are_settled(self) -> None:
        for key, slot in self.state.slots.items():
            host = self.state.hosts[slot.executor_id]
            seen = self.cluster.executors[slot.executor_id].slots[key]
            assert (slot.profile, slot.cpu_limit_milli) == (seen.profile, seen.cpu_limit_milli)
            assert slot.ordered is None
            assert slot.resize_number >= seen.resize_number
            if slot.wanted is not None:
                more = growth(host, slot)
                assert more
                assert not fits(more, host.spare())

    def _job_masters_know_the_sizes(self) -> None:
        for slot in self.state.slots.values():
            events = self.cluster.store.job_events[slot.job_id]
            told = [e.slot for e in events if e.allocation_id == slot.allocation_id and e.slot]
            assert told[-1]["generation"] == slot.generation
            assert told[-1]["profile"] == slot.profile.to_dict()


class BooksStaySoundSpread(BooksStaySound):
    """The same test with the other strategy."""

    strategy = "spread"


class BooksStaySoundInSmallRounds(BooksStaySound):
    """The same test with decisions that end after each scheduling class that does not fit."""

    classes_tried_max = 1


class BooksStaySoundInShortSteps(BooksStaySound):
    """The same test with steps that end after a few rows, and decisions that place one request."""

    short_steps = True


def durable(state: State) -> dict[str, Any]:
    """Returns everything that must survive a restart, as plain data."""
    return {
        "jobs": {
            name: (j.name, j.state, j.end_reason, j.last_sequence, j.specified, j.arrival_number)
            for name, j in state.jobs.items()
        },
        "requests": {
            name: (r.spec, r.job_id, r.state, r.generation, r.arrival_number, r.reason)
            for name, r in state.requests.items()
        },
        "slots": {
            key: (
                *(s.state, s.executor_id, s.profile, s.job_id, s.cpu_limit_milli),
                *(s.resize_number, s.ordered, s.wanted),
            )
            for key, s in state.slots.items()
        },
        "executors": {
            name: (e.registration, e.registration_number, e.draining, e.drain_reason, e.lost)
            for name, host in state.hosts.items()
            for e in [host.executor]
        },
        "counters": (state.numbers.arrival, state.history.last_sequence),
    }


MACHINE = settings(
    max_examples=examples(150), stateful_step_count=50, suppress_health_check=list(HealthCheck)
)

TestPack = BooksStaySound.TestCase
TestPack.settings = MACHINE
TestSpread = BooksStaySoundSpread.TestCase
TestSpread.settings = settings(MACHINE, max_examples=examples(50))
TestSmallRounds = BooksStaySoundInSmallRounds.TestCase
TestSmallRounds.settings = settings(MACHINE, max_examples=examples(50))
TestShortSteps = BooksStaySoundInShortSteps.TestCase
TestShortSteps.settings = settings(MACHINE, max_examples=examples(50))
