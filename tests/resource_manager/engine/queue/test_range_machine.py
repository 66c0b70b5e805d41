"""Random histories of ranges.

A range behaves like its members as plain requests, and the invariants hold under all events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.explain.intervals import intervals_of, members_of
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    Event,
    Members,
    RequestsCancelled,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.restoring import restore
from resource_manager.engine.state import State
from tests.resource_manager.engine.test_machine import JOBS, MACHINE, PROFILES, BooksStaySound
from tests.support.engine_cluster import EngineCluster
from tests.support.properties import examples

JOB = "job"
RANGES = ("r", "r.1", "s")
HOSTS = ("host-a", "host-b")
SMALL = ResourceProfile(1000, 256 * MIB)
indexes = st.integers(0, 12)
counts = st.integers(1, 8)


class AsManyPlainRequests(RuleBasedStateMachine):
    """The same history twice: with ranges, and with a plain request per member."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges, self.plain = (
            EngineCluster(jobs=(), unreachable_after_ms=1_000, ended_retention_ms=60_000)
            for _ in range(2)
        )
        self.known: dict[str, Any] = {}  # what each member asks for
        for cluster in self.both:
            cluster.job(JOB, lease_ms=600_000)
            for name in HOSTS:
                cluster.host(
                    name,
                    cpu_milli=3000,
                    memory_bytes=GIB,
                    default_profile=SMALL,
                    frees_slowly=name[-1] > "a",
                )

    @property
    def both(self) -> Sequence[EngineCluster]:
        return self.ranges, self.plain

    @property
    def kept(self) -> bool:
        return JOB in self.ranges.state.jobs

    @property
    def lives(self) -> bool:
        return self.kept and self.ranges.state.jobs[JOB].state == "ACTIVE"

    def twice(self, do: Callable[[EngineCluster], Any]) -> Any:
        return [do(cluster) for cluster in self.both]

    @precondition(lambda self: self.lives)
    @rule(
        range_id=st.sampled_from(RANGES),
        first=indexes,
        count=counts,
        restart=st.booleans(),
        cpu=st.sampled_from([1000, 1000, 2000, 9000]),
        pending=st.booleans(),
    )
    def ask(
        self, range_id: str, first: int, count: int, restart: bool, cpu: int, pending: bool
    ) -> None:
        """A range is accepted, known or rejected as a whole."""
        profile = ResourceProfile(cpu, 256 * MIB)
        asked = RequestSpec(range_id, profile, allow_pending=pending, restart_on_loss=restart)
        names = [f"{range_id}.{index}" for index in range(first, first + count)]
        at = self.ranges.at
        (outcome,) = self.ranges.batch(
            RequestsSubmitted(at, JOB, (), ranges=(RangeSpec(asked, first, count),))
        )
        specs = tuple(replace(asked, allocation_id=name) for name in names)
        of_range = {n: s for n, s in self.known.items() if n.rpartition(".")[0] == range_id}
        if all(self.known.get(name) == spec for name, spec in zip(names, specs, strict=True)):
            assert outcome.reason == ""
            self.plain.batch(RequestsSubmitted(at, JOB, specs))
        elif self._is_taken(range_id, names, of_range, asked):
            assert outcome.reason == "ALREADY_EXISTS"
            self.plain.batch()
        else:
            answers = self.plain.batch(RequestsSubmitted(at, JOB, specs))
            assert {answer.reason for answer in answers} == {outcome.reason}
            if not outcome.reason:
                self.known |= dict(zip(names, specs, strict=True))

    def _is_taken(
        self, range_id: str, names: list[str], of_range: dict[str, Any], asked: Any
    ) -> bool:
        """Returns whether ids are used: by the range, another range of that id, or its members."""
        others = {name.rpartition(".")[0] for name in self.known}
        return (
            any(name in self.known or name in others for name in names)
            or range_id in self.known
            or any(replace(spec, allocation_id=range_id) != asked for spec in of_range.values())
        )

    @precondition(lambda self: self.kept)
    @rule(range_id=st.sampled_from(RANGES), first=indexes, count=counts, release=st.booleans())
    def give_up_some(self, range_id: str, first: int, count: int, release: bool) -> None:
        members: Members = (range_id, first, count)
        at = self.ranges.at
        event: Event = RequestsCancelled(at, JOB, (), ranges=(members,))
        if release:
            event = SlotsReleased(at, JOB, (), ranges=(members,))
        (outcome,) = self.ranges.batch(event)
        known = any(name.rpartition(".")[0] == range_id for name in self.known)
        assert outcome.reason == ("" if known else "ALLOCATION_UNKNOWN")
        names = [f"{range_id}.{index}" for index in range(first, first + count)]
        found = [self.plain.state.requests[name] for name in names if name in self.known]
        # first those that never had a slot
        found.sort(key=lambda r: (r.generation > 0, r.arrival_number))
        self.plain.batch(RequestsCancelled(at, JOB, tuple(r.allocation_id for r in found)))

    @precondition(lambda self: self.known and self.kept)
    @rule(data=st.data(), generation=st.sampled_from([0, 0, 1, 2]))
    def give_up_one(self, data: st.DataObject, generation: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        left, right = self.twice(
            lambda cluster: cluster.release(name, generation=generation, job=JOB)
        )
        if self.plain.state.requests[name].state not in ENDED_REQUEST_STATES:
            assert left == right

    @rule(really=st.sampled_from([False] * 9 + [True]))
    def end_job(self, really: bool) -> None:
        if really and self.kept:
            self.twice(lambda cluster: cluster.end_job(JOB))

    @precondition(lambda self: self.ranges.wire)
    @rule(fate=st.sampled_from(["arrives", "arrives", "answer lost", "lost"]), data=st.data())
    def command(self, fate: str, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({s.command.executor_id for s in self.ranges.wire})))
        for cluster in self.both:
            sent = next(each for each in cluster.wire if each.command.executor_id == name)
            if fate == "lost":
                cluster.fail(sent)
            else:
                cluster.deliver(sent, lose_answer=fate == "answer lost")

    @rule()
    def everything_arrives(self) -> None:
        self.twice(lambda cluster: cluster.deliver_all())

    @rule(name=st.sampled_from(HOSTS))
    def report(self, name: str) -> None:
        def do(cluster: EngineCluster) -> None:
            executor = cluster.executors[name]
            if cluster.report(executor).register_again:
                cluster.register(executor)

        self.twice(do)

    @rule(name=st.sampled_from(HOSTS))
    def lose_the_table(self, name: str) -> None:
        def do(cluster: EngineCluster) -> None:
            cluster.executors[name].slots.clear()
            cluster.register(cluster.executors[name])

        self.twice(do)

    @rule(name=st.sampled_from(HOSTS), reason=st.sampled_from(["SLOT_BROKEN", "ORPHANED"]))
    def the_first_slot_ends_by_itself(self, name: str, reason: str) -> None:
        for cluster in self.both:
            executor = cluster.executors[name]
            if executor.slots:
                executor.end(min(executor.slots), reason)

    @rule(name=st.sampled_from(HOSTS))
    def processes_end(self, name: str) -> None:
        self.twice(lambda cluster: cluster.executors[name].finish_frees())

    @rule(name=st.sampled_from(HOSTS), number=st.integers(0, 12))
    def carving_breaks(self, name: str, number: int) -> None:
        for cluster in self.both:
            cluster.executors[name].broken = {f"{each}.{number}" for each in RANGES}

    @rule(name=st.sampled_from(HOSTS))
    def falls_silent(self, name: str) -> None:
        for _ in range(2):
            self.time_passes(8_000)
            for other in HOSTS:
                if other != name:
                    self.report(other)

    @rule(ms=st.sampled_from([1, 300, 2_000, 16_000]))
    def time_passes(self, ms: int) -> None:
        for cluster in self.both:
            cluster.wait(ms)
            if self.lives:
                cluster.keep_alive(JOB)

    @rule()
    def restart_rm(self) -> None:
        self.twice(lambda cluster: cluster.restart_rm())

    @invariant()
    def members_stand_where_plain_requests_would(self) -> None:
        for name in self.known:
            left = self.ranges.state.requests.named(name)
            right = self.plain.state.requests.get(name)
            if right is None:
                assert left is None
                continue
            assert left is not None
            assert (left.spec, left.job_id) == (right.spec, right.job_id)
            assert (left.state, left.reason) == (right.state, right.reason), name
            if right.state not in ENDED_REQUEST_STATES:
                assert left.generation == right.generation
        assert self.ranges.state.requests.live == self.plain.state.requests.live

    @invariant()
    def the_same_slots_exist(self) -> None:
        left, right = (
            {key: (s.executor_id, s.state) for key, s in cluster.state.slots.items()}
            for cluster in self.both
        )
        assert left == right

    @invariant()
    def job_masters_hear_the_same(self) -> None:
        """One event may be about many members; what each job master receives is the same."""
        told = [Counter(_said(cluster)) for cluster in self.both]
        assert told[0] == told[1]

    @invariant()
    def books_are_sound_and_stored(self) -> None:
        state = self.ranges.state
        assert check_invariants(state) == []
        restored = restore(self.ranges.store.snapshot(99), state.settings, self.ranges.at)
        assert check_invariants(restored) == []
        assert standing(restored) == standing(state)

    @invariant()
    def rows_are_only_of_those_who_were_placed_and_live(self) -> None:
        for row in self.ranges.store.requests.values():
            assert row.generation > 0
            assert row.state not in ENDED_REQUEST_STATES

    @invariant()
    def walking_shows_each_member_once_and_as_it_stands(self) -> None:
        state = self.ranges.state
        job = state.jobs.get(JOB)
        if job is None:
            return
        seen = [
            (one.request.allocation_id, one.request.state)
            for interval in intervals_of(state, job)
            for one in members_of(state.requests, interval)
        ]
        plain = self.plain.state
        assert seen == [(r.allocation_id, r.state) for r in plain.requests.of_job(plain.jobs[JOB])]


def _said(cluster: EngineCluster) -> list[tuple[str, str, str]]:
    said = []
    for event in cluster.store.job_events.get(JOB, []):
        range_id, _, index = event.allocation_id.rpartition(".")
        said += [
            (f"{range_id}.{int(index) + n}", event.state.value, event.reason)
            for n in range(event.count)
        ]
    return said


def standing(state: State) -> dict[str, Any]:
    """Returns the state that a restart must know."""
    return {
        "parts": [
            (part.row, part.waiting, part.materialized, part.stored)
            for part in state.ranges.parts()
        ],
        "members": {
            name: (r.state, r.generation, r.reason)
            for name, r in state.requests.items()
            if r.arrival_number in state.ranges.members
        },
        "slots": {key: (s.executor_id, s.state) for key, s in state.slots.items()},
        "live": {name: job.live_requests for name, job in state.jobs.items()},
    }


class RangesAmongTheRest(BooksStaySound):
    """The history of `BooksStaySound`, with ranges among the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = 0
        self.over: set[str] = set()  # ended members
        self.generations: dict[str, int] = {}  # highest generation seen, by member

    @rule(
        profile=st.sampled_from(PROFILES),
        count=st.integers(1, 6),
        restart=st.booleans(),
        zone=st.sampled_from(["", "", "a"]),
    )
    def ask_for_a_range(
        self, profile: ResourceProfile, count: int, restart: bool, zone: str
    ) -> None:
        labels = (("zone", zone),) if zone else ()
        self._ask_for(JOBS[0], RequestSpec("", profile, 0, 0, labels, "", True, restart), count)

    @rule(count=st.integers(1, 4), restart=st.booleans())
    def ask_for_a_range_of_default_slots(self, count: int, restart: bool) -> None:
        self._ask_for(JOBS[1], RequestSpec("", None, restart_on_loss=restart), count)

    def _ask_for(self, job_id: str, spec: RequestSpec, count: int) -> None:
        if job_id not in self.state.jobs or self.state.jobs[job_id].state != "ACTIVE":
            return
        self.parts += 1
        spec = replace(spec, allocation_id=f"range-{self.parts}", allow_pending=True)
        (outcome,) = self.cluster.submit(RangeSpec(spec, 0, count), job=job_id)
        assert outcome.reason == ""

    @precondition(lambda self: self.parts)
    @rule(data=st.data(), first=st.integers(0, 5), count=st.integers(1, 6), operator=st.booleans())
    def give_up_members(self, data: st.DataObject, first: int, count: int, operator: bool) -> None:
        name = f"range-{data.draw(st.integers(1, self.parts))}"
        job_id = None if operator else JOBS[0]
        event = SlotsReleased(self.cluster.at, job_id, (), ranges=((name, first, count),))
        self.cluster.batch(event)

    @precondition(lambda self: self.parts)
    @rule(name=st.sampled_from(["host-a", "host-b", "host-c"]), data=st.data())
    def carving_of_members_breaks(self, name: str, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.parts))
        self.cluster.executors[name].broken = {f"range-{number}.{n}" for n in range(3)}

    @invariant()
    def where_members_stand_is_stored(self) -> None:
        snapshot = self.cluster.store.snapshot(99)
        restored = restore(snapshot, self.state.settings, self.cluster.at)
        assert standing(restored) == standing(self.state)

    @invariant()
    def who_has_ended_stays_so_and_generations_only_rise(self) -> None:
        for part in self.state.ranges.parts():
            for ended in part.row.ended.values():
                self.over.update(part.id_of(index) for index in ended)
        for name in self.over:
            request = self.state.requests.named(name)
            assert request is None or request.state in ENDED_REQUEST_STATES
        for request in self.state.ranges.members.values():
            name = request.allocation_id
            assert request.generation >= self.generations.get(name, 0)
            self.generations[name] = request.generation

    @invariant()
    def no_slot_is_carved_twice(self) -> None:
        """If an executor has carved a slot with an id and generation, it is the slot that the
        engine has.
        """
        for name, executor in self.cluster.executors.items():
            for key in executor.slots:
                slot = self.state.slots.get(key)
                assert slot is None or slot.executor_id == name

    @invariant()
    def nobody_waits_who_has_a_slot(self) -> None:
        for slot in self.state.slots.values():
            request = self.state.requests.named(slot.allocation_id)
            if request is not None and request.state is RequestState.PENDING:
                assert slot.state == "FREEING"


TWICE = settings(MACHINE, max_examples=examples(60), stateful_step_count=40)
AMONG = settings(MACHINE, max_examples=examples(60), stateful_step_count=40)

TestAsManyPlainRequests = AsManyPlainRequests.TestCase
TestAsManyPlainRequests.settings = TWICE
TestRangesAmongTheRest = RangesAmongTheRest.TestCase
TestRangesAmongTheRest.settings = AMONG
