"""Tests that administrators' programs can read and set resource groups."""

import json

import pytest

import finegrain_client as fg
from tests.client.scripted import Scripted


async def test_groups_with_all_that_they_say(cluster: fg.Cluster) -> None:
    found = await cluster.groups()
    medium, nightly = found.groups
    assert (found.service_measure, found.half_life_s) == ("dominant", 900.0)
    assert (medium.weight, medium.share_entitled, medium.share_now) == (4.0, 0.8, 0.75)
    assert (medium.maximum, medium.minimum) == ({"cpu_milli": 0}, {})
    assert medium.used == {"extended.license": 2}
    assert (nightly.parent, nightly.running, nightly.waiting, nightly.jobs) == ("medium", 3, 7, 1)
    assert nightly.oldest_wait_time is None
    shown = json.loads(json.dumps(found.to_dict()))
    assert shown["groups"][0]["oldest_wait_time"] == "2026-01-02T03:04:05Z"


async def test_only_what_is_given_is_sent(servant: Scripted, cluster: fg.Cluster) -> None:
    group = await cluster.set_group("nightly", weight=0.5, maximum={"cpu_milli": 4_000})
    assert (group.name, group.weight, group.maximum) == ("nightly", 0.5, {"cpu_milli": 4_000})
    await cluster.set_group(
        "nightly", parent="", description="", minimum={"memory_bytes": None, "cpu_milli": 0}
    )
    first, second = servant.calls["SetGroup"]
    assert (first.HasField("weight"), first.HasField("parent")) == (True, False)
    assert (second.HasField("weight"), second.HasField("parent")) == (False, True)
    assert dict(second.minimum) == {"memory_bytes": -1, "cpu_milli": 0}
    await cluster.delete_group("nightly")
    assert servant.calls["DeleteGroup"][0].name == "nightly"


async def test_rules_are_added_and_removed(servant: Scripted, cluster: fg.Cluster) -> None:
    rule = fg.GroupRule(5, "etl-*", "user/alice", (("team", "ml"),))
    group = await cluster.change_group_rules("nightly", add=[rule], remove=[7])
    assert group.rules == (rule,)
    (sent,) = servant.calls["ChangeGroupRules"]
    assert (sent.name, list(sent.remove), dict(sent.add[0].labels)) == (
        "nightly",
        [7],
        {"team": "ml"},
    )


async def test_users_are_allowed_and_revoked(servant: Scripted, cluster: fg.Cluster) -> None:
    group = await cluster.change_group_users("nightly", allow=["user/alice"], revoke=["*"])
    assert group.users == ("user/alice",)
    (sent,) = servant.calls["ChangeGroupUsers"]
    assert (sent.name, list(sent.allow), list(sent.revoke)) == ("nightly", ["user/alice"], ["*"])


async def test_limits_of_users_are_read_and_set(servant: Scripted, cluster: fg.Cluster) -> None:
    (alice,) = await cluster.users()
    assert (alice.user, alice.slots, alice.jobs, alice.requests) == ("user/alice", 2, 1, 3)
    assert (alice.used, alice.maximum, alice.own_limits) == ({"cpu_milli": 500}, {}, False)
    found = await cluster.set_user_limits("*", {"jobs": 3})
    assert (found.user, found.maximum, found.own_limits) == ("*", {"jobs": 3}, True)
    await cluster.set_user_limits("user/alice", {"slots": None})
    assert dict(servant.calls["SetUserLimits"][1].maximum) == {"slots": -1}
    await cluster.delete_user_limits("user/alice")
    assert servant.calls["DeleteUserLimits"][0].user == "user/alice"


async def test_an_amount_below_zero_is_no_limit_by_mistake(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    for amount in (-1, 2**53 + 1, 10**30):
        with pytest.raises(fg.InvalidArgument, match=f"cpu_milli is {amount}; expected"):
            await cluster.set_group("nightly", maximum={"cpu_milli": amount})
    assert not servant.calls["SetGroup"]


async def test_what_is_refused_says_why(servant: Scripted, cluster: fg.Cluster) -> None:
    servant.failures["SetGroup"].append(
        fg.FailedPrecondition("jobs live in it", reason=fg.Reason.GROUP_IN_USE)
    )
    with pytest.raises(fg.FailedPrecondition) as caught:
        await cluster.set_group("nightly", parent="high")
    assert caught.value.reason is fg.Reason.GROUP_IN_USE
