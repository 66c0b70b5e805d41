"""Slots with dedicated cpus: other slots leave these cpus before, and return when the slot has
ended. Whatever fails, each slot has a cpu and the slot table is correct.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import HostPolicy, QosClass
from finegrain.cpu_pools import places_of
from finegrain.cpuset import CpuSet
from finegrain.errors import FailedPrecondition, Reason, Unavailable
from finegrain.rpc.wire_cpus import assignment_to_proto, host_policy_to_proto
from finegrain.v1 import cpus_pb2
from finegrain.v1 import task_executor_pb2 as te
from task_executor.engine.cpu_ledger import HostCpus
from task_executor.host.helper_messages import IsolationReport, Reconnected, SlotLimits
from task_executor.service import checkpoint
from tests.task_executor.service.conftest import Executor, executor_at
from tests.task_executor.service.scripted_rm import (
    MIB,
    ScriptedRM,
    allocation,
    eventually,
    free,
)
from tests.task_executor.service.test_metrics import values
from tests.task_executor.service.test_recovery import again

STUCK = FailedPrecondition("a cpu is stuck", reason=Reason.CARVE_FAILED)


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def assigned(name: str, assignment: CpuAssignment, **more: Any) -> te.SlotAllocation:
    more = {"cpu_milli": 1000 * len(assignment.cpus) or 500} | more
    return allocation(
        name, assignment=assignment_to_proto(assignment), cpus=str(assignment.cpus), **more
    )


def pinned(name: str, own: str, qos: QosClass = QosClass.LSR) -> te.SlotAllocation:
    return assigned(name, CpuAssignment(qos, cpus(own)))


def reasons(answer: te.AllocateSlotsResponse) -> list[str]:
    return [each.error.reason for each in answer.results]


def on_host(executor: Executor) -> dict[str, str]:
    return {key[0]: limits.cpus for key, limits in sorted(executor.helper.slots.items())}


def moves(executor: Executor) -> list[str]:
    return executor.helper.said("place")


def ordered(executor: Executor) -> list[str]:
    told = ("create", "place", "resize", "destroy")
    return [call for call in executor.helper.calls if call.startswith(told)]


async def settled(executor: Executor) -> None:
    await eventually(
        lambda: not executor.front.keeper.cpu_bindings.is_out_of_sync, "all run where they should"
    )


async def test_who_shares_is_moved_off_first_and_back_last(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"), assigned("idle", CpuAssignment(QosClass.BE)))
    assert on_host(executor) == {"plain": "0-3", "idle": "0-3"}
    assert reasons(await rm.allocate(pinned("own", "2-3", QosClass.LSE))) == [""]
    assert on_host(executor) == {"plain": "0-1", "idle": "0-1", "own": "2-3"}
    await rm.free(free("own"))
    await settled(executor)
    assert ordered(executor) == [
        "create plain.1",
        "create idle.1",
        "place plain:0-1 idle:0-1",
        "create own.1",
        "destroy own.1 0",
        "place plain:0-3 idle:0-3",
    ]


async def test_best_effort_stays_on_the_cpus_of_one_that_shares_with_it(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"), assigned("idle", CpuAssignment(QosClass.BE)))
    await rm.allocate(pinned("own", "2-3"))
    assert on_host(executor) == {"plain": "0-1", "idle": "0-3", "own": "2-3"}
    assert moves(executor) == ["place plain:0-1"]


async def test_what_is_enforced_of_each_class(rm: ScriptedRM, executor: Executor) -> None:
    near = CpuAssignment(QosClass.LSE, cpus("1"), memory_nodes=cpus("0"))
    answer = await rm.allocate(
        assigned("own", near),
        assigned("idle", CpuAssignment(QosClass.BE)),
        allocation("plain", cpu_limit_milli=700),
    )
    assert reasons(answer) == ["", "", ""]
    told = executor.helper.slots
    assert told["own", 1] == SlotLimits("own", 1, 1000, 64 * MIB, -1, "1", "0", 4096)
    assert told["idle", 1] == SlotLimits(
        "idle", 1, 500, 64 * MIB, 500, "0,2-3", "", 4096, best_effort=True
    )
    assert told["plain", 1] == SlotLimits("plain", 1, 500, 64 * MIB, 700, "0,2-3", "", 4096)
    shown = {slot.allocation_id: slot for slot in answer.report.slots}
    assert (shown["own"].cpus, shown["own"].isolation.cpu) == ("1", "cpus")
    assert shown["own"].assignment == assignment_to_proto(near)
    assert (shown["plain"].cpus, shown["plain"].isolation.cpu) == ("", "quota")
    assert not shown["plain"].HasField("assignment")
    available = answer.report.available
    assert (available.cpu_milli, available.best_effort_cpu_milli) == (2500, 3500)


async def test_several_at_once_move_the_others_once(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation("plain"))
    answer = await rm.allocate(pinned("a", "1"), pinned("b", "2"), allocation("more"))
    assert reasons(answer) == ["", "", ""]
    assert on_host(executor) == {"a": "1", "b": "2", "more": "0,3", "plain": "0,3"}
    assert moves(executor) == ["place plain:0,3"]
    await rm.free(free("a"), free("b"))
    await settled(executor)
    assert on_host(executor) == {"more": "0-3", "plain": "0-3"}


async def test_where_the_others_cannot_be_moved_it_is_refused_and_they_stay(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"))
    executor.helper.refuse_place = STUCK
    answer = await rm.allocate(pinned("own", "2-3"), allocation("more"))
    assert reasons(answer) == ["CARVE_FAILED", ""]
    assert "a cpu is stuck" in answer.results[0].error.message
    assert [slot.allocation_id for slot in answer.report.slots] == ["plain", "more"]
    assert answer.report.available.cpu_milli == 3000
    assert on_host(executor) == {"more": "0-3", "plain": "0-3"}
    assert "create own.1" not in executor.helper.calls
    executor.helper.refuse_place = None
    assert reasons(await rm.allocate(pinned("own", "2-3"))) == [""]
    assert on_host(executor) == {"more": "0-1", "own": "2-3", "plain": "0-1"}


async def test_where_it_cannot_be_carved_the_others_come_back(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"))
    executor.helper.refuse_create["own"] = STUCK
    assert reasons(await rm.allocate(pinned("own", "2-3"))) == ["CARVE_FAILED"]
    await settled(executor)
    assert moves(executor) == ["place plain:0-1", "place plain:0-3"]
    assert on_host(executor) == {"plain": "0-3"}


async def test_one_that_is_going_keeps_its_cpus_and_those_who_share_are_moved_all_the_same(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"), pinned("own", "1"))
    executor.helper.destroy_gate.clear()
    await rm.free(free("own"), free("plain"))
    answer = await rm.allocate(pinned("late", "1"), pinned("other", "3"))
    assert reasons(answer) == ["CPUS_UNAVAILABLE", ""]
    assert answer.results[0].error.details["held.cpus"] == "1"
    assert on_host(executor) == {"other": "3", "own": "1", "plain": "0,2"}
    executor.helper.destroy_gate.set()


async def test_a_pinned_slot_changes_its_size_and_the_pools_follow(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"), pinned("slot", "2"))

    async def become(number: int, own: str) -> te.TaskExecutorServiceResizeSlotResponse:
        wanted = CpuAssignment(QosClass.LSR, cpus(own))
        return await rm.resize(
            number, cpu_milli=1000 * len(wanted.cpus), assignment=assignment_to_proto(wanted)
        )

    del executor.helper.calls[:]
    answer = await become(1, "2-3")
    assert answer.result.error.reason == ""
    assert {slot.allocation_id: slot.cpus for slot in answer.report.slots}["slot"] == "2-3"
    assert (await become(2, "1")).result.error.reason == ""
    assert ordered(executor) == [
        "place plain:0-1",
        "resize slot.1",
        "place plain:0",
        "resize slot.1",
        "place plain:0,2-3",
    ]
    assert on_host(executor) == {"plain": "0,2-3", "slot": "1"}
    assert executor.helper.slots["slot", 1].cpu_limit_milli == -1


async def test_a_growth_for_which_nobody_can_make_room_is_refused(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"), pinned("slot", "2"))
    executor.helper.refuse_place = STUCK
    wanted = assignment_to_proto(CpuAssignment(QosClass.LSR, cpus("2-3")))
    answer = await rm.resize(1, cpu_milli=2000, assignment=wanted)
    assert answer.result.error.reason == "CARVE_FAILED"
    assert answer.report.available.cpu_milli == 2500
    executor.helper.refuse_place = None
    await executor.front.keeper.cpu_bindings.sync_or_log()
    assert on_host(executor) == {"plain": "0-1,3", "slot": "2"}
    assert (await rm.resize(2, cpu_milli=2000, assignment=wanted)).result.error.reason == ""
    assert on_host(executor) == {"plain": "0-1", "slot": "2-3"}


async def test_a_change_that_was_done_unheard_and_refused_when_it_was_said_again_is_undone(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal means only that the second call changed nothing; the host has the new cpus since
    the first call.
    """
    await rm.allocate(allocation("plain"), pinned("slot", "2"))
    enforce, answers = executor.helper.resize_slot, [Unavailable("it went away"), STUCK]

    async def resize_slot(limits: SlotLimits) -> IsolationReport:
        if limits.cpus == "2-3" and answers:
            error = answers.pop(0)
            if error is not STUCK:
                await enforce(limits)
            raise error
        return await enforce(limits)

    monkeypatch.setattr(executor.helper, "resize_slot", resize_slot)
    wanted = assignment_to_proto(CpuAssignment(QosClass.LSR, cpus("2-3")))
    answer = await rm.resize(1, cpu_milli=2000, assignment=wanted)  # the channel repeats it
    assert not answers
    assert answer.result.error.reason == "CARVE_FAILED"
    assert on_host(executor) == {"plain": "0-1,3", "slot": "2"}


async def test_while_nobody_knows_its_size_both_are_its_own(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"), pinned("slot", "2"))
    executor.helper.refuse_resize = Unavailable("no helper answers")
    wanted = assignment_to_proto(CpuAssignment(QosClass.LSR, cpus("3")))
    with pytest.raises(Unavailable):
        await rm.resize(1, cpu_milli=1000, assignment=wanted)
    assert on_host(executor) == {"plain": "0-1", "slot": "2"}
    executor.helper.refuse_resize = None
    executor.helper.tell(Reconnected())
    await eventually(lambda: on_host(executor)["slot"] == "3", "it is carried out")
    await settled(executor)
    assert on_host(executor) == {"plain": "0-2", "slot": "3"}


@pytest.mark.parametrize("reboot", [False, True])
async def test_a_front_that_comes_back_says_anew_where_all_run(
    rm: ScriptedRM, executor: Executor, reboot: bool
) -> None:
    """It does not trust the records: the former front may have died in the middle of a move."""
    await rm.allocate(allocation("plain"), pinned("own", "2-3"))
    await executor.crash()
    if reboot:
        executor.helper.slots.clear()
        executor.helper.boot_id = "another"
    else:
        stale = executor.helper.slots["plain", 1]
        executor.helper.slots["plain", 1] = replace(stale, cpus="0-3")
    del executor.helper.calls[:]
    await again(rm, executor)
    if reboot:
        assert moves(executor) == []
        assert reasons(await rm.allocate(pinned("new", "2-3"))) == [""]
    else:
        assert moves(executor) == ["place own:2-3 plain:0-1"]
        assert on_host(executor) == {"own": "2-3", "plain": "0-1"}
        assert rm.registered.report.slots[1].assignment.cpus == "2-3"
        assert reasons(await rm.allocate(pinned("new", "3"))) == ["CPUS_UNAVAILABLE"]


async def test_a_front_that_died_before_it_kept_a_slot_gives_its_cpus_back_when_it_is_gone(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"), pinned("own", "2-3"))
    await executor.crash()
    path = executor.folder / "state" / "state.json"
    content = checkpoint.read_document(path)
    assert content is not None
    content["slots"] = [each for each in content["slots"] if each["spec"]["cpus"] == ""]
    checkpoint.write_document(path, content)
    executor.helper.destroy_gate.clear()
    restart = asyncio.create_task(again(rm, executor))
    await eventually(lambda: executor.helper.said("destroy"), "it is being removed")
    assert on_host(executor) == {"own": "2-3", "plain": "0-1"}
    executor.helper.destroy_gate.set()
    await restart
    await settled(executor)
    assert on_host(executor) == {"plain": "0-3"}


async def test_a_helper_that_comes_back_is_told_anew(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation("plain"), pinned("own", "2-3"))
    del executor.helper.calls[:]
    executor.helper.tell(Reconnected())
    await eventually(lambda: moves(executor), "it is told")
    assert moves(executor) == ["place own:2-3 plain:0-1"]


async def test_a_move_back_that_failed_is_tried_again(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation("plain"), pinned("own", "2-3"))
    executor.helper.refuse_place = STUCK
    await rm.free(free("own"))
    assert executor.front.keeper.cpu_bindings.is_out_of_sync
    assert (await values(executor))["finegrain_executor_cpu_bindings_out_of_sync"] == 1
    executor.helper.refuse_place = None
    sync = executor.front.sync
    monkeypatch.setattr("task_executor.service.host_sync.SWEEP_S", 0.01)
    sweeping = asyncio.create_task(sync.sweep())
    await settled(executor)
    sweeping.cancel()
    assert on_host(executor) == {"plain": "0-3"}


async def test_what_others_have_written_to_our_groups_is_put_right_now_and_then(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation("plain"), pinned("own", "2-3"))
    executor.helper.slots["plain", 1] = replace(executor.helper.slots["plain", 1], cpus="1")
    monkeypatch.setattr("task_executor.service.host_sync.SWEEP_S", 0.001)
    sweeping = asyncio.create_task(executor.front.sync.sweep())
    await eventually(lambda: on_host(executor) == {"own": "2-3", "plain": "0-1"}, "it is said anew")
    sweeping.cancel()


# -- conditions of the host ----------------------------------------------------------------


async def test_an_operators_reserve_is_followed_kept_and_told_by_its_number(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"))
    strict = HostPolicy(reserved_cpus=cpus("3"), reserved_strict=True)
    rm.policy, rm.policy_number = host_policy_to_proto(strict), 5
    await eventually(lambda: on_host(executor) == {"plain": "0-2"}, "it is followed")
    await eventually(lambda: number_told(rm) == 5, "that is told")
    assert reasons(await rm.allocate(pinned("own", "3"))) == ["CPUS_UNAVAILABLE"]
    rm.policy_number = 0  # the policy is current: the RM sends none
    await executor.crash()
    await again(rm, executor)
    assert number_told(rm) == 5
    assert on_host(executor) == {"plain": "0-2"}
    rm.policy, rm.policy_number = cpus_pb2.HostPolicy(), 6
    await eventually(lambda: on_host(executor) == {"plain": "0-3"}, "nothing is reserved any more")
    await eventually(lambda: number_told(rm) == 6, "that is told")
    assert reasons(await rm.allocate(pinned("own", "3"))) == [""]


async def test_settings_of_restored_books_are_followed_under_a_number_that_was_given_out_before(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"))
    strict = HostPolicy(reserved_cpus=cpus("3"), reserved_strict=True)
    rm.policy, rm.policy_number = host_policy_to_proto(strict), 5
    await eventually(lambda: number_told(rm) == 5, "it is followed")
    await executor.crash()
    rm.policy = host_policy_to_proto(replace(strict, reserved_cpus=cpus("2")))
    await again(rm, executor)
    await eventually(lambda: on_host(executor) == {"plain": "0-1,3"}, "the other one is, too")


async def test_slots_that_move_slowly_for_an_operators_word_hold_up_no_heartbeat(
    rm: ScriptedRM, executor: Executor
) -> None:
    """If an executor is silent for too long, it is lost with all its slots."""
    await rm.allocate(allocation("plain"))
    executor.helper.place_gate.clear()
    strict = HostPolicy(reserved_cpus=cpus("3"), reserved_strict=True)
    rm.policy, rm.policy_number = host_policy_to_proto(strict), 5
    await eventually(lambda: number_told(rm) == 5, "it is told")
    before = len(rm.reports)
    await eventually(lambda: len(rm.reports) > before + 3, "it goes on reporting")
    assert on_host(executor) == {"plain": "0-3"}
    executor.helper.place_gate.set()
    await eventually(lambda: on_host(executor) == {"plain": "0-2"}, "it is followed")


def number_told(rm: ScriptedRM) -> int:
    return rm.full_reports()[-1].cpu_state.host_policy_number


async def test_a_policy_of_words_that_nobody_knows_is_not_followed(
    rm: ScriptedRM, executor: Executor
) -> None:
    rm.policy, rm.policy_number = cpus_pb2.HostPolicy(reserved_cpus="3-1"), 7
    before = len(rm.reports)
    await eventually(lambda: len(rm.reports) > before + 2, "it goes on reporting")
    assert number_told(rm) == 0


async def test_what_goes_offline_leaves_the_pools_and_is_told(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"))
    await executor.front.keeper.update_conditions(offline=cpus("1"), notes=("cpu 1 has gone",))
    assert on_host(executor) == {"plain": "0,2-3"}
    await eventually(lambda: rm.full_reports()[-1].cpu_state.offline_cpus == "1", "it is told")
    assert rm.full_reports()[-1].cpu_state.notes == ["cpu 1 has gone"]
    shown = await values(executor)
    found = {
        use: shown[f'finegrain_executor_cpus{{use="{use}"}}'] for use in ("dedicated", "offline")
    }
    assert found == {"dedicated": 0, "offline": 1}


async def test_the_numbers_of_pools_are_shown(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(pinned("own", "2-3"), assigned("idle", CpuAssignment(QosClass.BE)))
    shown = await values(executor)
    uses = ("dedicated", "shared_pool", "best_effort_pool", "reserved")
    assert [shown[f'finegrain_executor_cpus{{use="{use}"}}'] for use in uses] == [2, 2, 4, 0]
    assert shown['finegrain_executor_best_effort_cpu_cores{state="total"}'] == 4
    assert shown['finegrain_executor_best_effort_cpu_cores{state="allocated"}'] == 0.5


async def test_what_an_executor_announces_of_its_cpus(rm: ScriptedRM, executor: Executor) -> None:
    announced = rm.registered.host_cpus
    assert announced.slot_cpus == "0-3"
    assert not announced.policy.HasField("reserved_cpus")
    nodes = executor.front._prepared.plan.topology.numa_nodes
    assert [zone.numa_node_id for zone in announced.numa] == [node.id for node in nodes]


async def test_cpus_of_which_others_have_a_share_are_not_announced(
    rm: ScriptedRM, tmp_path: Path
) -> None:
    async with executor_at(tmp_path, rm.address) as made:
        await made.start(cpu_milli=100)
        await eventually(lambda: rm.reports, "it reports")
        assert not rm.registered.HasField("host_cpus")


@pytest.fixture
async def two_nodes(rm: ScriptedRM, tmp_path: Path) -> AsyncIterator[Executor]:
    """Yields an executor whose four cpus seem to belong to two NUMA nodes."""
    async with executor_at(tmp_path, rm.address) as made:
        cores = [(PoolName(0, 0), cpus("0-1")), (PoolName(0, 1), cpus("2-3"))]
        made.host_cpus = HostCpus(cpus("0-3"), pools=places_of(cores, cpus("0-3")))
        await made.start()
        await eventually(lambda: rm.reports, "it reports")
        yield made


async def test_one_that_is_bound_to_a_pool_stays_in_it(rm: ScriptedRM, two_nodes: Executor) -> None:
    near = CpuAssignment(QosClass.LS, pools=(PoolName(0, 1),), memory_nodes=cpus("0"))
    await rm.allocate(assigned("near", near), pinned("own", "2"))
    assert on_host(two_nodes) == {"near": "3", "own": "2"}
    assert two_nodes.helper.slots["near", 1].mems == "0"
    answer = await rm.allocate(pinned("greedy", "3"))
    assert reasons(answer) == ["CPUS_UNAVAILABLE"]
    assert "package 0 node 1" in answer.results[0].error.message
    answer = await rm.allocate(assigned("far", CpuAssignment(QosClass.LS, pools=(PoolName(0, 7),))))
    assert reasons(answer) == ["INVALID_ARGUMENT"]
