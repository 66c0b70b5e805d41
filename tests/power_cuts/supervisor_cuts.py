"""Cuts the power of a helper and its supervisors many times while short tasks run.

If the end of a task was reported before the cut, the end must be known after the cut, with the same
exit code and all output. No task may run twice.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from finegrain.errors import FinegrainError
from task_executor.helper.launch import HelperConfig
from task_executor.host.helper_client import HelperClient, HelperState, TaskExited, TaskSpec
from task_executor.host.helper_messages import SlotLimits
from task_executor.host.task_log import read_output
from tests.power_cuts.machine import Machine
from tests.support.components import REPOSITORY

START_S, END_S = 60.0, 30.0
WORKERS = 4
# Use a separate process namespace. Otherwise tasks and supervisors would continue when the helper
# is killed.
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass
class SupervisorCuts:
    """One run. `found` has what was forgotten or broken."""

    machine: Machine
    synchronous: str
    seed: int
    found: list[str] = field(default_factory=list)
    tasks_started: int = 0
    ends_promised: int = 0
    ends_checked: int = 0
    _ended: dict[str, int] = field(default_factory=dict)  # exit codes of promised ends
    _number: int = 0

    async def run(self, cuts: int) -> None:
        """Cuts the power `cuts` times, or until a check fails."""
        moments = random.Random(self.seed)
        self._runs.mkdir()
        while self.machine.cuts < cuts and not self.found:
            client = await self._start()
            await self._check(client)
            following = asyncio.create_task(self._follow(client, moments))
            workers = [asyncio.create_task(self._work(client, moments)) for _ in range(WORKERS)]
            await asyncio.sleep(moments.uniform(0.3, 2.5))
            await asyncio.to_thread(self.machine.cut_power)
            for each in (following, *workers):
                each.cancel()
                with suppress(asyncio.CancelledError):
                    await each
            await client.close()
        await self._clean_up()

    @property
    def _runs(self) -> Path:
        """A directory that is not on the disk; each task adds a line to its file in it."""
        return self.machine.folder / "runs"

    # -- before a cut ----------------------------------------------------------------------------

    async def _start(self) -> HelperClient:
        await asyncio.to_thread(self.machine.power_on)
        config = HelperConfig(
            state_dir=str(self.machine.disk / "helper"),
            socket_path=str(self.machine.folder / "helper.sock"),
            executor_id=self.machine.folder.name,
            front_uid=0,
            front_gid=0,
            allow_root_tasks=True,
            detached=False,
        )
        program = (sys.executable, "-m", "tests.power_cuts.helper")
        words = (json.dumps(asdict(config)), self.synchronous)
        with (self.machine.folder / "helper.log").open("ab") as log:
            self.machine.program = await asyncio.to_thread(
                subprocess.Popen, [*NAMESPACE, *program, *words], cwd=REPOSITORY, stderr=log
            )
        client = await HelperClient.connect(config.socket_path, START_S)
        await client.create_slot(SlotLimits("slot", 1, cpu_milli=2000, memory_bytes=256 << 20))
        return client

    async def _work(self, client: HelperClient, moments: random.Random) -> None:
        """Starts one task after the other until the power is cut."""
        while True:
            self._number += 1
            task_id, code = f"task-{self._number}", moments.randrange(100)
            script = f"echo run >> {self._runs}/{task_id}; echo {task_id}; exit {code}"
            argv = ["/bin/sh", "-c", script]
            with suppress(FinegrainError):
                await client.start_task(TaskSpec(task_id, "slot", 1, argv, cwd="/", uid=0, gid=0))
                self.tasks_started += 1

    async def _follow(self, client: HelperClient, moments: random.Random) -> None:
        """Notes which ends were reported. Some of these tasks are then forgotten."""
        async for event in client.events():
            if not isinstance(event, TaskExited) or event.record.exit_code is None:
                continue
            self._ended[event.task_id] = event.record.exit_code
            self.ends_promised += 1
            if moments.random() < 0.7:
                del self._ended[event.task_id]
                with suppress(FinegrainError):
                    await client.forget_task(event.task_id)

    # -- after a cut -----------------------------------------------------------------------------

    async def _check(self, client: HelperClient) -> None:
        tasks = {task.task_id: task for task in (await self._settled(client)).tasks}
        for task_id, code in self._ended.items():
            if (task := tasks.get(task_id)) is None or task.exit is None:
                self.found.append(f"{task_id} had ended, and is not known any more")
            elif task.exit.exit_code != code:
                self.found.append(f"{task_id} had exit code {code}, and now {task.exit.exit_code}")
            elif read_output(task.directory, "stdout", 0, 1000).decode() != f"{task_id}\n":
                self.found.append(f"{task_id} has lost its output")
        self.ends_checked += len(self._ended)
        self._ended.clear()
        for task_id in tasks:
            await client.forget_task(task_id)
        for path in self._runs.iterdir():
            if len(path.read_text().splitlines()) > 1:
                self.found.append(f"{path.name} has run more than once")
            path.unlink()

    async def _settled(self, client: HelperClient) -> HelperState:
        """Returns the state when each task that was running has an end."""
        end = asyncio.get_running_loop().time() + END_S
        while True:
            state = await client.inspect()
            if all(task.exit for task in state.tasks):
                return state
            if asyncio.get_running_loop().time() > end:
                self.found.append("a task without a supervisor gets no end")
                return state
            await asyncio.sleep(0.02)

    async def _clean_up(self) -> None:
        """Removes the control groups."""
        client = await self._start()
        await self._check(client)
        await client.destroy_slot("slot", 1)
        await client.stop()
        await client.close()
        if self.machine.program is not None:
            await asyncio.to_thread(self.machine.program.wait, END_S)

    def last_words(self) -> str:
        """Returns the end of the helper's log."""
        return (self.machine.folder / "helper.log").read_text()[-2000:]
