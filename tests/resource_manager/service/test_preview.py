"""Tests of previews of administrators' actions over the wire: their content, and that nothing
changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import InvalidArgument, NotFound
from tests.support.rm_service import (
    OPERATOR,
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    running_rm,
    slot_request,
)


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path / "rm") as running:
        yield running


def client(rm: RunningRm, who: str = "viewer/vera") -> Any:
    return fg.connect(rm.address, credentials=rm.own(who).credentials)


async def test_a_drain_says_which_slots_other_executors_have_room_for(rm: RunningRm) -> None:
    async with ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        sizes = {"large-1": 1_500, "large-2": 1_500, "small": 500}
        await job.request(*(slot_request(name, cpu_milli=cpu) for name, cpu in sizes.items()))
        await eventually(lambda: len(executor.slots) == 3)
        async with client(rm) as cluster:
            alone = await cluster.preview("DRAIN", executor_id="host-a")
            assert (alone.slots_total, alone.jobs, alone.moving) == (3, 1, 0)
            total = (await cluster.executor("host-a")).total["cpu_milli"]
            assert total == 4_000
            async with ScriptedExecutor(rm, executor_id="host-b") as other:
                filler = await ScriptedJob(rm, job_id="filler").register()
                await filler.request(slot_request("filler", cpu_milli=2_000))
                await eventually(lambda: other.slots)
                found = await cluster.preview("DRAIN", executor_id="host-a")
            places = {each.allocation_id: each.other_executor_id for each in found.slots}
            executors = await cluster.executors()
    # 2 cores are free there: one large slot and the small one, but not the second large one
    assert places == {"large-1": "host-b", "large-2": "", "small": "host-b"}
    assert found.moving == 2
    assert found.summary == (
        "3 slots of 1 job stay until they end; another executor has room now for 2 of 3"
    )
    assert not any(each.draining for each in executors)
    assert {each.allocated["cpu_milli"] for each in executors} == {3_500, 2_000}


async def test_the_end_of_a_job_and_a_release_name_slots_and_queued_requests(
    rm: RunningRm,
) -> None:
    async with ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        await job.request(slot_request("runs"), slot_request("waits", cpu_milli=3_900))
        await eventually(lambda: executor.slots)
        async with client(rm) as cluster:
            ended = await cluster.preview("END_JOB", job_id=job.job_id)
            released = await cluster.preview("RELEASE", allocation_ids=["runs", "waits"])
            with pytest.raises(NotFound, match="nothing"):
                await cluster.preview("RELEASE", allocation_ids=["nothing"])
    for found in (ended, released):
        assert [(each.allocation_id, each.other_executor_id) for each in found.slots] == [
            ("runs", "")
        ]
        assert found.waiting == 1
        assert found.summary == "1 slot of 1 job end with their tasks, 1 queued request cancelled"


async def test_a_weight_says_the_shares_before_and_after(rm: RunningRm) -> None:
    async with ScriptedExecutor(rm) as executor:
        for name in ("low", "medium"):  # weights 1 and 4
            job = await ScriptedJob(rm, job_id=name, who=OPERATOR).register(group=name)
            await job.request(slot_request(f"of-{name}"))
        await eventually(lambda: len(executor.slots) == 2)
        async with client(rm) as cluster:
            heavier = await cluster.preview("SET_GROUP", group="low", weight=4)
            lower = await cluster.preview("SET_GROUP", group="low", maximum={"slots": 0})
            higher = await cluster.preview("SET_GROUP", group="low", minimum={"slots": 2})
            cpu = await cluster.preview("SET_GROUP", group="low", maximum={"cpu_milli": 1})
            weights = {each.name: each.weight for each in (await cluster.groups()).groups}
    shares = {each.group: (each.before, each.after) for each in heavier.shares}
    assert shares == {"low": (0.2, 0.5), "medium": (0.8, 0.5)}
    assert heavier.summary == "shares: low 20.0% to 50.0%, medium 80.0% to 50.0%"
    assert [(each.group, each.exceeded) for each in lower.shares] == [("low", ("slots",))]
    assert [(each.group, each.below_minimum) for each in higher.shares] == [("low", ("slots",))]
    assert higher.summary == "no share changes now; below the new minimum: slots"
    assert cpu.summary == "no share changes now; already above the new maximum: cpu"
    assert weights["low"] == 1


async def test_a_host_policy_says_the_settings_before_and_after(rm: RunningRm) -> None:
    async with ScriptedExecutor(rm), ScriptedExecutor(rm, executor_id="host-b"), client(rm) as own:
        one = await own.preview("SET_HOST_POLICY", executor_id="host-a", policy={"bind": "None"})
        other = await own.preview(
            "SET_HOST_POLICY", executor_id="host-a", policy={"alignment": "BestEffort"}
        )
        whole = await own.preview("SET_HOST_POLICY", policy={"alignment": "restricted"})
        async with client(rm, "operator/root") as administrator:
            await administrator.set_host_policy("host-a", alignment="Restricted")
        less = await own.preview("SET_HOST_POLICY", policy={"alignment": "Restricted"})
        cleared = await own.preview("SET_HOST_POLICY", executor_id="host-a", clear=["alignment"])
    assert (one.settings, one.executors) == ((), 0)
    assert one.summary == "no setting in effect changes now"
    assert other.summary == "on 1 executor: alignment None to BestEffort"
    assert [each.to_dict() for each in whole.settings] == [
        {"name": "alignment", "before": "None", "after": "Restricted", "executors": 2}
    ]
    assert (less.executors, cleared.summary) == (
        1,
        "on 1 executor: alignment Restricted to None",
    )


@pytest.mark.parametrize(
    ("action", "fields", "text"),
    [
        ("SET_HOST_POLICY", {"executor_id": "host-a"}, "settings to change"),
        ("SET_HOST_POLICY", {"policy": {"reserved_cpus": "0"}}, "no value for the cluster"),
        ("SET_HOST_POLICY", {"policy": {"colour": "red"}}, "policy.colour"),
        ("SET_HOST_POLICY", {"clear": ["colour"]}, "clear is 'colour'"),
        ("DRAIN", {}, "executor_id"),
        ("DRAIN", {"executor_id": "a", "job_id": "j"}, "only executor_id"),
        ("CORDON", {"executor_id": "host-a"}, "device"),
        ("RELEASE", {}, "1 to 1000"),
        ("END_JOB", {"job_id": "a b"}, "job_id"),
        ("SET_GROUP", {"group": "default"}, "weight, maximum or minimum"),
        ("SET_GROUP", {"group": "default", "weight": -1}, "weight is -1"),
        ("SET_GROUP", {"group": "default", "maximum": {"gpu": 1}}, "gpu"),
        ("SET_GROUP", {"group": "default", "minimum": {"gpu": 1}}, "gpu"),
    ],
)
async def test_what_is_wrong_is_named(
    rm: RunningRm, action: str, fields: dict[str, Any], text: str
) -> None:
    async with client(rm) as cluster:
        with pytest.raises(InvalidArgument, match=text):
            await cluster.preview(action, **fields)


async def test_unknown_objects_are_named(rm: RunningRm) -> None:
    async with ScriptedExecutor(rm), client(rm) as cluster:
        for action, fields in (
            ("DRAIN", {"executor_id": "nobody"}),
            ("CORDON", {"executor_id": "host-a", "device": "gpu7"}),
            ("END_JOB", {"job_id": "nobody"}),
            ("SET_GROUP", {"group": "nobody", "weight": 2}),
            ("SET_HOST_POLICY", {"executor_id": "nobody", "policy": {"bind": "None"}}),
        ):
            with pytest.raises(NotFound):
                await cluster.preview(action, **fields)
