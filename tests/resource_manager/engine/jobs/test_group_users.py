"""Who may register jobs in a resource group."""

from __future__ import annotations

import pytest

from finegrain.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    ResourceExhausted,
)
from resource_manager.engine.fairness.groups import adopt_groups
from resource_manager.engine.jobs import group_users
from resource_manager.engine.model.changes import ChangeTracker
from tests.support.books import job
from tests.support.engine_cluster import EngineCluster

ALICE, BOB = "user/alice", "user/bob"


def may_use(cluster: EngineCluster, group: str, owner: str) -> bool:
    """Registers a job, if the owner may."""
    name = f"{owner}-{group}-{len(cluster.state.jobs)}".replace("/", "-")
    refusal = None
    try:
        cluster.job(name, group=group, owner=owner)
    except PermissionDenied as refused:
        refusal = refused
    assert (name in cluster.state.jobs) is (refusal is None)
    if refusal is not None:
        assert refusal.reason is Reason.GROUP_NOT_ALLOWED
        assert f"finegrain groups allow {group} {owner}" in refusal.message
    return refusal is None


def test_a_new_cluster_admits_all_users_to_the_default_group_alone() -> None:
    cluster = EngineCluster(jobs=())
    cluster.set_group("night")
    usable = {name: may_use(cluster, name, ALICE) for name in cluster.state.groups}
    assert {name for name, allowed in usable.items() if allowed} == {"default"}


@pytest.mark.parametrize("group", ["critical", "default"])
def test_administrators_use_every_group(group: str) -> None:
    assert may_use(EngineCluster(jobs=()), group, "operator/ann")


def test_a_refusal_names_what_the_user_may_use() -> None:
    cluster = EngineCluster(jobs=())
    cluster.change_group_users("low", allow=(ALICE,))
    with pytest.raises(PermissionDenied) as refused:
        cluster.job("j", group="critical", owner=ALICE)
    assert "user/alice may not use the resource group critical, but the groups default, low" in (
        refused.value.message
    )
    cluster.change_group_users("default", revoke=("*",))
    cluster.change_group_users("low", revoke=(ALICE,))
    with pytest.raises(PermissionDenied, match="but no group"):
        cluster.job("j", group="critical", owner=ALICE)


def test_rights_are_for_the_named_users_and_outlive_a_restart() -> None:
    cluster = EngineCluster(jobs=())
    assert cluster.change_group_users("critical", allow=(BOB, ALICE, BOB)).users == (ALICE, BOB)
    cluster.change_group_users("critical", revoke=(BOB, "user/unknown"))
    cluster.restart_rm()
    assert cluster.state.groups["critical"].users == (ALICE,)
    assert may_use(cluster, "critical", ALICE)
    assert not may_use(cluster, "critical", BOB)
    assert not may_use(cluster, "critical", "user/alice2")


def test_a_right_covers_the_groups_below() -> None:
    cluster = EngineCluster(jobs=())
    cluster.set_group("research")
    cluster.set_group("vision", parent="research")
    cluster.change_group_users("research", allow=(ALICE,))
    cluster.change_group_users("vision", allow=(BOB,))
    assert may_use(cluster, "vision", ALICE)
    assert may_use(cluster, "vision", BOB)
    assert not may_use(cluster, "research", BOB)


def test_a_revoked_right_ends_no_job_and_its_registration_can_be_repeated() -> None:
    cluster = EngineCluster(jobs=())
    cluster.change_group_users("high", allow=("*",))
    cluster.job("j", group="high", owner=BOB)
    cluster.change_group_users("high", revoke=("*",))
    cluster.job("j", group="high", owner=BOB)
    assert not may_use(cluster, "high", BOB)


def test_the_same_change_again_stores_nothing() -> None:
    cluster = EngineCluster(jobs=())
    first = cluster.change_group_users("high", allow=(ALICE,))
    assert cluster.change_group_users("high", allow=(ALICE,), revoke=(BOB,)) is first


@pytest.mark.parametrize(
    "user", ["alice", "user/", "", "operator/ann", "viewer/v", "executor/x", "rm", "user/a b", "**"]
)
def test_only_users_get_rights(user: str) -> None:
    cluster = EngineCluster(jobs=())
    with pytest.raises(InvalidArgument, match="user/NAME"):
        cluster.change_group_users("high", allow=(user,))
    with pytest.raises(NotFound):
        cluster.change_group_users("nowhere", allow=(ALICE,))


def test_the_number_of_rights_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_users, "RIGHTS_MAX", 3)
    cluster = EngineCluster(jobs=())
    cluster.change_group_users("high", allow=(ALICE, BOB))  # and one of the default group
    with pytest.raises(ResourceExhausted, match="at most 3"):
        cluster.change_group_users("low", allow=(ALICE,))
    assert cluster.change_group_users("high", allow=("*",), revoke=(BOB,)).users == ("*", ALICE)


def test_a_group_that_is_made_for_live_jobs_admits_their_owners() -> None:
    """The owners of jobs of earlier versions are not known, so all users may be theirs."""
    jobs = [
        job("a", group="high", owner=ALICE),
        job("b", group="old", owner=""),
        job("c", group="new", owner=BOB),
    ]
    made = adopt_groups([], jobs, {}, ChangeTracker(), time_ms=1)
    users = {name: group.users for name, group in made.items() if group.users}
    assert users == {"default": ("*",), "high": (ALICE,), "old": ("*",), "new": (BOB,)}
