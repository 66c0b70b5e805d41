"""Cuts the power during the very first start, when the authority and the database are created.

The next start must succeed with what is there. The
authority that has signed a certificate must stay the same.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import finegrain_client as fg
from resource_manager.service.identities.own import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    FOLDER,
    OPERATOR_FILE,
)
from tests.power_cuts import manager
from tests.power_cuts.load import settled
from tests.power_cuts.machine import Machine

FILES = (f"{FOLDER}/{AUTHORITY_FILE}", f"{FOLDER}/{AUTHORITY_KEY_FILE}")
BEGIN_S = 0.5  # the start of Python, before anything is written


@dataclass
class FirstStarts:
    """Many interrupted first starts. `found` has what went wrong."""

    machine: Machine
    address: str
    seed: int
    found: list[str] = field(default_factory=list)
    cut_before_ready: int = 0

    @property
    def state_dir(self) -> Path:
        return self.machine.disk / "rm"

    async def run(self, cuts: int) -> None:
        """Starts new machines one after the other, each cut until a start succeeds."""
        moments = random.Random(self.seed)
        while self.machine.cuts < cuts and not self.found:
            self.machine.forget()
            known: dict[str, str] = {}
            for _ in range(moments.randint(1, 3)):
                await self._start_and_cut(moments, known)
                self._check_files(known)
            await self._start_for_good(known)

    async def _start_and_cut(self, moments: random.Random, known: dict[str, str]) -> None:
        await self._start()
        # Most writes happen within a short time after the first file exists.
        if moments.random() < 0.8:
            await settled(self.state_dir.exists)
            await asyncio.sleep(moments.uniform(0, 0.25))
        else:
            await asyncio.sleep(moments.uniform(0, 2 * BEGIN_S))
        program = self.machine.program
        ended = program is not None and program.poll()
        self.cut_before_ready += not (self.state_dir / "endpoint.json").exists()
        # By now executors may have joined.
        await self._note_files(known)
        await asyncio.to_thread(self.machine.cut_power)
        if ended:
            self.found.append(f"a start failed: {self._last_words()}")

    async def _note_files(self, known: dict[str, str]) -> None:
        """Records the authority if the resource manager serves: only then has it members."""
        if (self.state_dir / "endpoint.json").exists():
            for name in FILES:
                known[name] = (self.state_dir / name).read_text()

    def _check_files(self, known: dict[str, str]) -> None:
        for name, text in known.items():
            path = self.machine.image / "rm" / name
            if not path.exists() or path.read_text() != text:
                self.found.append(f"{name} of a resource manager that served is gone or another")

    async def _start_for_good(self, known: dict[str, str]) -> None:
        program = await self._start()
        credentials = self.state_dir / OPERATOR_FILE
        endpoint = self.state_dir / "endpoint.json"
        if not await settled(lambda: program.poll() is not None or endpoint.exists()) or (
            program.poll() is not None
        ):
            self.found.append(f"after a cut first start the next fails: {self._last_words()}")
            return
        async with (
            fg.connect(self.address, credentials=credentials) as cluster,
            cluster.job("first", detached=True) as job,
        ):
            spec = fg.SlotSpec(cpu_milli=100, memory_bytes=64 * fg.MIB, allow_pending=True)
            await job.request_slots(spec)
            await job.end()
        await self._note_files(known)
        await asyncio.to_thread(self.machine.cut_power)
        self._check_files(known)

    async def _start(self) -> manager.Process:
        await asyncio.to_thread(self.machine.power_on)
        (self.state_dir / "endpoint.json").unlink(missing_ok=True)  # left by an earlier start
        with (self.machine.folder / "rm.log").open("wb") as log:
            self.machine.program = manager.start(self.state_dir, self.address, log)
        return self.machine.program

    def _last_words(self) -> str:
        return (self.machine.folder / "rm.log").read_text()[-2000:]
