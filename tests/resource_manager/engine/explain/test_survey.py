"""Tests that the quick survey of all hosts agrees with judging each host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import ExecutorState
from resource_manager.engine.explain import survey as survey_module
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.explain.survey import Survey
from resource_manager.engine.hosts.notes import Refusal, ReservedCapacity
from resource_manager.engine.model.entities import RequestSpec, Slot
from resource_manager.engine.placement.constraint import Blocker
from resource_manager.engine.placement.fit import LABELS, Verdict
from tests.resource_manager.engine.placement.test_placing import (
    ONE_POOL,
    SSD,
    cluster_of,
    hosts,
    profiles,
)
from tests.support.engine_cluster import LSE, EngineCluster, FakeExecutor, numa_host
from tests.support.properties import examples

moods = st.sampled_from(
    [
        "",
        "",
        "",
        "draining",
        "unreachable",
        "lost",
        "full",
        "busy",
        "refused",
        "reserved",
        "own",
        "limit",
    ]
)


def distance(one: Verdict) -> tuple[int, int, str]:
    hard = sum(not each.transient for each in one.obstacles)
    return hard, max((each.lack for each in one.obstacles), default=0), one.host.host_id


@settings(max_examples=examples(50))
@given(
    hosts,
    st.lists(moods, min_size=40, max_size=40),
    st.none() | profiles,
    st.sampled_from([(), SSD]),
)
def test_a_glance_and_a_judgement_agree(
    described: Any, mooded: list[str], profile: ResourceProfile | None, labels: Any
) -> None:
    cluster = cluster_of(described)
    shape = cluster.state.queue.class_of(RequestSpec("", profile, required_labels=labels))
    for host, mood in zip(cluster.state.hosts.values(), mooded, strict=False):
        host.executor.draining = mood == "draining"
        host.reach.unreachable = mood == "unreachable"
        if mood == "lost":
            host.executor.state = ExecutorState.LOST
        if mood == "refused":
            host.refusals[shape.key] = Refusal(failures=1, until_ms=1 << 60, state_seen=None)
        if mood in {"reserved", "own"}:
            host.reserved = ReservedCapacity({"cpu_milli": 16_000}, 1, {})
        if mood == "limit":
            registration = host.executor.registration
            host.executor.registration = replace(registration, slots_max=1)
            host.slots["other", 1] = Slot("other", 1, "job", host.host_id, ResourceProfile(0), 0, 0)
        if mood in {"full", "busy"}:
            host.book(host.booking_of(ResourceProfile(3_900, 100 * MIB)), 1)
    own = {name for name, mood in zip(cluster.state.hosts, mooded, strict=False) if mood == "own"}
    survey = Survey.of(cluster.state.hosts.values(), shape, own)
    judged = sorted((survey.verdict(name) for name in survey.hosts), key=distance)
    usable = [
        one for one in judged if one.host.eligible and Blocker.LABEL_MISMATCH not in one.blockers
    ]
    nearest = [(one.host.host_id, one.obstacles) for one in survey.nearest(len(judged))]
    assert nearest == [(one.host.host_id, one.obstacles) for one in judged]
    assert survey.fitting == sum(one.fits for one in judged)
    fitting = {one.host.host_id for one in judged if one.fits}
    assert [each.host_id for each in survey.candidates] == [
        name for name in survey.hosts if name in fitting
    ]
    assert survey.usable == len(usable)
    assert {host_id for _, _, host_id in survey.blocked_only_by.get(LABELS, ())} == {
        one.host.host_id for one in judged if one.blockers == (Blocker.LABEL_MISMATCH,)
    }
    for dimension in survey.dimensions():
        name = dimension.dimension
        asking = [one for one in usable if name in one.requested]
        there = [one.at.free.get(name, 0) for one in asking]
        assert (dimension.free, dimension.largest_hole) == (sum(there), max(there))
        assert dimension.total == sum(one.host.total.get(name, 0) for one in asking)
        assert dimension.asked == min(one.requested[name] for one in asking)
    # Hosts where the request fits as soon as slots of other requests end.
    promising = [
        one.host.host_id
        for one in usable
        if all(each.transient for each in one.obstacles)
        and not survey.is_for_others(one.host.host_id)
    ]
    assert (survey.promising or (0, 0, ""))[2] == (promising[0] if promising else "")


@pytest.mark.parametrize("labels", [(), SSD])
def test_costly_checks_are_made_on_the_first_hosts(
    monkeypatch: pytest.MonkeyPatch, labels: Any
) -> None:
    monkeypatch.setattr(survey_module, "COSTLY_CHECKS_MAX", 2)
    ids = ["host-d", "host-a", "host-c", "host-b"]
    carried = {"host-a": SSD, "host-b": SSD}
    cluster = EngineCluster.settled(
        *(numa_host(name, labels=carried.get(name, ())) for name in ids)
    )
    spec = RequestSpec("", ResourceProfile(1_000, 64 * MIB), required_labels=labels, cpu_policy=LSE)
    survey = Survey.of(cluster.state.hosts.values(), cluster.state.queue.class_of(spec))
    # host-d is also checked if it lacks the labels, to say whether other labels would help.
    suitable = [name for name in ids if not labels or name in carried]
    assert [each.host_id for each in survey.candidates] == suitable
    assert (survey.usable, survey.unchecked) == (len(suitable), 2)
    assert survey.fitting == sum(name in suitable for name in ids[:2])
    assert [host_id for _, _, host_id in survey.blocked_only_by.get(LABELS, ())] == [
        name for name in ids[:2] if name not in suitable
    ]
    # An unchecked host has a small lack, so it comes after the hosts on which the request fits.
    assert {host_id: lack for _, lack, host_id in survey.distances} == {
        name: int(name in ids[2:]) for name in ids
    }


def test_a_host_whose_default_slot_is_nothing_would_not_fit_without_the_labels_either() -> None:
    cluster = cluster_of([])
    cluster.register(FakeExecutor("host-a", ONE_POOL, ResourceProfile()))
    shape = cluster.state.queue.class_of(RequestSpec("", None, required_labels=SSD))
    survey = Survey.of(cluster.state.hosts.values(), shape)
    assert LABELS not in survey.blocked_only_by
    assert survey.verdict("host-a").blockers == (Blocker.LABEL_MISMATCH, Blocker.TOTAL_TOO_SMALL)


def test_nobody_is_told_to_ask_for_less_than_may_be_asked_for() -> None:
    cluster = cluster_of([])
    parts = {"cpu_milli": 4_000, "task_heap_memory_bytes": GIB, "managed_memory_bytes": GIB}
    cluster.register(FakeExecutor("host-a", parts, ResourceProfile(100, 64 * MIB)))
    cluster.job("job")
    filling = RequestSpec("filling", ResourceProfile(100, GIB))
    both = ResourceProfile(100, MIB, managed_memory_bytes=4 * MIB)
    heap_alone = ResourceProfile(100, 5 * MIB)
    specs = (filling, RequestSpec("both", both), RequestSpec("heap-alone", heap_alone))
    cluster.submit(*specs)
    (change,) = explain(cluster.state, "both").would_fit_if
    assert [(one.dimension, one.free) for one in change.at_most] == [("task_heap_memory_bytes", 0)]
    assert explain(cluster.state, "heap-alone").would_fit_if == []
