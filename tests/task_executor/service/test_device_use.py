"""Processes on a GPU belong to a slot, to the executor, or to neither."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from finegrain.devices.device import Device
from task_executor.engine.slots import SlotKey
from task_executor.host.gpu_monitor import GpuProcessSample, GpuReading, GpuSample, ProcessKind
from task_executor.host.process_owners import ProcessOwners
from task_executor.service.device_use import MEMORY_SHOWN_S, DeviceUses, ProcessSorter

GPU = Device("gpu", "GPU-a", 0, (("gpu-core", 100),))
SLOT = SlotKey("alloc", 1)
OWN = 50


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc"


def process(proc: Path, pid: int, *, group: str = "/user", parent: int = 1) -> None:
    """Writes the /proc files of a process."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"2:cpu:{group}\n1:memory:{group}\n")
    (folder / "comm").write_text("python\n")
    (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")


def reading(at_s: float, *samples: GpuProcessSample) -> GpuReading:
    gpu = GpuSample("GPU-a", 0, memory_used_bytes=900, busy_percent=7, processes=samples)
    return GpuReading(1, at_s, {"GPU-a": gpu})


def used(pid: int, memory: int = 5, kind: ProcessKind = ProcessKind.COMPUTE) -> GpuProcessSample:
    return GpuProcessSample(pid, kind, memory)


def sort(
    sorter: ProcessSorter, now: GpuReading, tasks: Mapping[int, SlotKey] | None = None
) -> DeviceUses:
    groups = {"alloc.1": SLOT}
    return sorter.sort(now, [GPU], groups=groups, tasks=tasks or {}, own=[OWN])


def strangers(uses: DeviceUses) -> list[int]:
    return [each.pid for each in uses.foreign["GPU-a"]]


def test_a_stranger_counts_from_the_second_reading_on(proc: Path) -> None:
    process(proc, 100)
    sorter = ProcessSorter(ProcessOwners(proc), trusts_pids=True)
    assert strangers(sort(sorter, reading(0, used(100)))) == []
    [use] = sort(sorter, reading(1, used(100))).foreign["GPU-a"]
    assert (use.pid, use.name, use.memory_bytes) == (100, "python", 5)
    assert use.user
    assert strangers(sort(sorter, reading(2))) == []


def test_processes_of_slots_are_measured(proc: Path) -> None:
    process(proc, 100, group="/finegrain/slots/alloc.1/task-1")
    process(proc, 101, parent=100)  # not in a slot's group; its parent is a task
    sorter = ProcessSorter(ProcessOwners(proc), trusts_pids=True)
    for _ in range(2):
        found = sort(sorter, reading(0, used(100, 3), used(101, 4)), {100: SLOT})
    assert strangers(found) == []
    [usage] = found.usages
    assert (usage.memory_bytes, usage.busy_percent) == (900, 7)
    [slot] = usage.slots
    assert (slot.allocation_id, slot.memory_bytes, slot.processes) == ("alloc", 7, 2)


def test_who_does_not_count_as_a_stranger(proc: Path) -> None:
    process(proc, OWN)
    process(proc, 100, parent=OWN)  # a descendant of the executor
    process(proc, 101)
    sorter = ProcessSorter(ProcessOwners(proc), trusts_pids=True)
    ended = 999
    now = reading(0, used(OWN), used(100), used(101, kind=ProcessKind.GRAPHICS), used(ended))
    for _ in range(3):
        assert strangers(sort(sorter, now)) == []


def test_nothing_is_recognized_by_numbers_of_another_namespace(proc: Path) -> None:
    process(proc, 100)
    sorter = ProcessSorter(ProcessOwners(proc), trusts_pids=False)
    for _ in range(3):
        found = sort(sorter, reading(0, used(100)))
    assert strangers(found) == []
    assert found.usages[0].memory_bytes == 900


def test_the_memory_of_a_stranger_changes_reports_only_now_and_then(proc: Path) -> None:
    process(proc, 100)
    sorter = ProcessSorter(ProcessOwners(proc), trusts_pids=True)
    shown = set()
    for second in range(int(MEMORY_SHOWN_S) * 2):
        found = sort(sorter, reading(second, used(100, 1_000 + second)))
        shown |= {each.memory_bytes for each in found.foreign["GPU-a"]}
    assert len(shown) == 2


def test_this_process_is_found_in_the_real_tree() -> None:
    owner = ProcessOwners().find(os.getpid(), groups={}, tasks={}, own=[])
    assert owner is not None
    assert owner.command
    assert not owner.is_own
    assert ProcessOwners().find(os.getpid(), groups={}, tasks={}, own=[os.getpid()]).is_own  # type: ignore[union-attr]
