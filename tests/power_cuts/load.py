"""Job masters and executors that continue while the resource manager's power is cut.

They record in a ledger everything that was acknowledged. An answer counts when the client has it,
even if the power of the resource manager is cut afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc

import finegrain_client as fg
from finegrain.errors import FinegrainError
from finegrain.v1 import resource_manager_pb2 as pb
from finegrain.v1 import slots_pb2
from tests.support.rm_service import USER, RunningRm, ScriptedExecutor

State = fg.RequestState
LATER = {
    State.PENDING: set(State) - {State.REJECTED, State.LOST},
    State.ALLOCATING: set(State) - {State.REJECTED, State.LOST},
    State.GRANTED: {State.GRANTED, State.RELEASED},
    State.CANCELLED: {State.CANCELLED, State.RELEASED},
    State.RELEASED: {State.RELEASED},
}
"""States that may follow an acknowledged state. No executor is ever lost here."""

JOB_MASTER = "job master"
JOB_ROUNDS = 12
REPORT_S = 0.25


@dataclass
class Ledger:
    """The acknowledged states, and all violations that were found."""

    requests: dict[str, dict[str, State]] = field(default_factory=dict)  # by job and id
    ended_jobs: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def acknowledge(self, job_id: str, allocation_id: str, state: State) -> None:
        """Records that a client received that a request has reached at least this state."""
        known = self.requests[job_id].get(allocation_id, State.PENDING)
        if known is State.PENDING or state in LATER.get(known, ()):
            self.requests[job_id][allocation_id] = state
        self.counts[f"acknowledged {state}"] += 1

    def broke(self, what: str) -> None:
        """Records a broken promise."""
        self.broken.append(what)


class Load:
    """Runs from `start` until `abandon`, even while the resource manager does not answer."""

    def __init__(self, address: str, state_dir: Path, seed: int) -> None:
        self.ledger = Ledger()
        # The slot is in another process, so it has no task.
        self._manager = RunningRm(state_dir, address, "", cast("Any", None))
        self._address = address
        self._random = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()
        self._stopping = False

    async def start(self, *, executors: int, job_masters: int) -> None:
        """Starts the load; returns when the executors are registered."""
        self._stack.push_async_callback(self._manager.close)
        for number in range(executors):
            executor = ScriptedExecutor(self._manager, f"host-{number}")
            await self._stack.enter_async_context(executor)
            self._run(self._report(executor))
        credentials = self._manager.own(USER).credentials
        self._cluster = fg.connect(self._address, credentials=credentials, budget_s=120)
        await self._stack.enter_async_context(self._cluster)
        for _ in range(job_masters):
            self._run(self._job_master(), JOB_MASTER)

    async def finish(self) -> None:
        """Lets every job master finish its work and end its job; executors continue."""
        self._stopping = True
        workers = [each for each in self._tasks if each.get_name() == JOB_MASTER]
        _, late = await asyncio.wait(workers, timeout=60)
        if late:
            self.ledger.broke(f"{len(late)} job masters never came to an end")

    async def abandon(self) -> None:
        """Ends everything at once."""
        for task in self._tasks:
            task.cancel()
        told = await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in told:
            if isinstance(each, Exception):
                self.ledger.broke(f"the load itself failed: {each!r}")
        await self._stack.aclose()

    def _run(self, work: Coroutine[Any, Any, None], name: str = "") -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    # -- executors -----------------------------------------------------------------------------

    async def _report(self, executor: ScriptedExecutor) -> None:
        while True:
            try:
                answer = await executor.send_report()
                for each in answer.unowned_slots:
                    self._check_unowned(each.allocation_id)
                    executor.slots.pop(each.allocation_id, None)
                if answer.register_again:
                    registered = await executor.register()
                    for each in registered.unowned_slots:
                        self._check_unowned(each.allocation_id)
                        executor.slots.pop(each.allocation_id, None)
            except grpc.RpcError:
                await asyncio.sleep(0.05)
            else:
                await asyncio.sleep(REPORT_S)

    def _check_unowned(self, allocation_id: str) -> None:
        self.ledger.counts["slots that the books did not own"] += 1
        for job_id, requests in self.ledger.requests.items():
            if (
                job_id not in self.ledger.ended_jobs
                and requests.get(allocation_id) is State.GRANTED
            ):
                self.ledger.broke(f"{allocation_id} was granted, and its slot is called unowned")

    # -- job masters ---------------------------------------------------------------------------

    async def _job_master(self) -> None:
        while not self._stopping:
            try:
                await self._one_job()
            except FinegrainError as error:  # its calls may take two minutes each
                self.ledger.broke(f"a job master could not go on: {error!r}")

    async def _one_job(self) -> None:
        async with self._cluster.job("under the power cuts", detached=True) as job:
            self.ledger.requests[job.job_id] = {}
            self.ledger.counts["jobs"] += 1
            watching = asyncio.create_task(self._watch(job))
            held: list[fg.Slot] = []
            try:
                for _ in range(JOB_ROUNDS):
                    if self._stopping:
                        break
                    await self._round(job, held)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await job.end(grace_s=0)
            self.ledger.ended_jobs.add(job.job_id)

    async def _round(self, job: fg.Job, held: list[fg.Slot]) -> None:
        count = self._random.randint(1, 8)
        spec = fg.SlotSpec(cpu_milli=100, memory_bytes=64 * fg.MIB, count=count)
        requests = await job.request_slots(spec)
        for each in requests:
            self._told(job, each.allocation_id, State.PENDING)
        given_up = requests[: self._random.randint(0, count // 2)]
        for outcome in await job.cancel(given_up) if given_up else []:
            if outcome.ok:
                self._told(job, outcome.id, State.CANCELLED)
        for request in requests[len(given_up) :]:
            held.append(await request.granted())
            self._told(job, request.allocation_id, State.GRANTED)
        self._random.shuffle(held)
        away, held[:] = held[4:], held[:4]
        for outcome in await job.release(away, grace_s=0) if away else []:
            if outcome.ok:
                self._told(job, outcome.id, State.RELEASED)

    def _told(self, job: fg.Job, allocation_id: str, state: State) -> None:
        self.ledger.acknowledge(job.job_id, allocation_id, state)

    async def _watch(self, job: fg.Job) -> None:
        """Follows a second stream: each event must come once, in order, across all cuts."""
        last = 0
        while True:
            request = pb.WatchJobRequest(job_id=job.job_id, from_sequence=last + 1)
            call = self._manager.rm.WatchJob(request)
            try:
                async for message in call:
                    for event in message.events:
                        last = self._take(job, event, last)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                    self.ledger.broke(f"job {job.job_id}: {last} was told, and is forgotten")
                    return
                await asyncio.sleep(0.05)
            finally:
                call.cancel()

    def _take(self, job: fg.Job, event: pb.JobEvent, last: int) -> int:
        if event.sequence != last + 1:
            self.ledger.broke(f"job {job.job_id}: event {event.sequence} follows on {last}")
        self.ledger.counts["events told"] += 1
        state = State(slots_pb2.RequestState.Name(event.state).removeprefix("REQUEST_STATE_"))
        if state is not State.PENDING and event.allocation_id in self.ledger.requests[job.job_id]:
            self._told(job, event.allocation_id, state)
        return event.sequence


async def settled(
    check: Callable[[], bool | Coroutine[Any, Any, bool]], patience_s: float = 60
) -> bool:
    """Returns whether a check becomes true in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while True:
                found = check()
                if found if isinstance(found, bool) else await found:
                    return True
                await asyncio.sleep(0.01)
    return False
