"""After any orders and failures, no slot runs on the dedicated cpus of another slot or without cpus
at any moment, and in the end the host matches the slot table.

The host is a model that checks this after every single change. Calls to it fail at random: before
anything is done, after everything is done (only the answer is lost), or in the middle.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason, Unavailable
from finegrain.resources import MIB, ResourceProfile
from task_executor.engine.slot_table import HostShare, SlotTable
from task_executor.engine.slots import CarveState, SlotKey, SlotSpec
from task_executor.host.helper_messages import IsolationReport, SlotLimits, SlotPlace
from task_executor.service.checkpoint import StateDirectory
from task_executor.service.host_sync import recover
from task_executor.service.resizing import resize_slot
from task_executor.service.slot_keeper import Identity, SlotKeeper
from tests.support.patience import PATIENCE_S
from tests.task_executor.service.fake_helper import ENFORCED, FakeHelper

CPUS = 6
STEPS = 60


class HostModel(FakeHelper):
    """A host with failures, which is checked after every change."""

    rng: random.Random
    failing = True
    classes: dict[str, QosClass]
    told: set[tuple[str, int]]  # slots that a front knows: tasks may run in them

    def _change(self, key: tuple[str, int], limits: SlotLimits) -> None:
        self.slots[key] = limits
        self.look()

    def look(self) -> None:
        on_host = [
            (self.classes[key[0]], CpuSet.parse(limits.cpus))
            for key, limits in self.slots.items()
            if key in self.told
        ]
        assert all(cpus for _, cpus in on_host)
        for at, (qos, own) in enumerate(on_host):
            for other, (theirs, shared) in enumerate(on_host):
                is_alone = qos is QosClass.LSE or (qos.is_pinned and theirs is not QosClass.BE)
                assert at == other or not is_alone or own.isdisjoint(shared), self.slots

    def _fault(self) -> str:
        """ "", "before" (nothing is done), "after" (the answer is lost), "refused"."""
        choices = ("", "", "", "", "before", "after", "refused")
        return self.rng.choice(choices) if self.failing else ""

    async def _do(
        self, changes: Iterable[tuple[tuple[str, int], SlotLimits]], *, new: bool = False
    ) -> None:
        todo, fault = list(changes), self._fault()
        await asyncio.sleep(self.rng.choice((0, 0.001, 0.003)))  # other tasks run meanwhile
        if fault == "refused":
            raise FailedPrecondition("it does not stick", reason=Reason.CARVE_FAILED)
        if fault == "before" and todo:  # all slots may have ended meanwhile
            todo = todo[: self.rng.randrange(len(todo))]  # it died in the middle
        for key, limits in todo:
            if new or key in self.slots:  # otherwise the slot has ended meanwhile
                self._change(key, limits)
        if fault:
            raise Unavailable("the helper went away")

    async def create_slot(self, limits: SlotLimits) -> IsolationReport:
        key = limits.allocation_id, limits.generation
        await self._do([(key, limits)], new=True)
        self.told.add(key)
        self.look()
        return ENFORCED

    async def resize_slot(self, limits: SlotLimits) -> IsolationReport:
        key = limits.allocation_id, limits.generation
        if key not in self.slots:
            raise NotFound("no slot")
        await self._do([(key, limits)])
        return ENFORCED

    async def place_slots(self, places: Iterable[SlotPlace]) -> None:
        found = [((each.allocation_id, each.generation), each) for each in places]
        await self._do(
            (key, replace(self.slots[key], cpus=each.cpus, mems=each.mems))
            for key, each in found
            if key in self.slots
        )

    async def destroy_slot(self, allocation_id: str, generation: int, grace_ms: int = 0) -> None:
        del grace_ms
        await asyncio.sleep(self.rng.choice((0, 0, 0.002)))
        if self._fault() in ("before", "refused"):
            raise Unavailable("the helper went away")
        self.slots.pop((allocation_id, generation), None)


class Story:
    """One front after the other runs on a host, with random orders."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host = HostModel(folder / "tasks")
        self.host.rng, self.host.classes, self.host.told = self.rng, {}, set()
        self.directory = StateDirectory.open(folder / "state")
        self.names = 0

    async def start(self) -> None:
        """Starts a front, which recovers the state of the former front."""
        total = {
            "cpu_milli": 1000 * CPUS,
            "best_effort_cpu_milli": 1000 * CPUS,
            "memory_bytes": 1024 * MIB,
        }
        table = SlotTable(HostShare(total, CpuSet(range(CPUS))))
        identity = Identity("host-a", "instance", "boot")
        self.keeper = SlotKeeper(identity, table, self.host, self.directory, default_grace_ms=0)
        await recover(self.keeper, self.directory.load("host-a"))

    def _own(self) -> CpuSet:
        return CpuSet(self.rng.sample(range(CPUS), self.rng.choice((1, 1, 2))))

    def _spec(self) -> SlotSpec:
        self.names += 1
        qos = self.rng.choice(list(QosClass))
        own = self._own() if qos.is_pinned else CpuSet()
        cpu = 1000 * len(own) or 200
        name = f"{qos}-{self.names}"
        self.host.classes[name] = qos
        return SlotSpec(
            name,
            1,
            "job",
            ResourceProfile(cpu, task_heap_memory_bytes=MIB),
            cpu_limit_milli=cpu,
            pids_max=9,
            cpus=str(own),
            assignment=CpuAssignment(qos, own),
        )

    async def step(self) -> None:
        keys = [slot.key for slot in self.keeper.table if slot.state is CarveState.ALLOCATED]
        deed = self.rng.choice(("carve", "carve", "free", "resize", "crash", "settle"))
        if deed == "carve":
            await self.keeper.carve([self._spec() for _ in range(self.rng.choice((1, 3)))])
        elif deed == "free" and keys:
            await self.keeper.free([(self.rng.choice(keys), 0)])
        elif deed == "resize" and keys:
            await self._resize(self.rng.choice(keys))
        elif deed == "settle":
            await self.keeper.cpu_bindings.sync_or_log()
        elif deed == "crash" and self.rng.random() < 0.3:
            await self.keeper.close()
            await self._restart()

    async def _restart(self) -> None:
        while True:
            with suppress(FinegrainError):
                return await self.start()

    async def _resize(self, key: SlotKey) -> None:
        slot = self.keeper.table.get(key)
        assert slot is not None
        number = (slot.becoming or slot.spec).resize_number + 1
        change: dict[str, Any] = {}
        cpu = 300
        if slot.spec.is_pinned and slot.spec.assignment is not None:
            own = self._own()
            cpu, change = 1000 * len(own), {"assignment": replace(slot.spec.assignment, cpus=own)}
        profile = ResourceProfile(cpu, task_heap_memory_bytes=MIB)
        with suppress(FinegrainError):
            await resize_slot(self.keeper, key, number, profile, cpu, **change)

    async def heal(self) -> None:
        """Ends all failures; a new front then repairs everything."""
        self.host.failing = False
        await self.keeper.close()
        await self.start()
        async with asyncio.timeout(PATIENCE_S):
            while (
                self.keeper._cleaning
                or self.keeper._teardowns
                or self.keeper.cpu_bindings.is_out_of_sync
            ):
                await asyncio.sleep(0.001)
                await self.keeper.cpu_bindings.sync_or_log()

    def check(self) -> int:
        """Checks that the host matches the slot table; returns the number of slots."""
        books = self.keeper.table
        books.check_invariants()
        told = {tuple(slot.key): books.cpus.binding_of(slot.spec).cpus for slot in books}
        assert {key: CpuSet.parse(each.cpus) for key, each in self.host.slots.items()} == told
        return len(told)


class LoopWithOwnClock(asyncio.SelectorEventLoop):
    """Its clock moves only while all tasks sleep, and without waiting. So a seed with `at_once`
    always gives the same run, however busy the machine is.
    """

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        look = selector.select
        self._now = 0.0

        def select(timeout: float | None = None) -> list[Any]:
            if timeout is None:  # only a file can wake the loop
                return look(None)
            self._now += max(timeout, 0.0)
            return look(0)

        selector.select = select  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self._now


async def at_once(work: Callable[..., Any], *args: Any) -> Any:
    """Runs the work here, instead of in a thread."""
    return work(*args)


@pytest.mark.parametrize("seed", [*range(30), 63])  # 63: all slots to be moved back have ended
def test_nobody_ever_runs_on_anothers_cpus_or_on_none(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_executor.service.slot_keeper.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("task_executor.service.host_sync.DESTROY_S_MAX", 0.005)
    monkeypatch.setattr("task_executor.service.checkpoint.os.fsync", lambda _fd: None)
    monkeypatch.setattr("task_executor.service.group_commit.asyncio.to_thread", at_once)
    with asyncio.Runner(loop_factory=LoopWithOwnClock) as runner:
        runner.run(run_story(Story(tmp_path, seed)))


async def run_story(story: Story) -> None:
    """Runs steps, heals the host, and checks that it matches the slot table."""
    await story.start()
    moved = 0
    for _ in range(STEPS):
        await story.step()
        story.keeper.table.check_invariants()
        moved += len(story.host.slots)
    assert moved > STEPS  # otherwise the run shows nothing
    await story.heal()
    story.check()
    await story.keeper.close()
    story.directory.close()
