"""A scripted resource manager, and executors that it commands."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import JobMaster, ScriptedRM, eventually


@pytest.fixture
async def rm() -> AsyncIterator[ScriptedRM]:
    manager = ScriptedRM()
    await manager.start()
    yield manager
    await manager.stop()


@pytest.fixture
def process(rm: ScriptedRM) -> Iterator[ExecutorProcess]:
    """Not started yet; ends with everything that it has started."""
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        executor = ExecutorProcess(Path(folder), rm.address)
        yield executor
        executor.clean_up()


@pytest.fixture
async def real(process: ExecutorProcess, rm: ScriptedRM) -> JobMaster:
    """A registered executor with the real helper."""
    process.start()
    await eventually(lambda: rm.reports or process.exit_code is not None, "it reports")
    assert process.exit_code is None, process.log
    return JobMaster(rm.executor_address)
