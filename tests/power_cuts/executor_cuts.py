"""Cuts the power of an executor's front many times while it executes commands.

After a cut it must be the same executor, with higher report numbers. It must obey no epoch below
one that it has acknowledged. Every slot that it acknowledged as allocated must exist or be reported
as ended (here: ended, because a power cut ends all slots). It must have recorded every task whose
submission it has acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from finegrain.errors import FinegrainError, Reason
from task_executor.service.checkpoint import TASKS_FOLDER
from task_executor.service.task_journal import TaskJournal
from tests.power_cuts import executor
from tests.power_cuts.machine import Machine
from tests.support.identities import credentials_file
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation, free

REGISTER_S = 60.0
SLOTS_AT_ONCE = 5


@dataclass
class ExecutorCuts:
    """One run. `found` has what was forgotten or broken."""

    machine: Machine
    address: str
    synchronous: str
    seed: int
    found: list[str] = field(default_factory=list)
    slots_acknowledged: int = 0
    slots_told_as_ended: int = 0
    tasks_acknowledged: int = 0
    epochs: int = 0
    _manager: ScriptedRM = field(default_factory=lambda: ScriptedRM(report_interval_ms=50))
    _held: set[str] = field(default_factory=set)
    _tasks: set[str] = field(default_factory=set)  # acknowledged since the last cut
    _instance_id: str = ""
    _obeyed_epoch: int = 0
    _report_number: int = 0

    async def run(self, cuts: int) -> None:
        """Cuts the power `cuts` times, or until a check fails."""
        who = f"executor/{executor.EXECUTOR_ID}"
        credentials = credentials_file(self.machine.folder, who)
        await self._manager.start()
        moments = random.Random(self.seed)
        try:
            while self.machine.cuts < cuts and not self.found:
                if not await self._start(credentials):
                    return
                commands = asyncio.create_task(self._command(moments))
                await asyncio.sleep(moments.uniform(0.02, 0.6))
                await asyncio.to_thread(self.machine.cut_power)
                await commands
        finally:
            await self._manager.stop()

    # -- before a cut ----------------------------------------------------------------------------

    async def _start(self, credentials: Path) -> bool:
        before = len(self._manager.registrations)
        await asyncio.to_thread(self.machine.power_on)
        self._check_tasks()
        with (self.machine.folder / "executor.log").open("ab") as log:
            program = executor.start(
                self.machine.disk / "executor",
                credentials,
                self.address,
                self._manager.address,
                log,
                synchronous=self.synchronous,
            )
        self.machine.program = program
        end = asyncio.get_running_loop().time() + REGISTER_S
        while len(self._manager.registrations) == before:
            if program.poll() is not None or asyncio.get_running_loop().time() > end:
                self.found.append(f"it does not come back: {self.last_words()}")
                return False
            await asyncio.sleep(0.01)
        self._check_registration()
        await self._check_epoch()
        return not self.found

    async def _command(self, moments: random.Random) -> None:
        """Allocates and frees slots until the power is cut; sometimes begins a new epoch."""
        number = 0
        try:
            while True:
                number += 1
                if moments.random() < 0.1:
                    await self._next_epoch()
                await self._allocate(f"slot-{self.machine.cuts}-{number}")
                await self._submit(f"slot-{self.machine.cuts}-{number}")
                if len(self._held) > SLOTS_AT_ONCE:
                    await self._free(moments.choice(sorted(self._held)))
        except (FinegrainError, grpc.RpcError, OSError):
            return

    async def _next_epoch(self) -> None:
        """Acts as a restarted resource manager: the executor registers, and obeys the new epoch."""
        manager = self._manager
        before = len(manager.registrations)
        manager.rm_epoch += 1
        manager.register_again = True
        until = asyncio.get_running_loop().time() + 5
        while len(manager.registrations) == before:
            await asyncio.sleep(0.005)
            if asyncio.get_running_loop().time() > until:
                raise OSError("cut off")  # by the power cut

    async def _allocate(self, allocation_id: str) -> None:
        answer = await self._manager.allocate(allocation(allocation_id, cpu_milli=10))
        (result,) = answer.results
        self._obeyed(self._manager.rm_epoch)
        self._report_number = max(self._report_number, answer.report.report_number)
        if not result.HasField("error"):
            self._held.add(allocation_id)
            self.slots_acknowledged += 1

    async def _submit(self, allocation_id: str) -> None:
        """Submits two tasks at once, which share a sync."""
        master = self._manager.job_master()
        names = [f"task-{allocation_id}-{each}" for each in (1, 2)]
        submissions = [
            master.submit("true", task_id=name, allocation_id=allocation_id) for name in names
        ]
        for name, answer in zip(
            names, await asyncio.gather(*submissions, return_exceptions=True), strict=True
        ):
            if not isinstance(answer, BaseException):
                self._tasks.add(name)
                self.tasks_acknowledged += 1

    async def _free(self, allocation_id: str) -> None:
        self._held.discard(allocation_id)  # from now on it may be lost
        await self._manager.free(free(allocation_id))

    def _obeyed(self, rm_epoch: int) -> None:
        if rm_epoch > self._obeyed_epoch:
            self._obeyed_epoch = rm_epoch
            self.epochs += 1

    # -- after a cut -----------------------------------------------------------------------------

    def _check_tasks(self) -> None:
        folder = self.machine.disk / "executor" / TASKS_FOLDER
        recorded = TaskJournal(folder, lambda _path: None).saved() if folder.exists() else {}
        for forgotten in sorted(self._tasks - recorded.keys()):
            self.found.append(f"task {forgotten} was acknowledged and is not recorded")
        self._tasks.clear()

    def _check_registration(self) -> None:
        told = self._manager.registered
        if self._instance_id and told.instance_id != self._instance_id:
            self.found.append(f"it was {self._instance_id} and calls itself {told.instance_id}")
        self._instance_id = told.instance_id
        if told.report.report_number <= self._report_number:
            self.found.append(
                f"report {told.report.report_number} comes after {self._report_number}"
            )
        self._report_number = told.report.report_number
        if told.report.rm_epoch < self._obeyed_epoch:
            self.found.append(
                f"it obeyed epoch {self._obeyed_epoch} and reports {told.report.rm_epoch}"
            )
        ended = {each.allocation_id for each in told.report.ended}
        there = {each.allocation_id for each in told.report.slots}
        for forgotten in sorted(self._held - ended - there):
            self.found.append(f"slot {forgotten} was acknowledged and is neither there nor ended")
        self.slots_told_as_ended += len(self._held & ended)
        self._held.clear()

    async def _check_epoch(self) -> None:
        """Checks that a command of a former resource manager is refused after a cut."""
        if self._obeyed_epoch < 2:
            return
        old = self._obeyed_epoch - 1
        try:
            await self._manager.allocate(allocation("old"), number=1, rm_epoch=old)
        except FinegrainError as error:
            if error.reason is not Reason.STALE_EPOCH:
                self.found.append(f"a command of epoch {old} is refused with {error}")
        else:
            self.found.append(f"a command of epoch {old} is obeyed after {self._obeyed_epoch}")

    def last_words(self) -> str:
        """Returns the end of the executor's log."""
        return (self.machine.folder / "executor.log").read_text()[-2000:]
