"""The front of a task executor through many power cuts, under commands.

Decides that after a cut it registers with a state that breaks nothing: it obeys no epoch below one
that it has acknowledged, and every slot that it acknowledged as allocated is there or told as ended
(here: told, since a power cut ends them all), and it is the same executor, with report numbers
above every earlier one.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from finegrain.errors import FinegrainError, Reason
from tests.power_cuts import executor
from tests.power_cuts.machine import Machine
from tests.task_executor.service.scripted_rm import CLUSTER_TOKEN, ScriptedRM, allocation, free

REGISTER_S = 60.0
SLOTS_AT_ONCE = 5


@dataclass
class ExecutorCuts:
    """One run. `found` is what was forgotten or broken; empty: nothing."""

    machine: Machine
    address: str
    synchronous: str
    seed: int
    found: list[str] = field(default_factory=list)
    slots_acknowledged: int = 0
    slots_told_as_ended: int = 0
    epochs: int = 0
    _manager: ScriptedRM = field(default_factory=lambda: ScriptedRM(report_interval_ms=50))
    _held: set[str] = field(default_factory=set)
    _instance_id: str = ""
    _obeyed_epoch: int = 0
    _report_number: int = 0

    async def run(self, cuts: int) -> None:
        """Cuts the power so often, or until something is found."""
        token_file = self.machine.folder / "cluster.token"
        token_file.write_text(CLUSTER_TOKEN)
        token_file.chmod(0o600)
        await self._manager.start()
        moments = random.Random(self.seed)
        try:
            while self.machine.cuts < cuts and not self.found:
                if not await self._start(token_file):
                    return
                commands = asyncio.create_task(self._command(moments))
                await asyncio.sleep(moments.uniform(0.02, 0.6))
                await asyncio.to_thread(self.machine.cut_power)
                await commands
        finally:
            await self._manager.stop()

    # -- before a cut ----------------------------------------------------------------------------

    async def _start(self, token_file: Path) -> bool:
        before = len(self._manager.registrations)
        await asyncio.to_thread(self.machine.power_on)
        with (self.machine.folder / "executor.log").open("ab") as log:
            program = executor.start(
                self.machine.disk / "executor",
                token_file,
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
        """Until the power goes: slots are made and freed, and now and then a new epoch begins."""
        number = 0
        try:
            while True:
                number += 1
                if moments.random() < 0.1:
                    await self._next_epoch()
                await self._allocate(f"slot-{self.machine.cuts}-{number}")
                if len(self._held) > SLOTS_AT_ONCE:
                    await self._free(moments.choice(sorted(self._held)))
        except (FinegrainError, grpc.RpcError, OSError):
            return

    async def _next_epoch(self) -> None:
        """As a resource manager that was restarted: the executor registers, and obeys it."""
        manager = self._manager
        before = len(manager.registrations)
        manager.rm_epoch += 1
        manager.register_again = True
        until = asyncio.get_running_loop().time() + 5
        while len(manager.registrations) == before:
            await asyncio.sleep(0.005)
            if asyncio.get_running_loop().time() > until:
                raise OSError("cut off")  # by the power

    async def _allocate(self, allocation_id: str) -> None:
        answer = await self._manager.allocate(allocation(allocation_id, cpu_milli=10))
        (result,) = answer.results
        self._obeyed(self._manager.rm_epoch)
        self._report_number = max(self._report_number, answer.report.report_number)
        if not result.HasField("error"):
            self._held.add(allocation_id)
            self.slots_acknowledged += 1

    async def _free(self, allocation_id: str) -> None:
        self._held.discard(allocation_id)  # from now on nobody may count on it
        await self._manager.free(free(allocation_id))

    def _obeyed(self, rm_epoch: int) -> None:
        if rm_epoch > self._obeyed_epoch:
            self._obeyed_epoch = rm_epoch
            self.epochs += 1

    # -- after a cut -----------------------------------------------------------------------------

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
        """A resource manager that was replaced before the cut commands nothing after it."""
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
        """The end of the executor's log."""
        return (self.machine.folder / "executor.log").read_text()[-2000:]
