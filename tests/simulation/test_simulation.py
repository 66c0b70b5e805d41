"""Random lives of a whole cluster, fault by fault: nothing is promised twice, nothing is forgotten.

`./dev simulate --seeds 1000` runs more of them; a seed that fails tells its story.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.world import Failed, simulate

SEEDS = range(30)
SEEDS_FOR_PLANTED = range(16)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_holds_through_faults_and_heals(seed: int) -> None:
    simulate(seed)


def test_the_same_seed_is_the_same_life() -> None:
    program = "from tests.simulation.world import simulate; print(simulate(1))"
    lives = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(lives) == 1
    assert simulate(2).trace != simulate(3).trace


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.replace("_", " "))
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Failed, match=r"seed \d+ at \d+ ms: (?!Violation: only)"):
        _simulate_all(SEEDS_FOR_PLANTED)


def _simulate_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(seed)
