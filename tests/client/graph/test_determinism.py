"""The same graph gives the same plan, and the same events the same effects, in every process.

A runner may therefore store events, and replay them after a restart.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.components import REPOSITORY

PROGRAM = """
import random
from hashlib import sha256
from tests.client.graph.test_schedule_faults import _plan, _run
from tests.client.graph.schedule_world import World

digest = sha256()
step = World.step

def noting(world, event):
    effects = step(world, event)
    digest.update(repr((event, effects)).encode())
    return effects

World.step = noting
rng = random.Random(7)
for _ in range(60):
    plan = _plan(rng)
    digest.update(repr(plan).encode())
    _run(plan, rng, faults=4)
print(digest.hexdigest())
"""


def test_plans_and_effects_do_not_depend_on_the_process() -> None:
    digests = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)

    assert len(digests) == 1
