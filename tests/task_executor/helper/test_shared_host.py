"""Executors that share a host: each keeps its name, and none disturbs another executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper import cgroups
from task_executor.helper.cgroups import choose_driver
from task_executor.helper.cgroups.base import Driver, InUse
from task_executor.helper.launch import HelperConfig, HelperNotStarted, start_helper
from task_executor.host.helper_client import HelperClient
from tests.task_executor.helper.conftest import Host, alive, eventually, leftover_groups
from tests.task_executor.helper.fake_cgroups import FakeKernel, FakeV1, FakeV2

pytestmark = pytest.mark.full

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "freezer", "pids")
KERNELS = [pytest.param(FakeV2, id="v2"), pytest.param(lambda: FakeV1(CONTROLLERS), id="v1")]
on_every_kernel = pytest.mark.parametrize("make_kernel", KERNELS)
LAST_MADE = ("/sys/fs/cgroup/user.scope", "/sys/fs/cgroup/pids/box")
ROOT = pytest.mark.needs("root")


def config_of(executor_id: str = "host-a") -> dict[str, Any]:
    usual = {"isolation": "auto", "cgroup_root": "/", "cgroup_parent": None, "front_pid": 100}
    return usual | {"executor_id": executor_id}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_PAUSE_S", 0.0)


@on_every_kernel
def test_two_executors_on_one_host_do_not_meet(make_kernel: Callable[[], FakeKernel]) -> None:
    kernel = make_kernel()
    first: Driver = choose_driver(config_of(), kernel)
    second: Driver = choose_driver(config_of("host-b"), kernel)
    assert not set(first.base.values()) & set(second.base.values())


@on_every_kernel
@pytest.mark.usefixtures("impatient")
def test_the_second_of_one_name_is_refused_and_changes_nothing(
    make_kernel: Callable[[], FakeKernel],
) -> None:
    kernel = make_kernel()
    first = choose_driver(config_of(), kernel)
    before = set(kernel.members)
    with pytest.raises(InUse, match=r"executor_id host-a is already in use .*--executor-id"):
        choose_driver(config_of(), kernel)
    assert set(kernel.members) == before
    first.unlock()
    second = choose_driver(config_of(), kernel)
    assert second.base == first.base
    second.unlock()
    assert not second.remove_base()
    assert not [path for path in kernel.members if "/finegrain/" in path]


@on_every_kernel
@pytest.mark.usefixtures("impatient")
def test_whoever_leaves_removes_nothing_of_the_one_who_has_come(
    make_kernel: Callable[[], FakeKernel],
) -> None:
    kernel = make_kernel()
    first = choose_driver(config_of(), kernel)
    first.unlock()
    choose_driver(config_of(), kernel)
    before = set(kernel.members)
    assert not first.remove_base()
    assert set(kernel.members) == before


@on_every_kernel
@pytest.mark.usefixtures("impatient")
def test_the_group_above_may_be_removed_by_one_who_leaves(
    make_kernel: Callable[[], FakeKernel],
) -> None:
    kernel, interruptions = make_kernel(), [1, 2, 3]

    def another_leaves(path: str) -> None:
        if interruptions and path in (f"{place}/finegrain/host-a" for place in LAST_MADE):
            interruptions.pop()
            kernel.rmdir(path.rpartition("/")[0])

    kernel.before_mkdir = another_leaves
    assert choose_driver(config_of(), kernel).name != "none"
    assert interruptions == []


@pytest.mark.usefixtures("impatient")
def test_a_cpuset_that_another_has_just_made_anew_is_not_inherited_empty() -> None:
    kernel = FakeV1(CONTROLLERS)
    group, empty = "/sys/fs/cgroup/cpuset/box/finegrain", [True]

    def made_anew(path: str) -> None:
        if path == f"{group}/host-a" and empty:
            empty.clear()
            kernel.files[f"{group}/cpuset.cpus"] = ""

    kernel.before_mkdir = made_anew
    driver = choose_driver(config_of(), kernel)
    assert driver.name == "v1"
    assert kernel.read(f"{group}/host-a/slots/cpuset.cpus") == "0-3"


@pytest.mark.usefixtures("impatient")
def test_what_failed_half_way_is_taken_back() -> None:
    kernel = FakeV1(CONTROLLERS)
    del kernel.members["/sys/fs/cgroup/memory/box"]
    before = set(kernel.members)
    assert choose_driver(config_of(), kernel).name == "none"
    assert set(kernel.members) == before


def test_a_base_below_a_group_that_has_gone_is_not_waited_for() -> None:
    kernel = FakeV1(CONTROLLERS)
    known = {name: f"/sys/fs/cgroup/{name}/box/finegrain/host-a" for name in CONTROLLERS}
    gone = known | {"memory": "/sys/fs/cgroup/memory/session-1/finegrain/host-a"}
    driver = choose_driver(config_of(), kernel, gone)
    assert driver.base == known
    driver.unlock()
    assert choose_driver(config_of(), kernel, known).base == known


async def stop(host: Host) -> None:
    await host.client.stop()
    socket = Path(host.config.socket_path)
    await eventually(lambda: not socket.exists(), "the helper does not answer any more")


def other_place(config: HelperConfig, place: Path) -> HelperConfig:
    socket_path = str(place / "other.sock")
    return replace(config, state_dir=str(place / "other"), socket_path=socket_path)


@ROOT
async def test_a_name_in_use_is_refused_with_who_has_it_and_the_way_out(
    host: Host, place: Path
) -> None:
    with pytest.raises(HelperNotStarted) as refused:
        start_helper(other_place(host.config, place))
    said = str(refused.value)
    assert said.count("\n") == 0
    for word in (
        host.config.executor_id,
        f"pid {host.pid}",
        host.config.state_dir,
        "--executor-id",
    ):
        assert word in said
    await host.slot()
    assert (await host.run("exit 4")).exit_code == 4


@ROOT
async def test_a_refused_one_may_start_when_the_other_has_stopped(host: Host, place: Path) -> None:
    other = other_place(host.config, place)
    await stop(host)
    start_helper(other)
    with pytest.raises(HelperNotStarted, match="is already in use"):
        host.restart_helper()
    client = await HelperClient.connect(other.socket_path)
    await client.stop()
    await client.close()
    host.restart_helper()


@ROOT
async def test_the_same_executor_takes_over_at_once_after_kill_9_and_when_replaced(
    host: Host,
) -> None:
    await host.slot()
    pid = await host.start("sleep 60")
    for allow_root_tasks in (True, False, True):
        host.kill_helper()
        host.restart_helper()
        host.config = replace(host.config, allow_root_tasks=allow_root_tasks)
        host.restart_helper()
        assert (await host.client.hello()).isolation.driver != "none"
        assert (await host.client.inspect()).tasks[0].pid == pid


async def test_without_cgroups_nothing_is_shared(plain_host: Host, place: Path) -> None:
    other = other_place(plain_host.config, place)
    start_helper(other)
    client = await HelperClient.connect(other.socket_path)
    assert (await client.hello()).executor_id == plain_host.config.executor_id
    await client.stop()
    await client.close()


@ROOT
@pytest.mark.full
async def test_a_stop_while_scratch_is_still_removed_leaves_no_group(host: Host) -> None:
    """The process that removes scratch is in the group of the supervisors; a directory of 60,000
    files keeps it busy.
    """
    await host.slot()
    many = "import os; [os.close(os.open(f'f{n}', os.O_CREAT)) for n in range(60000)]"
    await host.start('exec python3 -c "$SCRIPT"', argv=["python3", "-c", many])
    await host.exit_of()
    await host.client.destroy_slot("slot", 1)
    await host.client.stop()
    await eventually(lambda: not alive(host.pid), "the helper has gone")
    assert leftover_groups(host.config.executor_id) == []
    host.restart_helper()


@ROOT
async def test_a_start_need_not_wait_for_a_remover_of_scratch(host: Host) -> None:
    """A process in the group of the supervisors plays a process that still removes scratch."""
    remover = await asyncio.create_subprocess_exec("sleep", "60")
    for group in leftover_groups(host.config.executor_id):
        (group / "shims/cgroup.procs").write_text(str(remover.pid))
    await stop(host)
    left = host.pid
    assert alive(left)
    host.restart_helper()
    await host.slot()
    assert (await host.run("exit 4")).exit_code == 4
    await eventually(lambda: not alive(left), "the one that left has seen that they are taken")
    remover.kill()
    await remover.wait()
