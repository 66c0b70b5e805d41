"""Cuts the power of a whole resource manager many times under load.

After each cut the database must be sound and all invariants must hold. Every acknowledged request
must exist, in at least the state that was reported. Epochs must rise, and streams must continue
without gap or repetition. In the end nothing may be left.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import finegrain_client as fg
from finegrain.errors import FinegrainError
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import restore
from resource_manager.service.engine_driver import now
from resource_manager.service.identities.own import OPERATOR_FILE
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store
from tests.power_cuts import manager
from tests.power_cuts.load import LATER, Ledger, Load, settled
from tests.power_cuts.machine import Machine
from tests.support.components import REPOSITORY

DATABASE = "finegrain.db"
CLI_CHECK_EVERY = 10

Promised = dict[str, fg.RequestState]
"""The states that were acknowledged to one job, by allocation id."""


@dataclass
class RmCuts:
    """One run. `found` has what was lost or broken."""

    machine: Machine
    address: str
    synchronous: str
    seed: int
    found: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def state_dir(self) -> Path:
        return self.machine.disk / "rm"

    async def run(self, cuts: int) -> None:
        """Cuts the power `cuts` times, or until a check fails."""
        moments = random.Random(self.seed)
        if not await self._start():
            return
        load = Load(self.address, self.state_dir, self.seed)
        self.ledger = load.ledger
        await load.start(executors=3, job_masters=6)
        try:
            while self.machine.cuts < cuts and not self.found:
                await asyncio.sleep(moments.uniform(0.05, 0.8))
                if not self._runs():
                    return
                await asyncio.to_thread(self.machine.cut_power)
                await asyncio.to_thread(self._check_what_is_left, self._promised())
                if self.found or not await self._start():
                    return
                await self._check_promises()
            if not self.found:
                await load.finish()
                await self._check_zero()
        except FinegrainError:
            if self._runs():
                raise
        finally:
            await load.abandon()
            self.found += self.ledger.broken

    def _runs(self) -> bool:
        """Returns whether the resource manager still runs; records it as a failure if not."""
        program = self.machine.program
        runs = program is not None and program.poll() is None
        if not runs:
            self.found.append(f"it ended by itself: {self.last_words()}")
        return runs

    async def _start(self) -> bool:
        await asyncio.to_thread(self.machine.power_on)
        with (self.machine.folder / "rm.log").open("ab") as log:
            program = manager.start(self.state_dir, self.address, log, synchronous=self.synchronous)
        self.machine.program = program
        credentials = self.state_dir / OPERATOR_FILE
        await settled(lambda: program.poll() is not None or credentials.exists())
        async with fg.connect(self.address, credentials=credentials, budget_s=30) as cluster:
            epoch = await manager.ready(cluster, program)
        if epoch is None:
            self.found.append(f"it does not start again: {self.last_words()}")
            return False
        if self.epochs and epoch <= self.epochs[-1]:
            self.found.append(f"the epoch was {self.epochs[-1]} and is {epoch}")
        self.epochs.append(epoch)
        return True

    def last_words(self) -> str:
        """Returns the end of the resource manager's log."""
        return (self.machine.folder / "rm.log").read_text()[-2000:]

    # -- what survived on the disk ----------------------------------------------------------------

    def _promised(self) -> dict[str, Promised]:
        return {job_id: dict(told) for job_id, told in self.ledger.requests.items()}

    def _check_what_is_left(self, promised: dict[str, Promised]) -> None:
        left = self.machine.image / "rm"
        copy = self.machine.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in (DATABASE, f"{DATABASE}-wal"):  # SQLite rebuilds the index of the log
            if (left / name).exists():
                shutil.copy(left / name, copy / name)
        try:
            with closing(sqlite3.connect(copy / DATABASE)) as connection:
                told = connection.execute("PRAGMA integrity_check").fetchone()[0]
        except sqlite3.Error as error:
            told = str(error)
        if told != "ok":
            self.found.append(f"the database is damaged: {told}")
            return
        with open_store(sqlite_url(copy / DATABASE), create=False) as store:
            books = restore(store.load(), EngineSettings(), now())
        self.found += [f"the books are wrong: {each}" for each in check_invariants(books)]
        for told in promised.values():
            for allocation_id, state in told.items():
                request = books.requests.get(allocation_id)
                found = None if request is None else fg.RequestState(request.state.name)
                self._check_request(allocation_id, state, found)
        if self.machine.cuts % CLI_CHECK_EVERY == 1:
            self._check_by_command(copy / DATABASE)

    def _check_by_command(self, database: Path) -> None:
        url = sqlite_url(database)
        checked = subprocess.run(
            [sys.executable, "-m", "finegrain_cli", "db", "check", "--database", url],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        if checked.returncode:
            self.found.append(f"finegrain db check: {checked.stdout}{checked.stderr}")

    # -- what the next resource manager says -------------------------------------------------------

    async def _check_promises(self) -> None:
        promised = self._promised()
        ended = set(self.ledger.ended_jobs)
        credentials = self.state_dir / OPERATOR_FILE
        async with fg.connect(self.address, credentials=credentials, budget_s=30) as cluster:
            jobs = {each.job_id: each for each in await cluster.jobs(include_ended=True)}
            for job_id, told in promised.items():
                if job_id not in jobs:
                    self.found.append(f"job {job_id} was acknowledged and is gone")
                    continue
                if job_id in ended and not jobs[job_id].ended:
                    self.found.append(f"job {job_id} was ended and lives")
                requests = await cluster.requests(job_id=job_id, states=list(fg.RequestState))
                found = {each.allocation_id: each.state for each in requests}
                for allocation_id, state in told.items():
                    self._check_request(allocation_id, state, found.get(allocation_id))
        for job_id in ended:  # checked once after its end
            self.ledger.requests.pop(job_id, None)

    def _check_request(
        self, allocation_id: str, told: fg.RequestState, found: fg.RequestState | None
    ) -> None:
        self.ledger.counts["promises checked"] += 1
        if found is None:
            self.found.append(f"request {allocation_id} was acknowledged as {told} and is gone")
        elif found not in LATER[told]:
            self.found.append(f"request {allocation_id} was acknowledged as {told} and is {found}")

    async def _check_zero(self) -> None:
        credentials = self.state_dir / OPERATOR_FILE
        async with fg.connect(self.address, credentials=credentials) as cluster:

            async def at_zero() -> bool:
                info = await cluster.info()
                return not (info.slots or any(info.pending_requests.values()))

            if not await settled(at_zero):
                self.found.append("after the load has ended the books do not come to zero")
