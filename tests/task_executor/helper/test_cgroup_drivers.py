"""Both cgroup drivers, and the choice between them, on kernels in memory that enforce the rules."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups import choose_driver
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault, expand
from task_executor.helper.slots import Slots
from tests.task_executor.helper.fake_cgroups import FakeKernel, FakeV1, FakeV2

SEPARATE = ("cpu", "cpuacct", "cpuset", "memory", "freezer", "pids")
CO_MOUNTED = ("cpu,cpuacct", "cpuset", "memory", "freezer", "pids")
MIB = 1 << 20


def config(**changes: Any) -> dict[str, Any]:
    usual = {"isolation": "auto", "cgroup_root": "/", "cgroup_parent": None}
    return usual | {"executor_id": "host-a", "front_pid": 100} | changes


def limits(**changes: Any) -> dict[str, Any]:
    usual = {"allocation_id": "a", "generation": 1, "cpu_milli": 1500, "cpu_limit_milli": None}
    return usual | {"memory_bytes": 64 * MIB, "cpus": "0-1", "mems": "0", "pids_max": 100} | changes


def finish(job: Job) -> None:
    for _step in job:
        pass


def slots_on(kernel: FakeKernel, state: Path, **changes: Any) -> Slots:
    driver = choose_driver(config(**changes), kernel)
    return Slots(state, driver, lambda _name: [])


def start_in(slots: Slots, kernel: FakeKernel, task_id: str, pid: int) -> dict[str, str]:
    """Makes and enters the group of a task, as a supervisor and its child do."""
    group = slots.driver.task(slots.driver.slot("a.1"), task_id)
    slots.driver.make(group)
    kernel.me = pid
    slots.driver.enter({**slots.driver.slot("a.1"), **group})
    return group


EVERY_KERNEL = [
    pytest.param(FakeV2, id="v2"),
    pytest.param(lambda: FakeV2(kill=False), id="v2 before cgroup.kill"),
    pytest.param(lambda: FakeV1(SEPARATE), id="v1"),
    pytest.param(lambda: FakeV1(CO_MOUNTED), id="v1 with cpu and cpuacct together"),
    pytest.param(lambda: FakeV1(("memory", "cpu")), id="v1 with two controllers only"),
]


@pytest.mark.parametrize("make_kernel", EVERY_KERNEL)
def test_a_slot_with_two_tasks_is_made_killed_and_leaves_nothing(
    make_kernel: Any, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    before = set(kernel.members)
    slots.create(limits())
    for task_id, pid in (("t1", 1001), ("t2", 1002)):
        start_in(slots, kernel, task_id, pid)
    assert slots.driver.pids(slots.driver.slot("a.1"), []) == {1001, 1002}
    finish(slots.destroy("a.1"))
    assert set(kernel.members) == before
    assert not {1001, 1002} & {pid for members in kernel.members.values() for pid in members}
    assert not list((tmp_path / "slots").iterdir())


@pytest.mark.parametrize("make_kernel", EVERY_KERNEL)
def test_killing_one_task_spares_its_neighbour_in_the_slot(
    make_kernel: Any, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    first = start_in(slots, kernel, "t1", 1001)
    start_in(slots, kernel, "t2", 1002)
    finish(slots.driver.kill(first))
    finish(slots.driver.remove(first))
    assert slots.driver.pids(slots.driver.slot("a.1"), []) == {1002}


def test_a_shell_is_asked_to_end_before_its_child(tmp_path: Path) -> None:
    """Otherwise the shell would continue with its next command. A set yields 1008 before 1007."""
    kernel = FakeV2()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    for task_id, pid in (("t1", 1007), ("t2", 1008)):
        start_in(slots, kernel, task_id, pid)
    slots.driver.ask_to_end(slots.driver.slot("a.1"), [])
    assert kernel.signals == [(1007, signal.SIGTERM), (1008, signal.SIGTERM)]


def test_v2_limits_as_the_kernel_holds_them(tmp_path: Path) -> None:
    kernel = FakeV2()
    report = slots_on(kernel, tmp_path).create(limits(cpu_limit_milli=2000))
    group = f"{kernel.own}/finegrain/host-a/slots/a.1"
    wanted = {"cpu.max": "200000 100000", "cpu.weight": "150", "cpuset.cpus": "0-1"}
    wanted |= {"cpuset.mems": "0", "memory.max": str(64 * MIB), "memory.swap.max": "0"}
    wanted |= {"pids.max": "100"}
    assert {name: kernel.read(f"{group}/{name}") for name in wanted} == wanted
    assert report["driver"] == "v2"
    assert report["kill"] == "cgroup.kill"


def test_v1_limits_as_the_kernel_holds_them(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    report = slots_on(kernel, tmp_path).create(limits())
    wanted = {
        "cpu/*/cpu.cfs_quota_us": "150000",
        "cpu/*/cpu.shares": "1536",
        "cpuset/*/cpuset.cpus": "0-1",
        "memory/*/memory.limit_in_bytes": str(64 * MIB),
        "memory/*/memory.memsw.limit_in_bytes": str(64 * MIB),
        "pids/*/pids.max": "100",
    }
    place = "box/finegrain/host-a/slots/a.1"
    found = {name: kernel.read(f"/sys/fs/cgroup/{name.replace('*', place)}") for name in wanted}
    assert found == wanted
    assert report["kill"] == "freezer"


def test_on_v1_a_cpu_that_went_off_line_and_came_back_costs_no_slot(tmp_path: Path) -> None:
    """v1 removes the cpu from every group, and gives it back to the root group only. The driver
    gives it back to the other groups.
    """
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    slots.create(limits(cpus="0-3"))
    cpus = [path for path in kernel.files if path.endswith("/cpuset.cpus")]
    kernel.files |= dict.fromkeys(cpus, "0-2")
    slots.create(limits(allocation_id="b", cpus="0-3"))
    for above in ("", "/box"):
        kernel.files[f"/sys/fs/cgroup/cpuset{above}/cpuset.cpus"] = "0-3"
    slots.create(limits(allocation_id="c", cpus="0-3"))
    place = "/sys/fs/cgroup/cpuset/box/finegrain/host-a/slots"
    has = {name: expand(kernel.read(f"{place}/{name}.1/cpuset.cpus")) for name in "abc"}
    assert has == {"a": expand("0-2"), "b": expand("0-2"), "c": expand("0-3")}
    with pytest.raises(Fault, match="wrote '7'"):
        slots.create(limits(allocation_id="d", cpus="7"))


def test_on_v1_a_group_above_without_cpus_is_named(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    driver = slots_on(kernel, tmp_path).driver
    finish(driver.remove(driver.supervisors()))
    above = "/sys/fs/cgroup/cpuset/box/finegrain/host-a/cpuset.cpus"
    kernel.before_mkdir = lambda _path: kernel.files.update({above: ""})
    with pytest.raises(Fault, match=f"{above} is empty") as caught:
        driver.make(driver.supervisors())
    assert caught.value.reason == "CARVE_FAILED"


def test_on_v1_a_new_slot_gets_cpus_although_the_group_of_slots_has_lost_them(
    tmp_path: Path,
) -> None:
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    above = "/sys/fs/cgroup/cpuset/box/finegrain/host-a/slots"
    kernel.files[f"{above}/cpuset.cpus"] = ""
    slots.create(limits(cpus=""))
    assert kernel.files[f"{above}/a.1/cpuset.cpus"] == kernel.files[f"{above}/cpuset.cpus"] == "0-3"


def test_on_v1_tasks_whose_slot_lost_its_last_cpu_are_brought_back(tmp_path: Path) -> None:
    """The kernel moves these tasks to the group above all slots, where they run on the cpus of
    other slots.
    """
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    slots.create(limits(cpus="3", cpu_limit_milli=-1))
    slots.create(limits(allocation_id="b", cpus="0-2"))
    start_in(slots, kernel, "t", 7)
    place = "/sys/fs/cgroup/cpuset/box/finegrain/host-a"
    of_slot, above = f"{place}/slots/a.1", f"{place}/slots"
    assert kernel.members[of_slot] == {7}
    for level in (place, above, f"{place}/shims"):
        kernel.files[f"{level}/cpuset.cpus"] = "0-2"
    kernel.files[f"{of_slot}/cpuset.cpus"] = ""
    kernel.members[of_slot], kernel.members[above] = set(), {7}
    finish(slots.place([{"allocation_id": "b", "generation": 1, "cpus": "0-1", "mems": ""}]))
    assert kernel.members[above] == {7}  # the task is not in slot b
    finish(slots.place([{"allocation_id": "a", "generation": 1, "cpus": "2", "mems": ""}]))
    assert kernel.members[of_slot] == {7}
    assert not kernel.members[above]


def test_on_v1_supervisors_get_back_their_cpus_as_slots_do(tmp_path: Path) -> None:
    """Every cpu may have been off-line once; then the group has no cpus and admits no
    supervisor.
    """
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    supervisors = "/sys/fs/cgroup/cpuset/box/finegrain/host-a/shims/cpuset.cpus"
    kernel.files[supervisors] = "1"
    slots.create(limits(cpus="0-3"))
    assert expand(kernel.read(supervisors)) == expand("0-3")


def test_a_pinned_slot_has_no_quota(tmp_path: Path) -> None:
    kernel = FakeV2()
    slots_on(kernel, tmp_path).create(limits(cpu_limit_milli=-1))
    group = f"{kernel.own}/finegrain/host-a/slots/a.1"
    assert kernel.read(f"{group}/cpu.max") == "max 100000"


def test_an_empty_cpu_list_means_all_cpus_of_the_parent(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots_on(kernel, tmp_path).create(limits(cpus="", mems=""))
    assert kernel.read("/sys/fs/cgroup/cpuset/box/finegrain/host-a/slots/a.1/cpuset.cpus") == "0-3"


def test_on_v2_we_leave_the_delegated_group_for_a_leaf_and_inner_nodes_stay_empty(
    tmp_path: Path,
) -> None:
    kernel = FakeV2()
    kernel.members[kernel.own] = {100}  # the front; while it is there, FakeV2 refuses controllers
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    start_in(slots, kernel, "t1", 1001)
    inner = [p for p in kernel.members if kernel.files.get(f"{p}/cgroup.subtree_control")]
    assert all(not kernel.members[path] for path in inner)
    assert kernel.members[f"{kernel.own}/finegrain-daemon"] == {100}


def test_on_v2_a_slot_accounts_for_memory_and_processes_of_each_task(tmp_path: Path) -> None:
    kernel = FakeV2()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    start_in(slots, kernel, "t1", 1001)
    slot = f"{kernel.own}/finegrain/host-a/slots/a.1"
    assert set(kernel.read(f"{slot}/cgroup.subtree_control").split()) == {"memory", "pids"}


MEMORY_LIMITS = [
    pytest.param(FakeV2, "unified", "memory.max", id="v2"),
    pytest.param(lambda: FakeV1(SEPARATE), "memory", "memory.limit_in_bytes", id="v1"),
]


@pytest.mark.parametrize(("make_kernel", "controller", "file"), MEMORY_LIMITS)
def test_a_task_has_a_memory_limit_within_its_slot(
    tmp_path: Path, make_kernel: Callable[[], FakeKernel], controller: str, file: str
) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    group = start_in(slots, kernel, "t", 201)
    for size in (32 * MIB, 48 * MIB):
        slots.driver.limit_memory(group, size)
        assert kernel.read(f"{group[controller]}/{file}") == str(size)
    assert kernel.read(f"{slots.driver.slot('a.1')[controller]}/{file}") == str(64 * MIB)


def test_on_v2_only_the_task_is_killed_as_a_whole_for_memory(tmp_path: Path) -> None:
    kernel = FakeV2()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    group = start_in(slots, kernel, "t1", 1001)["unified"]
    assert kernel.read(f"{group}/memory.oom.group") == "1"
    assert kernel.read(f"{group.rpartition('/')[0]}/memory.oom.group") == "0"


LIMIT_FILES = ["cpu.max", "cpu.weight", "cpuset.cpus", "memory.max", "memory.swap.max", "pids.max"]


@pytest.mark.parametrize("file", LIMIT_FILES)
def test_a_limit_that_does_not_stick_fails_the_slot_and_leaves_nothing(
    file: str, tmp_path: Path
) -> None:
    kernel = FakeV2()
    slots = slots_on(kernel, tmp_path)
    before = set(kernel.members)
    path = f"{kernel.own}/finegrain/host-a/slots/a.1/{file}"
    kernel.ignore_writes.add(path)
    with pytest.raises(Fault, match=r"wrote .*, but") as caught:
        slots.create(limits())
    assert caught.value.reason == "CARVE_FAILED"
    assert caught.value.details.keys() >= {"file", "wrote", "read"}
    assert caught.value.details["file"] == path
    assert set(kernel.members) == before
    assert slots.limits == {}


def test_on_v2_a_cpu_that_is_not_there_is_noticed_though_the_kernel_takes_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(Fault, match=r"'7' was written, but '0-3' is in effect"):
        slots_on(FakeV2(), tmp_path).create(limits(cpus="7"))


def test_on_v1_a_quota_above_the_parents_names_the_file(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    kernel.files["/sys/fs/cgroup/cpu/box/finegrain/host-a/slots/cpu.cfs_quota_us"] = "50000"
    with pytest.raises(Fault, match=r"cpu.cfs_quota_us: wrote '150000', but EINVAL"):
        slots.create(limits())


def test_a_slot_waits_for_its_zombies(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    group = start_in(slots, kernel, "t1", 1001)
    kernel.zombies[group["pids"]] = 2
    job = slots.destroy("a.1")
    for _step in range(20):
        next(job)
    assert "a.1" in slots.limits  # killed, but still counted by the group
    kernel.zombies.clear()
    finish(job)
    assert slots.limits == {}


def test_what_cannot_be_killed_is_named_after_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    start_in(slots, kernel, "t1", 1001)
    monkeypatch.setattr("task_executor.helper.slots._DESTROY_S", 0.0)
    monkeypatch.setattr(kernel, "kill", lambda pid, signum: None)
    with pytest.raises(Fault, match=r"not empty after .* processes left: \[1001\]"):
        finish(slots.destroy("a.1"))
    assert "a.1" in slots.limits


def test_a_slot_frozen_by_a_helper_that_was_killed_is_thawed(tmp_path: Path) -> None:
    kernel = FakeV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    kernel.files["/sys/fs/cgroup/freezer/box/finegrain/host-a/slots/a.1/freezer.state"] = "FROZEN"
    slots.driver.unlock()
    again = slots_on(kernel, tmp_path)
    assert again.adopt() == []
    assert again.strangers() == []
    assert again.limits == {"a.1": limits()}
    state = kernel.read("/sys/fs/cgroup/freezer/box/finegrain/host-a/slots/a.1/freezer.state")
    assert state == "THAWED"


def test_a_group_that_no_record_names_is_reported_for_removal(tmp_path: Path) -> None:
    kernel = FakeV2()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    (tmp_path / "slots/a.1.json").unlink()
    slots.driver.unlock()
    again = slots_on(kernel, tmp_path)
    again.adopt()
    assert again.strangers() == ["a.1"]


def test_a_record_without_its_group_is_dropped(tmp_path: Path) -> None:
    slots = slots_on(FakeV2(), tmp_path)
    slots.create(limits())
    after_reboot = slots_on(FakeV2(), tmp_path)
    after_reboot.adopt()
    assert after_reboot.strangers() == []
    assert after_reboot.limits == {}


STRANGER = 2**22 + 1
"""No process of a real kernel has this pid, so no real process can influence the test."""


def busy(kernel: FakeV2) -> FakeV2:
    kernel.members[kernel.own].add(STRANGER)
    return kernel


def forbidden(kernel: FakeKernel) -> FakeKernel:
    kernel.read_only = True
    return kernel


def unmounted() -> FakeKernel:
    kernel = FakeV2()
    kernel.files["/proc/self/mountinfo"] = "1 0 8:1 / / rw - ext4 /dev/sda rw"
    return kernel


UNUSABLE = [
    pytest.param(forbidden(FakeV2()), {}, "EACCES", "Delegate=yes", id="v2 that is not delegated"),
    pytest.param(forbidden(FakeV1(SEPARATE)), {}, "EACCES", "as root", id="v1 without root"),
    pytest.param(unmounted(), {}, "no cgroup controllers", "mount", id="nothing mounted"),
    pytest.param(FakeV2(), {"isolation": "none"}, "configured", "auto", id="switched off"),
]


@pytest.mark.parametrize(("kernel", "changes", "reason", "fix"), UNUSABLE)
def test_what_cannot_be_enforced_is_said_with_the_way_out(
    kernel: FakeKernel, changes: dict[str, Any], reason: str, fix: str
) -> None:
    report = choose_driver(config(**changes), kernel).report()
    assert (report["driver"], report["memory"], report["cpu"]) == ("none", "none", "none")
    assert reason in report["reason"]
    assert fix in report["fix"]


def under_systemd(own: str, delegated: bool) -> FakeV2:
    kernel = FakeV2(own)
    kernel.files["/run/systemd/system"] = ""
    kernel.delegated = {kernel.own} if delegated else set()
    return busy(kernel)


TOP = "/sys/fs/cgroup/finegrain/host-a"
PLACES = [
    (0, under_systemd("/a.scope", delegated=True), "/sys/fs/cgroup/a.scope/finegrain/host-a"),
    (0, under_systemd("/session.scope", delegated=False), TOP),
    (0, under_systemd("/a.service", delegated=True), TOP),
    (0, busy(FakeV2("/box")), TOP),
    (7, under_systemd("/a.service", delegated=True), "/sys/fs/cgroup/a.service/finegrain/host-a"),
    (7, busy(FakeV2("/box")), None),
]
PLACE_NAMES = [
    "root in a delegated scope splits it, and who else is there moves to the leaf",
    "root in a login session leaves the session alone",
    "root in a service leaves it whole, or it could not be started again",
    "root in a group with strangers leaves them alone",
    "a user's own delegated service is all that there is",
    "a user among strangers has no isolation",
]


@pytest.mark.parametrize(("uid", "kernel", "base"), PLACES, ids=PLACE_NAMES)
def test_where_slots_go_on_v2(
    uid: int, kernel: FakeV2, base: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_executor.helper.cgroups.os.geteuid", lambda: uid)
    driver = choose_driver(config(), kernel)
    assert driver.base == ({"unified": base} if base else {})
    if base == TOP:
        assert kernel.members[kernel.own] >= {STRANGER}


def test_v2_without_the_memory_controller_says_so() -> None:
    report = choose_driver(config(), FakeV2(controllers="cpu pids")).report()
    assert (report["cpu"], report["memory"], report["cpuset"]) == ("quota", "none", "affinity")


def test_a_delegated_scope_is_used_instead_of_our_own_group(tmp_path: Path) -> None:
    kernel = FakeV2()
    kernel.mkdir("/sys/fs/cgroup/tasks.scope")
    driver = choose_driver(config(cgroup_parent="/tasks.scope"), kernel)
    assert driver.base == {"unified": "/sys/fs/cgroup/tasks.scope/finegrain/host-a"}
    assert kernel.members[kernel.own] == {100}  # we stay where we are
