"""Tests of fair choice through the whole engine, with random jobs, groups, sizes and slot ends.

After every decision no request waits beside suitable capacity, and the invariants hold (including
usage, and tournaments compared with a full search). The same events lead to the same placements.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.resources import GIB, MIB, ResourceProfile, fits
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.waiting_reasons import pending_by_reason
from resource_manager.engine.fairness.choice import RUN_PART
from resource_manager.engine.fairness.flows import Flow
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    Event,
    GroupSet,
    JobEndRequested,
    JobRegistered,
    RequestsSubmitted,
    ResizeRequested,
    SlotsReleased,
)
from resource_manager.engine.model.settings import DAY_MS, Fairness
from tests.support.engine_cluster import EngineCluster, FakeExecutor
from tests.support.properties import examples

PROFILES = [
    ResourceProfile(cpu, memory * MIB) for cpu, memory in ((500, 64), (1_000, 64), (1_500, 256))
]
TOTAL = {"cpu_milli": 4_000, "memory_bytes": GIB}

Steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "range", "release", "time", "weight", "end", "host", "grow"]),
        st.integers(0, 5),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=25,
)


class Life:
    """A cluster whose executors accept at once, and jobs that come and go."""

    def __init__(self, fairness: Fairness) -> None:
        self.cluster = EngineCluster(jobs=(), fairness=fairness, lost_timeout_ms=DAY_MS)
        self.jobs: dict[str, int] = {}  # number of ids used, by job
        self.made = 0
        for name in ("host-a", "host-b"):
            self.register(name)
        for name, weight in (("one", 1.0), ("four", 4.0)):
            self.batch(GroupSet(self.cluster.at, name, weight=weight))

    def register(self, name: str) -> None:
        self.cluster.register(FakeExecutor(name, TOTAL, PROFILES[0]))

    def batch(self, *events: Event) -> None:
        self.cluster.batch(*events)
        self.finish()
        self.cluster.deliver_all()
        self.finish()

    def finish(self) -> None:
        while self.cluster.state.unfinished:
            self.cluster.batch()

    def job(self, number: int) -> str:
        """Returns one of a few jobs; registers it if necessary."""
        name = next((n for n in self.jobs if n.startswith(f"j{number}.")), "")
        if not name:
            self.made += 1
            name = f"j{number}.{self.made}"
            self.jobs[name] = 0
            group = ("one", "four", "default")[number % 3]
            self.batch(JobRegistered(self.cluster.at, name, name, group, None, "operator/ann", "r"))
        return name

    def take(self, what: str, number: int, amount: int) -> None:
        at = self.cluster.at
        if what == "ask":
            self.ask(self.job(number), PROFILES[amount % 3], 1 + amount // 3)
        elif what == "range":
            name = self.job(number)
            self.jobs[name] += 1
            request = RequestSpec(f"{name}r{self.jobs[name]}", PROFILES[amount % 3])
            ranges = (RangeSpec(request, 0, amount),)
            self.batch(RequestsSubmitted(at, name, (), ranges=ranges))
        elif what == "release":
            held = self.granted()
            for name, job_id in held[number : number + 1 + amount // 4]:
                self.batch(SlotsReleased(at, job_id, ((name, 0),)))
        elif what == "time":
            self.cluster.wait(amount * 1_000)
        elif what == "weight":
            self.batch(GroupSet(at, ("one", "four", "default")[number % 3], weight=float(amount)))
        elif what == "end":
            name = self.job(number)
            del self.jobs[name]
            self.batch(JobEndRequested(at, name, "ENDED"))
        elif what == "host" and len(self.cluster.executors) < 4:
            self.register(f"host-{len(self.cluster.executors)}")
            self.batch()
        elif what == "grow":
            for name, job_id in self.granted()[number : number + 1]:
                slot = next(s for k, s in self.cluster.state.slots.items() if k[0] == name)
                larger = replace(slot.profile, cpu_milli=slot.profile.cpu_milli + amount * 100)
                self.batch(ResizeRequested(at, job_id, name, slot.generation, 0, larger))

    def ask(self, name: str, profile: ResourceProfile, count: int) -> None:
        first = self.jobs[name]
        self.jobs[name] += count
        specs = [RequestSpec(f"{name}-{n}", profile) for n in range(first, first + count)]
        self.batch(RequestsSubmitted(self.cluster.at, name, tuple(specs)))

    def granted(self) -> list[tuple[str, str]]:
        """Returns (allocation id, job) of slots, in order."""
        state = self.cluster.state
        return sorted(
            (slot.allocation_id, slot.job_id)
            for slot in state.slots.values()
            if slot.state is SlotState.ALLOCATED
            and state.requests[slot.allocation_id].state is RequestState.GRANTED
        )

    def placements(self) -> list[tuple[str, str]]:
        return [(name, slot.executor_id) for (name, _), slot in self.cluster.state.slots.items()]

    def idle(self) -> list[str]:
        """Returns requests that wait although a host has capacity, except resizes."""
        state = self.cluster.state
        return [
            f"{shape.profile} fits {host.host_id}"
            for shape in state.queue.classes()
            for host in state.hosts.values()
            if host.eligible and fits(host.booking_for(shape), host.free())
        ]


@settings(max_examples=examples(25))
@given(Steps, st.sampled_from([0, 30_000]), st.sampled_from([None, 20_000]))
def test_nobody_waits_beside_capacity_and_the_books_are_sound(
    steps: list[tuple[str, int, int]], lookahead_ms: int, half_life_ms: int | None
) -> None:
    fairness = Fairness(lookahead_ms=lookahead_ms, half_life_ms=half_life_ms)
    life, again = Life(fairness), Life(fairness)
    for step in steps:
        life.take(*step)
        life.cluster.check()
        assert life.idle() == []
        again.take(*step)
        assert again.placements() == life.placements()


def waits(flow: Flow) -> bool:
    return flow.waiting > 0


def ahead(flow: Flow, other: Flow) -> bool:
    """Returns whether a flow is ahead of a waiting sibling by more than its last run.

    The last run is one slot, or a fraction of what the flow has. The two flows are compared by
    their running slots, divided by weight.
    """
    run = max(1, flow.running // RUN_PART)
    return (flow.running - run) / flow.weight > other.running / other.weight + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_a_burst_gets_nobody_ahead_by_more_than_a_run(seed: int) -> None:
    """Capacity for thousands appears at once, and many new jobs wait for it."""
    rng = random.Random(seed)
    life = Life(Fairness(usage_measure="slots"))
    for number in range(4):
        life.batch(GroupSet(life.cluster.at, f"g{number}", weight=rng.choice([0.5, 1, 3, 16])))
    for number in range(10):
        name, group = f"job{number}", f"g{rng.randrange(4)}"
        life.jobs[name] = 0
        life.batch(JobRegistered(life.cluster.at, name, name, group, None, "operator/ann", "r"))
        count = rng.choice([5, 100, 3_000])
        request = RequestSpec(f"{name}r", ResourceProfile(1_000_000 + rng.randrange(2), 64 * MIB))
        request = replace(request, allow_pending=True)
        ranges = (RangeSpec(request, 0, count),)
        life.batch(RequestsSubmitted(life.cluster.at, name, (), ranges=ranges))
    state = life.cluster.state
    assert not state.slots
    life.cluster.host(
        "large", cpu_milli=2_500 * 1_000_001, memory_bytes=2_500 * GIB, default_profile=PROFILES[0]
    )
    life.finish()
    assert len(state.slots) == min(2_500, sum(range_count(life)))
    for flow in (state.flows.root, *state.flows.groups.values()):
        children = list(flow.children.by_id.values()) if flow.children is not None else []
        for one in children:
            for other in filter(waits, children):
                assert not ahead(one, other), (one, one.running, other, other.running)


def range_count(life: Life) -> list[int]:
    return [job.live_requests for job in life.cluster.state.jobs.values()]


def test_where_arrival_decides_groups_and_weights_do_not() -> None:
    life = Life(Fairness(order="arrival"))
    life.ask(life.job(0), PROFILES[1], 8)  # of group one: the whole capacity
    life.ask(life.job(0), PROFILES[1], 8)
    life.ask(life.job(1), PROFILES[1], 8)  # of group four
    held = life.granted()
    life.batch(SlotsReleased(life.cluster.at, held[0][1], tuple((name, 0) for name, _ in held)))
    assert {job_id for _, job_id in life.granted()} == {life.job(0)}
    life.cluster.check()


def test_a_job_that_ends_with_very_many_requests_leaves_nothing_in_the_tree() -> None:
    life = Life(Fairness())
    name = life.job(0)
    for number in range(30):
        request = RequestSpec(f"{name}r{number}", PROFILES[number % 3])
        ranges = (RangeSpec(request, 0, 10_000),)
        life.batch(RequestsSubmitted(life.cluster.at, name, (), ranges=ranges))
    flows = life.cluster.state.flows
    assert flows.jobs[name].waiting == 300_000 - len(life.granted())
    life.batch(JobEndRequested(life.cluster.at, name, "ENDED"))
    assert name not in flows.jobs
    assert (flows.root.waiting, flows.root.running, flows.root.rate) == (0, 0, 0.0)
    assert flows.usage(flows.groups["one"]).raised >= 0
    life.cluster.check()


def test_a_group_that_is_full_has_no_turn_and_nobody_in_it_is_stopped_one_by_one() -> None:
    life = Life(Fairness())
    full = GroupSet(life.cluster.at, "one", maximum={"cpu_milli": 2_000})
    life.batch(full)
    for number in range(30):
        name = f"j{number}"
        life.jobs[name] = 0
        life.batch(JobRegistered(life.cluster.at, name, name, "one", None, "operator/ann", "r"))
        life.ask(name, PROFILES[1], 2)
    state = life.cluster.state
    assert len(life.granted()) == 2
    assert not state.queue.quota_blocked
    assert state.flows.groups["one"].active == 29  # the first job has all that it requested
    assert at_once(pending_by_reason(state)) == {"WAITING_GROUP_LIMIT": 58}
    first, job_id = life.granted()[0]
    life.batch(SlotsReleased(life.cluster.at, job_id, ((first, 0),)))
    assert len(life.granted()) == 2
    assert first not in dict(life.granted())
    life.batch(replace(full, maximum={"cpu_milli": 5_000}))
    assert len(life.granted()) == 5
    life.ask(life.job(1), PROFILES[1], 2)  # of another group, while that one is full
    assert len(life.granted()) == 7
    assert check_invariants(state) == []
