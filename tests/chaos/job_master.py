"""A job master of a chaos run, as a separate process: `python -m tests.chaos.job_master CONFIG`.

It uses the client library as its guide says: it requests slots of mixed sizes, runs commands that
number their output lines, releases, cancels and ends jobs. It records all that it receives in a
journal, and checks only that it gets what it requested. The judge knows which failures are allowed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import finegrain_client as fg
from finegrain.credentials import read_credentials
from finegrain.ids import new_id
from finegrain.rpc.own_certificate import OwnCertificate
from tests.chaos import journal as j
from tests.chaos.journal import Journal
from tests.chaos.watcher import Watcher
from tests.support.patience import PATIENCE_S

LOOK_S = 0.1
JOBS_AT_ONCE = 2
WORKERS = 3
CALL_BUDGET_S = 90.0  # longer than any fault
WATCH_END_S = PATIENCE_S  # an end that reached no manager comes with the lease
KEEP_LINES = "i=0; while [ $i -lt $1 ]; do i=$((i+1)); echo $2 $i; sleep $3; done; exit $4"


@dataclass(frozen=True)
class Config:
    """Parameters of one job master, as JSON in a file."""

    name: str
    seed: int
    addresses: list[str]
    credentials: str  # file
    journal: str
    hold_file: str  # while it exists, nothing new is started
    stop_file: str  # once it exists, the job master ends
    lease_s: float = 30.0
    job_s_max: float = 25.0

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))


@dataclass
class Work:
    """One command and its expected result."""

    lines: int
    mark: str
    pause_s: float
    exit_code: int

    @property
    def argv(self) -> list[str]:
        numbers = (str(self.lines), self.mark, str(self.pause_s), str(self.exit_code))
        return ["sh", "-c", KEEP_LINES, "sh", *numbers]

    @property
    def output(self) -> bytes:
        return b"".join(b"%s %d\n" % (self.mark.encode(), n + 1) for n in range(self.lines))

    def wrong_with(self, result: fg.TaskResult, *, ended_by_us: bool) -> str:
        """Returns what is wrong with the result; empty: nothing."""
        if ended_by_us and result.cancelled:
            fits = self.output.startswith(result.stdout)
            return "" if fits else f"its output has a gap: {result.stdout!r}"
        if (result.exit_code, result.signal) != (self.exit_code, 0):
            return f"{result.how}, not with exit code {self.exit_code}; {result}"
        if result.stdout != self.output:
            return f"{len(self.output)} bytes of output became {result.stdout!r}"
        return ""


class JobMaster:
    """A job master that works until it must stop."""

    def __init__(self, config: Config, cluster: fg.Cluster) -> None:
        self.config, self.cluster = config, cluster
        self.own = OwnCertificate(read_credentials(Path(config.credentials)))
        self.journal = Journal(Path(config.journal))
        self.random = random.Random(config.seed)

    @property
    def stopping(self) -> bool:
        return Path(self.config.stop_file).exists()

    async def may_go_on(self) -> bool:
        """Waits while the hold file exists; returns False once the job master must stop."""
        while Path(self.config.hold_file).exists() and not self.stopping:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        return not self.stopping

    def wrong(self, message: str) -> None:
        self.journal.write(j.WRONG, message=message)

    async def run(self) -> None:
        await asyncio.gather(*(self._jobs(number) for number in range(JOBS_AT_ONCE)))
        self.journal.write(j.DONE)

    async def _jobs(self, number: int) -> None:
        turn = 0
        while await self.may_go_on():
            turn += 1
            await self._job(f"{self.config.name}-{number}-{turn}")

    async def _job(self, name: str) -> None:
        # `JobEnded` is handled inside, because this program must distinguish jobs that it has ended
        # from jobs that others have ended.
        try:
            async with self.cluster.job(name, lease_s=self.config.lease_s) as job:
                self.journal.write(j.JOB, job_id=job.job_id)
                watcher = self._watcher(job)
                watching = asyncio.create_task(watcher.run())
                ends_at = asyncio.get_running_loop().time() + self.random.uniform(
                    0.2 * self.config.job_s_max, self.config.job_s_max
                )
                workers = [Worker(self, job, ends_at) for _ in range(WORKERS)]
                try:
                    await together(*(each.run() for each in workers))
                    self.journal.write(j.JOB_ENDED, job_id=job.job_id)
                except fg.JobEnded as error:
                    self.journal.write(
                        j.JOB_LOST, job_id=job.job_id, reason=str(error.details or error.message)
                    )
        except fg.FinegrainError as error:
            self.wrong(f"job {name}: {error!r}")
            return
        await self._watched_to_the_end(watching, name)

    def _watcher(self, job: fg.Job) -> Watcher:
        addresses = self.config.addresses
        return Watcher(addresses, self.own, job.job_id, self.journal)

    async def _watched_to_the_end(self, watching: asyncio.Task[None], name: str) -> None:
        try:
            await asyncio.wait_for(watching, WATCH_END_S)
        except TimeoutError:
            self.wrong(f"job {name}: its watch stream did not end with it")


class Worker:
    """Requests slots, uses and releases them, within one job."""

    def __init__(self, master: JobMaster, job: fg.Job, ends_at: float) -> None:
        self.master, self.job, self.ends_at = master, job, ends_at
        self.journal, self.random = master.journal, master.random
        self.acts = (self._work, self._crowd, self._impossible, self._leave_behind)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self.ends_at and await self.master.may_go_on():
            (act,) = self.random.choices(self.acts, weights=(70, 14, 8, 8))
            await act()
            await asyncio.sleep(self.random.uniform(0, 0.5))

    async def _ask(self, *specs: fg.SlotSpec) -> list[fg.Request]:
        self.journal.write(
            j.ASKED, job_id=self.job.job_id, ids=[each.allocation_id for each in specs]
        )
        requests = await self.job.request_slots(specs)
        self.journal.write(
            j.ACKNOWLEDGED,
            job_id=self.job.job_id,
            ids=[each.allocation_id for each in requests],
        )
        return requests

    def _spec(self) -> fg.SlotSpec:
        return fg.SlotSpec(
            cpu_milli=self.random.choice((50, 100, 150, 200, 400)),
            memory_bytes=self.random.choice((16, 24, 32, 64, 128)) * fg.MIB,
            restart_on_loss=self.random.random() < 0.3,
            allocation_id=new_id(),
        )

    async def _work(self) -> None:
        """Does the usual work: requests a few slots, runs a few commands in each slot, and releases
        all slots.
        """
        specs = [self._spec() for _ in range(self.random.randint(1, 3))]
        await together(*(self._use(each) for each in await self._ask(*specs)))

    async def _use(self, request: fg.Request) -> None:
        try:
            slot = await request.granted(
                self.random.uniform(0.1, 1.0) * self.master.config.job_s_max
            )
        except fg.StillWaiting:
            await self._cancel(request)
            return
        except fg.SlotLost as error:
            self._lost(request, error)
            return
        self._got(slot)
        try:
            for _ in range(self.random.randint(0, 3)):
                if not await self._run(slot):
                    return
        except fg.SlotLost as error:
            self._lost(request, error)
            await self._cancel(request)  # with restart_on_loss it is queued again
            return
        await self._release(slot)

    async def _run(self, slot: fg.Slot) -> bool:
        """Runs one command until it ends; returns False if the slot was released before."""
        lines, pause_s = self.random.choice(((1, 0.0), (10, 0.1), (15, 0.2), (30, 0.2), (12, 0.5)))
        work = Work(lines, slot.allocation_id[-6:], pause_s, self.random.randint(0, 120))
        task = await _started(slot, work.argv)
        self._started(slot, task)
        early = self.random.random() < 0.1
        if early:
            await asyncio.sleep(self.random.uniform(0, 1))
            await self._release(slot)
        result = await task.wait()
        if wrong := work.wrong_with(result, ended_by_us=early):
            self.master.wrong(f"{task} in {slot}: {wrong}")
        self.journal.write(j.TASK_ENDED, task_id=task.task_id)
        return not early

    async def _crowd(self) -> None:
        """Requests many slots, and cancels them whatever their state is."""
        requests = await self._ask(
            *(self._spec() for _ in range(self.random.randint(5, 30))),
        )
        await asyncio.sleep(self.random.uniform(0, 2))
        await self.job.cancel(requests)
        for request in requests:
            self.journal.write(j.CANCELLED, id=request.allocation_id)

    async def _impossible(self) -> None:
        """Requests what no host could ever provide; it must be rejected with a reason."""
        spec = fg.SlotSpec(cpu_milli=10_000_000, allocation_id=new_id())
        try:
            await self._ask(spec)
        except fg.RequestRejected as error:
            self.journal.write(j.REFUSED, id=spec.allocation_id, reason=error.reason.value)
        else:
            self.master.wrong(f"request {spec.allocation_id} for 10,000 cores was not refused")

    async def _leave_behind(self) -> None:
        """Leaves slots and requests that only the end of the job releases."""
        (request,) = await self._ask(self._spec())
        if self.random.random() < 0.5:
            return
        try:
            slot = await request.granted(2.0)
        except (fg.StillWaiting, fg.SlotLost):
            return
        self._got(slot)

    async def _cancel(self, request: fg.Request) -> None:
        await request.cancel()
        self.journal.write(j.CANCELLED, id=request.allocation_id)

    async def _release(self, slot: fg.Slot) -> None:
        await slot.release()
        self.journal.write(j.RELEASED, id=slot.allocation_id, generation=slot.generation)

    def _got(self, slot: fg.Slot) -> None:
        self.journal.write(
            j.GRANTED,
            id=slot.allocation_id,
            generation=slot.generation,
            executor=slot.executor_id,
        )

    def _started(self, slot: fg.Slot, task: fg.Task) -> None:
        self.journal.write(
            j.TASK,
            task_id=task.task_id,
            id=slot.allocation_id,
            generation=slot.generation,
            executor=slot.executor_id,
        )

    def _lost(self, request: fg.Request, error: fg.SlotLost) -> None:
        self.journal.write(
            j.SLOT_LOST,
            id=request.allocation_id,
            generation=error.details["generation"],
            executor=error.details["executor_id"],
            reason=error.message,
        )


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Runs all coroutines; the first error cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


async def _started(slot: fg.Slot, argv: Sequence[str]) -> fg.Task:
    """Starts a command, again if its supervisor was killed before the command ran."""
    while True:
        try:
            return await slot.run(argv)
        except fg.TaskNotStarted as error:
            if "its supervisor was killed" not in error.message:
                raise


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def main(path: Path) -> None:
    """Runs one job master until it ends."""
    config = Config.load(path)
    async with fg.connect(credentials=config.credentials, budget_s=CALL_BUDGET_S) as cluster:
        await JobMaster(config, cluster).run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
