"""cgroup v1 on this machine: limits hold, and freeing a slot leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from task_executor.host.helper_client import TaskOom
from tests.support.control_groups import groups_called
from tests.support.cpu_quota import SMALL_QUOTAS_MILLI, assert_quota_holds
from tests.support.patience import PATIENCE_S
from tests.task_executor.helper.conftest import MIB, Host, alive, eventually

pytestmark = [pytest.mark.needs("root", "cgroup-v1"), pytest.mark.full]

HOG = "import sys, time\nx = bytearray({mib} << 20)\nprint('fits', flush=True)\ntime.sleep(60)"


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def group_of(host: Host, task_id: str, controller: str) -> Path:
    record = host.record(task_id)
    return Path(record["group"][controller])


def slot_group(host: Host, controller: str) -> Path:
    record = host.record("task")
    return Path(record["slot"][controller])


async def test_everything_is_enforced_here(host: Host) -> None:
    report = (await host.client.hello()).isolation
    assert report.complete
    assert (report.driver, report.kill, report.reason) == ("v1", "freezer", "")


async def test_a_task_that_eats_memory_dies_alone_and_is_reported(host: Host) -> None:
    await host.slot(memory_bytes=64 * MIB)
    await host.start("", "modest", argv=python(HOG.format(mib=8)))
    await eventually(lambda: host.output("modest") == "fits\n", "the modest one has its memory")
    await host.start("", "greedy", argv=python(HOG.format(mib=500)))
    record = await host.exit_of("greedy")
    assert record.oom_killed
    assert (record.oom_kills, record.signal) == (1, 9)
    assert 48 * MIB <= record.peak_memory_bytes <= 64 * MIB
    assert [t.state for t in (await host.client.inspect()).tasks] == ["exited", "running"]
    async for event in host.client.events():
        assert event == TaskOom("greedy")
        break


async def test_a_task_with_a_limit_of_its_own_is_held_to_it_and_its_neighbour_notices_nothing(
    host: Host,
) -> None:
    await host.slot(memory_bytes=256 * MIB)
    await host.start("", "modest", argv=python(HOG.format(mib=100)))
    await eventually(lambda: host.output("modest") == "fits\n", "the modest one has its memory")
    await host.start("", "limited", argv=python(HOG.format(mib=100)), memory_limit_bytes=48 * MIB)
    record = await host.exit_of("limited")
    assert (record.oom_killed, record.signal) == (True, 9)
    assert record.peak_memory_bytes <= 48 * MIB
    states = {task.task_id: task.state for task in (await host.client.inspect()).tasks}
    assert states == {"modest": "running", "limited": "exited"}


async def test_the_limit_of_a_task_changes_while_it_runs(host: Host) -> None:
    await host.slot(memory_bytes=256 * MIB)
    await host.start("", "task", argv=python(HOG.format(mib=60)), memory_limit_bytes=128 * MIB)
    await eventually(lambda: host.output() == "fits\n", "it has its memory")
    limit = group_of(host, "task", "memory") / "memory.limit_in_bytes"
    assert int(limit.read_text()) == 128 * MIB
    await host.client.limit_task("task", 192 * MIB)
    assert int(limit.read_text()) == 192 * MIB
    with pytest.raises(FinegrainError) as refused:
        await host.client.limit_task("task", 32 * MIB)
    assert refused.value.reason is Reason.BELOW_USE
    assert int(limit.read_text()) == 192 * MIB
    with pytest.raises(FinegrainError, match="at most the slot's"):
        await host.client.limit_task("task", 512 * MIB)


async def test_a_task_has_no_larger_limit_than_its_slot(host: Host) -> None:
    await host.slot(memory_bytes=64 * MIB)
    with pytest.raises(FinegrainError, match="at most the slot's"):
        await host.start("true", memory_limit_bytes=128 * MIB)


async def test_a_child_that_dies_of_memory_is_counted_although_the_task_goes_on(host: Host) -> None:
    await host.slot(memory_bytes=64 * MIB)
    script = f'{sys.executable} -I -S -c "x = bytearray(500 << 20)"; echo "child $?"; exit 0'
    record = await host.run(script)
    assert (record.exit_code, record.oom_kills, record.oom_killed) == (0, 1, False)
    assert host.output() == "child 137\n"


async def test_a_limit_too_small_to_start_says_so(host: Host) -> None:
    await host.slot(memory_bytes=65536)
    with pytest.raises(FinegrainError) as caught:
        await host.start("true")
    assert caught.value.reason is Reason.LIMIT_TOO_SMALL
    assert (await host.client.inspect()).tasks == []


async def test_four_mebibytes_are_enough_for_a_shell(host: Host) -> None:
    await host.slot(memory_bytes=4 * MIB)
    assert (await host.run("echo fine")).exit_code == 0
    assert host.output() == "fine\n"


@pytest.mark.parametrize("cpu_milli", SMALL_QUOTAS_MILLI)
async def test_a_spinner_gets_its_quota_and_no_more(host: Host, cpu_milli: int) -> None:
    await host.slot(cpu_milli=cpu_milli)
    await host.start("while :; do :; done")
    await assert_quota_holds(slot_group(host, "cpu"), cpu_milli)


@pytest.mark.parametrize("factor", [0.8, 1.2])
async def test_a_quota_that_is_wrong_would_be_noticed(host: Host, factor: float) -> None:
    """The values in the kernel show the error; on an idle machine, the counters show it, too."""
    await host.slot(cpu_milli=40)
    await host.start("while :; do :; done")
    group = slot_group(host, "cpu")
    quota = group / "cpu.cfs_quota_us"
    quota.write_text(str(int(int(quota.read_text()) * factor)))
    with pytest.raises(AssertionError):
        await assert_quota_holds(group, 40)


async def test_a_fork_bomb_is_stopped_by_its_limit_and_by_its_end(host: Host) -> None:
    await host.slot(pids_max=40)
    bomb = "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.01)"
    await host.start("", argv=python(bomb))
    current = group_of(host, "task", "pids").parent / "pids.current"
    await eventually(lambda: int(current.read_text()) == 40, "the bomb has filled its slot")
    assert (await host.client.usage()).slots[0].pids == 40
    await host.client.destroy_slot("slot", 1)
    assert not current.exists()
    assert (await host.exit_of()).signal == 9


async def test_destroying_kills_what_has_fled_and_ignores_signals(host: Host) -> None:
    await host.slot()
    flee = (
        "trap '' TERM HUP INT; echo $$;"
        "(setsid sh -c \"trap '' TERM HUP INT; echo \\$\\$;"
        " (setsid sh -c 'echo \\$\\$; sleep 71' &)"
        '; sleep 72" &) ; while :; do sleep 0.1; done'
    )
    await host.start(flee)
    await eventually(lambda: len(host.output().split()) == 3, "all three have said who they are")
    pids = [int(line) for line in host.output().split()]
    await host.client.destroy_slot("slot", 1, grace_ms=100)
    assert not [pid for pid in pids if alive(pid)]
    assert not groups_called(f"finegrain/{host.config.executor_id}/slots/*")
    await host.client.destroy_slot("slot", 1)  # once more: nothing to do
    assert (await host.client.inspect()).slots == []


async def test_a_slow_destruction_keeps_nobody_waiting(host: Host) -> None:
    await host.slot()
    await host.slot("other")
    shell = await host.start("trap 'echo told' TERM; echo up; while :; do sleep 0.1; done")
    await eventually(lambda: host.output() == "up\n", "the trap is set")
    patient = host.client.destroy_slot("slot", 1, grace_ms=int(PATIENCE_S * 1000))
    destruction = asyncio.create_task(patient)
    await eventually(lambda: host.output() == "up\ntold\n", "it was told to end")
    record = await host.run("exit 4", "quick", allocation_id="other")
    assert record.exit_code == 4
    assert not destruction.done()
    with pytest.raises(FailedPrecondition, match="being destroyed"):
        await host.start("true", "late")
    os.kill(shell, signal.SIGKILL)
    await destruction


async def test_a_cpu_that_does_not_exist_fails_the_slot(host: Host) -> None:
    with pytest.raises(FinegrainError) as caught:
        await host.slot(cpus="8000")
    assert caught.value.reason is Reason.CARVE_FAILED
    assert caught.value.details["file"].endswith("cpuset.cpus")
    assert (await host.client.inspect()).slots == []


async def test_tasks_run_on_the_cpus_of_their_slot(host: Host) -> None:
    await host.slot(cpus="0")
    await host.run("grep Cpus_allowed_list /proc/self/status")
    assert host.output().split() == ["Cpus_allowed_list:", "0"]
    assert len(os.sched_getaffinity(0)) >= 1


async def test_the_same_slot_again_is_the_same_and_another_content_is_refused(host: Host) -> None:
    await host.slot()
    await host.slot()
    with pytest.raises(FinegrainError) as caught:
        await host.slot(cpu_milli=2000)
    assert caught.value.reason is Reason.ALREADY_EXISTS


async def test_usage_counts_slots_and_running_tasks(host: Host) -> None:
    await host.slot()
    await host.start("", argv=python(HOG.format(mib=20)))
    await eventually(lambda: host.output() == "fits\n", "it has its memory")
    usage = await host.client.usage()
    assert [task.task_id for task in usage.tasks] == ["task"]
    assert (usage.tasks[0].memory_current_bytes or 0) >= 20 * MIB
    assert (usage.slots[0].memory_peak_bytes or 0) >= 20 * MIB
    assert (usage.slots[0].pids, usage.slots[0].oom_kills) == (1, 0)
    assert (usage.slots[0].cpu_usec or 0) > 0
