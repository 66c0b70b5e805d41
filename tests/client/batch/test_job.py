"""Tests of a batch from its owner's view, against a scripted cluster."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.errors import Unavailable
from finegrain_client.batch.output import Output
from finegrain_client.batch.state_file import StateFile
from tests.client.scripted import GRANTED, PENDING, Program, Scripted, eventually, serving

SPEC = fg.BatchSpec(3, ["work", "{index}"], retry_delay_s=0)


@pytest.fixture
def endless(servant: Scripted) -> Scripted:
    """Makes the commands of the cluster run forever."""
    servant.programs["work"] = Program(stdout=b"so far", ends=False)
    return servant


async def test_cancelling_the_run_gives_everything_back(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(endless.calls["EndJob"]) == 1
    look = fg.batch.read_status(batch.state_file)
    assert (look.progress.state, look.is_worked_on) == (fg.BatchState.CANCELLED, False)


async def test_leaving_a_batch_leaves_its_tasks_for_the_next_runner(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    await batch.leave()
    assert (await running).state is fg.BatchState.OPEN
    assert not endless.calls["EndJob"]
    assert not endless.calls["CancelTask"]


async def test_the_last_threads_are_taken_up_where_nobody_waits_any_more(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    await batch.leave()
    await running
    endless.snapshot = [
        endless.snapshot_of(
            each.allocation_id, GRANTED, range_id=each.allocation_id.rpartition(".")[0]
        )
        for each in endless.tasks.values()
    ]
    running = asyncio.create_task(fg.BatchJob(cluster, state_file=batch.state_file).run())
    await eventually(lambda: len(endless.calls["SubmitTask"]) == 6)
    await endless.end_program("work")
    (await running).check()
    assert len(endless.tasks) == 3
    assert len(endless.calls["RequestResource"]) == 1
    assert [each.attempts for each in batch.results()] == [1, 1, 1]


async def test_a_task_whose_submission_nobody_has_answered_yet_is_left_to_the_next_runner_too(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    answers = endless.blocked["SubmitTask"] = asyncio.Event()
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.calls["SubmitTask"]) == 3)
    await batch.leave()
    await running
    assert not endless.calls["CancelTask"]
    endless.snapshot = [
        endless.snapshot_of(each, GRANTED, range_id=each.rpartition(".")[0])
        for each in endless.sized
    ]
    answers.set()
    running = asyncio.create_task(fg.BatchJob(cluster, state_file=batch.state_file).run())
    await eventually(lambda: len(endless.tasks) == 3)
    await endless.end_program("work")
    (await running).check()
    submitted = Counter(each.task_id for each in endless.calls["SubmitTask"])
    assert list(submitted.values()) == [2, 2, 2]
    assert [each.attempts for each in batch.results()] == [1, 1, 1]


async def test_what_another_runner_left_is_cancelled_too(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    await batch.leave()
    await running
    await fg.BatchJob(cluster, state_file=batch.state_file).cancel()
    assert len(endless.calls["EndJob"]) == 1
    assert fg.batch.read_status(batch.state_file).progress.state is fg.BatchState.CANCELLED


async def test_cancelling_before_the_job_of_the_last_runner_is_taken_up_ends_it(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    await batch.leave()
    await running
    running = asyncio.create_task(batch.run())
    await asyncio.sleep(0)  # the batch opens its state file
    await batch.cancel()
    assert (await running).state is fg.BatchState.CANCELLED
    assert len(endless.calls["EndJob"]) == 1
    assert len(endless.calls["SubmitTask"]) == 3


@pytest.mark.parametrize("by_its_runner", [True, False])
async def test_who_has_ended_the_job_is_known_although_the_runner_was_killed_over_it(
    cluster: fg.Cluster,
    endless: Scripted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_its_runner: bool,
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    if by_its_runner:
        with monkeypatch.context() as patched:
            patched.setattr(StateFile, "end_job", lambda *_: 1 / 0)
            await batch.cancel()
            with pytest.raises(ZeroDivisionError):
                await running
    else:
        await batch.leave()
        await running
    over = fg.FailedPrecondition(
        "it has ended", reason=fg.Reason.JOB_ENDED, details={"end_reason": "ENDED"}
    )
    again = fg.BatchJob(cluster, state_file=batch.state_file)
    running = asyncio.create_task(again.run())
    await eventually(lambda: len(endless.calls["RequestResource"]) == 2)
    endless.failures["WatchJob"].append(over)  # it learns this only after the snapshot
    await endless.wake()
    if by_its_runner:
        await eventually(lambda: len(endless.calls["RegisterJob"]) == 2)
        await endless.end_program("work")
        (await running).check()
    else:
        assert "ended from outside the batch" in (await running).message


async def test_a_batch_waits_for_a_manager_that_is_not_there_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    async with fg.connect("127.0.0.1:1", budget_s=0.2) as cluster:
        batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
        running = asyncio.create_task(batch.run(lambda now: said.append(now.message)))
        await eventually(lambda: any("127.0.0.1:1" in each for each in said))
        await batch.cancel()
        assert (await running).state is fg.BatchState.CANCELLED


async def test_slots_are_asked_for_until_somebody_answers(
    servant: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finegrain_client.batch.session.RESUBMIT_DELAY_S", 0.01)
    servant.programs["work"] = Program()
    servant.failures["RequestResource"].extend(Unavailable("not now") for _ in range(9))
    async with fg.connect(servant.address, budget_s=0.2) as cluster:
        batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
        (await batch.run()).check()


async def test_a_slot_that_was_asked_for_in_vain_and_comes_all_the_same_is_given_back(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    range_id = endless.calls["RequestResource"][0].ranges[0].range_id
    await endless.tell(f"{range_id}.700", GRANTED)
    await eventually(lambda: endless.calls["ReleaseSlots"])
    (released,) = endless.calls["ReleaseSlots"][0].slots
    assert released.allocation_id == f"{range_id}.700"
    await endless.end_program("work")
    (await running).check()


async def test_what_restored_books_do_not_know_is_asked_for_anew(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    endless.auto_grant = False
    endless.break_watch_after.append(2)
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: endless.calls["RequestResource"])
    range_id = endless.calls["RequestResource"][0].ranges[0].range_id
    await endless.tell(f"{range_id}.0", GRANTED)
    await eventually(lambda: len(endless.tasks) == 1)
    await endless.tell(f"{range_id}.0", PENDING, reason="EXECUTOR_LOST")
    await eventually(lambda: batch.progress.running == 0)
    endless.auto_grant = True
    # the position that it asks for next is no longer kept, and the snapshot is empty
    endless.first_kept = 1000
    await endless.tell("another", GRANTED)
    await eventually(lambda: len(endless.tasks) == 4)
    await endless.end_program("work")
    (await running).check()
    assert [each.attempts for each in batch.results()] == [2, 1, 1]


async def test_requests_that_can_never_be_served_stop_the_batch(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path
) -> None:
    servant.rejections["huge"] = fg.FailedPrecondition(
        "no executor is that large", reason=fg.Reason.INFEASIBLE_NEVER
    )
    spec = fg.BatchSpec(3, ["work"], slot=fg.SlotSpec(labels={"name": "huge"}))
    outcome = await fg.BatchJob(cluster, spec, state_file=tmp_path / "state").run()
    assert (outcome.state, outcome.left) == (fg.BatchState.STOPPED, 3)
    assert "no executor is that large" in outcome.message
    assert len(servant.calls["RequestResource"]) == 1


async def test_slots_whose_reuse_is_refused_as_a_whole_are_released(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path
) -> None:
    refusal = fg.FailedPrecondition("no executor has as much any more")
    servant.programs["work"] = Program()
    servant.failures["ReuseSlots"].append(refusal)
    spec = fg.BatchSpec(3, ["work"], slots_max=1)
    outcome = await fg.BatchJob(cluster, spec, state_file=tmp_path / "state").run()
    assert (outcome.state, outcome.done, outcome.left) == (fg.BatchState.STOPPED, 1, 2)
    assert refusal.message in outcome.message
    (reuse,) = servant.calls["ReuseSlots"]
    (release,) = servant.calls["ReleaseSlots"]
    assert release.slots[0].allocation_id == reuse.slots[0].allocation_id


async def test_a_full_disk_ends_the_runner_and_nothing_else(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servant.programs["work"] = Program(stdout=b"much")

    def take(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "results"
    with monkeypatch.context() as full:
        full.setattr(Output, "take", take)
        batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state", results_dir=folder)
        with pytest.raises(fg.FinegrainError, match="free some space there") as failed:
            await batch.run()
    assert failed.value.reason == fg.Reason.DISK_FULL
    assert not servant.calls["EndJob"]
    assert not fg.batch.read_status(batch.state_file).is_worked_on


async def test_a_results_folder_that_cannot_be_is_named(
    cluster: fg.Cluster, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state", results_dir=in_the_way)
    with pytest.raises(fg.FinegrainError, match=str(in_the_way)):
        await batch.run()


async def test_a_state_file_holds_one_batch(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path
) -> None:
    servant.programs["work"] = Program()
    path = tmp_path / "state"
    await fg.BatchJob(cluster, SPEC, state_file=path, results_dir=tmp_path / "out").run()
    with pytest.raises(fg.InvalidArgument, match="another state_file"):
        await fg.BatchJob(cluster, fg.BatchSpec(4, ["work"]), state_file=path).run()
    with pytest.raises(fg.InvalidArgument, match="results_dir"):
        await fg.BatchJob(cluster, SPEC, state_file=path, results_dir=tmp_path / "other").run()
    outcome = await fg.BatchJob(cluster, SPEC, state_file=path).run()
    assert outcome.ok
    assert len(servant.calls["RegisterJob"]) == 1


async def test_the_same_batch_is_not_run_twice_at_once(
    cluster: fg.Cluster, endless: Scripted, tmp_path: Path
) -> None:
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    running = asyncio.create_task(batch.run())
    await eventually(lambda: len(endless.tasks) == 3)
    with pytest.raises(fg.FailedPrecondition, match="already running"):
        await batch.run()
    with pytest.raises(fg.AlreadyExists, match="another runner"):
        await fg.BatchJob(cluster, state_file=batch.state_file).run()
    await batch.cancel()
    await running


async def test_failures_are_tried_again_when_that_is_wished(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path
) -> None:
    servant.programs["work"] = Program(exit_code=1)
    batch = fg.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
    outcome = await batch.run()
    assert (outcome.done, outcome.failed) == (0, 3)
    before = [each.attempts for each in batch.results(failed_only=True)]
    assert all(each >= 3 for each in before)
    servant.programs["work"].exit_code = 0
    assert (await batch.run()).failed == 3
    assert (await batch.run(retry_failed=True)).ok
    assert all(after.attempts > each for after, each in zip(batch.results(), before, strict=True))


async def test_what_an_executor_refuses_is_not_asked_for_every_thread(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path
) -> None:
    refusal = fg.InvalidArgument("argv", "...", "128 KiB at most")
    servant.programs["work"] = Program()
    servant.failures["SubmitTask"].extend([refusal] * 50)
    spec = fg.BatchSpec(8, ["work"], retry_delay_s=0)
    outcome = await fg.BatchJob(cluster, spec, state_file=tmp_path / "state").run()
    assert (outcome.state, outcome.left) == (fg.BatchState.STOPPED, 8)
    assert "128 KiB" in outcome.message


async def test_blocking_callers_have_the_same(tmp_path: Path) -> None:
    servant = Scripted()
    servant.programs["work"] = Program(stdout=b"said")
    async with serving(servant):

        def run() -> list[bytes]:
            with fg.blocking.connect(servant.address) as cluster:
                batch = fg.blocking.BatchJob(cluster, SPEC, state_file=tmp_path / "state")
                batch.run(lambda _now: None).check()
                assert batch.progress.done == 3
                return [each.stdout_tail for each in batch.results()]

        assert await asyncio.to_thread(run) == [b"said"] * 3


async def test_the_result_of_a_thread_that_the_executor_ended_says_why(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path
) -> None:
    servant.programs["work"] = Program(
        exit_code=1, end_reason="GPU_MEMORY_EXCEEDED", end_message="its slot used 12Gi"
    )
    spec = fg.BatchSpec(1, ["work"], retries=0)
    batch = fg.BatchJob(cluster, spec, state_file=tmp_path / "state")
    await batch.run()
    [result] = batch.results()
    assert result.reason == "GPU_MEMORY_EXCEEDED"
    assert result.message.startswith("was ended by the executor: its slot used 12Gi")


async def test_a_thread_that_reaches_the_time_limit_of_its_slot_has_failed(
    cluster: fg.Cluster, servant: Scripted, tmp_path: Path
) -> None:
    """The executor ends the slot, so the task counts as cancelled. But the thread is not lost."""
    servant.programs["work"] = Program(
        exit_code=1, cancelled=True, end_reason="TIME_LIMIT", end_message="its time was over"
    )
    spec = fg.BatchSpec(1, ["work"], slot=fg.SlotSpec(time_limit_s=5), retries=1, retry_delay_s=0)
    batch = fg.BatchJob(cluster, spec, state_file=tmp_path / "state")
    await batch.run()
    [result] = batch.results()
    assert (result.reason, result.attempts) == ("TIME_LIMIT", 2)
