"""The executor's part of the conversation with the resource manager: it registers, reports,
reconciles, and continues without a manager.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    Reason,
    StoreError,
    Unavailable,
)
from finegrain.rpc.allocation_tokens import ShownToken
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.identity_pb2 import AllocationClaims
from finegrain.v1.task_executor_pb2 import AllocateSlotsRequest, SubmitTaskRequest, TaskSpec
from task_executor.host.boot_clock import boot_seconds
from task_executor.host.helper_messages import Reconnected, Usage
from task_executor.service import agent as agent_module
from task_executor.service import usage as usage_module
from task_executor.service.manager_link import ManagerLink
from tests.support.identities import caller
from tests.task_executor.service.conftest import TOTAL, Executor, executor_at
from tests.task_executor.service.scripted_rm import OWNER, ScriptedRM, allocation, eventually, free


async def test_a_registration_tells_everything(rm: ScriptedRM, executor: Executor) -> None:
    told = rm.registered
    assert told.executor_id == "host-a"
    assert told.address == executor.front.address
    total = told.total.cpu_milli, told.total.memory_bytes, told.total.best_effort_cpu_milli
    assert total == tuple(TOTAL.values())
    assert told.default_slot_profile.cpu_milli > 0
    assert told.topology.online_cpus
    assert told.report.report_number > 0
    assert told.report.available == told.total
    assert (told.boot_id, told.isolation.driver, told.shared_cpus) == ("boot", "v1", "0-3")
    assert told.protocol_version == "1.1"


async def test_reports_come_at_the_interval_and_say_that_nothing_changed(
    rm: ScriptedRM, executor: Executor
) -> None:
    await eventually(lambda: len(rm.reports) >= 4, "some reports come")
    numbers = [report.report.report_number for report in rm.reports]
    first = rm.registered.report.report_number + 1
    assert numbers == list(range(first, first + len(numbers)))
    assert all(report.report.unchanged for report in rm.reports)
    assert rm.reports[2].report.base_report_number == numbers[1]
    assert rm.reports[0].registration_number == 1


async def test_a_change_is_told_at_once(rm: ScriptedRM, executor: Executor) -> None:
    rm.report_interval_ms, rm.register_again = 3_600_000, True
    await eventually(lambda: len(rm.registrations) == 2, "it registers again")
    before = len(rm.reports)
    # The answers to commands contain the new slots, so nothing else must report them.
    await rm.allocate(allocation(), allocation("broken"))
    del executor.helper.slots["broken", 1]
    executor.helper.tell(Reconnected())
    await eventually(lambda: rm.slots() == {"slot": 2}, "the end is reported")
    assert rm.ended() == {"broken": "SLOT_BROKEN"}
    assert rm.reports[-1].report.command_number == 1
    assert len(rm.reports) - before <= 4


async def test_an_rm_that_restarted_gets_a_full_registration(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    rm.rm_epoch, rm.register_again = 2, True
    await eventually(lambda: len(rm.registrations) == 2, "it registers again")
    assert [slot.allocation_id for slot in rm.registered.report.slots] == ["slot"]
    await eventually(lambda: rm.reports[-1].registration_number == 2, "it reports under it")
    assert not (await rm.allocate(allocation("next"))).results[0].HasField("error")


async def test_an_rm_that_lost_the_base_gets_everything(rm: ScriptedRM, executor: Executor) -> None:
    await eventually(lambda: rm.reports[-1].report.unchanged, "nothing changes")
    count = len(rm.full_reports())
    rm.send_full_report = True
    await eventually(lambda: len(rm.full_reports()) > count, "it tells everything")


@pytest.mark.parametrize("generation", [1, 0], ids=["by generation", "whichever is current"])
async def test_slots_that_nobody_owns_are_freed(
    rm: ScriptedRM, executor: Executor, generation: int
) -> None:
    await rm.allocate(allocation("kept"), allocation("lost"))
    rm.unowned = [rm_pb2.SlotRelease(allocation_id="lost", generation=generation)]
    await eventually(lambda: set(rm.slots()) == {"kept"}, "the unowned slot is gone")


async def test_while_the_rm_is_away_slots_live_and_it_is_found_again(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await rm.stop()
    await eventually(lambda: not executor.front.agent.state.connected, "it notices")
    assert executor.helper.slots
    await rm.start(rm.address)
    before = len(rm.reports)
    await eventually(lambda: len(rm.reports) > before, "it reports again")
    assert len(rm.registrations) == 1


async def test_orphans_are_freed_after_the_timeout_and_told_when_the_rm_is_back(
    rm: ScriptedRM, tmp_path: Path
) -> None:
    async with executor_at(tmp_path, rm.address) as executor:
        await executor.start(orphan_timeout_ms=300)
        await eventually(lambda: rm.reports, "it reports")
        await rm.allocate(allocation())
        await rm.stop()
        await eventually(lambda: not executor.helper.slots, "the orphan is freed")
        assert boot_seconds() - executor.front.agent.state.contact_at > 0.3
        await rm.start(rm.address)
        await eventually(lambda: rm.ended() == {"slot": "ORPHANED"}, "it is told")
        await eventually(lambda: not rm.reports[-1].report.ended, "and not told for ever")


async def test_orphans_are_kept_where_the_operator_says_never(
    rm: ScriptedRM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0  # after each try it looks for orphans
    next_address = ManagerLink.next_address

    async def counted(link: ManagerLink, error: FinegrainError | None = None) -> float:
        nonlocal tries
        tries += 1
        return await next_address(link, error)

    monkeypatch.setattr(ManagerLink, "next_address", counted)
    async with executor_at(tmp_path, rm.address) as executor:
        await executor.start(orphan_timeout_ms=None)
        await eventually(lambda: rm.reports, "it reports")
        await rm.allocate(allocation())
        await rm.stop()
        await eventually(lambda: not executor.front.agent.state.connected, "it notices")
        executor.front.agent.state.contact_at -= 1e6
        before = tries
        await eventually(lambda: tries >= before + 3, "it tries again")
        assert executor.helper.slots


async def test_the_next_address_is_tried_when_one_does_not_answer(
    rm: ScriptedRM, tmp_path: Path
) -> None:
    standby = ScriptedRM(refuse=Unavailable("not in charge", reason=Reason.NOT_LEADER))
    await standby.start()
    async with executor_at(tmp_path, "127.0.0.1:1", standby.address, rm.address) as executor:
        await executor.start()
        await eventually(lambda: rm.reports, "it finds the one in charge")
    await standby.stop()


async def test_after_a_long_outage_it_is_back_before_it_can_be_called_lost(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses between tries grow, but never beyond the time between two reports."""

    async def next_address(_link: ManagerLink, _error: FinegrainError | None = None) -> float:
        return 3_600.0

    monkeypatch.setattr(ManagerLink, "next_address", next_address)
    rm.refuse = StoreError("the database is away")
    await eventually(lambda: not executor.front.agent.state.connected, "it is refused")
    rm.refuse = None
    before = len(rm.reports)
    await eventually(lambda: len(rm.reports) > before, "it reports again")


async def test_another_instance_under_the_same_name_is_refused_slowly(
    rm: ScriptedRM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "CONFLICT_PAUSE_S", 0.2)
    rm.refuse = AlreadyExists("host-a is alive elsewhere", reason=Reason.INSTANCE_CONFLICT)
    async with executor_at(tmp_path, rm.address) as executor:
        await executor.start()
        first, second = await eventually(lambda: rm.refused_at[1:2] and rm.refused_at, "it asks")
        assert second - first > 0.19  # the pause, less a possible clock error
        assert not executor.front.agent.state.registered
        rm.refuse = None
        await eventually(lambda: rm.reports, "it registers when the other is forgotten")


async def test_a_command_that_overtakes_the_answer_to_the_registration_waits_for_it(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = executor.front.agent
    waits, wait = asyncio.Event(), agent._settled.wait

    async def noted() -> bool:
        waits.set()
        return await wait()

    monkeypatch.setattr(agent._settled, "wait", noted)
    agent._settled.clear()
    executor.front.keeper.fence.unregister()
    early = asyncio.create_task(rm.allocate(allocation()))
    await waits.wait()
    assert not early.done()
    executor.front.keeper.fence.register(1, 1)
    agent._settled.set()
    assert not (await early).results[0].HasField("error")


async def test_an_rm_of_an_older_epoch_is_not_obeyed(rm: ScriptedRM, executor: Executor) -> None:
    rm.rm_epoch, rm.register_again = 5, True
    await eventually(lambda: executor.front.keeper.fence.rm_epoch == 5, "epoch 5 holds")
    rm.rm_epoch = 4
    rm.unowned = [rm_pb2.SlotRelease(allocation_id="slot")]
    await eventually(lambda: not executor.front.agent.state.connected, "it does not listen")
    assert executor.front.keeper.fence.rm_epoch == 5


async def test_a_restart_takes_slots_back_before_it_registers(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("kept"), allocation("vanished"), allocation("freed"))
    executor.helper.destroy_gate.clear()
    await rm.free(free("freed"))
    await executor.crash()
    del executor.helper.slots["vanished", 1]
    kept = executor.helper.slots["kept", 1]
    await executor.helper.create_slot(replace(kept, allocation_id="unknown"))
    executor.helper.destroy_gate.set()
    await executor.start()
    await eventually(lambda: len(rm.registrations) == 2, "it registers")
    await eventually(lambda: set(rm.slots()) == {"kept"}, "what was being freed is freed")
    assert rm.ended() == {"vanished": "SLOT_BROKEN"}
    assert set(executor.helper.slots) == {("kept", 1)}


async def test_a_slot_that_vanishes_while_the_helper_was_away_is_told_as_broken(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.slots.clear()
    executor.helper.tell(Reconnected())
    await eventually(lambda: rm.ended() == {"slot": "SLOT_BROKEN"}, "it is told")
    assert rm.slots() == {}


async def test_a_slot_whose_end_fails_stays_booked_and_is_tried_again(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation())
    destroy, failures = executor.helper.destroy_slot, [Unavailable("busy")] * 2

    async def reluctant(allocation_id: str, generation: int, grace_ms: int = 0) -> None:
        if failures:
            raise failures.pop()
        await destroy(allocation_id, generation, grace_ms)

    monkeypatch.setattr(executor.helper, "destroy_slot", reluctant)
    answer = await rm.free(free())
    await eventually(lambda: not rm.slots(), "it is gone in the end")
    assert answer is not None
    assert not failures


async def test_an_executor_that_stops_takes_nothing_new(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation())
    await executor.front.commands.close()
    await executor.front.runner.close()
    request = AllocateSlotsRequest(
        rm_epoch=1, registration_number=1, command_number=2, allocations=[allocation("late")]
    )
    with pytest.raises(Unavailable, match="stopping"):
        await executor.front.commands.allocate(request)
    task = SubmitTaskRequest(
        task_id="t", allocation_id="slot", generation=1, spec=TaskSpec(argv=["true"])
    )
    claims = AllocationClaims(owner=OWNER, allocation_id="slot", generation=1)
    shown = ShownToken(caller(OWNER), claims)
    with pytest.raises(Unavailable, match="stopping"):
        await executor.front.runner.submit(task, shown)


async def test_a_helper_that_is_away_does_not_hold_up_the_heartbeat(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation())

    async def never() -> Usage:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(usage_module, "ANSWER_S_MAX", 0.05)
    monkeypatch.setattr(usage_module, "MEASURE_S_MIN", 0.0)
    monkeypatch.setattr(executor.helper, "usage", never)
    before = len(rm.reports)
    await eventually(lambda: len(rm.reports) > before + 3, "it goes on reporting")


async def test_numbers_go_on_above_what_the_rm_knows_of_an_earlier_life(
    rm: ScriptedRM, executor: Executor
) -> None:
    known = 7 << 50
    rm.refuse = FailedPrecondition(
        "overtaken", reason=Reason.STALE_REGISTRATION, details={"report_number": known}
    )
    before = len(rm.registrations)
    reports = executor.front.keeper.reports
    await eventually(lambda: reports.report_number > known, "the executor is told")
    rm.refuse = None
    await eventually(lambda: len(rm.registrations) > before, "it registers again")
    assert rm.registered.report.report_number > known
