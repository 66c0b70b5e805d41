"""A helper without processes: it records its calls, and the test decides what happens on the
host.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    NotFound,
    Reason,
    Unavailable,
)
from task_executor.host.helper_messages import (
    ExitRecord,
    HelperEvent,
    HelperInfo,
    HelperState,
    IsolationReport,
    KubeletFiles,
    SlotLimits,
    SlotMemory,
    SlotPlace,
    SlotState,
    SlotUsage,
    TaskExited,
    TaskRecord,
    TaskSpec,
    TaskStarted,
    Usage,
)

ENFORCED = IsolationReport("v1", "quota", "cgroup", "hard", "hard", "freezer")
Key = tuple[str, int]


@dataclass
class FakeHelper:
    """Implements `task_executor.service.ports.Helper`."""

    task_root: Path
    slots: dict[Key, SlotLimits] = field(default_factory=dict)
    specs: dict[str, TaskSpec] = field(default_factory=dict)
    exits: dict[str, ExitRecord] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    refuse_create: dict[str, FinegrainError] = field(default_factory=dict)
    refuse_resize: FinegrainError | None = None
    refuse_place: FinegrainError | None = None
    refuse_start: FinegrainError | None = None
    refuse_park: FinegrainError | None = None
    refuse_unpark: FinegrainError | None = None
    refuse_limits: dict[str, str] | FinegrainError = field(default_factory=dict)
    refuse_probe: dict[str, str] = field(default_factory=dict)
    destroy_gate: asyncio.Event = field(default_factory=asyncio.Event)
    start_gate: asyncio.Event = field(default_factory=asyncio.Event)
    resize_gate: asyncio.Event = field(default_factory=asyncio.Event)
    place_gate: asyncio.Event = field(default_factory=asyncio.Event)
    park_gate: asyncio.Event = field(default_factory=asyncio.Event)
    input_bytes: bytearray = field(default_factory=bytearray)
    holder: str = ""  # of the output of any task
    input_pipe_bytes: int = 1 << 20
    stopped: bool = False
    boot_id: str = "boot"
    enforced: IsolationReport = ENFORCED
    kubelet_files: KubeletFiles = field(
        default_factory=lambda: KubeletFiles("none", False, (), {}, {})
    )
    _events: asyncio.Queue[HelperEvent] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.destroy_gate.set()
        self.start_gate.set()
        self.resize_gate.set()
        self.place_gate.set()
        self.park_gate.set()

    # -- calls of tests ------------------------------------------------------------------------

    def tell(self, event: HelperEvent) -> None:
        self._events.put_nowait(event)

    def write(self, task_id: str, data: bytes, stream: str = "stdout") -> None:
        with (self.task_root / task_id / f"{stream}.log").open("ab") as log:
            log.write(data)

    def end(self, task_id: str, exit_code: int | None = 0, **more: object) -> None:
        now_ms = round(time.time() * 1000)
        facts: dict[str, Any] = {
            f"{path.stem}_bytes": path.stat().st_size
            for path in (self.task_root / task_id).glob("std???.log")
        }
        facts |= {"started_unix_ms": now_ms, "ended_unix_ms": now_ms} | more
        record = ExitRecord(exit_code, **facts)
        self.exits[task_id] = record
        self.tell(TaskExited(task_id, record))

    def said(self, verb: str) -> list[str]:
        return [call for call in self.calls if call.startswith(verb)]

    # -- the port ------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[HelperEvent]:
        while True:
            yield await self._events.get()

    async def hello(self) -> HelperInfo:
        return HelperInfo(1, "fake", 1, self.boot_id, 0, self.enforced)

    async def create_slot(self, limits: SlotLimits) -> IsolationReport:
        self.calls.append(f"create {limits.allocation_id}.{limits.generation}")
        await asyncio.sleep(0)
        if error := self.refuse_create.get(limits.allocation_id):
            raise error
        self.slots[limits.allocation_id, limits.generation] = limits
        return self.enforced

    async def resize_slot(self, limits: SlotLimits) -> IsolationReport:
        key = limits.allocation_id, limits.generation
        self.calls.append(f"resize {limits.allocation_id}.{limits.generation}")
        await self.resize_gate.wait()
        same = limits == self.slots.get(key) and not isinstance(self.refuse_resize, Unavailable)
        if self.refuse_resize is not None and not same:
            raise self.refuse_resize
        if key not in self.slots:
            raise NotFound("no slot")
        self.slots[key] = limits
        return self.enforced

    async def park_slot(self, allocation_id: str, generation: int, memory_bytes: int) -> int:
        self.calls.append(f"park {allocation_id}.{generation} {memory_bytes}")
        await self.park_gate.wait()
        if self.refuse_park is not None:
            raise self.refuse_park
        return 1

    async def unpark_slot(self, allocation_id: str, generation: int, device_map: str) -> int:
        self.calls.append(f"unpark {allocation_id}.{generation} {device_map}".strip())
        await self.park_gate.wait()
        if self.refuse_unpark is not None:
            raise self.refuse_unpark
        return 1

    async def place_slots(self, places: Iterable[SlotPlace]) -> None:
        told = list(places)
        self.calls.append("place " + " ".join(f"{p.allocation_id}:{p.cpus}" for p in told))
        await self.place_gate.wait()
        if self.refuse_place is not None:
            raise self.refuse_place
        for place in told:
            key = place.allocation_id, place.generation
            if key in self.slots:
                self.slots[key] = replace(self.slots[key], cpus=place.cpus, mems=place.mems)

    async def limit_device_memory(
        self, slots: Iterable[SlotMemory], probe: Mapping[str, int]
    ) -> tuple[list[dict[str, str]], dict[str, str]]:
        asked = list(slots)
        told = [f"{e.allocation_id}:{json.dumps(e.limits, sort_keys=True)}" for e in asked]
        self.calls.append(f"limit_memory {' '.join(told)} probe {sorted(probe)}")
        refusals = self.refuse_limits
        if isinstance(refusals, FinegrainError):
            raise refusals
        failed = [{d: w for d, w in refusals.items() if d in e.limits} for e in asked]
        return failed, {d: why for d, why in self.refuse_probe.items() if d in probe}

    async def destroy_slot(self, allocation_id: str, generation: int, grace_ms: int = 0) -> None:
        self.calls.append(f"destroy {allocation_id}.{generation} {grace_ms}")
        await self.destroy_gate.wait()
        for task_id, spec in self.specs.items():
            in_slot = (spec.allocation_id, spec.generation) == (allocation_id, generation)
            if in_slot and task_id not in self.exits:
                self.end(task_id, None, signal=9)
        self.slots.pop((allocation_id, generation), None)

    async def start_task(self, spec: TaskSpec) -> TaskStarted:
        self.calls.append(f"start {spec.task_id}")
        await self.start_gate.wait()
        if self.refuse_start is not None:
            raise self.refuse_start
        (self.task_root / spec.task_id).mkdir(parents=True, exist_ok=True)
        self.specs[spec.task_id] = spec
        return TaskStarted(4242, 1)

    def _running(self, task_id: str) -> None:
        if task_id not in self.specs:
            raise NotFound("no task", reason=Reason.TASK_UNKNOWN)
        if task_id in self.exits:
            raise FailedPrecondition("it ended", reason=Reason.TASK_ENDED)

    async def limit_task(self, task_id: str, memory_limit_bytes: int) -> None:
        self.calls.append(f"limit {task_id} {memory_limit_bytes}")
        self._running(task_id)

    async def signal_task(self, task_id: str, signum: int) -> None:
        self.calls.append(f"signal {task_id} {signum}")
        self._running(task_id)

    async def kill_task(self, task_id: str, grace_ms: int = 0) -> None:
        self.calls.append(f"kill {task_id} {grace_ms}")
        self._running(task_id)
        self.end(task_id, None, signal=15)

    async def write_input(self, task_id: str, offset: int, data: bytes, eof: bool = False) -> int:
        self._running(task_id)
        new = data[len(self.input_bytes) - offset :][: self.input_pipe_bytes]
        self.input_bytes += new
        self.calls.append(f"input {offset} {len(new)} {eof}")
        return len(self.input_bytes)

    async def hold_output(self, task_id: str, holder: str, stdout: int, stderr: int) -> int:
        self.calls.append(f"hold {task_id} {holder} {stdout} {stderr}")
        self._running(task_id)
        if self.holder not in ("", holder):
            raise AlreadyExists("another reader holds the output")
        self.holder = holder
        return self.specs[task_id].log_limit_bytes

    async def inspect(self) -> HelperState:
        tasks = [
            TaskRecord(
                task_id,
                spec.allocation_id,
                spec.generation,
                "exited" if task_id in self.exits else "running",
                4242,
                1,
                self.task_root / task_id,
                self.exits.get(task_id),
            )
            for task_id, spec in self.specs.items()
        ]
        return HelperState([SlotState(limits, False) for limits in self.slots.values()], tasks)

    async def usage(self) -> Usage:
        return Usage([SlotUsage(*key, 1000, 2000, 500_000, 1, 0) for key in self.slots], [])

    async def kubelet(self, seen: str = "") -> KubeletFiles | None:
        return None if self.kubelet_files.mark == seen else self.kubelet_files

    async def forget_task(self, task_id: str) -> None:
        self.calls.append(f"forget {task_id}")
        self.specs.pop(task_id, None)

    async def stop(self) -> None:
        self.stopped = True

    async def close(self) -> None:
        pass
