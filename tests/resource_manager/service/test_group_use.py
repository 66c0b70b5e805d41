"""Samples of groups over the last hour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from finegrain.errors import Reason
from finegrain.resources import GIB, MIB
from finegrain.v1 import cluster_pb2, resources_pb2, slots_pb2
from resource_manager.engine.explain.groups import FlowView, GroupView
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.model.entities import Group
from resource_manager.engine.state import State
from resource_manager.service import group_use
from resource_manager.service.group_use import GROUPS_MAX, WINDOW_MS, GroupUse, measured_by_group
from resource_manager.service.measured_use import MeasuredUse
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    fetch,
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


def cluster_with(slots: Mapping[str, str], groups: Mapping[str, str]) -> State:
    """Returns a state with slots on one host, by id with their group, and groups with parents."""
    state = SimpleNamespace(
        hosts={"host": None},
        groups={name: Group(name, parent=parent) for name, parent in groups.items()},
        slots={(name, 1): SimpleNamespace(job_id=f"job-{name}") for name in slots},
        jobs={f"job-{name}": SimpleNamespace(group=group) for name, group in slots.items()},
    )
    return cast("State", state)


def reported(*slots: tuple[str, int, int], clock: Callable[[], int] = lambda: 0) -> MeasuredUse:
    measured = MeasuredUse(clock)
    report = slots_pb2.UsageReport()
    for name, cpu_milli, memory_bytes in slots:
        report.slots.add(
            allocation_id=name, generation=1, cpu_milli=cpu_milli, memory_bytes=memory_bytes
        )
    measured.reported("host", report)
    return measured


def test_a_group_has_the_measured_use_of_all_slots_in_and_below_it() -> None:
    state = cluster_with(
        {"a": "research", "b": "vision", "c": "vision", "d": "default"},
        {"research": "", "vision": "research", "empty": ""},
    )
    measured = reported(("a", 100, MIB), ("b", 20, MIB), ("c", 3, MIB), ("ended", 9999, GIB))
    sums = at_once(measured_by_group(state, measured))
    assert sums == {"vision": (23, 2 * MIB), "research": (123, 3 * MIB)}
    use = GroupUse()
    use.add([view("research", 1500)], 1_000, sums)
    (sample,) = use.of("research")
    assert (sample.measured_cpu_milli, sample.measured_memory_bytes) == (123, 3 * MIB)
    assert use.measured_now("research") == (123, 3 * MIB)
    assert use.measured_now("empty") is None


def test_old_measurements_do_not_count() -> None:
    time_ms = 0
    measured = reported(("a", 100, MIB), clock=lambda: time_ms)
    state = cluster_with({"a": "research"}, {"research": ""})
    time_ms = 2 * MINUTE_MS - 1
    assert at_once(measured_by_group(state, measured)) == {"research": (100, MIB)}
    time_ms = 2 * MINUTE_MS
    assert at_once(measured_by_group(state, measured)) == {}


def test_the_sum_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_use, "SLOTS_AT_ONCE", 2)
    names = [f"s{number}" for number in range(3)]
    state = cluster_with(dict.fromkeys(names, "research"), {"research": ""})
    read = measured_by_group(state, reported(*((name, 10, MIB) for name in names)))
    next(read)
    del state.slots["s0", 1]  # the state can change while a read pauses
    with pytest.raises(StopIteration) as ended:
        next(read)
    assert ended.value.value == {"research": (30, 3 * MIB)}


async def test_a_resource_manager_samples_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_use, "STEP_S", 0.02)

    async def samples(rm: RunningRm) -> list[cluster_pb2.UsageSample]:
        answer = await rm.cluster.GetUsage(cluster_pb2.GetUsageRequest(group="default"))
        return list(answer.samples)

    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        assert await samples(rm) == []  # the group has no slot and no request
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1", cpu_milli=3000))
        await next_events(stream, 1)
        await eventually(lambda: samples(rm), what="a sample of the group")
        stream.cancel()
        last = (await samples(rm))[-1]
        assert (last.cpu_milli, last.share_now) == (3000, 1.0)
        used = slots_pb2.SlotUsage(
            allocation_id="slot-1", generation=1, cpu_milli=1700, memory_bytes=GIB
        )
        await executor.send_report(used=[used])

        async def is_measured() -> bool:
            return (await samples(rm))[-1].measured_cpu_milli == 1700

        await eventually(is_measured, what="a sample with measured use")
        listed = (await rm.cluster.ListGroups(cluster_pb2.ListGroupsRequest())).groups
        measured = {each.name: each.measured for each in listed}
        amounts = resources_pb2.ResourceAmounts(cpu_milli=1700, memory_bytes=GIB)
        assert measured["default"] == amounts
        _, text = await fetch(rm.metrics_address, "/metrics")
        assert 'finegrain_rm_group_cpu_cores{group="default",state="measured"} 1.7' in text
        assert 'finegrain_rm_group_memory_bytes{group="default",state="measured"}' in text
        for asked, reason in (
            (cluster_pb2.GetUsageRequest(group="other"), Reason.GROUP_UNKNOWN),
            (cluster_pb2.GetUsageRequest(group="a", executor_id="b"), Reason.INVALID_ARGUMENT),
        ):
            assert (await refusal(rm.cluster.GetUsage(asked))).reason is reason
