"""The v2 driver on a real kernel's tree, with the controllers that v1 does not use (often none).

These tests cover groups, membership, cgroup.kill and removal; tests with a kernel in memory cover
limits.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from task_executor.helper.launch import HelperConfig, HelperNotStarted, start_helper
from task_executor.host.helper_client import HelperClient
from tests.task_executor.helper.conftest import Host, alive, eventually

pytestmark = [pytest.mark.needs("root")]


@pytest.fixture
def unified(place: Path) -> Iterator[Path]:
    """Yields a root directory in which only cgroup v2 is mounted."""
    root = place / "root"
    mount_point = root / "sys/fs/cgroup"
    mount_point.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    line = "1 0 0:1 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
    (root / "proc/self/mountinfo").write_text(line)
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", mount_point], check=True)
    yield root
    subprocess.run(["umount", "-l", mount_point], check=True)


@pytest.fixture
async def v2_host(config: HelperConfig, unified: Path) -> AsyncIterator[Host]:
    config = replace(config, cgroup_root=str(unified))
    host = Host(config, start_helper(config), await HelperClient.connect(config.socket_path))
    yield host
    left = await host.clean_up()
    await host.client.close()
    assert (left.slots, left.tasks) == ([], [])
    assert not list(unified.glob(f"sys/fs/cgroup/finegrain/{config.executor_id}"))


async def test_tasks_run_in_leaves_and_their_cpu_time_is_counted(v2_host: Host) -> None:
    report = (await v2_host.client.hello()).isolation
    assert (report.driver, report.kill) == ("v2", "cgroup.kill")
    await v2_host.slot()
    record = await v2_host.run("grep ^0:: /proc/self/cgroup; grep -c . /proc/cpuinfo; exit 3")
    assert record.exit_code == 3
    assert record.cpu_usec > 0
    group = f"0::/finegrain/{v2_host.config.executor_id}/slots/slot.1/task-task"
    assert v2_host.output().split()[0] == group


async def test_a_slot_is_destroyed_with_all_that_fled_also_after_a_restart(v2_host: Host) -> None:
    await v2_host.slot()
    flee = "trap '' TERM; echo $$; setsid sh -c 'echo $$; (setsid sleep 73 &); sleep 74' & wait"
    await v2_host.start(flee)
    await eventually(lambda: len(v2_host.output().split()) == 2, "both have said who they are")
    v2_host.kill_helper()
    v2_host.restart_helper()
    await v2_host.client.destroy_slot("slot", 1, grace_ms=50)
    assert not [pid for pid in map(int, v2_host.output().split()) if alive(pid)]
    assert (await v2_host.exit_of()).signal == 9
    groups = Path(v2_host.config.cgroup_root, "sys/fs/cgroup/finegrain")
    assert not list(groups.glob(f"{v2_host.config.executor_id}/slots/*/"))


async def test_killing_one_task_leaves_its_neighbour(v2_host: Host) -> None:
    await v2_host.slot()
    await v2_host.start("sleep 60 & wait", "one")
    two = await v2_host.start("sleep 60", "two")
    await v2_host.client.kill_task("one")
    assert (await v2_host.exit_of("one")).signal == 9
    assert alive(two)


async def test_a_second_helper_of_the_same_name_is_refused(v2_host: Host, place: Path) -> None:
    other = replace(v2_host.config, state_dir=str(place / "b"), socket_path=str(place / "b.sock"))
    with pytest.raises(
        HelperNotStarted, match=f"is already in use on this host, by pid {v2_host.pid} "
    ):
        start_helper(other)
    v2_host.kill_helper()
    v2_host.restart_helper()
    assert (await v2_host.client.hello()).isolation.driver == "v2"
