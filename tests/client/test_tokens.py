"""A job master shows the tokens of its slots to executors, and replaces tokens that are refused."""

from __future__ import annotations

import pytest

import finegrain_client as fg
from finegrain.errors import PermissionDenied, Reason
from tests.client.scripted import GRANTED, Program, Scripted, eventually


async def test_all_calls_about_a_slot_show_its_token(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["wait"] = Program(ends=False)
    task = await slot.run(["wait"], stdin="pipe")
    await eventually(lambda: servant.live["WatchTask"])
    await task.signal(10)
    await slot.tasks()
    await task.cancel()
    assert set(servant.tokens) == {servant.token_of(slot.allocation_id, 1)}
    assert len(servant.tokens) >= 4
    assert not servant.calls["GetAllocationToken"]


async def test_another_placement_has_another_token(servant: Scripted, job: fg.Job) -> None:
    (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500))
    await request.granted(timeout_s=10)
    await servant.tell(request.allocation_id, GRANTED, generation=2)
    await eventually(lambda: request.generation == 2)
    servant.programs["true"] = Program()
    await (await (await request.granted()).run(["true"])).wait(timeout_s=10)
    assert set(servant.tokens) == {servant.token_of(request.allocation_id, 2)}


async def test_a_refused_token_is_replaced_and_the_call_repeated(
    servant: Scripted, slot: fg.Slot
) -> None:
    """This is the case after a change of the cluster's authority."""
    servant.authority = "newly signed"
    servant.programs["cat"] = Program()
    task = await slot.run(["cat"])
    await task.wait(timeout_s=10)
    (asked,) = servant.calls["GetAllocationToken"]
    assert (asked.executor_id, asked.allocation_id, asked.generation) == (
        "host-a",
        slot.allocation_id,
        1,
    )
    old, *new = servant.tokens
    assert old.startswith(b"signed")
    assert set(new) == {servant.token_of(slot.allocation_id, 1)}


@pytest.mark.parametrize("stdin", [b"input", None])
async def test_a_stream_goes_on_with_a_new_token(
    servant: Scripted, slot: fg.Slot, stdin: bytes | None
) -> None:
    servant.run_for_real.add("cat")
    task = await slot.run(["cat"], stdin="pipe")
    await eventually(lambda: servant.live["WatchTask"])
    servant.authority = "newly signed"
    await task.write_input(stdin or b"", eof=True)
    result = await task.wait(timeout_s=10)
    assert result.stdout == (stdin or b"")
    assert len(servant.calls["GetAllocationToken"]) == 1


async def test_a_new_token_that_is_refused_as_well_ends_the_call(
    servant: Scripted, slot: fg.Slot
) -> None:
    servant.authority = "newly signed"
    servant.token_of = lambda *_: b"never right"  # type: ignore[method-assign]
    with pytest.raises(PermissionDenied) as refused:
        await slot.run(["true"])
    assert refused.value.reason is Reason.TOKEN_REFUSED
    assert len(servant.calls["GetAllocationToken"]) == 1


async def test_a_slot_of_an_attached_job_has_its_token(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.snapshot = [servant.snapshot_of("a", GRANTED)]
    servant.programs["true"] = Program()
    async with cluster.attach_job("job-1") as job:
        (request,) = job.requests
        assert request.slot is not None
        await (await request.slot.run(["true"])).wait(timeout_s=10)
    assert set(servant.tokens) == {servant.token_of("a", 1)}
    assert not servant.calls["GetAllocationToken"]
