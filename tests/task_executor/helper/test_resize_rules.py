"""Slots change their size on kernels in memory that enforce the rules. The whole change is made or
nothing of it, whatever fails and wherever the helper dies. A change never kills a task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups import choose_driver
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault
from task_executor.helper.slots import Slots
from tests.task_executor.helper.fake_cgroups import FakeKernel, FakeV1, FakeV2
from tests.task_executor.helper.test_cgroup_drivers import (
    EVERY_KERNEL,
    MIB,
    SEPARATE,
    config,
    finish,
    limits,
    slots_on,
    start_in,
)

BOTH = [pytest.param(FakeV2, id="v2"), pytest.param(lambda: FakeV1(SEPARATE), id="v1")]


class HelperDied(BaseException):
    """Nothing of the helper runs after this."""


def place(slots: Slots, controller: str) -> str:
    group = slots.driver.slot("a.1")
    return group.get(controller, group.get("unified", ""))


def enforced(slots: Slots) -> dict[str, str]:
    """Returns the values in the kernel that depend on the size, by file."""
    v1 = {
        "cpu": ("cpu.cfs_quota_us", "cpu.shares"),
        "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        "cpuset": ("cpuset.cpus",),
    }
    v2 = {"unified": ("cpu.max", "cpu.weight", "memory.max", "memory.high", "cpuset.cpus")}
    names = v1 if slots.driver.name == "v1" else v2
    kernel = slots.driver.kernel
    return {
        file: kernel.read(f"{place(slots, controller)}/{file}")
        for controller, files in names.items()
        for file in files
    }


def running(kernel: FakeKernel, state: Path, *, held: int = 4 * MIB, cache: int = 0) -> Slots:
    """Returns a slot of 64 MiB in which a task holds memory."""
    slots = slots_on(kernel, state)
    slots.create(limits())
    start_in(slots, kernel, "t1", 1001)
    kernel.use(place(slots, "memory"), held=held, cache=cache)
    return slots


def value_of(job: Job) -> Any:
    """Runs a job to its end, and returns its value."""
    try:
        while True:
            next(job)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("make_kernel", EVERY_KERNEL)
def test_up_and_down_again(make_kernel: Any, tmp_path: Path) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    start_in(slots, kernel, "t1", 1001)
    for memory_bytes in (128 * MIB, 32 * MIB):
        wanted = limits(memory_bytes=memory_bytes, cpus="2-3", cpu_milli=500)
        assert value_of(slots.resize(wanted)) == slots.driver.report()
        assert slots.limits["a.1"] == wanted
    assert slots.driver.pids(slots.driver.slot("a.1"), []) == {1001}


def test_every_limit_of_the_new_size_is_in_the_kernel(tmp_path: Path) -> None:
    slots = running(FakeV1(SEPARATE), tmp_path)
    finish(slots.resize(limits(cpu_milli=500, cpu_limit_milli=700, memory_bytes=32 * MIB)))
    assert enforced(slots) == {
        "cpu.cfs_quota_us": "70000",  # the cap
        "cpu.shares": "512",  # what is booked
        "memory.limit_in_bytes": str(32 * MIB),
        "memory.memsw.limit_in_bytes": str(32 * MIB),
        "cpuset.cpus": "0-1",
    }
    slots = running(FakeV2(), tmp_path)
    finish(slots.resize(limits(cpu_milli=500, cpu_limit_milli=700, memory_bytes=96 * MIB)))
    assert enforced(slots) == {
        "cpu.max": "70000 100000",
        "cpu.weight": "50",
        "memory.max": str(96 * MIB),
        "memory.high": "max",
        "cpuset.cpus": "0-1",
    }


@pytest.mark.parametrize("make_kernel", BOTH)
def test_page_cache_goes_and_what_is_held_stays(make_kernel: Any, tmp_path: Path) -> None:
    kernel = make_kernel()
    slots = running(kernel, tmp_path, held=20 * MIB, cache=40 * MIB)
    finish(slots.resize(limits(memory_bytes=24 * MIB)))
    assert slots.limits["a.1"]["memory_bytes"] == 24 * MIB
    used = slots.driver.counters(slots.driver.slot("a.1"))["memory_current_bytes"]
    assert 20 * MIB <= used <= 24 * MIB
    assert kernel.killed == []


@pytest.mark.parametrize("make_kernel", BOTH)
def test_below_what_is_held_is_refused_with_the_numbers_and_nothing_has_changed(
    make_kernel: Any, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = running(kernel, tmp_path, held=48 * MIB, cache=12 * MIB)
    before = enforced(slots)
    with pytest.raises(Fault, match=r"50331648 bytes of memory .* let tasks free") as refused:
        finish(slots.resize(limits(cpu_milli=700, memory_bytes=32 * MIB, cpus="0")))
    assert refused.value.reason == "BELOW_USE"
    assert refused.value.details == {"asked": 32 * MIB, "used": 48 * MIB}
    assert enforced(slots) == before
    assert slots.limits["a.1"] == limits()
    assert kernel.killed == []
    finish(slots.resize(limits(memory_bytes=48 * MIB)))


def test_on_v2_page_cache_that_comes_and_goes_is_no_use_of_memory(tmp_path: Path) -> None:
    """A task that reads files is often above a soft limit for a moment."""
    kernel = FakeV2()
    slots = running(kernel, tmp_path, held=32 * MIB + 65536)
    job = slots.resize(limits(memory_bytes=32 * MIB))
    for _step in range(3):  # until the job has found the slot above the limit
        next(job)
    kernel.use(place(slots, "memory"), held=20 * MIB, cache=12 * MIB)
    finish(job)
    assert slots.limits["a.1"]["memory_bytes"] == 32 * MIB
    assert kernel.killed == []


def test_on_v1_swapped_memory_counts_as_used(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots = running(kernel, tmp_path)
    kernel.files[f"{place(slots, 'memory')}/memory.memsw.usage_in_bytes"] = str(40 * MIB)
    with pytest.raises(Fault, match="41943040 bytes of memory are in use"):
        finish(slots.resize(limits(memory_bytes=32 * MIB)))
    assert enforced(slots)["memory.limit_in_bytes"] == str(64 * MIB)


def test_on_v1_use_that_rises_after_the_look_is_use_and_no_fault_of_the_kernel(
    tmp_path: Path,
) -> None:
    kernel = FakeV1(SEPARATE)
    slots = running(kernel, tmp_path)
    memory = place(slots, "memory")
    before = enforced(slots)

    def swap_out(path: str, value: str) -> None:
        if path.endswith("memory.memsw.limit_in_bytes") and value == str(32 * MIB):
            kernel.files[f"{memory}/memory.memsw.usage_in_bytes"] = str(40 * MIB)
            raise OSError(16, "Device or resource busy", path)

    kernel.before_write = swap_out
    with pytest.raises(Fault, match="41943040 bytes of memory are in use") as refused:
        finish(slots.resize(limits(memory_bytes=32 * MIB)))
    assert refused.value.reason == "BELOW_USE"
    assert enforced(slots) == before


def test_on_v2_the_hard_limit_falls_behind_a_soft_one(tmp_path: Path) -> None:
    """A task that grows during the change is therefore slowed, and not killed."""
    kernel = FakeV2()
    slots = running(kernel, tmp_path)
    told: list[tuple[str, str]] = []
    kernel.before_write = lambda path, value: told.append((path.rpartition("/")[2], value))
    finish(slots.resize(limits(memory_bytes=32 * MIB)))
    wanted = str(32 * MIB)
    assert [each for each in told if each[0] in ("memory.high", "memory.max")] == [
        ("memory.high", wanted),
        ("memory.max", wanted),
        ("memory.high", "max"),
    ]


FILES = {
    "v1": ["cpu.cfs_quota_us", "cpuset.cpus", "memory.limit_in_bytes"],
    "v2": ["cpu.max", "cpu.weight", "cpuset.cpus", "memory.max"],
}


@pytest.mark.parametrize(
    ("version", "file"), [(version, file) for version, files in FILES.items() for file in files]
)
def test_a_limit_that_does_not_stick_brings_the_old_ones_back(
    version: str, file: str, tmp_path: Path
) -> None:
    kernel: FakeKernel = FakeV1(SEPARATE) if version == "v1" else FakeV2()
    slots = running(kernel, tmp_path)
    before = enforced(slots)

    def refuse_new(path: str, value: str) -> None:
        if path.endswith(f"/a.1/{file}") and value != before[file]:
            raise OSError(22, "Invalid argument", path)

    kernel.before_write = refuse_new
    with pytest.raises(Fault, match="Invalid argument") as failed:
        finish(slots.resize(limits(cpu_milli=700, memory_bytes=96 * MIB, cpus="2-3")))
    assert failed.value.details["file"].endswith(file)
    assert failed.value.reason == "CARVE_FAILED"
    assert enforced(slots) == before
    assert slots.limits["a.1"] == limits()


def test_what_tasks_have_grown_into_meanwhile_is_not_taken_back(tmp_path: Path) -> None:
    """The larger limit was in force for a moment, until a later step failed."""
    kernel = FakeV1(SEPARATE)
    slots = running(kernel, tmp_path)
    limit = f"{place(slots, 'memory')}/memory.limit_in_bytes"
    failures = ["once"]

    def grow_and_fail(path: str, value: str) -> None:
        if path == limit and value == str(96 * MIB) and failures:
            failures.clear()
            kernel.use(place(slots, "memory"), held=90 * MIB, cache=0)
            kernel.files[path] = value
            raise OSError(5, "Input/output error", path)

    kernel.before_write = grow_and_fail
    finish(slots.resize(limits(memory_bytes=96 * MIB)))
    assert enforced(slots)["memory.limit_in_bytes"] == str(96 * MIB)
    assert slots.limits["a.1"] == limits(memory_bytes=96 * MIB)


CHANGES: list[Any] = [
    pytest.param({"memory_bytes": 96 * MIB, "cpu_milli": 2500, "cpus": "0-3"}, id="grow"),
    pytest.param({"memory_bytes": 32 * MIB, "cpu_milli": 500, "cpus": "1"}, id="shrink"),
    pytest.param({"memory_bytes": 32 * MIB, "cpu_milli": 2500}, id="cpu for memory"),
]


@pytest.mark.parametrize("make_kernel", BOTH)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("before", [True, False], ids=["before a write", "after it"])
def test_a_helper_that_dies_at_any_write_is_followed_by_one_that_finishes(
    make_kernel: Any, change: dict[str, Any], before: bool, tmp_path: Path
) -> None:
    wanted, died_at = limits(**change), 0
    while True:
        state = tmp_path / str(died_at)
        state.mkdir()
        kernel = make_kernel()
        slots = running(kernel, state, held=20 * MIB, cache=20 * MIB)
        if not dies_at(slots, kernel, wanted, died_at, before=before):
            break
        slots.driver.unlock()
        after = Slots(state, choose_driver(config(), kernel), lambda _name: [])
        for job in after.adopt():
            finish(job)
        finish(after.resize(wanted))  # the front repeats the call
        assert after.limits == {"a.1": wanted}
        reference = running(made := make_kernel(), state)
        finish(reference.resize(wanted))
        assert enforced(after) == enforced(reference), f"died at write {died_at}"
        assert kernel.killed == made.killed == []
        after.driver.unlock()
        died_at += 1
    assert died_at > 5


@pytest.mark.parametrize(
    ("make_kernel", "writes_before_the_hard_limit"), [(lambda: FakeV1(SEPARATE), 1), (FakeV2, 7)]
)
def test_a_helper_that_dies_is_followed_by_one_that_goes_back_where_memory_is_in_use(
    make_kernel: Any, writes_before_the_hard_limit: int, tmp_path: Path
) -> None:
    """Between the two helpers, tasks used the memory that they were promised."""
    for died_at in range(writes_before_the_hard_limit):
        state = tmp_path / str(died_at)
        state.mkdir()
        kernel = make_kernel()
        slots = running(kernel, state, held=20 * MIB)
        before = enforced(slots)
        assert dies_at(slots, kernel, limits(memory_bytes=32 * MIB), died_at, before=True)
        kernel.use(place(slots, "memory"), held=60 * MIB, cache=0)
        slots.driver.unlock()
        after = Slots(state, choose_driver(config(), kernel), lambda _name: [])
        for job in after.adopt():
            with pytest.raises(Fault, match="in use"):
                finish(job)
        assert after.limits == {"a.1": limits()}
        assert enforced(after) == before
        assert kernel.killed == []
        after.driver.unlock()


def dies_at(
    slots: Slots, kernel: FakeKernel, wanted: dict[str, Any], number: int, *, before: bool
) -> bool:
    """Lets the helper die at a write, counted from 0; returns False if the change had fewer
    writes.
    """
    count = 0
    real = kernel.accept

    def dying(path: str, value: str) -> None:
        nonlocal count
        count += 1
        if count <= number:
            return real(path, value)
        if not before:
            real(path, value)
        raise HelperDied

    kernel.accept = dying  # type: ignore[method-assign]
    try:
        finish(slots.resize(wanted))
    except HelperDied:
        return True
    finally:
        kernel.accept = real  # type: ignore[method-assign]
    return False


def test_a_full_disk_refuses_a_resize_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = running(FakeV2(), tmp_path)
    before = enforced(slots)

    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("task_executor.helper.slots.write_json", full)
        with pytest.raises(OSError, match="No space left"):
            finish(slots.resize(limits(memory_bytes=96 * MIB)))
    assert enforced(slots) == before
    assert slots.limits == {"a.1": limits()}


def test_two_at_once_take_turns_and_a_slot_that_goes_waits_for_its_size(tmp_path: Path) -> None:
    kernel = FakeV2()
    slots = running(kernel, tmp_path)
    first, second = (slots.resize(limits(memory_bytes=mib * MIB)) for mib in (32, 48))
    next(first)
    next(second)
    going = slots.destroy("a.1")
    next(going)
    assert slots.limits["a.1"] == limits()
    finish(first)
    assert slots.limits["a.1"]["memory_bytes"] == 32 * MIB
    finish(going)
    with pytest.raises(Fault, match=r"no slot a\.1"):
        finish(second)
    assert not list((tmp_path / "slots").iterdir())


def test_without_cgroups_a_size_is_a_note(tmp_path: Path) -> None:
    slots = slots_on(FakeV2(), tmp_path, isolation="none")
    slots.create(limits())
    report = value_of(slots.resize(limits(memory_bytes=32 * MIB)))
    assert report["memory"] == "none"
    assert slots.limits["a.1"]["memory_bytes"] == 32 * MIB


def test_of_several_slots_each_goes_on_with_its_size_after_the_helper_has_died(
    tmp_path: Path,
) -> None:
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    for name in ("a", "b", "c"):
        slots.create(limits(allocation_id=name))
        grown = limits(allocation_id=name, memory_bytes=96 * MIB)
        assert dies_at(slots, kernel, grown, 0, before=True)
    slots.driver.unlock()
    after = Slots(tmp_path, choose_driver(config(), kernel), lambda _name: [])
    for job in after.adopt():
        finish(job)
    assert [after.limits[f"{name}.1"]["memory_bytes"] for name in "abc"] == [96 * MIB] * 3
