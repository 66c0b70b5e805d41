"""On v1, the next task of a slot uses the group of an ended task, as if it were new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups import choose_driver
from tests.task_executor.helper.conftest import MIB, Host
from tests.task_executor.helper.fake_cgroups import FakeV1
from tests.task_executor.helper.test_cgroup_drivers import SEPARATE
from tests.task_executor.helper.test_cgroup_drivers import config as config_of_driver
from tests.task_executor.helper.test_limits_hold import HOG, python

V1 = pytest.mark.needs("root", "cgroup-v1")
EMPTY = {
    "pids": 0,
    "oom_kills": 0,
    "cpu_usec": 5,
    "memory_current_bytes": 4096,
    "memory_peak_bytes": 90 * MIB,
}


def groups(host: Host, task_id: str) -> list[Path]:
    record = host.record(task_id)
    return [Path(path) for path in record["group"].values()]


@V1
async def test_the_next_task_gets_the_group_with_counters_of_its_own(host: Host) -> None:
    await host.slot()
    first = await host.run("", "first", argv=python(HOG.format(mib=60).replace("60)", "0.3)")))
    inodes = [path.stat().st_ino for path in groups(host, "first")]
    second = await host.run("exit 3", "second")
    assert [path.stat().st_ino for path in groups(host, "second")] == inodes
    assert not any(path.exists() for path in groups(host, "first"))
    assert (first.exit_code, second.exit_code) == (0, 3)
    assert first.peak_memory_bytes > 60 * MIB > 20 * MIB > second.peak_memory_bytes
    assert first.cpu_usec > second.cpu_usec > 0


@V1
async def test_a_group_with_a_limit_or_an_oom_kill_is_not_used_again(host: Host) -> None:
    await host.slot(memory_bytes=64 * MIB)
    await host.run("true", "limited", memory_limit_bytes=32 * MIB)
    assert not any(path.exists() for path in groups(host, "limited"))
    greedy = await host.run("", "greedy", argv=python(HOG.format(mib=500)))
    assert greedy.oom_kills == 1
    assert not any(path.exists() for path in groups(host, "greedy"))
    assert (await host.run("true", "modest")).oom_kills == 0


@V1
async def test_tasks_at_the_same_time_have_a_group_each(host: Host) -> None:
    await host.slot()
    await host.run("true", "before")
    for name in ("one", "two"):
        await host.start("sleep 60", name)
    found = [{path.stat().st_ino for path in groups(host, name)} for name in ("one", "two")]
    assert not found[0] & found[1]
    procs = [(groups(host, name)[0] / "cgroup.procs").read_text() for name in ("one", "two")]
    assert all(procs)
    assert procs[0] != procs[1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, True, id="nothing is left"),
        pytest.param({"pids": 1}, False, id="a process"),
        pytest.param({"oom_kills": 1}, False, id="a kill for memory"),
        pytest.param({"memory_current_bytes": 2 * MIB}, False, id="page cache"),
        pytest.param({"limit": 64 * MIB}, False, id="a memory limit"),
    ],
)
def test_a_group_is_reusable_only_if_it_is_like_a_new_one(
    changes: dict[str, Any], expected: bool
) -> None:
    kernel = FakeV1(SEPARATE)
    driver = choose_driver(config_of_driver(), kernel)
    group = driver.task(driver.slot("slot.1"), "task")
    driver.make(driver.slot("slot.1"))
    driver.make(group)
    if limit := changes.pop("limit", None):
        driver.limit_memory(group, limit)
    assert driver.is_reusable(group, EMPTY | changes) is expected
