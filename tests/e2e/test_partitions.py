"""Real network partitions between real daemons: short versions of the chaos run, which must find no
unexplained failure.

The namespaces need a separate process, so each story is one run of `tests.chaos`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import finegrain_client as fg
from task_executor.service.checkpoint import read_document, write_document
from tests.e2e.driving import Daemons, eventually, helper_pid, slot_groups, unique
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow


def chaos(*words: str) -> str:
    """A run of the chaos program; it has to find nothing wrong."""
    small = ("--brief", "--executors", "2", "--masters", "2", "--seed", "3")
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *small, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("root", "network-namespace")
def test_books_and_tables_agree_again_after_partitions() -> None:
    said = chaos("--faults", "network", "--cycles", "4")
    for pair in ("rm-executor", "rm-master", "executor-master"):
        assert f"1 cut-{pair}" in said


def test_nothing_is_lost_while_everything_is_killed() -> None:
    said = chaos("--faults", "rm,executor", "--cycles", "4")
    for kind in ("rm-kill", "front-kill", "helper-kill", "both-kill"):
        assert f"1 {kind}" in said


@pytest.mark.needs("root", "cgroup-v1")
async def test_what_a_restarted_executor_cannot_explain_is_ended_and_reported(
    daemons: Daemons,
) -> None:
    """Front and helper are killed, and the front has no record of a slot. So the task and the group
    of the slot are orphans. The owner of the slot gets an event.
    """
    name = unique("e2e-orphan")
    daemons.manager.start()
    daemons.manager.endpoint()
    executor = daemons.executor(name)
    executor.start()
    daemons.await_executors(name)
    async with daemons.connect() as cluster, cluster.job("orphan") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=200))
        slot = await request.granted(PATIENCE_S)
        task = await slot.run(["sleep", "1000"])
        pid = eventually(lambda: task.pid, "it runs")
        executor.kill()
        os.kill(helper_pid(executor), signal.SIGKILL)
        table = executor.state_dir / "state.json"
        write_document(table, (read_document(table) or {}) | {"slots": []})
        executor.start()
        with pytest.raises(fg.SlotLost):
            await task.wait(PATIENCE_S)
        eventually(lambda: not Path(f"/proc/{pid}").exists(), "its processes are ended")
        eventually(lambda: not slot_groups(name), "its groups are gone")
        assert "unknown_slot" in executor.log
        assert slot.allocation_id in executor.log.partition("unknown_slot")[0].splitlines()[-1]
