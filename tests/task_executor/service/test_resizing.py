"""Slots change their size by commands over real gRPC; every step is durable and reported."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    PermissionDenied,
    Reason,
    Unavailable,
)
from finegrain.v1 import slots_pb2
from finegrain.v1 import task_executor_pb2 as te
from finegrain.v1.resource_manager_pb2 import SlotRelease
from task_executor.engine.slots import SlotKey
from task_executor.host.helper_messages import IsolationReport, Reconnected, SlotLimits
from task_executor.service import checkpoint, host_sync
from task_executor.service.resizing import limit_cpu
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.fake_helper import ENFORCED
from tests.task_executor.service.scripted_rm import (
    MIB,
    ScriptedRM,
    allocation,
    eventually,
    free,
)
from tests.task_executor.service.test_recovery import again

BELOW_USE = FailedPrecondition(
    "bytes of memory are in use", reason=Reason.BELOW_USE, details={"asked": 1, "used": 2}
)


def reason(answer: te.TaskExecutorServiceResizeSlotResponse) -> str:
    assert answer.result.id == "slot"
    return answer.result.error.reason


def content_of(executor: Executor) -> dict[str, Any]:
    content = checkpoint.read_document(executor.folder / "state" / "state.json")
    assert content is not None
    return content


def on_disk(executor: Executor) -> dict[str, Any]:
    (slot,) = content_of(executor)["slots"]
    return dict(slot)


def size(slot: slots_pb2.SlotStatus) -> tuple[int, int, int, int]:
    return (
        slot.profile.cpu_milli,
        slot.memory_bytes // MIB,
        slot.cpu_limit_milli,
        slot.resize_number,
    )


def told(rm: ScriptedRM) -> list[tuple[int, int, int, int]]:
    """Returns the sizes in the last report with slots."""
    return [size(slot) for slot in rm.full_reports()[-1].slots]


def on_host(executor: Executor) -> tuple[int, int, int | None]:
    limits = executor.helper.slots["slot", 1]
    return limits.cpu_milli, limits.memory_bytes // MIB, limits.cpu_limit_milli


async def test_a_new_size_is_enforced_durable_and_told(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation())
    answer = await rm.resize(1, cpu_milli=1500, heap_bytes=128 * MIB, cpu_limit_milli=2000)
    assert reason(answer) == ""
    (slot,) = answer.report.slots
    assert size(slot) == (1500, 128, 2000, 1)
    assert slot.state == slots_pb2.SLOT_STATE_ALLOCATED
    assert answer.report.available.cpu_milli == 2500
    assert answer.report.command_number == 2
    assert on_host(executor) == (1500, 128, 2000)
    saved = on_disk(executor)
    assert (saved["spec"]["resize_number"], saved["becoming"]) == (1, None)
    assert size((await rm.resize(2, cpu_milli=200)).report.slots[0]) == (200, 64, 200, 2)
    await eventually(lambda: told(rm) == [(200, 64, 200, 2)], "reports tell it, too")


@pytest.mark.parametrize("milli", [15, 1234])
async def test_odd_amounts_of_cpu_reach_the_host_as_they_are(
    rm: ScriptedRM, executor: Executor, milli: int
) -> None:
    await rm.allocate(allocation(cpu_milli=milli))
    assert on_host(executor)[::2] == (milli, milli)
    await rm.resize(1, cpu_milli=500, cpu_limit_milli=milli + 1000)
    assert on_host(executor)[::2] == (500, milli + 1000)
    await rm.resize(2, cpu_milli=milli)
    assert on_host(executor)[::2] == (milli, milli)


async def test_a_quota_lowers_the_limit_and_is_no_new_size(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation(cpu_milli=1000))
    keeper, key = executor.front.keeper, SlotKey("slot", 1)
    await limit_cpu(keeper, {key: 300})
    assert on_host(executor) == (1000, 64, 300)
    assert on_disk(executor)["spec"]["resize_number"] == 0
    await rm.resize(1, cpu_milli=2000)  # a resize keeps the quota
    assert on_host(executor) == (2000, 64, 300)
    calls = len(executor.helper.calls)
    await limit_cpu(keeper, {key: 300})
    assert len(executor.helper.calls) == calls  # nothing to change
    await limit_cpu(keeper, {})
    assert on_host(executor) == (2000, 64, 2000)
    await limit_cpu(keeper, {key: 300})
    await executor.crash()
    await again(rm, executor)  # the next front knows of no quota
    await eventually(lambda: on_host(executor) == (2000, 64, 2000), "the limit is restored")


async def test_intent_and_both_sizes_hold_until_the_host_has_said(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.resize_gate.clear()
    order = asyncio.create_task(rm.resize(1, cpu_milli=100, heap_bytes=512 * MIB))
    await eventually(lambda: executor.helper.said("resize"), "the host is told")
    saved = on_disk(executor)
    assert saved["spec"]["profile"]["cpu_milli"] == 500
    assert saved["becoming"]["profile"]["cpu_milli"] == 100
    await eventually(
        lambda: rm.full_reports()[-1].available.memory_bytes == 512 * MIB, "the growth is booked"
    )
    assert told(rm) == [(500, 64, 500, 0)]
    assert rm.full_reports()[-1].available.cpu_milli == 3500
    executor.helper.resize_gate.set()
    assert (await order).report.available.cpu_milli == 3900


async def test_what_is_enforced_of_the_new_size_is_reported(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resize_slot(limits: SlotLimits) -> IsolationReport:
        return replace(ENFORCED, pids="none")

    await rm.allocate(allocation())
    monkeypatch.setattr(executor.helper, "resize_slot", resize_slot)
    (slot,) = (await rm.resize(1, cpu_milli=200)).report.slots
    assert (slot.isolation.pids, slot.isolation.cpu) == ("none", "quota")
    assert on_disk(executor)["isolation"]["pids"] == "none"


async def test_refusals_leave_the_slot_as_it_is(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation(), allocation("other", cpu_milli=3000))
    before = on_host(executor)
    too_much = await rm.resize(1, cpu_milli=1001)
    assert reason(too_much) == "INSUFFICIENT_RESOURCES"
    details = too_much.result.error.details
    assert (details["asked.cpu_milli"], details["available.cpu_milli"]) == ("501", "500")
    executor.helper.refuse_resize = BELOW_USE
    below = await rm.resize(1, heap_bytes=1 * MIB)
    assert reason(below) == "BELOW_USE"
    assert (below.result.error.details["asked"], below.result.error.details["used"]) == ("1", "2")
    executor.helper.refuse_resize = FailedPrecondition("cpu.max: EINVAL")
    assert reason(await rm.resize(1, cpu_milli=400)) == "CARVE_FAILED"
    assert size(below.report.slots[0]) == (500, 64, 500, 0)
    assert on_host(executor) == before
    assert {each["becoming"] for each in content_of(executor)["slots"]} == {None}
    executor.helper.refuse_resize = None
    assert reason(await rm.resize(1, cpu_milli=400)) == ""


@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        pytest.param({"allocation_id": "unknown"}, "ALLOCATION_UNKNOWN", id="no such slot"),
        pytest.param({"generation": 2}, "ALLOCATION_UNKNOWN", id="another generation"),
        pytest.param({"allocation_id": "../evil"}, "INVALID_ARGUMENT", id="no id"),
        pytest.param({"resize_number": 0}, "INVALID_ARGUMENT", id="no number"),
        pytest.param({"cpu_milli": -1}, "INVALID_ARGUMENT", id="less than nothing"),
        pytest.param({"memory_bytes": MIB}, "INVALID_ARGUMENT", id="memory that differs"),
        pytest.param({"cpu_limit_milli": 400}, "INVALID_ARGUMENT", id="a cap below what is booked"),
    ],
)
async def test_orders_that_make_no_sense(
    rm: ScriptedRM, executor: Executor, bad: dict[str, Any], wanted: str
) -> None:
    await rm.allocate(allocation())
    answer = await rm.resize(**{"resize_number": 1} | bad)
    assert answer.result.error.reason == wanted
    assert not executor.helper.said("resize")


async def test_the_same_command_again_gets_the_recorded_answer(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    first = await rm.resize(1, cpu_milli=900)
    assert await rm.resize(1, cpu_milli=900, number=2) == first
    assert len(executor.helper.said("resize")) == 1
    with pytest.raises(FailedPrecondition) as refused:
        await rm.resize(1, cpu_milli=901, number=2)
    assert refused.value.reason is Reason.COMMAND_OUT_OF_ORDER


async def test_the_same_change_in_another_command_is_the_same_and_an_older_one_is_stale(
    rm: ScriptedRM, executor: Executor
) -> None:
    """A resource manager that does not know the outcome after a restart repeats the change."""
    await rm.allocate(allocation())
    await rm.resize(4, cpu_milli=900)
    assert reason(await rm.resize(4, cpu_milli=900)) == ""
    assert len(executor.helper.said("resize")) == 1
    for number in (3, 4):
        stale = await rm.resize(number, cpu_milli=700)
        assert reason(stale) == "STALE_RESIZE"
        assert stale.result.error.details["resize_number"] == "4"
        assert size(stale.report.slots[0]) == (900, 64, 900, 4)


async def test_a_disk_that_is_full_refuses_it_before_the_host_is_told(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(checkpoint, "write_document", full)
        answer = await rm.resize(1, cpu_milli=900)
    assert reason(answer) == "CARVE_FAILED"
    assert "No space left" in answer.result.error.message
    assert not executor.helper.said("resize")
    assert answer.report.available.cpu_milli == 3500
    assert reason(await rm.resize(1, cpu_milli=900)) == ""


async def test_a_slot_that_goes_while_the_disk_turns_out_to_be_full_is_gone(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation())
    keeper = executor.front.keeper

    async def vanish_and_fail() -> None:
        monkeypatch.undo()
        keeper.slot_vanished(SlotKey("slot", 1))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper, "save", vanish_and_fail)
    answer = await rm.resize(1, cpu_milli=900)
    assert reason(answer) == "CARVE_FAILED"
    assert answer.report.available.cpu_milli == 4000


async def test_a_front_that_dies_before_the_host_has_said_is_followed_by_one_that_finishes(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.resize_gate.clear()
    order = asyncio.create_task(rm.resize(3, cpu_milli=1500, heap_bytes=32 * MIB))
    await eventually(lambda: executor.helper.said("resize"), "the host is told")
    await executor.crash()
    await asyncio.gather(order, return_exceptions=True)
    assert on_host(executor) == (500, 64, 500)
    executor.helper.resize_gate.set()
    await again(rm, executor)
    (slot,) = rm.registered.report.slots
    assert size(slot) == (1500, 32, 1500, 3)
    assert on_host(executor) == (1500, 32, 1500)
    assert on_disk(executor)["becoming"] is None
    assert len(executor.helper.said("resize")) == 2


async def test_a_front_that_dies_after_the_host_has_said_is_followed_by_one_that_knows(
    rm: ScriptedRM, executor: Executor
) -> None:
    """The checkpoint still has the intent; the answer of the host is not on disk."""
    await rm.allocate(allocation())
    await rm.resize(1, cpu_milli=900)
    state = executor.folder / "state" / "state.json"
    content = content_of(executor)
    slot = content["slots"][0]
    slot["becoming"] = slot["spec"]
    slot["spec"] = slot["spec"] | {
        "profile": {**slot["spec"]["profile"], "cpu_milli": 500},
        "resize_number": 0,
        "cpu_limit_milli": 500,
    }
    await executor.crash()
    checkpoint.write_document(state, content)
    await again(rm, executor)
    assert size(rm.registered.report.slots[0]) == (900, 64, 900, 1)
    assert on_disk(executor)["becoming"] is None


async def test_an_intent_below_what_tasks_use_by_now_is_given_up(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.resize_gate.clear()
    order = asyncio.create_task(rm.resize(1, heap_bytes=32 * MIB))
    await eventually(lambda: executor.helper.said("resize"), "the host is told")
    await executor.crash()
    await asyncio.gather(order, return_exceptions=True)
    executor.helper.resize_gate.set()
    executor.helper.refuse_resize = BELOW_USE
    await again(rm, executor)
    assert size(rm.registered.report.slots[0]) == (500, 64, 500, 0)
    assert on_disk(executor)["becoming"] is None
    executor.helper.refuse_resize = None
    assert reason(await rm.resize(1, heap_bytes=32 * MIB)) == ""


async def test_while_the_helper_is_away_nothing_is_known_and_both_sizes_are_booked(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.refuse_resize = Unavailable("no helper answers")
    with pytest.raises(Unavailable, match="is not known yet"):
        await rm.resize(1, cpu_milli=1500, heap_bytes=16 * MIB)
    await eventually(
        lambda: rm.full_reports()[-1].available.cpu_milli == 2500, "the growth is booked"
    )
    assert rm.full_reports()[-1].available.memory_bytes == (1024 - 64) * MIB
    assert told(rm) == [(500, 64, 500, 0)]
    assert rm.full_reports()[-1].command_number == 1
    assert reason(await rm.resize(2, cpu_milli=100, number=2)) == "SLOT_NOT_READY"
    executor.helper.refuse_resize = None
    executor.helper.tell(Reconnected())
    await eventually(lambda: told(rm) == [(1500, 16, 1500, 1)], "it is told")
    assert on_host(executor) == (1500, 16, 1500)
    assert reason(await rm.resize(2, cpu_milli=100, number=3)) == ""


async def test_a_helper_that_dies_in_the_middle_is_not_taken_for_one_that_enforces_another_size(
    rm: ScriptedRM, executor: Executor
) -> None:
    """The helper reports the old size while the front waits for the new one."""
    await rm.allocate(allocation())
    executor.helper.resize_gate.clear()
    order = asyncio.create_task(rm.resize(1, cpu_milli=1500))
    await eventually(lambda: executor.helper.said("resize"), "the host is told")
    settling = asyncio.create_task(executor.front.sync.compare())
    for _ in range(10):  # it has read the host's state, and waits
        await asyncio.sleep(0)
    executor.helper.resize_gate.set()
    assert reason(await order) == ""
    await settling
    assert len(executor.helper.said("resize")) == 1


async def test_the_same_command_asks_again_for_what_is_not_known(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.refuse_resize = Unavailable("no helper answers")
    with pytest.raises(Unavailable):
        await rm.resize(1, cpu_milli=1500)
    executor.helper.refuse_resize = None
    answer = await rm.resize(1, cpu_milli=1500, number=2)
    assert reason(answer) == ""
    assert size(answer.report.slots[0]) == (1500, 64, 1500, 1)
    assert answer.report.command_number == 2


async def test_what_is_not_known_is_looked_into_although_nobody_asks(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a helper was stopped for a while, but its connection never broke."""
    await executor.crash()
    monkeypatch.setattr(host_sync, "SWEEP_S", 0.05)
    await again(rm, executor)
    await rm.allocate(allocation())
    executor.helper.refuse_resize = Unavailable("the helper does not answer")
    with pytest.raises(Unavailable):
        await rm.resize(1, cpu_milli=1500)
    executor.helper.refuse_resize = None
    await eventually(lambda: told(rm) == [(1500, 64, 1500, 1)], "it is settled and told")


async def test_changes_are_counted_by_what_became_of_them(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await rm.resize(1, cpu_milli=900)
    for refusal in (BELOW_USE, FailedPrecondition("cpu.max: EINVAL"), BELOW_USE):
        executor.helper.refuse_resize = refusal
        await rm.resize(2, cpu_milli=400)
    name = "finegrain_executor_resize_duration_seconds_count"
    count = executor.front.metrics.registry.get_sample_value
    outcomes = ("resized", "below_use", "failed")
    assert [count(name, {"outcome": each}) for each in outcomes] == [1, 2, 1]


async def test_a_slot_that_is_freed_meanwhile_goes_with_all_that_was_booked(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.resize_gate.clear()
    order = asyncio.create_task(rm.resize(1, cpu_milli=1500))
    await eventually(lambda: executor.helper.said("resize"), "the host is told")
    rm.unowned.append(SlotRelease(allocation_id="slot", generation=1))
    await eventually(lambda: not executor.front.keeper.table.visible(), "it is freed")
    executor.helper.resize_gate.set()
    assert reason(await order) == "ALLOCATION_UNKNOWN"
    assert executor.front.keeper.table.available()["cpu_milli"] == 4000
    executor.front.keeper.table.check_invariants()


async def test_a_slot_that_is_being_freed_keeps_its_size(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.destroy_gate.clear()
    await rm.free(free())
    assert reason(await rm.resize(1, cpu_milli=100)) == "SLOT_NOT_READY"
    executor.helper.destroy_gate.set()


async def test_a_host_that_enforces_another_size_than_promised_is_put_right(
    rm: ScriptedRM, executor: Executor
) -> None:
    """For example, the state directory is from a backup: its sizes are reported and enforced."""
    await rm.allocate(allocation())
    backup = content_of(executor)
    await rm.resize(1, cpu_milli=900, heap_bytes=128 * MIB)
    await executor.crash()
    checkpoint.write_document(executor.folder / "state" / "state.json", backup)
    await again(rm, executor)
    assert size(rm.registered.report.slots[0]) == (500, 64, 500, 0)
    assert on_host(executor) == (500, 64, 500)


async def test_tasks_started_later_are_told_the_new_size(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true", task_id="before")
    await rm.resize(1, cpu_milli=900, heap_bytes=128 * MIB)
    await executor.job_master.submit("true", task_id="after")
    before, after = (executor.helper.specs[name].env for name in ("before", "after"))
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert changed.pop("FINEGRAIN_TASK_ID") == ("before", "after")
    assert changed == {
        "FINEGRAIN_CPU_MILLI": ("500", "900"),
        "FINEGRAIN_MEMORY_BYTES": (str(64 * MIB), str(128 * MIB)),
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_a_state_directory_of_a_version_before_is_read(
    rm: ScriptedRM, executor: Executor, version: int
) -> None:
    await rm.allocate(allocation())
    await executor.crash()
    path = executor.folder / "state" / "state.json"
    content = content_of(executor)
    del content["policy"], content["policy_number"]
    for slot in content["slots"]:
        del slot["spec"]["assignment"]
        if version == 1:
            del slot["becoming"], slot["spec"]["resize_number"]
    document = json.loads(checkpoint.encode_document(content))
    assert document["version"] == checkpoint.FORMAT_VERSION
    path.write_text(json.dumps(document | {"version": version}))
    await again(rm, executor)
    assert [slot.allocation_id for slot in rm.registered.report.slots] == ["slot"]
    assert reason(await rm.resize(1, cpu_milli=900)) == ""


async def test_resizing_needs_the_role_rm_and_the_right_executor(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    with pytest.raises(PermissionDenied):
        await executor.job_master.call("ResizeSlot", te.TaskExecutorServiceResizeSlotRequest())
    with pytest.raises(AlreadyExists, match="is for executor another"):
        await rm.resize(1, number=2, of_command={"executor_id": "another"})
