"""Tests that requests of many jobs which are placed together give each job the same slots as
requests that are placed one job at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.resources import GIB, MIB, Amounts, ResourceProfile
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    Event,
    GroupSet,
    JobRegistered,
    RequestsSubmitted,
    SlotsReleased,
    UserLimitsSet,
)
from resource_manager.engine.model.settings import DAY_MS, Fairness
from resource_manager.engine.placement.placer import Placer, Run
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.scheduling.joint import Budget, JointPlacement
from tests.support.engine_cluster import EngineCluster, FakeExecutor
from tests.support.properties import examples

GROUPS = ("default", "one", "four", "below")  # `below` is a child of `four`
USERS = ("operator/ann", "operator/bob")
DEFAULT = ResourceProfile(1_000, 64 * MIB)

ONE_HOST: list[Amounts] = [{"cpu_milli": 200_000, "memory_bytes": 400 * GIB}]
MIXED = [DEFAULT, ResourceProfile(1_500, GIB), ResourceProfile(250, 3 * GIB)]
"""On a single host, slots of any sizes fit in the same way in any order."""

MANY_HOSTS: list[Amounts] = [{"cpu_milli": 8_000, "memory_bytes": 400 * GIB} for _ in range(25)]
EQUAL_CPU = [ResourceProfile(1_000, memory * MIB) for memory in (64, 128, 256)]
"""If all slots have equal cpu, and memory is plentiful, the choice of hosts leaves equal room."""

Steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "ask", "ask", "range", "release", "time", "weight", "limit", "user"]
        ),
        st.integers(0, 7),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=14,
)


class Shared:
    """A cluster with groups and eight jobs. Its executors accept every command at once."""

    def __init__(
        self, totals: list[Amounts], profiles: list[ResourceProfile], fairness: Fairness
    ) -> None:
        self.cluster = EngineCluster(jobs=(), fairness=fairness, lost_timeout_ms=DAY_MS)
        self.profiles = profiles
        for number, total in enumerate(totals):
            self.cluster.register(FakeExecutor(f"host-{number:02d}", total, DEFAULT))
        at = self.cluster.at
        self.batch(
            GroupSet(at, "one"),
            GroupSet(at, "four", weight=4.0),
            GroupSet(at, "below", parent="four", weight=0.5),
        )
        for number in range(8):
            name = f"job{number}"
            group, owner = GROUPS[number % 4], USERS[number % 3 % 2]
            self.batch(JobRegistered(at, name, name, group, None, owner, "r"))
        self.asked = 0

    def batch(self, *events: Event) -> None:
        self.cluster.batch(*events)
        self.finish()
        self.cluster.deliver_all()
        self.finish()

    def finish(self) -> None:
        while self.cluster.state.unfinished:
            self.cluster.batch()

    def submissions(self, what: str, number: int, amount: int) -> Iterator[Event]:
        """Yields requests of several jobs, so that the jobs wait at the same time."""
        for job in sorted({number, (number + amount) % 8, (number + 3) % 8}):
            self.asked += 1
            profile = self.profiles[(amount + job) % 3]
            name, spec = f"job{job}", RequestSpec(f"r{self.asked}", profile)
            if what == "range":
                yield RequestsSubmitted(
                    self.cluster.at, name, (), ranges=(RangeSpec(spec, 0, amount),)
                )
                continue
            specs = tuple(RequestSpec(f"r{self.asked}.{n}", profile) for n in range(amount))
            yield RequestsSubmitted(self.cluster.at, name, specs)

    def take(self, what: str, number: int, amount: int) -> None:
        at = self.cluster.at
        if what in ("ask", "range"):
            self.batch(*self.submissions(what, number, amount))
        elif what == "release":
            held = sorted((s.allocation_id, s.job_id) for s in self.cluster.state.slots.values())
            self.batch(
                *(
                    SlotsReleased(at, job_id, ((name, 0),))
                    for name, job_id in held[number :: 1 + amount // 20]
                )
            )
        elif what == "time":
            self.cluster.wait(amount * 1_000)
            self.finish()
        elif what == "weight":
            self.batch(GroupSet(at, GROUPS[number % 3], weight=2.0 ** (amount % 5 - 2)))
        elif what == "limit":
            most, least = {"cpu_milli": amount * 2_000}, {"cpu_milli": amount * 500}
            self.batch(GroupSet(at, GROUPS[number % 3], maximum=most, minimum=least))
        elif what == "user":
            self.batch(UserLimitsSet(at, USERS[number % 2], {"slots": amount}))

    def slots(self) -> list[str]:
        return sorted(allocation_id for allocation_id, _ in self.cluster.state.slots)

    def usage(self) -> dict[str, tuple[float, float, int, int]]:
        flows = self.cluster.state.flows
        return {
            flow.id: (flow.rate, flow.raised, flow.running, flow.waiting)
            for flow in (flows.root, *flows.groups.values(), *flows.jobs.values())
        }


@contextmanager
def one_job_at_a_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JointPlacement, "is_possible", lambda self: False)
        yield


@settings(max_examples=examples(60))
@given(
    Steps,
    st.sampled_from([(ONE_HOST, MIXED), (MANY_HOSTS, EQUAL_CPU)]),
    st.sampled_from([0, 30_000]),
)
def test_each_job_gets_the_same_slots_as_with_one_job_at_a_time(
    steps: list[tuple[str, int, int]],
    where: tuple[list[Amounts], list[ResourceProfile]],
    lookahead_ms: int,
) -> None:
    """Without a half-life, and with weights that are powers of two, all virtual times are exact. So
    no rounding decides between equal jobs.
    """
    fairness = Fairness(lookahead_ms=lookahead_ms, half_life_ms=None)
    together, alone = (Shared(*where, fairness) for _ in range(2))
    for step in steps:
        together.take(*step)
        with one_job_at_a_time():
            alone.take(*step)
        assert together.slots() == alone.slots()
        assert together.usage() == alone.usage()
        together.cluster.check()


def test_the_limit_of_a_user_holds_for_requests_of_many_jobs() -> None:
    shared = Shared(MANY_HOSTS, EQUAL_CPU, Fairness())
    for user, most in zip(USERS, (10, 30), strict=True):
        shared.batch(UserLimitsSet(shared.cluster.at, user, {"slots": most}))
    shared.batch(*(e for n in (0, 1, 2) for e in shared.submissions("ask", n * 3, 20)))
    used = {flow.id: flow.running for flow in shared.cluster.state.flows.users.flows.values()}
    assert used == dict(zip(USERS, (10, 30), strict=True))
    shared.cluster.check()


def test_few_searches_place_the_requests_of_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight jobs wait with 20 requests each, of three classes. Placed one job at a time, almost
    every slot needs its own search, because the jobs alternate.
    """
    searches: list[int] = []
    place = Placer.place

    def counted(
        self: Placer, scheduling_class: SchedulingClass, count: int, *more: tuple[str, ...]
    ) -> list[Run]:
        searches.append(count)
        return place(self, scheduling_class, count, *more)

    monkeypatch.setattr(Placer, "place", counted)
    shared = Shared(MANY_HOSTS, EQUAL_CPU, Fairness())
    asked = [e for n in (0, 1, 2) for e in shared.submissions("ask", n * 3, 20)]
    shared.batch(*asked)
    assert len(shared.slots()) == 180
    assert len(searches) <= 180 // 3
    searches.clear()
    with one_job_at_a_time():
        alone = Shared(MANY_HOSTS, EQUAL_CPU, Fairness())
        alone.batch(*asked)
    assert alone.slots() == shared.slots()
    assert len(searches) > 180 // 2


def test_the_last_room_is_given_out_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 cpus for more requests than that: only requests that certainly fit are placed
    together.
    """
    placed: list[int] = []
    serve = JointPlacement.serve

    def noted(
        self: JointPlacement, placer: Placer, budget: Budget, served: set[SchedulingClass]
    ) -> int:
        placed.append(serve(self, placer, budget, served))
        return placed[-1]

    monkeypatch.setattr(JointPlacement, "serve", noted)
    shared = Shared(MANY_HOSTS, EQUAL_CPU, Fairness())
    shared.batch(*(e for n in (0, 1, 2) for e in shared.submissions("ask", n * 3, 60)))
    assert 0 < sum(placed) < 200 == len(shared.slots())
    shared.cluster.check()
