"""Many slots move to other cpus and memory nodes at once, on kernels in memory that enforce the
rules. All slots of a batch move, or none. A slot always has a cpu, and no later step moves it back
to its former cpus.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups import choose_driver
from task_executor.helper.protocol import (
    FRAME_BYTES_MAX,
    HELPER_VERBS,
    Fault,
    check_request,
    encode,
    expand,
)
from task_executor.helper.slots import Slots
from task_executor.host.helper_client import SlotPlace, _batches
from tests.task_executor.helper.fake_cgroups import FakeKernel, FakeV1, FakeV2
from tests.task_executor.helper.test_cgroup_drivers import (
    MIB,
    SEPARATE,
    config,
    finish,
    limits,
    slots_on,
    start_in,
)
from tests.task_executor.helper.test_resize_rules import BOTH

NAMES = ("a", "b", "c")


def carved(kernel: FakeKernel, state: Path) -> Slots:
    slots = slots_on(kernel, state)
    for name in NAMES:
        slots.create(limits(allocation_id=name, cpus="0-3"))
    return slots


def places(cpus: str, *names: str, mems: str = "0") -> list[dict[str, Any]]:
    chosen = names or NAMES
    return [{"allocation_id": n, "generation": 1, "cpus": cpus, "mems": mems} for n in chosen]


def directory(slots: Slots, name: str) -> str:
    group = slots.driver.slot(f"{name}.1")
    return group.get("cpuset", group.get("unified", ""))


def in_kernel(slots: Slots) -> dict[str, str]:
    read = slots.driver.kernel.read
    return {name: read(f"{directory(slots, name)}/cpuset.cpus") for name in NAMES}


def on_record(slots: Slots) -> dict[str, str]:
    found = {}
    for name in NAMES:
        record = json.loads((slots.directory / f"{name}.1.json").read_text())
        assert record["to"] is None
        found[name] = record["limits"]["cpus"]
    return found


@pytest.mark.parametrize("make_kernel", BOTH)
def test_many_slots_move_at_once_and_nothing_else_of_them_changes(
    make_kernel: Any, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = carved(kernel, tmp_path)
    told: list[str] = []
    kernel.before_write = lambda path, _value: told.append(path.rpartition("/")[2])
    finish(slots.place(places("2-3", "a", "b") + places("1", "c")))
    assert set(told) == {"cpuset.cpus", "cpuset.mems"}
    assert in_kernel(slots) == on_record(slots) == {"a": "2-3", "b": "2-3", "c": "1"}
    assert slots.limits["a.1"] == limits(cpus="2-3")
    assert not slots.resizing


@pytest.mark.parametrize("make_kernel", BOTH)
def test_supervisors_keep_off_cpus_that_a_slot_has_to_itself(
    make_kernel: Any, tmp_path: Path
) -> None:
    """Supervisors work for all slots: the output of an ordinary task must not take time of a
    dedicated cpu.
    """
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    seen: list[tuple[str, frozenset[int]]] = []

    def supervisors() -> frozenset[int]:
        group = slots.driver.supervisors()
        return expand(kernel.read(f"{group.get('cpuset', group.get('unified'))}/cpuset.cpus"))

    def look(path: str, value: str) -> None:
        if "/slots/own.1/cpuset.cpus" in path and value != "0-3":  # v1 begins with all
            seen.append((value, supervisors()))

    kernel.before_write = look
    slots.create(limits(allocation_id="a", cpus="0-3"))
    assert supervisors() in (expand("0-3"), expand(""))  # nothing is excluded
    slots.create(limits(allocation_id="own", cpus="3", cpu_limit_milli=-1))
    finish(slots.resize(limits(allocation_id="own", cpus="2-3", cpu_limit_milli=-1)))
    finish(slots.place(places("1-2", "own")))
    assert [cpus for cpus, of_supervisors in seen if of_supervisors & expand(cpus)] == []
    assert {cpus for cpus, _ in seen} == {"3", "2-3", "1-2"}
    assert supervisors() == expand("0,3")
    again = Slots(tmp_path, slots.driver, lambda _name: [])
    kernel.files |= {path: "0-3" for path in kernel.files if path.endswith("/shims/cpuset.cpus")}
    again.adopt()
    assert supervisors() == expand("0,3")
    finish(again.place(places("0-3", "own")))
    assert supervisors() == expand("0-3")  # no other cpu is left, and they must run somewhere
    finish(again.destroy("own.1"))
    assert supervisors() == expand("0-3")


@pytest.mark.parametrize("make_kernel", BOTH)
def test_a_cpuset_is_never_empty_on_the_way(make_kernel: Any, tmp_path: Path) -> None:
    kernel = make_kernel()
    slots = carved(kernel, tmp_path)
    start_in(slots, kernel, "t1", 1001)
    written: list[str] = []
    kernel.before_write = lambda path, value: written.append(value)
    for cpus in ("0", "3", "1-2", "0-3"):
        finish(slots.place(places(cpus)))
    assert "" not in written
    assert slots.driver.pids(slots.driver.slot("a.1"), []) == {1001}


@pytest.mark.parametrize("make_kernel", BOTH)
def test_one_that_cannot_move_keeps_all_where_they_were(make_kernel: Any, tmp_path: Path) -> None:
    kernel = make_kernel()
    slots = carved(kernel, tmp_path)
    broken = f"{directory(slots, 'c')}/cpuset.cpus"

    def refuse(path: str, value: str) -> None:
        if path == broken and value == "1":
            raise OSError(22, "Invalid argument", path)

    kernel.before_write = refuse
    with pytest.raises(Fault, match="Invalid argument") as failed:
        finish(slots.place(places("1")))
    assert failed.value.reason == "CARVE_FAILED"
    assert failed.value.details["file"] == broken
    assert in_kernel(slots) == on_record(slots) == dict.fromkeys(NAMES, "0-3")
    assert not slots.resizing


def test_on_v2_cpus_that_are_not_there_are_refused_though_the_kernel_takes_them(
    tmp_path: Path,
) -> None:
    slots = carved(FakeV2(), tmp_path)
    with pytest.raises(Fault, match="'0-3' is in effect"):
        finish(slots.place(places("7")))
    assert in_kernel(slots) == dict.fromkeys(NAMES, "0-3")


@pytest.mark.parametrize("make_kernel", BOTH)
def test_what_has_gone_is_passed_over(make_kernel: Any, tmp_path: Path) -> None:
    slots = carved(make_kernel(), tmp_path)
    finish(slots.destroy("b.1"))
    finish(slots.place(places("2", "a", "b", "nobody")))
    assert slots.driver.kernel.read(f"{directory(slots, 'a')}/cpuset.cpus") == "2"
    assert sorted(slots.limits) == ["a.1", "c.1"]


def test_a_slot_that_goes_while_others_move_is_moved_as_long_as_it_is_there(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots = carved(kernel, tmp_path)
    start_in(slots, kernel, "t1", 1001)
    going = slots.destroy("a.1", grace_s=60.0)
    next(going)  # the task is asked to end, but does not
    finish(slots.place(places("3")))
    assert in_kernel(slots) == dict.fromkeys(NAMES, "3")
    kernel.members[kernel_group(slots, "a")].clear()
    del kernel.members[kernel_group(slots, "a")]  # its removal has begun
    finish(slots.place(places("1")))
    assert kernel.read(f"{directory(slots, 'c')}/cpuset.cpus") == "1"


def kernel_group(slots: Slots, name: str) -> str:
    return directory(slots, name)


def test_a_move_waits_for_a_change_of_size_which_would_lead_it_back(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots = carved(kernel, tmp_path)
    kernel.use(slots.driver.slot("a.1")["memory"], held=4 * MIB, cache=40 * MIB)
    resize = slots.resize(limits(cpus="0-3", memory_bytes=32 * MIB))
    next(resize)
    move = slots.place(places("1"))
    next(move)
    assert in_kernel(slots) == dict.fromkeys(NAMES, "0-3")
    finish(resize)
    finish(move)
    assert in_kernel(slots) == on_record(slots) == dict.fromkeys(NAMES, "1")
    assert slots.limits["a.1"]["memory_bytes"] == 32 * MIB


class HelperDied(BaseException):
    """Nothing of the helper runs after this."""


@pytest.mark.parametrize("make_kernel", BOTH)
def test_a_helper_that_dies_at_any_write_is_followed_by_one_that_moves_all(
    make_kernel: Any, tmp_path: Path
) -> None:
    """The front repeats its order; no record moves a slot back to the old cpus."""
    died_at = 0
    while True:
        state = tmp_path / str(died_at)
        state.mkdir()
        kernel = make_kernel()
        slots = carved(kernel, state)
        if not dies_at(slots, kernel, died_at):
            break
        slots.driver.unlock()
        after = Slots(state, choose_driver(config(), kernel), lambda _name: [])
        for job in after.adopt():
            finish(job)
        moved = [name for name in NAMES if in_kernel(after)[name] == "2-3"]
        assert all(on_record(after)[name] == "2-3" for name in moved)
        finish(after.place(places("2-3")))
        finish(after.resize(limits(cpus="2-3", memory_bytes=96 * MIB)))
        assert in_kernel(after) == on_record(after) == dict.fromkeys(NAMES, "2-3")
        after.driver.unlock()
        died_at += 1
    assert died_at == 6


def dies_at(slots: Slots, kernel: FakeKernel, number: int) -> bool:
    count, real = 0, kernel.accept

    def dying(path: str, value: str) -> None:
        nonlocal count
        count += 1
        if count > number:
            raise HelperDied
        real(path, value)

    kernel.accept = dying  # type: ignore[method-assign]
    try:
        finish(slots.place(places("2-3")))
    except HelperDied:
        return True
    finally:
        kernel.accept = real  # type: ignore[method-assign]
    return False


def test_a_full_disk_keeps_all_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = carved(FakeV1(SEPARATE), tmp_path)

    def full(*_args: Any, **_more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("task_executor.helper.slots.write_json", full)
    with pytest.raises(Fault) as failed:
        finish(slots.place(places("1")))
    assert failed.value.reason == "DISK_FULL"
    assert in_kernel(slots) == dict.fromkeys(NAMES, "0-3")
    assert slots.limits["a.1"] == limits(cpus="0-3")


def test_the_front_says_it_in_frames_that_are_not_too_large() -> None:
    told = [
        asdict(SlotPlace("x" * 100 + str(number), 1, "0,2,4,6,8,10,12,14"))
        for number in range(10_000)
    ]
    batches = list(_batches(told))
    assert [each for batch in batches for each in batch] == told
    frames = [encode({"id": 1, "verb": "place_slots", "args": {"slots": b}}) for b in batches]
    assert len(frames) == -(-sum(map(len, frames)) // (FRAME_BYTES_MAX // 2))


def test_best_effort_has_the_lowest_weight(tmp_path: Path) -> None:
    v1, v2 = FakeV1(SEPARATE), FakeV2()
    for kernel, state in ((v1, tmp_path / "1"), (v2, tmp_path / "2")):
        state.mkdir()
        slots_on(kernel, state).create(limits(best_effort=True))
    place = "box/finegrain/host-a/slots/a.1"
    assert v1.read(f"/sys/fs/cgroup/cpu/{place}/cpu.shares") == "2"
    assert v1.read(f"/sys/fs/cgroup/cpu/{place}/cpu.cfs_quota_us") == "150000"
    assert v2.read(f"{v2.own}/finegrain/host-a/slots/a.1/cpu.weight") == "1"


@pytest.mark.parametrize(
    ("kernel", "usual"),
    [(FakeV1(SEPARATE), ["1024", "-1"]), (FakeV2(kill=False), ["100", "max 100000"])],
    ids=["v1", "v2"],
)
def test_what_is_to_die_gets_the_time_for_it_first(
    kernel: FakeKernel, usual: list[str], tmp_path: Path
) -> None:
    slots = slots_on(kernel, tmp_path)
    slots.create(limits(best_effort=True, cpu_milli=10))
    start_in(slots, kernel, "t1", 1001)
    group = slots.driver.slot("a.1")
    files = [f"{group[controller]}/{file}" for controller, file, _ in slots.driver.unthrottled]
    seen: list[str] = []
    kernel.on_kill = lambda _pid: seen.extend(map(kernel.read, files))
    finish(slots.destroy("a.1"))
    assert seen == usual


def test_a_slot_with_cpus_of_its_own_has_no_quota_on_v1_either(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots_on(kernel, tmp_path).create(limits(cpu_limit_milli=-1))
    place = "/sys/fs/cgroup/cpu/box/finegrain/host-a/slots/a.1"
    assert kernel.read(f"{place}/cpu.cfs_quota_us") == "-1"


@pytest.mark.parametrize(
    ("slots", "what"),
    [
        ("all", "a list of objects"),
        ([{"allocation_id": "a"}], "generation is None"),
        ([{"allocation_id": "a", "generation": 1, "cpus": "3-1"}], "cpus is '3-1'"),
        ([{"allocation_id": "../a", "generation": 1}], "allocation_id is '../a'"),
        ([{"allocation_id": "a", "generation": 1, "memory_bytes": 1}], "memory_bytes"),
    ],
)
def test_a_batch_is_checked_item_by_item(slots: Any, what: str) -> None:
    with pytest.raises(Fault, match="expected") as refused:
        check_request({"verb": "place_slots", "args": {"slots": slots}}, HELPER_VERBS)
    assert what in refused.value.message


def test_without_groups_nothing_is_written_and_nobody_is_looked_for(tmp_path: Path) -> None:
    slots = slots_on(FakeV2(), tmp_path, isolation="none")
    slots.create(limits(cpus="0"))
    before = os.sched_getaffinity(0)
    finish(slots.place(places("0", "a")))
    assert os.sched_getaffinity(0) == before
