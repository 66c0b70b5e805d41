"""Tests a provider whose process is killed repeatedly while it starts and stops executors.

Each run is a separate process. The first may end by itself; the others are killed after a random
part of the time that a run takes here. The next one gets the same orders, because it cannot know
what was done. There must be one executor per id and share, and nothing may be left at the end.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from resource_manager.providers.process_executor import executor_paths, read_claim
from resource_manager.providers.process_sweep import stop_everything
from tests.support.patience import PATIENCE_S
from tests.support.providers import configuration, halves, processes_naming, provider_context

pytestmark = pytest.mark.full

LIVES = 6
SHARES = 3
LIFE = """
import asyncio, json, sys
from pathlib import Path
from tests.support.providers import configuration, halves, make_provider, provider_context

folder, wishes = Path(sys.argv[1]), json.loads(sys.argv[2])

async def life():
    read = configuration(folder, halves({shares}))
    provider = make_provider("process", read, provider_context(folder / "rm"))
    async def one(executor_id, what):
        try:
            if what == "start":
                await provider.start(executor_id, "half", again=True)
            else:
                await provider.stop(executor_id, "half", "")
            print(json.dumps([executor_id, what]), flush=True)
        except Exception as error:
            print(json.dumps([executor_id, "failed", str(error)]), flush=True)
    await asyncio.gather(*(one(*wish) for wish in wishes))
    print("all", flush=True)

asyncio.run(life())
"""


def test_a_killed_provider_leaves_no_share_to_two_and_nothing_behind(tmp_path: Path) -> None:
    drawn = random.Random(4)
    folder = tmp_path
    directory = folder / "rm" / "provided" / "process"
    configuration(folder, halves(SHARES))
    provider_context(folder / "rm")
    wanted: dict[str, str] = {}  # last order for each executor
    number = died = 0
    whole_s = PATIENCE_S  # the shortest time that a run took
    try:
        for life in range(LIVES):
            running = [each for each, what in wanted.items() if what == "start"]
            for each in running:
                if drawn.random() < 0.5:
                    wanted[each] = "stop"
            while sum(what == "start" for what in wanted.values()) < SHARES:
                number += 1
                wanted[f"half-1-{number}"] = "start"
            told, took_s = one_life(
                folder, wanted, drawn.uniform(0.2, 1) * whole_s if life else None
            )
            if "all" in told:
                whole_s = min(whole_s, took_s)
            else:
                died += 1
            for line in told:
                if line != "all" and json.loads(line)[1] == "stop":
                    del wanted[json.loads(line)[0]]
            check(directory)
    finally:
        left = stop_everything(directory, timeout_s=PATIENCE_S)
    assert not left
    assert not processes_naming(directory)
    assert number > SHARES
    assert 0 < died < LIVES


def one_life(
    folder: Path, wanted: dict[str, str], killed_after_s: float | None
) -> tuple[list[str], float]:
    """Runs a provider with these orders, and kills it unless it ends before; None: it is not
    killed. Returns what it had done, and how long it ran.
    """
    wishes = json.dumps(sorted(wanted.items()))
    life = subprocess.Popen(
        [sys.executable, "-c", LIFE.format(shares=SHARES), str(folder), wishes],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started = time.monotonic()
    try:
        said, _ = life.communicate(timeout=killed_after_s)
    except subprocess.TimeoutExpired:
        life.kill()
        said, _ = life.communicate()
    return said.splitlines(), time.monotonic() - started


def check(directory: Path) -> None:
    """Every share is claimed once, and no id has two fronts."""
    claims = [read_claim(path) for path in executor_paths(directory)]
    assert None not in claims
    shares = Counter(claim.share.name for claim in claims if claim)
    assert all(count == 1 for count in shares.values()), shares
    fronts = Counter(
        next(word for word in words if word.endswith("executor.toml"))
        for _, words in processes_naming(directory)
        if "--config" in words
    )
    assert all(count == 1 for count in fronts.values()), fronts
