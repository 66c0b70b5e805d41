"""Batches on real executors through the client: every process is killed during the work, and every
thread has one result.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import finegrain_client as fg
from tests.e2e.batches import Batch
from tests.e2e.driving import Daemons, Small, unique
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SLOT = fg.SlotSpec(cpu_milli=200, memory_bytes=16 * fg.MIB)


def test_a_runner_that_is_killed_again_and_again_finds_everything(
    small: Small, tmp_path: Path
) -> None:
    """No thread runs twice: the next runner takes over threads that still run, and threads that
    have ended in the meantime.
    """
    batch = Batch(tmp_path, small.cli.environment())
    for threads in (5, 25, 52):  # in the end no request waits
        runner = batch.start()
        batch.await_done(threads)
        runner.kill()
        runner.wait()
    assert batch.start().wait(PATIENCE_S) == 0
    assert set(batch.check().values()) == {1}


def test_managers_and_executors_are_killed_under_a_batch(daemons: Daemons, tmp_path: Path) -> None:
    """If a resource manager and an executor return, no thread runs again. If an executor does not
    return, the threads that it ran run once more.
    """
    daemons.manager.start()
    daemons.manager.endpoint()
    names = [unique("e2e-batch"), unique("e2e-batch")]
    executors = [daemons.executor(name) for name in names]
    for each in executors:
        each.start()
    daemons.await_executors(*names)
    batch = Batch(tmp_path, daemons.cli.environment(), threads=40)
    runner = batch.start()
    batch.await_done(6)
    executors[0].kill()
    executors[0].start()
    batch.await_done(12)
    daemons.manager.kill()
    daemons.manager.start()
    batch.await_done(18)
    assert max(Counter(map(int, batch.notes.read_text().split())).values()) == 1
    executors[1].kill()
    assert runner.wait(PATIENCE_S) == 0
    assert sum(batch.check().values()) <= 40 + 5  # as many as an executor runs at one time
    results = list(fg.batch.read_thread_results(batch.state_file))
    assert {each.executor_id for each in results} == set(names)


async def run(
    small: Small, folder: Path, threads: int, work: str, **more: object
) -> tuple[fg.BatchOutcome, list[fg.ThreadResult]]:
    """A batch that this process runs, to its end."""
    spec = fg.BatchSpec(threads, ["sh", "-c", work], slot=SLOT, retry_delay_s=0.05, **more)  # type: ignore[arg-type]
    async with small.connect() as cluster:
        batch = fg.BatchJob(cluster, spec, state_file=folder / "state")
        outcome = await batch.run()
        return outcome, list(batch.results())


@pytest.mark.parametrize("slots_max", [0, 2])
@pytest.mark.parametrize("seconds", ["0", "0.21"])
async def test_slots_go_on_to_the_next_thread(
    small: Small, tmp_path: Path, slots_max: int, seconds: str
) -> None:
    """No other job waits, so the granted slots are used until no work is left. Only the end of a
    long thread needs a question to the resource manager.
    """
    spec = fg.BatchSpec(30, ["sleep", seconds], slot=SLOT, slots_max=slots_max)
    async with small.connect() as cluster:
        batch = fg.BatchJob(cluster, spec, state_file=tmp_path / "state")
        (await batch.run()).check()
        jobs = await cluster.jobs(include_ended=True)
        ours = [
            each for each in jobs if each.job_id == fg.batch.read_status(batch.state_file).job_id
        ]
        requests = await cluster.requests(job_id=ours[0].job_id, states=[fg.RequestState.RELEASED])
    reused = sum(each.count for each in requests if each.reason == fg.Reason.REUSED)
    assert sum(each.count for each in requests) - reused <= 15
    assert seconds == "0" or reused >= 15


async def test_failures_are_tried_again_and_told(small: Small, tmp_path: Path) -> None:
    work = (
        "case {index}.{attempt} in 1.1|1.2) exit 3;; 2.*) echo no >&2; exit 4;; 3.*) kill -9 $$;; "
        "esac; echo fine"
    )
    outcome, results = await run(small, tmp_path, 5, work)
    assert (outcome.done, outcome.failed, outcome.left) == (3, 2, 0)
    assert [(each.index, each.attempts) for each in results] == [
        *((0, 1), (1, 3), (2, 3), (3, 3), (4, 1))
    ]
    assert (results[2].exit_code, results[2].stderr_tail) == (4, b"no\n")
    assert results[2].message == "ended with exit code 4; its last error output: no"
    assert results[3].signal == 9
    assert results[4].stdout_tail == b"fine\n"
    with pytest.raises(fg.BatchFailed, match="thread 2 ended with exit code 4"):
        outcome.check()


async def test_a_command_that_nobody_has_is_not_tried_for_every_thread(
    small: Small, tmp_path: Path
) -> None:
    spec = fg.BatchSpec(500, ["no-such-command"], slot=SLOT, retry_delay_s=0.05)
    async with small.connect() as cluster:
        batch = fg.BatchJob(cluster, spec, state_file=tmp_path / "state")
        outcome = await batch.run()
        assert (outcome.state, outcome.left) == (fg.BatchState.STOPPED, 500)
        assert "no-such-command" in outcome.message
        (job,) = [
            each
            for each in await cluster.jobs(include_ended=True)
            if each.job_id == fg.batch.read_status(batch.state_file).job_id
        ]
        assert job.ended


async def test_a_thread_that_uses_up_its_memory_is_told_so(small: Small, tmp_path: Path) -> None:
    hog = f"exec {sys.executable} -c 'held = bytearray(200 << 20); print(len(held))'"
    outcome, results = await run(small, tmp_path, 1, hog, retries=0)
    assert outcome.failed == 1
    assert results[0].oom_killed
    assert "used all memory of its slot" in results[0].message


async def test_a_straggler_is_overtaken_by_its_second_run(small: Small, tmp_path: Path) -> None:
    work = "test {index}.{attempt} != 7.1 || sleep 1000; echo $FINEGRAIN_BATCH_ATTEMPT"
    outcome, results = await run(small, tmp_path, 12, work, speculate=True)
    assert outcome.ok
    assert (results[7].attempts, results[7].attempt, results[7].stdout_tail) == (2, 2, b"2\n")


async def test_a_batch_that_is_cancelled_leaves_nothing_and_goes_on_later(
    small: Small, tmp_path: Path
) -> None:
    spec = fg.BatchSpec(20, ["sh", "-c", "test {index} -lt 5 || exec sleep 1000"], slot=SLOT)
    async with small.connect() as cluster:
        batch = fg.BatchJob(cluster, spec, state_file=tmp_path / "state")
        enough = asyncio.Event()

        def look_whether_enough(now: fg.batch.Progress) -> None:
            if now.done == 5:
                enough.set()

        running = asyncio.create_task(batch.run(look_whether_enough))
        await enough.wait()
        await batch.cancel()
        outcome = await running
        assert (outcome.state, outcome.done, outcome.left) == (fg.BatchState.CANCELLED, 5, 15)
    small.cli.settle()
    look = fg.batch.read_status(tmp_path / "state")
    assert (look.progress.state, look.progress.queued) == (fg.BatchState.CANCELLED, 15)


async def test_a_batch_that_outlived_its_lease_is_gone_on_with_under_a_new_job(
    small: Small, tmp_path: Path
) -> None:
    """Threads with a result keep it; threads that ran are run again."""
    spec = fg.BatchSpec(
        8, ["sh", "-c", "test {index} -lt 4 || test {attempt} -gt 1 || exec sleep 1000"], slot=SLOT
    )
    async with small.connect() as cluster:
        batch = fg.BatchJob(cluster, spec, state_file=tmp_path / "state", lease_s=3)
        enough = asyncio.Event()

        def look_whether_enough(now: fg.batch.Progress) -> None:
            if (now.done, now.running) == (4, 4):
                enough.set()

        running = asyncio.create_task(batch.run(look_whether_enough))
        await enough.wait()
        await batch.leave()
        assert (await running).state is fg.BatchState.OPEN
        first = fg.batch.read_status(batch.state_file).job_id

        async for event in cluster.events(subject_id=first, follow=True):
            if event.kind == "job_ended":
                break
        again = fg.BatchJob(cluster, state_file=batch.state_file)
        (await again.run()).check()
    assert [each.attempts for each in again.results()] == [1] * 4 + [2] * 4
    assert fg.batch.read_status(batch.state_file).job_id != first


async def test_an_operator_who_ends_the_job_stops_the_batch(small: Small, tmp_path: Path) -> None:
    spec = fg.BatchSpec(3, ["sleep", "1000"], slot=SLOT)
    async with small.connect() as cluster:
        batch = fg.BatchJob(cluster, spec, state_file=tmp_path / "state")
        begun = asyncio.Event()

        def look_whether_begun(now: fg.batch.Progress) -> None:
            if now.running == 3:
                begun.set()

        running = asyncio.create_task(batch.run(look_whether_begun))
        await begun.wait()
        await cluster.terminate_job(fg.batch.read_status(batch.state_file).job_id)
        outcome = await running
    assert (outcome.state, outcome.left) == (fg.BatchState.STOPPED, 3)
    assert "TERMINATED" in outcome.message


def test_the_example_hashes_files(small: Small, tmp_path: Path) -> None:
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number} of three.txt")
        files[-1].write_text(f"content {number}")
    program = (sys.executable, str(REPOSITORY / "examples/batch.py"))
    args = ("--state", str(tmp_path / "state"), *map(str, files))
    ran = subprocess.run(
        [*program, *args], env=small.cli.environment(), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in files]
    assert ran.stdout.splitlines() == [
        f"{digest}  {file}" for digest, file in zip(digests, files, strict=True)
    ]
    assert "3 of 3 done" in ran.stderr
