"""Samples of groups over the last hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.errors import Reason
from finegrain.resources import GIB
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.groups import FlowView, GroupView
from resource_manager.engine.model.entities import Group
from resource_manager.service import group_use
from resource_manager.service.group_use import GROUPS_MAX, WINDOW_MS, GroupUse
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    next_events,
    refusal,
    running_rm,
    slot_request,
)

MINUTE_MS = 60_000


def view(name: str, cpu_milli: int = 0, waiting: int = 0) -> GroupView:
    used = {"cpu_milli": cpu_milli, "memory_bytes": GIB, "managed_memory_bytes": GIB}
    running = 1 if cpu_milli else 0
    flow = FlowView(share_now=0.25, service=1.0, tally=1.0, oldest_wait_time_ms=None)
    return GroupView(
        group=Group(name),
        flow=flow,
        share_entitled=0.5,
        used=used if cpu_milli else {},
        running=running,
        waiting=waiting,
        jobs=1,
    )


def cpu_milli(use: GroupUse, name: str) -> list[int]:
    return [each.cpu_milli for each in use.of(name)]


def test_a_sample_has_amounts_and_shares() -> None:
    use = GroupUse()
    use.add([view("research", 1500, waiting=3)], 1_000)
    (sample,) = use.of("research")
    assert (sample.cpu_milli, sample.memory_bytes, sample.waiting) == (1500, 2 * GIB, 3)
    assert (sample.share_now, sample.share_entitled) == (0.25, 0.5)
    assert sample.sample_time.ToMilliseconds() == 1_000


def test_samples_are_kept_for_an_hour() -> None:
    use = GroupUse()
    for minute in range(70):
        use.add([view("research", 1000 + minute)], minute * MINUTE_MS)
    assert cpu_milli(use, "research") == [1000 + minute for minute in range(10, 70)]
    assert 59 * MINUTE_MS < WINDOW_MS


def test_idle_and_deleted_groups_have_none() -> None:
    use = GroupUse()
    use.add([view("idle"), view("waits", waiting=1), view("deleted", 5)], 0)
    use.add([view("idle"), view("waits")], MINUTE_MS)
    assert [cpu_milli(use, name) for name in ("idle", "waits", "deleted")] == [[], [], []]


def test_a_clock_that_was_set_back_begins_again() -> None:
    use = GroupUse()
    use.add([view("research", 1)], 10 * MINUTE_MS)
    use.add([view("research", 2)], MINUTE_MS)
    assert cpu_milli(use, "research") == [2]


def test_the_number_of_groups_has_a_bound() -> None:
    use = GroupUse()
    use.add([view(f"g{number}", 1) for number in range(GROUPS_MAX + 5)], 0)
    assert cpu_milli(use, f"g{GROUPS_MAX - 1}") == [1]
    assert cpu_milli(use, f"g{GROUPS_MAX}") == []


async def test_a_resource_manager_samples_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_use, "STEP_S", 0.02)

    async def samples(rm: RunningRm) -> list[cluster_pb2.UsageSample]:
        answer = await rm.cluster.GetUsage(cluster_pb2.GetUsageRequest(group="default"))
        return list(answer.samples)

    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        assert await samples(rm) == []  # the group has no slot and no request
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1", cpu_milli=3000))
        await next_events(stream, 1)
        await eventually(lambda: samples(rm), what="a sample of the group")
        stream.cancel()
        last = (await samples(rm))[-1]
        assert (last.cpu_milli, last.share_now) == (3000, 1.0)
        for asked, reason in (
            (cluster_pb2.GetUsageRequest(group="other"), Reason.GROUP_UNKNOWN),
            (cluster_pb2.GetUsageRequest(group="a", executor_id="b"), Reason.INVALID_ARGUMENT),
        ):
            assert (await refusal(rm.cluster.GetUsage(asked))).reason is reason
