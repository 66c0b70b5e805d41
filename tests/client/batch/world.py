"""A simulated cluster in memory for batch runners, driven by a random source.

Runners can be killed at any step: before or after any call, before or after any commit.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.resources import ResourceProfile
from finegrain.values.outcomes import ThreadReport
from finegrain.values.states import JobOutcome, RequestState
from finegrain_client.batch import runner
from finegrain_client.batch.rows import Changes, JobRow
from finegrain_client.batch.scheduler_state import SlotKey
from finegrain_client.batch.slots import (
    Granted,
    NewMembersRefused,
    RequestFinished,
    Requeued,
    SlotMessage,
    WatchEnded,
)
from finegrain_client.batch.state_file import StateFile
from finegrain_client.types.status import OutputChunk, TaskResult


class Killed(BaseException):
    """Raised inside the runner at the step where it is killed."""


@dataclass
class Life:
    """One run of a runner: the number of steps until it is killed."""

    steps_left: int | None = None

    def step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Killed

    @property
    def is_dead(self) -> bool:
        return self.steps_left is not None and self.steps_left < 0


@dataclass
class WorldTask:
    """A task on an executor."""

    task_id: str
    thread: int
    attempt: int
    content: tuple[Any, ...]
    result: TaskResult | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class WorldSlot:
    """A slot on an executor."""

    allocation_id: str
    generation: int
    tasks: dict[str, WorldTask] = field(default_factory=dict)
    lost: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class WorldJob:
    """A job in the state of the resource manager."""

    job_id: str
    over: str = ""  # end reason; empty while it is active
    range_id: str = ""
    waiting: dict[int, None] = field(default_factory=dict)
    granted: dict[int, WorldSlot] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    generations: Counter[int] = field(default_factory=Counter)
    log: list[SlotMessage] = field(default_factory=list)


class World:
    """Everything outside the runner. `chance(n)` returns a number below n."""

    def __init__(self, chance: Callable[[int], int], slots: int, fail: Mapping[int, int]) -> None:
        self.chance = chance
        self.slots_max = slots
        self.fail = fail  # by thread: how many of its attempts fail
        self.failed = Counter[int]()
        self.jobs: dict[str, WorldJob] = {}
        self.life = Life()
        self.running: dict[str, WorldTask] = {}
        self.starts = Counter[int]()  # tasks that were really started, by thread
        self.finished = 0  # slots whose release or reuse reported a finished thread
        self.agrees = True
        self.durable_results: dict[int, str] = {}  # the first recorded ones
        self.durable_attempts: set[tuple[int, int]] = set()
        self._ids = itertools.count(1)

    # Events of the world itself.

    def tell(self, job: WorldJob, news: SlotMessage) -> None:
        job.log.append(news)

    def busy(self) -> int:
        return sum(len(each.granted) for each in self.jobs.values() if not each.over)

    def grant_one(self) -> bool:
        living = [each for each in self.jobs.values() if not each.over and each.waiting]
        if not living or self.busy() >= self.slots_max:
            return False
        job = living[0]
        member = next(iter(job.waiting))
        del job.waiting[member]
        job.generations[member] += 1
        slot = WorldSlot(f"{job.range_id}.{member}", job.generations[member])
        job.granted[member] = slot
        self.tell(job, Granted((slot.allocation_id, slot.generation), member, "host-a"))
        return True

    def end_one(self) -> bool:
        if not self.running:
            return False
        task = list(self.running.values())[self.chance(len(self.running))]
        fails = self.failed[task.thread] < self.fail.get(task.thread, 0)
        self.failed[task.thread] += fails
        self.end(task, exit_code=int(fails))
        return True

    def end(self, task: WorldTask, *, exit_code: int = 0, cancelled: bool = False) -> None:
        if task.result is None:
            self.running.pop(task.task_id, None)
            task.result = task_result(task, exit_code, cancelled=cancelled)
            task.ended.set()

    def lose_one(self, *, comes_back: bool) -> bool:
        """Loses an executor with a slot; it may return, or the slot is placed again."""
        living = [(job, m) for job in self.jobs.values() if not job.over for m in job.granted]
        if not living:
            return False
        job, member = living[self.chance(len(living))]
        slot = job.granted.pop(member)
        slot.lost.set()
        self.tell(job, Requeued(slot.allocation_id, member))
        if comes_back:
            slot.lost = asyncio.Event()
            job.granted[member] = slot
            self.tell(job, Granted((slot.allocation_id, slot.generation), member, "host-a"))
        else:
            self.clear(slot)
            job.waiting = {member: None, **job.waiting}
        return True

    def clear(self, slot: WorldSlot) -> None:
        for task in slot.tasks.values():
            self.end(task, cancelled=True)

    def end_job(self, job: WorldJob, why: str) -> None:
        if job.over:
            return
        job.over = why
        job.waiting.clear()
        for slot in job.granted.values():
            slot.lost.set()
            self.clear(slot)
        job.granted.clear()
        gone = fg.JobEnded(f"the job is over: {why}", details={"end_reason": why})
        self.tell(job, WatchEnded(gone))

    def release(self, job: WorldJob, member: int, generation: int) -> None:
        slot = job.granted.get(member)
        if slot is not None and slot.generation == generation:
            del job.granted[member]
            self.clear(slot)
            over = RequestFinished(slot.allocation_id, member, RequestState.RELEASED, "", "")
            self.tell(job, over)

    def withdraw(self, job: WorldJob, member: int, reason: str = "") -> None:
        if member in job.waiting:
            del job.waiting[member]
            state = RequestState.RELEASED if reason else RequestState.CANCELLED
            news = RequestFinished(f"{job.range_id}.{member}", member, state, reason, "")
            self.tell(job, news)

    # The runner's view.

    def job(
        self,
        name: str,
        *,
        group: str,
        lease_s: float,
        after: object,
        priority: int,
        labels: object,
    ) -> WorldJobHandle:
        number = next(self._ids)
        return WorldJobHandle(self, WorldJob(f"job-{number}"), new=True)

    def attach_job(self, job_id: str, *, lease_s: float = 0) -> WorldJobHandle:
        return WorldJobHandle(self, self.jobs[job_id], new=False)

    async def info(self) -> Any:
        return SimpleNamespace(total={"cpu_milli": 1000 * self.slots_max})


def task_result(task: WorldTask, exit_code: int, *, cancelled: bool) -> TaskResult:
    return TaskResult(
        task_id=task.task_id,
        exit_code=exit_code,
        signal=15 if cancelled else 0,
        oom_killed=False,
        timed_out=False,
        cancelled=cancelled,
        peak_memory_bytes=0,
        cpu_time_s=0.0,
        end_time=datetime.now(UTC),
        stdout_bytes=len(output_of(task.thread, task.attempt)),
        stderr_bytes=0,
        dropped_bytes=0,
    )


def output_of(thread: int, attempt: int) -> bytes:
    return f"thread {thread}, attempt {attempt}\n".encode()


class WorldJobHandle:
    """Takes the place of `Job` for a runner."""

    def __init__(self, world: World, job: WorldJob, *, new: bool) -> None:
        self.world, self.inner, self._new = world, job, new
        self.life = world.life
        self.job_id = job.job_id
        self.detached = False

    async def __aenter__(self) -> WorldJobHandle:
        self.life.step()
        if self._new:
            self.world.jobs[self.job_id] = self.inner
        if self.inner.over:
            raise fg.JobEnded("the job is over", details={"end_reason": self.inner.over})
        self.life.step()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self.detached or self.life.is_dead or not self._new

    async def end(self, *, outcome: JobOutcome) -> None:
        self.life.step()
        self.world.end_job(self.inner, "ENDED")
        self.life.step()


class WorldSlots:
    """Takes the place of `BatchSlots` for a runner."""

    def __init__(self, handle: WorldJobHandle, row: JobRow, _slot: fg.SlotSpec) -> None:
        self.world, self.job, self.life = handle.world, handle.inner, handle.life
        self.job.range_id = self.range_id = row.range_id
        self._from = len(self.job.log) - bool(self.job.over)  # its end is published, however late
        self._handles: dict[SlotKey, SlotHandle] = {}

    @property
    def held(self) -> list[SlotHandle]:
        return list(self._handles.values())

    def slot(self, key: SlotKey) -> SlotHandle | None:
        slot = self.job.granted.get(int(key[0].rpartition(".")[2]))
        if slot is None or slot.generation != key[1]:
            return None
        return SlotHandle(self.world, slot, self.life)

    def present(self) -> tuple[list[Granted], list[tuple[int, int]]]:
        self.life.step()
        granted = [
            Granted((slot.allocation_id, slot.generation), member, "host-a")
            for member, slot in self.job.granted.items()
        ]
        return granted, [(member, 1) for member in self.job.waiting]

    async def listen(self, tell: Callable[[SlotMessage], None]) -> None:
        at = self._from
        while True:
            while at < len(self.job.log):
                self.life.step()
                tell(self.job.log[at])
                at += 1
            await asyncio.sleep(0)

    async def ask(self, first: int, count: int) -> None:
        await self._call()
        for member in range(first, first + count):
            if member not in self.job.asked and not self.job.over:
                self.job.asked.add(member)
                self.job.waiting[member] = None
        self.life.step()

    async def give_up(self, runs: Sequence[tuple[int, int]]) -> None:
        await self._call()
        for first, count in runs:
            for member in range(first, first + count):
                self.world.withdraw(self.job, member)
                if (slot := self.job.granted.get(member)) is not None:
                    self.world.release(self.job, member, slot.generation)
        self.life.step()

    async def release(
        self, keys: Sequence[SlotKey], reports: Mapping[SlotKey, ThreadReport]
    ) -> None:
        await self._call()
        for key in keys:
            self._note_end(key, reports)
            self.world.release(self.job, int(key[0].rpartition(".")[2]), key[1])
        self.life.step()

    async def reuse(
        self,
        pairs: Sequence[tuple[SlotKey, int]],
        reports: Mapping[SlotKey, ThreadReport],
        new: tuple[int, int] | None = None,
    ) -> list[bool]:
        await self._call()
        if self.world.chance(4) == 0:  # so late that the last attempt may end first
            for _ in range(40):
                await asyncio.sleep(0)
            self._check_job()
        answers = []
        if new is not None and self.world.chance(8) == 0:  # an older resource manager
            for key, _ in pairs:
                self._note_end(key, reports)  # the call has reported it, although it is refused
                self.world.release(self.job, int(key[0].rpartition(".")[2]), key[1])
            raise NewMembersRefused(None)
        for member in range(new[0], new[0] + new[1]) if new is not None else ():
            if member not in self.job.asked and not self.job.over:
                self.job.asked.add(member)
                self.job.waiting[member] = None
        for key, wanted in pairs:
            self._note_end(key, reports)
            there = self.slot(key) is not None and wanted in self.job.waiting
            agreed = there and self.world.agrees and self.world.chance(4) > 0
            answers.append(agreed)
            if agreed:
                self.world.withdraw(self.job, wanted, "REUSED")
            else:
                self.world.release(self.job, int(key[0].rpartition(".")[2]), key[1])
        self.life.step()
        return answers

    def _note_end(self, key: SlotKey, reports: Mapping[SlotKey, ThreadReport]) -> None:
        if self.slot(key) is not None:
            report = reports[key]
            self.world.finished += report.finished_before + (report.end is fg.ThreadEnd.FINISHED)

    async def _call(self) -> None:
        self.life.step()
        for _ in range(self.world.chance(3)):
            await asyncio.sleep(0)
        self._check_job()

    def _check_job(self) -> None:
        if self.job.over:
            raise fg.JobEnded("the job is over", details={"end_reason": self.job.over})


class SlotHandle:
    """Takes the place of `Slot` for a runner."""

    executor_id = "host-a"
    profile = ResourceProfile(cpu_milli=1000)
    memory_bytes = 0

    def __init__(self, world: World, slot: WorldSlot, life: Life) -> None:
        self.world, self.inner, self.life = world, slot, life

    async def run(
        self, argv: list[str], *, task_id: str, output: Callable[[OutputChunk], None], **more: Any
    ) -> TaskHandle:
        self.life.step()
        for _ in range(self.world.chance(3)):
            await asyncio.sleep(0)
        if self.inner.lost.is_set():
            raise lost(self.inner)
        thread, attempt = int(argv[1]), int(argv[2])
        content = (tuple(argv), tuple(sorted(more["env"].items())))
        task = self.inner.tasks.get(task_id)
        if task is None:
            assert (thread, attempt) in self.world.durable_attempts, "begun before it was written"
            assert thread not in self.world.durable_results, "begun although it has its result"
            task = WorldTask(task_id, thread, attempt, content)
            self.inner.tasks[task_id] = self.world.running[task_id] = task
            self.world.starts[thread] += 1
        assert task.content == content, "the same task with other content"
        self.life.step()
        return TaskHandle(self, task, output)


class TaskHandle:
    """Takes the place of `Task` for a runner."""

    def __init__(
        self, slot: SlotHandle, task: WorldTask, output: Callable[[OutputChunk], None]
    ) -> None:
        self.slot, self.task, self.output = slot, task, output
        self.status = SimpleNamespace(start_time=datetime.now(UTC))

    async def wait(self) -> TaskResult:
        lost_event = self.slot.inner.lost
        said = output_of(self.task.thread, self.task.attempt)
        self.output(OutputChunk("stdout", 0, said[:5]))
        while self.task.result is None and not lost_event.is_set():  # noqa: ASYNC110  # two events
            await asyncio.sleep(0)
        if lost_event.is_set():
            raise lost(self.slot.inner)
        assert self.task.result is not None
        self.output(OutputChunk("stdout", 5, said[5:]))
        self.slot.life.step()
        return self.task.result

    async def cancel(self) -> None:
        self.slot.life.step()
        self.slot.world.end(self.task, cancelled=True)


def lost(slot: WorldSlot) -> fg.SlotLost:
    return fg.SlotLost(slot.allocation_id, slot.generation, "host-a", "EXECUTOR_LOST", "it is lost")


class Disk(Executor):
    """Executes work at once; the runner may be killed before and after it."""

    def __init__(self, world: World) -> None:
        self.world, self.life = world, world.life

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            self.life.step()
            result = work(*args, **kwargs)
            self.life.step()
            done.set_result(result)
        except BaseException as error:
            done.set_exception(error)
        return done


def inhabit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all runners use this world."""

    def write(self: StateFile, job: int, changes: Changes) -> None:
        real_write(self, job, changes)
        world.durable_attempts |= {(each.thread, each.attempt) for each in changes.begun}
        for each in changes.results:
            told = world.durable_results.setdefault(each.index, repr(each))
            assert told == repr(each), "a second result"

    real_write = StateFile.write
    monkeypatch.setattr(StateFile, "write", write)
    monkeypatch.setattr(runner, "BatchSlots", WorldSlots)
    monkeypatch.setattr(runner, "ThreadPoolExecutor", lambda *_a, **_k: Disk(world))


async def live(
    world: World, spec: fg.BatchSpec, folder: Path, steps: int | None
) -> fg.BatchOutcome | None:
    """Runs one runner; returns None if it was killed."""
    world.life = Life(steps)
    cluster: Any = world
    batch = fg.BatchJob(cluster, spec, state_file=folder / "state", results_dir=folder / "results")
    try:
        return await batch.run()
    except Killed:
        return None
