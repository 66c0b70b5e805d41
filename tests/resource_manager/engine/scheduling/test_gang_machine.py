"""Random histories of gangs: all members have equal states, no job master sees half a gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from finegrain.resources import ResourceProfile
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.model.entities import GangSpec, Instant, RequestSpec
from resource_manager.engine.model.events import RequestsSubmitted
from resource_manager.engine.placement.gangs import find_together, search_would_fail, seek
from resource_manager.engine.queue.gangs import Where, living, member_requests_of
from resource_manager.engine.restoring import restore
from resource_manager.engine.state import State
from tests.resource_manager.engine.test_machine import (
    JOBS,
    MACHINE,
    PROFILES,
    BooksStaySound,
)
from tests.support.properties import examples

placements = st.sampled_from(list(GangPlacement))
timeouts = st.sampled_from([None, None, 2_000, 20_000])


class GangsStayWhole(BooksStaySound):
    """The same history, with gangs among the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster.settings = replace(self.cluster.settings, refusal_backoff_max_ms=2_000)
        self.restart_rm()
        self.gangs = 0
        self.calls: list[RequestsSubmitted] = []
        self.cluster.register(self.cluster.executors["host-b"])
        self.cluster.register(self.cluster.executors["host-a"])

    @rule(
        profiles=st.lists(st.sampled_from(PROFILES), min_size=1, max_size=4),
        alike=st.booleans(),
        placement=placements,
        zone=st.sampled_from(["", "", "a"]),
        restart=st.booleans(),
        pending=st.booleans(),
        timeout_ms=timeouts,
    )
    def gang(
        self,
        profiles: list[ResourceProfile],
        alike: bool,
        placement: GangPlacement,
        zone: str,
        restart: bool,
        pending: bool,
        timeout_ms: int | None,
    ) -> None:
        asked = [profiles[0]] * len(profiles) if alike else profiles
        labels = (("zone", zone),) if zone else ()
        self._gang(JOBS[0], asked, placement, labels, restart, pending, timeout_ms)

    @rule(count=st.integers(1, 4), placement=placements, restart=st.booleans(), timeout_ms=timeouts)
    def gang_of_default_slots(
        self, count: int, placement: GangPlacement, restart: bool, timeout_ms: int | None
    ) -> None:
        self._gang(JOBS[1], [None] * count, placement, (), restart, True, timeout_ms)

    def _gang(
        self,
        job_id: str,
        profiles: Any,
        placement: GangPlacement,
        labels: Any,
        restart: bool,
        pending: bool,
        timeout_ms: int | None,
    ) -> None:
        if job_id not in self.state.jobs or self.state.jobs[job_id].state != "ACTIVE":
            return
        self.gangs += 1
        label = "zone" if placement is GangPlacement.SAME_LABEL else ""
        spec = GangSpec(f"gang-{self.gangs}", placement, label, timeout_ms)
        members = tuple(
            RequestSpec(
                f"r{self.made + n}",
                profile,
                required_labels=labels,
                allow_pending=pending,
                restart_on_loss=restart,
                gang_id=spec.gang_id,
            )
            for n, profile in enumerate(profiles)
        )
        self.made += len(members)
        call = RequestsSubmitted(self.cluster.at, job_id, members, gangs=(spec,))
        outcomes = self.cluster.batch(call)
        taken = {outcome.id for outcome in outcomes if not outcome.reason}
        assert taken in (set(), {member.allocation_id for member in members})
        self.acknowledged.update(taken)
        if taken:
            self.calls.append(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def the_same_gang_again(self, data: st.DataObject) -> None:
        call = replace(data.draw(st.sampled_from(self.calls)), at=self.cluster.at)
        if self.state.jobs[call.job_id].state == "ACTIVE":
            before = len(self.state.requests)
            outcomes = self.cluster.batch(call)
            assert not [outcome for outcome in outcomes if outcome.reason]
            assert len(self.state.requests) == before

    @invariant()
    def job_masters_never_see_half_a_gang(self) -> None:
        """In their logs, after every batch, all living members are granted or none."""
        granted: dict[str, bool] = {}
        for events in self.cluster.store.job_events.values():
            for event in events:
                granted[event.allocation_id] = event.state == "GRANTED"
        for gang in self.state.gangs.by_id.values():
            told = {granted.get(r.allocation_id, False) for r in living(self.state.requests, gang)}
            assert len(told) <= 1

    @invariant()
    def gangs_stand_after_a_restart_where_they_stood(self) -> None:
        store, now = self.cluster.store, self.cluster.at
        restored = restore(store.snapshot(99), self.state.settings, now)
        assert standing(restored, now) == standing(self.state, now)

    @invariant()
    def gangs_are_where_they_were_to_be(self) -> None:
        for gang in self.state.gangs.by_id.values():
            slots = [self.state.slots.of(r) for r in living(self.state.requests, gang)]
            hosts = [slot.executor_id for slot in slots if slot is not None]
            if gang.spec.placement is GangPlacement.SPREAD:
                assert len(set(hosts)) == len(hosts)
            if gang.spec.placement is GangPlacement.SAME_EXECUTOR:
                assert len(set(hosts)) <= 1
            if gang.spec.placement is GangPlacement.SAME_LABEL:
                zones = {self.state.hosts[name].labels.get("zone") for name in hosts}
                assert len(zones) <= 1
                assert None not in zones

    @invariant()
    def what_is_remembered_of_a_search_is_true(self) -> None:
        """A cached failed search is right: the result is the same with and without it."""
        self.state.hosts.refresh(self.state.queue)
        for waiting in self.state.gangs.in_order():
            kind = waiting.kind
            room = seek(self.state.hosts, kind.where, kind.member_requests)
            if len({wish.profile for wish in kind.member_requests}) > 1:
                continue  # first-fit decreasing may find another way with less capacity
            if search_would_fail(self.state.hosts, kind):
                assert room is None
            else:
                found = find_together(self.state.hosts, waiting, kind.member_requests)
                assert (found is None) == (room is None)

    def _nothing_that_fits_waits(self) -> None:
        super()._nothing_that_fits_waits()
        for waiting in self.state.gangs.in_order():
            requests = member_requests_of(waiting.members)
            assert seek(self.state.hosts, Where.of(waiting.gang.spec), requests) is None

    def _both_sides_agree(self) -> None:
        super()._both_sides_agree()
        for gang in self.state.gangs.by_id.values():
            states = {request.state for request in living(self.state.requests, gang)}
            assert states in (set(), {RequestState.PENDING}, {RequestState.GRANTED})


def standing(state: State, now: Instant) -> dict[str, Any]:
    """Returns all that is known of gangs."""
    books = state.gangs
    return {
        gang.gang_id: (
            gang.spec,
            gang.members,
            gang.arrival_number,
            gang.waiting_since_time_ms,
            None if gang.waiting_until_ms is None else max(gang.waiting_until_ms, now.monotonic_ms),
            gang.gang_id in books.waiting,
            books.unconfirmed.get(gang.gang_id),
        )
        for gang in books.by_id.values()
    }


class GangsStayWholeSpread(GangsStayWhole):
    """The same test with the other strategy, and decisions that end after each unsuccessful try."""

    strategy = "spread"
    classes_tried_max = 1


TestGangs = GangsStayWhole.TestCase
TestGangs.settings = settings(MACHINE, max_examples=examples(60))
TestGangsSpread = GangsStayWholeSpread.TestCase
TestGangsSpread.settings = settings(MACHINE, max_examples=examples(30))
