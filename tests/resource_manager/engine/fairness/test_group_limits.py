"""Tests that maxima are never exceeded, minima come first, and nothing else is delayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from finegrain.resources import GIB, MIB, ResourceProfile, fits, total_of
from finegrain.values.states import RequestState
from resource_manager.engine.fairness.groups import above
from resource_manager.engine.fairness.quotas import counted
from resource_manager.engine.lifecycle import quota_checks
from resource_manager.engine.model.entities import GangSpec, RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    SlotsReleased,
)
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.scheduling import cycle
from tests.support.engine_cluster import EngineCluster, FakeExecutor
from tests.support.properties import examples

PARENTS = {"team": "", "left": "team", "right": "team", "default": ""}
SMALL, LARGE = ResourceProfile(1_000, 64 * MIB), ResourceProfile(3_000, 256 * MIB)
DEFAULT_SLOT = ResourceProfile(2_000, 128 * MIB)
LIMITS = st.sampled_from([None, 0, 1_000, 3_000, 5_000, 8_000])
NAMES = st.sampled_from(sorted(PARENTS))


def cluster_of(hosts: int, cpu_milli: int = 4_000, **fair: object) -> EngineCluster:
    fairness = replace(Fairness(), **fair)  # type: ignore[arg-type]
    cluster = EngineCluster(jobs=(), fairness=fairness, ended_retention_ms=0)
    for number in range(hosts):
        cluster.host(
            f"host-{number}",
            cpu_milli=cpu_milli,
            memory_bytes=4 * GIB,
            default_profile=DEFAULT_SLOT,
        )
    for name, parent in PARENTS.items():
        if name != "default":
            cluster.set_group(name, parent=parent)
    return cluster


def used_by(cluster: EngineCluster, name: str) -> dict[str, int]:
    """Returns what slots have really booked, computed without the tree of flows."""
    state = cluster.state
    inside = {
        job.job_id
        for job in state.jobs.values()
        if name in [group.name for group in above(state.groups, job.group)]
    }
    return total_of(counted(slot.booked) for slot in state.slots.values() if slot.job_id in inside)


def settle(cluster: EngineCluster) -> None:
    while cluster.wire:
        cluster.deliver(cluster.wire[0])


class Limited(RuleBasedStateMachine):
    """Nested groups, whose limits change while slots, gangs and ranges come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = cluster_of(2)
        self.made = 0
        self.before: dict[str, dict[str, int]] = {}
        for name in PARENTS:
            for kind in ("known", "unknown"):
                job_id = f"{name}-{kind}"
                self.cluster.job(job_id, group=name)

    def names(self, count: int) -> list[str]:
        self.made += count
        return [f"r{number:03d}" for number in range(self.made - count, self.made)]

    @rule(name=NAMES, cpu=LIMITS, memory=st.sampled_from([None, 128 * MIB, 512 * MIB]))
    def limit(self, name: str, cpu: int | None, memory: int | None) -> None:
        maximum = {"cpu_milli": cpu, "memory_bytes": memory}
        self.cluster.set_group(name, maximum=maximum)

    @rule(name=NAMES, profile=st.sampled_from([SMALL, LARGE, None]), count=st.integers(1, 4))
    def ask(self, name: str, profile: ResourceProfile | None, count: int) -> None:
        job_id = f"{name}-{'known' if profile else 'unknown'}"
        requests = tuple(
            RequestSpec(each, profile, restart_on_loss=True) for each in self.names(count)
        )
        self.cluster.submit(*requests, job=job_id)

    @rule(name=NAMES, profile=st.sampled_from([SMALL, LARGE]), count=st.integers(1, 9))
    def ask_for_a_range(self, name: str, profile: ResourceProfile, count: int) -> None:
        (each,) = self.names(1)
        ranges = (RangeSpec(RequestSpec(each, profile), 0, count),)
        self.cluster.submit(*ranges, job=f"{name}-known")

    @rule(name=NAMES, count=st.integers(2, 3))
    def ask_for_a_gang(self, name: str, count: int) -> None:
        names = self.names(count)
        requests = tuple(
            RequestSpec(each, profile, gang_id=f"g{names[0]}")
            for each, profile in zip(names, [SMALL, LARGE, SMALL], strict=False)
        )
        gangs = (GangSpec(f"g{names[0]}"),)
        self.cluster.submit(*requests, *gangs, job=f"{name}-known")

    @precondition(lambda self: self.cluster.state.slots)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.cluster.state.slots)))
        self.cluster.batch(SlotsReleased(self.cluster.at, None, (key,)))

    @precondition(lambda self: self.granted())
    @rule(data=st.data(), profile=st.sampled_from([SMALL, LARGE]))
    def resize(self, data: st.DataObject, profile: ResourceProfile) -> None:
        name = data.draw(st.sampled_from(self.granted()))
        self.cluster.resize(name, profile, job=None)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        names = [
            name
            for name, request in self.cluster.state.requests.items()
            if request.state is RequestState.PENDING
        ]
        if names:
            name = data.draw(st.sampled_from(names))
            self.cluster.cancel(name, job=None)

    @rule()
    def arrive(self) -> None:
        settle(self.cluster)

    @rule(data=st.data())
    def takes_long(self, data: st.DataObject) -> None:
        executor = self.cluster.executors[data.draw(st.sampled_from(["host-0", "host-1"]))]
        executor.frees_slowly = not executor.frees_slowly
        executor.finish_frees()
        self.cluster.report(executor)

    @rule(seconds=st.integers(1, 10))
    def time_passes(self, seconds: int) -> None:
        """Too little time for an executor to be lost."""
        self.cluster.wait(seconds * 1_000)
        self.cluster.report_all()

    @rule()
    def restart(self) -> None:
        self.cluster.restart_rm()
        self.cluster.register_all()

    @rule(name=NAMES)
    def end(self, name: str) -> None:
        job_id = f"{name}-known"
        self.cluster.end_job(job_id)
        for _ in range(60):
            if job_id not in self.cluster.state.jobs:
                break
            settle(self.cluster)
            for executor in self.cluster.executors.values():
                executor.finish_frees()
                self.cluster.report(executor)
            self.cluster.wait(1_000)
        assert job_id not in self.cluster.state.jobs, self.cluster.state.endings
        self.cluster.job(job_id, group=name)

    def granted(self) -> list[str]:
        return sorted(
            slot.allocation_id
            for slot in self.cluster.state.slots.values()
            if slot.job_id.endswith("-known")
            and (request := self.cluster.state.requests.served_by(slot)) is not None
            and request.state is RequestState.GRANTED
        )

    @invariant()
    def no_maximum_is_exceeded(self) -> None:
        """Only slots from before a maximum was set may exceed it, and that excess only shrinks."""
        self.finish()
        for name in PARENTS:
            used = used_by(self.cluster, name)
            for dimension, limit in self.cluster.state.groups[name].maximum.items():
                before = self.before.get(name, {}).get(dimension, 0)
                assert used.get(dimension, 0) <= max(limit, before), (name, dimension)
            self.before[name] = used

    @invariant()
    def the_books_are_sound(self) -> None:
        self.cluster.check()

    @invariant()
    def nobody_waits_who_could_be_served(self) -> None:
        self.finish()
        for job_id, need in self.waiting():
            assert not self.fits(job_id, need), (job_id, need)

    def finish(self) -> None:
        for _ in range(200):
            if not self.cluster.state.unfinished:
                return
            self.cluster.batch()
        raise AssertionError("decisions go on for ever")

    def waiting(self) -> Iterator[tuple[str, ResourceProfile]]:
        for line in self.cluster.state.queue.job_queues():
            yield line.job_id, line.scheduling_class.profile or DEFAULT_SLOT

    def fits(self, job_id: str, profile: ResourceProfile) -> bool:
        state = self.cluster.state
        for group in above(state.groups, state.jobs[job_id].group):
            used = used_by(self.cluster, group.name)
            need = {"cpu_milli": profile.cpu_milli, "memory_bytes": profile.booked_memory_bytes}
            for name, limit in group.maximum.items():
                if used.get(name, 0) + need[name] > limit:
                    return False
        return any(
            host.eligible and not host.refusals and fits(host.booking_of(profile), host.free())
            for host in state.hosts.values()
        )


TestLimited = Limited.TestCase
TestLimited.settings = settings(max_examples=examples(40), stateful_step_count=25)


class LimitedInSmallSteps(Limited):
    """The same test with decisions that do very little, and block queues one by one."""

    def __init__(self) -> None:
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(cycle, "MOVES_MAX", 2)
        self.patches.setattr(cycle, "CHECKED_AGAIN_MAX", 0)
        self.patches.setattr(quota_checks, "CLASSES_CHECKED_MAX", 0)
        super().__init__()

    def teardown(self) -> None:
        self.patches.undo()


TestLimitedInSmallSteps = LimitedInSmallSteps.TestCase
TestLimitedInSmallSteps.settings = settings(max_examples=examples(25), stateful_step_count=25)


def test_whom_default_slots_stop_is_served_when_the_largest_of_them_is_no_more() -> None:
    """Its executor is not known yet, so its largest possible booking counts."""
    cluster = EngineCluster(jobs=(), ended_retention_ms=0, lost_timeout_ms=10_000)
    total = {"cpu_milli": 8_000, "memory_bytes": 4 * GIB}
    small = FakeExecutor("host-0", total, DEFAULT_SLOT)
    cluster.register(small)
    cluster.register(FakeExecutor("host-1", total, LARGE))
    cluster.set_group("g", maximum={"cpu_milli": 2_500})
    cluster.job("job", group="g")
    cluster.submit("a", profile=None)
    assert not cluster.state.slots
    for _ in range(6):
        cluster.wait(2_000)
        cluster.report(small)
    cluster.forget("host-1")
    assert [slot.executor_id for slot in cluster.state.slots.values()] == ["host-0"]


@given(
    minima=st.lists(st.integers(0, 5), min_size=2, max_size=5),
    weights=st.lists(st.sampled_from([0.01, 1.0, 4.0, 100.0]), min_size=5, max_size=5),
    running=st.integers(0, 20),
)
@settings(max_examples=examples(40))
def test_minima_are_served_first(minima: list[int], weights: list[float], running: int) -> None:
    """Whatever the weights, each waiting group has its minimum in the end.

    The end is when all returned capacity is placed again.
    """
    cluster = cluster_of(5, cpu_milli=sum(minima) * 200 + 1_000)
    capacity = 5 * ((sum(minima) * 200 + 1_000) // 200)
    one = ResourceProfile(200, 4 * MIB)

    def ask(group: str, count: int) -> None:
        cluster.job(group, group=group)
        requests = tuple(RequestSpec(f"{group}-{n:03d}", one) for n in range(count))
        cluster.submit(*requests, job=group)

    ask("default", min(running, capacity) + capacity)
    for number, least in enumerate(minima):
        name = f"g{number}"
        cluster.set_group(name, weight=weights[number], minimum={"cpu_milli": least * 200})
        ask(name, capacity)
    settle(cluster)
    assert len(cluster.state.slots) == capacity
    for key in list(cluster.state.slots)[: sum(minima)]:
        cluster.batch(SlotsReleased(cluster.at, None, (key,)))
        settle(cluster)
    for number, least in enumerate(minima):
        assert used_by(cluster, f"g{number}").get("cpu_milli", 0) >= least * 200
