"""Commands of the resource manager over real gRPC: each slot is carved or refused, old commands are
refused, and repeated commands and crashes do no harm.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    Reason,
)
from finegrain.v1 import slots_pb2
from finegrain.v1 import task_executor_pb2 as te
from task_executor.engine.report_log import NumberedState
from task_executor.service import checkpoint
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.fake_helper import ENFORCED
from tests.task_executor.service.scripted_rm import (
    MIB,
    ScriptedRM,
    allocation,
    eventually,
    free,
)


def reasons(answer: te.AllocateSlotsResponse | te.FreeSlotsResponse) -> list[str]:
    return [item.error.reason for item in answer.results]


async def test_a_slot_is_carved_and_told(rm: ScriptedRM, executor: Executor) -> None:
    answer = await rm.allocate(allocation(cpu_milli=1500, memory_bytes=100))
    assert reasons(answer) == [""]
    (slot,) = answer.report.slots
    assert (slot.state, slot.isolation.memory) == (slots_pb2.SLOT_STATE_ALLOCATED, "hard")
    assert (slot.memory_bytes, slot.cpu_limit_milli, slot.pids_max) == (65536, 1500, 4096)
    assert answer.report.available.cpu_milli == 2500
    assert answer.report.command_number == 1
    limits = executor.helper.slots["slot", 1]
    assert (limits.cpus, limits.cpu_milli, limits.memory_bytes) == ("0-3", 1500, 65536)


async def test_every_item_gets_its_own_result(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation("taken"))
    answer = await rm.allocate(
        allocation("fits"),
        allocation("huge", cpu_milli=99_000),
        allocation("taken", cpu_milli=1),
        allocation("../evil"),
        allocation("negative", cpu_milli=-1),
        allocation("old", 0),
        allocation("lies", pids_max=-1),
        allocation("nowhere", target_address="no address"),
    )
    assert reasons(answer) == [
        "",
        "INSUFFICIENT_RESOURCES",
        "ALREADY_EXISTS",
        *["INVALID_ARGUMENT"] * 5,
    ]
    huge = answer.results[1].error.details
    assert (huge["asked.cpu_milli"], huge["total.cpu_milli"]) == ("99000", "4000")
    assert "allocations[4].slot.profile.cpu_milli" in answer.results[4].error.message
    assert {slot.allocation_id for slot in answer.report.slots} == {"taken", "fits"}


async def test_booked_memory_that_differs_from_the_profile_is_refused(
    rm: ScriptedRM, executor: Executor
) -> None:
    wrong = allocation()
    wrong.slot.memory_bytes = 128 * MIB
    assert reasons(await rm.allocate(wrong)) == ["INVALID_ARGUMENT"]


async def test_a_carve_that_fails_leaves_nothing(rm: ScriptedRM, executor: Executor) -> None:
    executor.helper.refuse_create["bad"] = FinegrainError("EBUSY", reason=Reason.CARVE_FAILED)
    answer = await rm.allocate(allocation("bad"), allocation("good"))
    assert reasons(answer) == ["CARVE_FAILED", ""]
    assert [slot.allocation_id for slot in answer.report.slots] == ["good"]
    await eventually(lambda: len(executor.front.keeper.table) == 1, "the booking is gone")
    assert executor.helper.said("destroy bad.1")


async def test_the_same_command_again_gets_the_recorded_answer(
    rm: ScriptedRM, executor: Executor
) -> None:
    first = await rm.allocate(allocation())
    again = await rm.allocate(allocation(), number=1)
    assert again == first
    assert executor.helper.said("create") == ["create slot.1"]


async def test_a_repetition_while_the_first_is_under_way_waits_for_it(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.destroy_gate.clear()
    one, two = (asyncio.create_task(rm.free(free(), number=2)) for _ in range(2))
    await asyncio.sleep(0.05)
    executor.helper.destroy_gate.set()
    assert await one == await two
    assert len(executor.helper.said("destroy")) == 1


async def test_a_caller_who_gives_up_does_not_leave_a_command_half_done(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.destroy_gate.clear()
    given_up = asyncio.create_task(rm.free(free()))
    await eventually(lambda: executor.helper.said("destroy"), "it is being freed")
    given_up.cancel()
    executor.helper.destroy_gate.set()
    answer = await rm.free(free(), number=2)
    assert not answer.report.slots
    assert answer.report.command_number == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"rm_epoch": 0}, Reason.STALE_EPOCH, id="an older epoch"),
        pytest.param({"registration_number": 0}, Reason.STALE_REGISTRATION, id="no registration"),
        pytest.param({"number": 7}, Reason.COMMAND_OUT_OF_ORDER, id="a gap"),
        pytest.param({"number": 1}, Reason.COMMAND_OUT_OF_ORDER, id="an old number, other content"),
    ],
)
async def test_what_is_fenced_off_changes_nothing(
    rm: ScriptedRM, executor: Executor, changes: dict[str, int], reason: Reason
) -> None:
    await rm.allocate(allocation())
    with pytest.raises(FailedPrecondition) as refused:
        await rm.allocate(allocation("stray"), **changes)
    assert refused.value.reason is reason
    assert refused.value.details["known_command_number"] == "1"
    assert list(executor.helper.slots) == [("slot", 1)]


@pytest.mark.parametrize("name", ["rm_epoch", "registration_number", "number"])
async def test_numbers_that_nothing_could_exceed_change_nothing(
    rm: ScriptedRM, executor: Executor, name: str
) -> None:
    with pytest.raises(InvalidArgument):
        await rm.free(free(), **({"number": 1} | {name: 2**62}))
    await rm.allocate(allocation(), number=1)
    assert list(executor.helper.slots) == [("slot", 1)]


async def test_a_higher_epoch_is_on_disk_before_its_command_is_done(
    rm: ScriptedRM, executor: Executor
) -> None:
    rm.rm_epoch = 6
    await rm.allocate(allocation(), number=1)
    content = checkpoint.read_document(executor.folder / "state" / "state.json")
    assert content is not None
    assert content["rm_epoch"] == 6


async def test_a_slot_is_on_disk_before_it_is_answered_for(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    content = checkpoint.read_document(executor.folder / "state" / "state.json")
    assert content is not None
    assert [slot["spec"]["allocation_id"] for slot in content["slots"]] == ["slot"]
    assert "job-secret-of-the-tests" not in json.dumps(content)


async def test_a_slot_that_cannot_be_recorded_is_not_granted(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(checkpoint, "write_document", full)
        answer = await rm.allocate(allocation())
        assert reasons(answer) == ["CARVE_FAILED"]
        assert "No space left" in answer.results[0].error.message
        await eventually(lambda: not executor.helper.slots, "nothing of it is left")
    assert reasons(await rm.allocate(allocation(generation=2))) == [""]


async def test_a_slot_is_not_reported_before_it_is_recorded(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a front could report a slot and die, and the next front would destroy this slot."""
    shown: list[int] = []
    write = checkpoint.write_document

    def slow(*arguments: Any) -> None:
        state = asyncio.run_coroutine_threadsafe(full_state(), loop)
        shown.append(len(state.result(5).slots))
        write(*arguments)

    async def full_state() -> NumberedState:
        return executor.front.keeper.full_state()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(checkpoint, "write_document", slow)
    answer = await rm.allocate(allocation())
    assert reasons(answer) == [""]
    assert shown[0] == 0
    assert len(answer.report.slots) == 1


async def test_freeing_answers_when_all_is_gone(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation("a"), allocation("b"))
    answer = await rm.free(free("a", grace_ms=70), free("unknown"), free("b", generation=9))
    assert reasons(answer) == ["", "", ""]
    assert [slot.allocation_id for slot in answer.report.slots] == ["b"]
    assert executor.helper.said("destroy") == ["destroy a.1 70"]


async def test_what_takes_long_is_freeing_and_told_later(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    executor.helper.destroy_gate.clear()
    answer = await rm.free(free())
    assert [slot.state for slot in answer.report.slots] == [slots_pb2.SLOT_STATE_FREEING]
    assert answer.report.available.cpu_milli == 3500
    executor.helper.destroy_gate.set()
    await eventually(lambda: not rm.slots(), "it is gone")
    assert rm.ended() == {}


@pytest.mark.parametrize("count", [0, 10_001], ids=["no items", "too many items"])
async def test_batches_have_limits(rm: ScriptedRM, executor: Executor, count: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 10000 items"):
        await rm.free(*[free() for _ in range(count)])


async def test_a_thousand_slots_in_one_command(rm: ScriptedRM, executor: Executor) -> None:
    answer = await rm.allocate(
        *(allocation(f"s{i}", cpu_milli=1, memory_bytes=65536) for i in range(1000))
    )
    assert set(reasons(answer)) == {""}
    freed = await rm.free(*(free(f"s{i}") for i in range(1000)))
    assert freed.report.available.cpu_milli == 4000


async def test_orders_for_another_executor_change_nothing(
    rm: ScriptedRM, executor: Executor
) -> None:
    with pytest.raises(AlreadyExists, match="is for executor another") as caught:
        await rm.allocate(allocation(), number=1, executor_id="another")
    assert caught.value.reason is Reason.INSTANCE_CONFLICT
    with pytest.raises(AlreadyExists):
        await rm.free(free(), number=1, executor_id="another")
    own = rm.registered.executor_id
    assert reasons(await rm.allocate(allocation(), number=1, executor_id=own)) == [""]


@pytest.mark.parametrize("owner", ["alice", "user/", "nobody/alice", "user/a b", "rm/x"])
async def test_an_owner_that_is_no_identity_is_refused(
    rm: ScriptedRM, executor: Executor, owner: str
) -> None:
    (result,) = (await rm.allocate(allocation(owner=owner))).results
    assert result.error.reason == "INVALID_ARGUMENT"
    assert "owner" in result.error.message
    assert not executor.helper.slots


async def test_an_answer_is_short_if_the_rm_knows_the_last_report(
    rm: ScriptedRM, executor: Executor
) -> None:
    # A periodic report between two commands would make the report that they name outdated.
    rm.report_interval_ms, rm.register_again = 3_600_000, True
    await eventually(lambda: len(rm.registrations) == 2, "it registers again")
    first = await rm.allocate(allocation("a"))
    known = first.report.report_number
    second = await rm.allocate(allocation("b"), known_report_number=known)
    report = second.report
    assert (report.as_ordered, report.base_report_number) == (True, known)
    assert (list(second.results), list(report.slots)) == ([], [])
    assert report.slot_isolation == first.report.slots[0].isolation
    assert report.available.cpu_milli == 3000
    numbers = itertools.count()

    async def freed_in_short() -> te.FreeSlotsResponse | None:
        """Frees a slot. On a busy machine, a report of its end can come before the answer, which
        is then complete.
        """
        name = f"freed-{next(numbers)}"
        before = (await rm.allocate(allocation(name))).report.report_number
        answer = await rm.free(free(name), known_report_number=before)
        return answer if answer.report.as_ordered else None

    third = await eventually(freed_in_short, "the answer to FreeSlots is short")
    assert third is not None
    assert third.report.available.cpu_milli == 3000
    assert not third.results
    assert not third.report.HasField("slot_isolation")
    outdated = await rm.allocate(allocation("c"), known_report_number=known)
    assert reasons(outdated) == [""]
    assert [slot.allocation_id for slot in outdated.report.slots] == ["a", "b", "c"]


async def test_an_answer_with_an_error_is_complete(rm: ScriptedRM, executor: Executor) -> None:
    known = (await rm.allocate(allocation("a"))).report.report_number
    answer = await rm.allocate(
        allocation("b"), allocation("huge", cpu_milli=99_000), known_report_number=known
    )
    assert reasons(answer) == ["", Reason.INSUFFICIENT_RESOURCES]
    assert [slot.allocation_id for slot in answer.report.slots] == ["a", "b"]


async def test_the_state_of_very_many_slots_still_fits_into_a_message(
    rm: ScriptedRM, executor: Executor
) -> None:
    nothing = replace(ENFORCED, cpu="none", memory="none", pids="none", reason="why " * 50)
    executor.helper.enforced = nothing
    few = await rm.allocate(allocation("first", cpu_milli=1, memory_bytes=65536))
    # There is one more note if tasks run as the user of the daemons.
    assert len(few.report.slots[0].isolation.notes) in (3, 4)
    many = await rm.allocate(
        *(allocation(f"s{i}", cpu_milli=1, memory_bytes=65536) for i in range(3_000))
    )
    assert len(many.report.slots) == 3_001
    assert many.report.ByteSize() < 2 << 20
    assert {slot.isolation.cpu for slot in many.report.slots} == {"none"}
