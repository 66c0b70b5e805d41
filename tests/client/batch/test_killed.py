"""Tests a runner that is killed at any step of a random history, and restarted.

Every thread has exactly one result, and everything that was reported stays true.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import finegrain_client as fg
from finegrain_client.batch import scheduler
from finegrain_client.batch.scheduler import TIME_SLICE_S
from tests.client.batch.world import World, inhabit, live, output_of
from tests.support.patience import PATIENCE_S
from tests.support.properties import examples

ALWAYS = 1_000

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""In memory: there are thousands of synced commits, which a disk would only slow down."""


async def disturb(world: World, trouble: int) -> None:
    """Lets the world act by itself; `trouble` percent of its steps are failures."""
    while True:
        await asyncio.sleep(0)
        if world.chance(100) < trouble:
            match world.chance(6):
                case 0:
                    world.lose_one(comes_back=True)
                case 1 | 2:
                    world.lose_one(comes_back=False)
                case 3:
                    living = [each for each in world.jobs.values() if not each.over]
                    if living:
                        world.end_job(living[0], "LEASE_EXPIRED")
                case 4:
                    world.agrees = not world.agrees
                case _:
                    if world.running:
                        task = next(iter(world.running.values()))
                        world.end(task, cancelled=True)
        elif world.chance(2):
            world.grant_one()
        else:
            world.end_one()


@settings(max_examples=examples(80))
@given(
    threads=st.integers(1, 12),
    slots=st.integers(1, 5),
    lives=st.lists(st.integers(0, 120), max_size=5),
    failing=st.dictionaries(st.integers(0, 11), st.sampled_from([1, ALWAYS]), max_size=4),
    trouble=st.sampled_from([0, 0, 5, 15]),
    speculate=st.booleans(),
    slice_s=st.sampled_from([0.0, TIME_SLICE_S]),
    seed=st.integers(0, 2**32),
)
def test_every_thread_has_one_result_whenever_the_runner_is_killed(
    threads: int,
    slots: int,
    lives: list[int],
    failing: dict[int, int],
    trouble: int,
    speculate: bool,
    slice_s: float,
    seed: int,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="fg-batch-", dir=IN_MEMORY))
    spec = fg.BatchSpec(
        threads,
        ["work", "{index}", "{attempt}"],
        retries=2,
        retry_delay_s=0,
        speculate=speculate,
        straggler_factor=1,
    )

    async def story(monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(random.Random(seed).randrange, slots, failing)
        inhabit(world, monkeypatch)
        monkeypatch.setattr(scheduler, "TIME_SLICE_S", slice_s)
        world_goes_on = asyncio.create_task(disturb(world, trouble))
        try:
            async with asyncio.timeout(PATIENCE_S):  # takes less than one second; else it hangs
                for steps in lives:
                    if await live(world, spec, folder, steps) is not None:
                        break
                outcome = await live(world, spec, folder, None)
        finally:
            world_goes_on.cancel()
        assert outcome is not None
        check(world, outcome)

    def check(world: World, outcome: fg.BatchOutcome) -> None:
        hopeless = {each for each, times in failing.items() if times == ALWAYS and each < threads}
        assert (outcome.done, outcome.failed) == (threads - len(hopeless), len(hopeless))
        results = list(fg.batch.read_thread_results(folder / "state"))
        assert [each.index for each in results] == list(range(threads))
        assert {each.index for each in results if not each.ok} == hopeless
        for each in results:
            kept = (folder / "results" / f"{each.index}.stdout").read_bytes()
            assert kept == output_of(each.index, each.attempt)
        assert not list((folder / "results").glob("*.part"))
        # If a runner is killed after it has registered a job and before it has recorded the job,
        # the job ends with its lease.
        assert all(job.over or not job.asked for job in world.jobs.values())
        # The advice counts each thread at most once. A killed runner reports some threads never.
        assert world.finished <= threads
        assert lives or trouble or world.finished == threads
        if not (trouble or failing or speculate):  # kills alone never make a thread run twice
            assert set(world.starts.values()) == {1}

    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            asyncio.run(story(monkeypatch))
    finally:
        shutil.rmtree(folder)
