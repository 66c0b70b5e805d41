"""Real helper, real kernel: what a job master sees of tasks in slots on this host."""

from __future__ import annotations

import signal

import pytest

from finegrain.errors import NotFound
from finegrain.v1 import task_executor_pb2 as te
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    MIB,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

pytestmark = pytest.mark.slow


async def test_a_command_runs_and_its_output_and_exit_code_come_back(
    rm: ScriptedRM, real: JobMaster
) -> None:
    answer = await rm.allocate(allocation())
    assert not answer.results[0].HasField("error"), answer.results[0].error.message
    status = await real.submit("sh", "-c", "echo out; echo err >&2; exit 3")
    assert status.pid > 0
    seen = await real.watch()
    assert (seen.stdout, seen.stderr, seen.exit.exit_code) == (b"out\n", b"err\n", 3)
    assert seen.exit.stdout_bytes == 4
    assert seen.exit.end_time.seconds >= seen.last.start_time.seconds > 0
