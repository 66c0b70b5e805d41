"""Tests of resource groups: valid ones, changes, and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from finegrain.errors import FailedPrecondition, FinegrainError, InvalidArgument, NotFound, Reason
from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.explain.groups import group_views
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.waiting_reasons import groups_waiting_since, jobs_waiting_since
from resource_manager.engine.fairness.groups import in_order
from resource_manager.engine.jobs import groups
from resource_manager.engine.model.effects import Snapshot
from resource_manager.engine.model.entities import Group, Instant, JobState
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import restore
from tests.resource_manager.engine.scheduling.test_gangs import TINY, members
from tests.support.books import job
from tests.support.engine_cluster import EngineCluster

DELIVERED = {"default": 1.0, "low": 1.0, "medium": 4.0, "high": 16.0, "critical": 64.0}


def weights(cluster: EngineCluster) -> dict[str, float]:
    return {name: group.weight for name, group in cluster.state.groups.items()}


def refused(cluster: EngineCluster, name: str, **fields: Any) -> FinegrainError:
    before = dict(cluster.state.groups)
    with pytest.raises(FinegrainError) as caught:
        cluster.set_group(name, **fields)
    assert cluster.state.groups == before
    return caught.value


def test_groups_are_delivered_once_and_then_belong_to_operators() -> None:
    cluster = EngineCluster(jobs=())
    assert weights(cluster) == DELIVERED
    assert "Priority 20 (Medium)" in cluster.state.groups["medium"].description
    cluster.set_group("medium", weight=5.0)
    cluster.delete_group("low")
    cluster.restart_rm()
    assert weights(cluster) == {"default": 1.0, "medium": 5.0, "high": 16.0, "critical": 64.0}


def test_only_what_is_given_changes() -> None:
    cluster = EngineCluster(jobs=())
    limits = {"cpu_milli": 4_000, "extended.license": 0}
    assert cluster.set_group("night", weight=0.5, maximum=limits).description == ""
    cluster.set_group("night", description="after ten", minimum={"memory_bytes": 5})
    made = cluster.set_group("night", maximum={"cpu_milli": None})
    assert (made.weight, made.description, made.parent) == (0.5, "after ten", "")
    assert (dict(made.minimum), dict(made.maximum)) == (
        {"memory_bytes": 5},
        {"extended.license": 0},
    )
    cluster.restart_rm()
    assert cluster.state.groups["night"] == made


def test_the_same_again_is_no_news() -> None:
    cluster = EngineCluster(jobs=())
    cluster.set_group("night", weight=2.0)
    before = cluster.state.history.last_sequence
    cluster.set_group("night", weight=2.0)
    assert cluster.state.history.last_sequence == before


@pytest.mark.parametrize(
    ("name", "fields", "field", "part"),
    [
        ("Night", {}, "name", "a-z 0-9"),
        ("", {}, "name", "a-z 0-9"),
        ("n" * 64, {}, "name", "1 to 63"),
        ("night", {"weight": 0.0}, "weight", "0.001 to 1,000,000"),
        ("night", {"weight": 1_000_001.0}, "weight", "0.001 to 1,000,000"),
        ("night", {"weight": float("nan")}, "weight", "0.001 to 1,000,000"),
        ("night", {"description": "a\nb"}, "description", "printable"),
        ("night", {"maximum": {"gpu": 1}}, "maximum of a dimension", "extended."),
        ("night", {"minimum": {"task_heap_memory_bytes": 1}}, "minimum of a dimension", "cpu"),
        ("night", {"maximum": {"cpu_milli": -1}}, "maximum.cpu_milli", "from 0"),
        (
            "night",
            {"minimum": {"cpu_milli": 2}, "maximum": {"cpu_milli": 1}},
            "minimum.cpu_milli",
            "at most the maximum of the group, 1",
        ),
        ("night", {"parent": "night"}, "parent", "neither night"),
        ("medium", {"parent": "below"}, "parent", "neither medium nor part of it"),
    ],
)
def test_what_cannot_be_is_refused_by_field_and_value(
    name: str, fields: dict[str, Any], field: str, part: str
) -> None:
    cluster = EngineCluster(jobs=())
    cluster.set_group("below", parent="medium")
    if fields.get("parent") == "night":
        cluster.set_group("night")
    error = refused(cluster, name, **fields)
    assert isinstance(error, InvalidArgument)
    assert (error.field, part in error.expected) == (field, True)


def test_a_parent_has_to_exist_and_levels_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = EngineCluster(jobs=())
    assert refused(cluster, "night", parent="nowhere").reason is Reason.GROUP_UNKNOWN
    monkeypatch.setattr(groups, "DEPTH_MAX", 3)
    cluster.set_group("b", parent="low")
    cluster.set_group("c", parent="b")
    assert "at most 3 levels" in refused(cluster, "d", parent="c").message
    assert "at most 3 levels" in refused(cluster, "low", parent="high").message
    cluster.set_group("b", parent="high")
    assert [group.name for group in in_order(cluster.state.groups)] == [
        "critical",
        "default",
        "high",
        "b",
        "c",
        "low",
        "medium",
    ]


def test_so_many_groups_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = EngineCluster(jobs=())
    monkeypatch.setattr(groups, "GROUPS_MAX", 5)
    assert refused(cluster, "night").reason is Reason.OVER_LIMIT
    cluster.set_group("low", weight=3.0)


def test_a_job_of_an_unknown_group_is_told_which_there_are() -> None:
    cluster = EngineCluster(jobs=())
    with pytest.raises(NotFound) as caught:
        cluster.job("job", group="middle")
    assert caught.value.reason is Reason.GROUP_UNKNOWN
    assert "'middle'; the groups are critical, default, high, low, medium;" in caught.value.message
    assert not cluster.state.jobs
    cluster.job("job", group="medium")
    cluster.end_job("job")
    cluster.delete_group("medium")
    cluster.job("job", group="medium")  # the same call as before


def test_where_jobs_live_a_group_stays_and_stays_where_it_is() -> None:
    cluster = EngineCluster(jobs=(), ended_retention_ms=0)
    cluster.host("host-a", memory_bytes=1 << 30, default_profile=TINY)
    cluster.set_group("team", parent="high")
    cluster.job("job", group="team")
    for name in ("team", "high", "default"):
        with pytest.raises(FailedPrecondition) as caught:
            cluster.delete_group(name)
        assert caught.value.reason is Reason.GROUP_IN_USE
        assert caught.value.details["group"] == name
    assert refused(cluster, "high", parent="low").reason is Reason.GROUP_IN_USE
    cluster.set_group("team", weight=9.0)
    with pytest.raises(NotFound):
        cluster.delete_group("nowhere")

    cluster.submit(*members(1, ""))
    cluster.deliver(cluster.wire[0])
    cluster.end_job("job")
    with pytest.raises(FailedPrecondition, match="in group team is live"):
        cluster.delete_group("team")  # its slot is being freed
    cluster.deliver(cluster.wire[0])
    cluster.delete_group("team")
    assert "team" not in cluster.state.groups
    cluster.restart_rm()
    assert "team" not in cluster.state.groups


def test_books_that_know_no_groups_get_those_that_their_jobs_live_in() -> None:
    rows = [
        job("a", group="Old_Team.1", arrival_number=1),
        job("b", group="default", arrival_number=2),
        job("c", group="gone", state=JobState.ENDED, end_time_ms=1, arrival_number=3),
        job("d", group="high", arrival_number=4),
    ]
    state = restore(Snapshot(1, jobs=rows), EngineSettings(), Instant(1_000, 5))
    made = {name: group.weight for name, group in state.groups.items()}
    assert made == DELIVERED | {"Old_Team.1": 1.0}
    assert {group.name for group in state.changes.take().groups} == set(made)

    cluster = EngineCluster(jobs=())
    cluster.state = state
    group = cluster.set_group("Old_Team.1", weight=3.0)  # a name that is invalid for new groups
    assert group.weight == 3.0
    cluster.job("e", group="Old_Team.1")


def test_the_default_group_comes_back_whatever_happened_to_its_row() -> None:
    rows = [Group("low"), Group("part", parent="struck by hand")]
    counters = {"groups_delivered": 1}
    state = restore(
        Snapshot(1, groups=rows, counters=counters), EngineSettings(), Instant(1_000, 5)
    )
    assert sorted(state.groups) == ["default", "low", "part"]
    changed = [(group.name, group.parent) for group in state.changes.take().groups]
    assert changed == [("default", ""), ("part", "")]


def test_setting_a_group_is_told() -> None:
    cluster = EngineCluster(jobs=())
    cluster.set_group("night", weight=0.25, parent="low", maximum={"cpu_milli": 1_500})
    cluster.delete_group("night")
    told = [(each.kind, each.message) for each in cluster.store.cluster_events[-2:]]
    assert told == [
        ("group_set", "night: weight 0.25, part of low, maximum 1.5 cpu"),
        ("group_deleted", "night"),
    ]


def ask(cluster: EngineCluster, job_id: str, group: str, count: int) -> None:
    cluster.job(job_id, group=group)
    cluster.submit(*(f"{job_id}-{n}" for n in range(count)), job=job_id, profile=TINY)


def test_a_group_sums_up_what_is_below_it() -> None:
    cluster = EngineCluster(jobs=())
    cluster.set_group("outer")
    cluster.set_group("inner", parent="outer", weight=3.0)
    first_ms = cluster.at.time_ms
    ask(cluster, "deep", "inner", 2)
    cluster.wait(1_000)
    ask(cluster, "beside", "outer", 1)
    ask(cluster, "far", "low", 1)
    cluster.job("idle", group="outer")
    state = cluster.state
    since = at_once(groups_waiting_since(state))
    assert since == {"inner": first_ms, "outer": first_ms + 1_000, "low": first_ms + 1_000}
    views = {v.group.name: v for v in group_views(state.flows, state.groups, since)}
    assert {name: view.jobs for name, view in views.items() if view.jobs} == {
        "outer": 3,
        "inner": 1,
        "low": 1,
    }
    assert [views[name].flow.oldest_wait_time_ms for name in ("outer", "inner", "low", "high")] == [
        first_ms,
        first_ms,
        first_ms + 1_000,
        None,
    ]
    entitled = {name: view.share_entitled for name, view in views.items() if view.share_entitled}
    assert entitled == {"outer": 0.5, "inner": 0.375, "low": 0.5}  # a job beside it counts 1
    assert jobs_waiting_since(state, ["deep", "far", "idle"]) == {
        "deep": first_ms,
        "far": first_ms + 1_000,
    }
    assert jobs_waiting_since(state, ["beside"]) == {"beside": first_ms + 1_000}


def test_a_new_weight_pays_nothing_back_after_a_crash_either() -> None:
    """The weight is stored together with the group's usage, so that usage stays comparable."""
    cluster = EngineCluster(jobs=())
    cluster.host("host", memory_bytes=GIB, default_profile=ResourceProfile(1_000))
    ask(cluster, "a", "low", 2)
    cluster.settle()
    cluster.wait(300_000)
    state = cluster.state
    before = state.flows.usage(state.flows.groups["low"])
    cluster.set_group("low", weight=1_000.0)
    cluster.restart_rm()
    after = cluster.state.flows.usage(cluster.state.flows.groups["low"])
    assert before.total > 0
    assert after.total / after.weight == pytest.approx(before.total / before.weight)
