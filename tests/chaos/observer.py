"""Observes the cluster during the faults: kernel limits, the resource manager's state, events.

It runs in a thread with a separate client. At every moment an executor's slots must not exceed its
capacity, in the kernel and in the resource manager's state. Cluster events must be numbered without
gaps.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import finegrain_client as fg
from tests.chaos.cluster import Cluster
from tests.chaos.daemons import CPU_MILLI, MEMORY_MIB, Executor

T = TypeVar("T")
SAMPLE_S, BOOKS_S = 0.3, 1.0
NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Limits:
    """The limits that the kernel enforces for one slot."""

    cpu_milli: int
    memory_bytes: int


@dataclass
class Seen:
    """The observations; `wrong` has the violations."""

    wrong: list[str] = field(default_factory=list)
    events: list[fg.ClusterEvent] = field(default_factory=list)
    samples: int = 0
    books_read: int = 0
    most_slots: int = 0


class Observer:
    """Observes from `start` to `stop`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seen = Seen()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._running: list[Future[None]] = []
        self._client: fg.Cluster | None = None

    def start(self) -> None:
        self._thread.start()
        self._client = self.call(self._connect())
        for work in (self._sample(), self._read_books(), self._follow_events()):
            self._running.append(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _connect(self) -> fg.Cluster:
        return self.cluster.connect()

    @property
    def client(self) -> fg.Cluster:
        assert self._client is not None
        return self._client

    def call(self, work: Coroutine[Any, Any, T], patience_s: float = 120.0) -> T:
        """Runs a call of `client` on the observer's loop; returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patience_s)

    def stop(self) -> None:
        if self._client is None:
            return
        for work in self._running:
            work.cancel()
        self.call(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _wrong(self, message: str) -> None:
        self.seen.wrong.append(f"{time.strftime('%X')} {message}")

    # -- the kernel --------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            for executor in self.cluster.executors:
                limits = slot_limits(executor)
                self.seen.most_slots = max(self.seen.most_slots, len(limits))
                cpu = sum(each.cpu_milli for each in limits.values())
                memory = sum(each.memory_bytes for each in limits.values())
                if cpu > CPU_MILLI or memory > MEMORY_MIB * fg.MIB:
                    self._wrong(f"{executor.name} carries more than it has: {limits}")
            self.seen.samples += 1
            await asyncio.sleep(SAMPLE_S)

    # -- the resource manager ----------------------------------------------------------------

    async def _read_books(self) -> None:
        while True:
            await asyncio.sleep(BOOKS_S)
            try:
                for executor in self.cluster.executors:
                    self._check_books(await self.client.executor(executor.name))
                self.seen.books_read += 1
            except fg.FinegrainError:
                continue  # not reachable, or not registered yet

    def _check_books(self, books: fg.ExecutorStatus) -> None:
        slots = books.slot_list or ()
        cpu = sum(each.profile.cpu_milli for each in slots)
        memory = sum(each.memory_bytes for each in slots)
        if cpu > books.total["cpu_milli"] or memory > MEMORY_MIB * fg.MIB:
            self._wrong(f"the books give away more of {books.executor_id} than it has: {slots}")
        if cpu != books.allocated["cpu_milli"]:
            self._wrong(f"{books.executor_id}: {cpu} milli in slots, {books.allocated} booked")

    # -- events ------------------------------------------------------------------------------

    async def _follow_events(self) -> None:
        following = 1
        while True:
            try:
                async for event in self.client.events(from_sequence=following, follow=True):
                    if event.sequence != following:
                        self._wrong(f"cluster event {event.sequence} came instead of {following}")
                    following = event.sequence + 1
                    self.seen.events.append(event)
            except fg.FinegrainError:
                await asyncio.sleep(0.2)


def bases(executor: Executor) -> dict[str, Path]:
    """Returns the executor's control groups by controller, from its helper; may be empty."""
    try:
        note = json.loads((executor.state_dir / "helper" / "helper.json").read_text())
        return {name: Path(path) for name, path in note["base"].items()}
    except (OSError, ValueError, KeyError):
        return {}


def slot_groups(executor: Executor) -> dict[str, set[str]]:
    """Returns the names of its slots' groups by controller."""
    return {name: set(_names(base / "slots")) for name, base in bases(executor).items()}


def slot_limits(executor: Executor) -> dict[str, Limits]:
    """Returns the limits in force of slots that existed during the whole reading."""
    places = bases(executor)
    if not places:
        return {}
    version_2 = "unified" in places
    memory = places["unified" if version_2 else "memory"] / "slots"
    cpu = places["unified" if version_2 else "cpu"] / "slots"
    read = _limits_v2 if version_2 else _limits_v1
    found = {}
    for name in _names(memory):
        try:
            found[name] = read(cpu / name, memory / name)
        except (OSError, ValueError):
            continue  # removed, or its limits are being written
    still = set(_names(memory))
    return {name: limits for name, limits in found.items() if name in still}


def _limits_v1(cpu: Path, memory: Path) -> Limits:
    limit = int((memory / "memory.limit_in_bytes").read_text())
    quota = int((cpu / "cpu.cfs_quota_us").read_text())
    period = int((cpu / "cpu.cfs_period_us").read_text())
    if limit >= NO_LIMIT or quota <= 0:
        raise ValueError("not written yet")
    return Limits(quota * 1000 // period, limit)


def _limits_v2(cpu: Path, memory: Path) -> Limits:
    quota, period = (cpu / "cpu.max").read_text().split()
    return Limits(int(quota) * 1000 // int(period), int((memory / "memory.max").read_text()))


def _names(folder: Path) -> Iterable[str]:
    try:
        return [each.name for each in folder.iterdir() if each.is_dir()]
    except OSError:
        return []
