"""A scripted resource manager, and executors that it commands. An executor runs in this process
with a fake helper, or in a separate process with the real helper.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpuset import CpuSet
from finegrain.credentials import Credentials
from finegrain.options import ListenOptions
from task_executor.engine.cpu_ledger import HostCpus
from task_executor.engine.slot_table import HostShare
from task_executor.helper.launch import HelperConfig
from task_executor.host.detection import detect
from task_executor.host.device_nodes import NO_NODES, DeviceNodes
from task_executor.options import TaskExecutorOptions
from task_executor.service.checkpoint import StateDirectory
from task_executor.service.front import Front
from task_executor.service.host_plan import plan_host
from task_executor.service.prepared import Prepared
from task_executor.service.task_journal import TaskJournal
from task_executor.service.task_users import user_policy
from tests.support import identities
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.fake_helper import FakeHelper
from tests.task_executor.service.scripted_rm import (
    EXECUTOR_ID,
    MIB,
    JobMaster,
    ScriptedRM,
    eventually,
)

TOTAL = {"cpu_milli": 4000, "memory_bytes": 1024 * MIB, "best_effort_cpu_milli": 4000}


@pytest.fixture
async def rm() -> AsyncIterator[ScriptedRM]:
    manager = ScriptedRM()
    await manager.start()
    yield manager
    await manager.stop()


@dataclass
class Executor:
    """A front in this process."""

    folder: Path
    helper: FakeHelper
    options: TaskExecutorOptions
    host_cpus: HostCpus | None = None
    nodes: DeviceNodes = NO_NODES
    credentials: Credentials = field(
        default_factory=lambda: identities.credentials(f"executor/{EXECUTOR_ID}")
    )
    front: Front = field(init=False)
    directory: StateDirectory = field(init=False)
    running: asyncio.Task[None] = field(init=False)

    @property
    def job_master(self) -> JobMaster:
        return JobMaster(self.front.address)

    async def start(self, **changes: Any) -> Front:
        options = replace(self.options, **changes)
        self.directory = StateDirectory.open(self.folder / "state")
        saved = self.directory.load(options.executor_id)
        plan = plan_host(options, detect(Path("/")))
        ports = {n: count for n, count in plan.share.total.items() if n == "extended.ports"}
        share = HostShare(TOTAL | ports, CpuSet.parse("0-3"), options.slots_max, self.host_cpus)
        prepared = Prepared(
            options=options,
            directory=self.directory,
            saved=saved,
            plan=replace(plan, share=share),
            users=user_policy(options),
            credentials=self.credentials,
            helper=HelperConfig(str(self.folder / "helper"), "", options.executor_id, 0, 0),
            find_nodes=lambda _devices: self.nodes,
        )
        self.front = Front(prepared, self.helper, await self.helper.hello())
        self.front.watch.root = self.folder / "machine"
        self.online()
        await self.front.start()
        self.running = asyncio.create_task(self.front.run())
        return self.front

    def online(self, cpus: str = "0-3") -> None:
        """Sets the on-line cpus of the host; slots get only cpus of the executor's share."""
        path = self.folder / "machine/sys/devices/system/cpu/online"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(cpus)

    async def stop(self) -> None:
        self.running.cancel()
        await self.front.stop()
        self.directory.close()

    async def crash(self) -> None:
        """Ends everything of the front at once; nothing is sent or written any more."""
        self.running.cancel()
        await self.front.abandon()
        self.directory.close()

    def saved_tasks(self) -> dict[str, dict[str, Any]]:
        """Returns the tasks that the next front would find on disk."""
        return saved_tasks(self.folder / "state")


def saved_tasks(state_dir: Path) -> dict[str, dict[str, Any]]:
    return TaskJournal(state_dir / "tasks", lambda _path: None).saved()


@asynccontextmanager
async def executor_at(folder: Path, *managers: str) -> AsyncIterator[Executor]:
    options = TaskExecutorOptions(
        state_dir=folder / "state",
        run_dir=folder / "run",
        managers=managers,
        executor_id=EXECUTOR_ID,
        listen=ListenOptions("127.0.0.1:0", "127.0.0.1:0"),
        task_user="self",
        allow_root_tasks=True,
        task_ports="none",
    )
    executor = Executor(folder, FakeHelper(folder / "helper" / "tasks"), options)
    try:
        yield executor
    finally:
        executor.helper.destroy_gate.set()
        executor.helper.start_gate.set()
        await executor.stop()


@pytest.fixture
async def executor(rm: ScriptedRM, tmp_path: Path) -> AsyncIterator[Executor]:
    """Yields a registered executor with a fake helper."""
    async with executor_at(tmp_path, rm.address) as made:
        await made.start()
        await eventually(lambda: rm.reports, "it reports")
        yield made


@pytest.fixture
def process(rm: ScriptedRM) -> Iterator[ExecutorProcess]:
    """Yields an executor that has not started; afterwards, ends it and everything that it has
    started.
    """
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        executor = ExecutorProcess(Path(folder), rm.address)
        yield executor
        executor.clean_up()


@pytest.fixture
async def real(process: ExecutorProcess, rm: ScriptedRM) -> JobMaster:
    """Starts an executor with the real helper; returns a job master once it has registered."""
    process.start()
    await eventually(lambda: rm.reports or process.exit_code is not None, "it reports")
    assert process.exit_code is None, process.log
    return rm.job_master()
