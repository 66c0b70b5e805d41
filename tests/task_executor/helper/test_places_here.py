"""Slots with spinning tasks move to other cpus on this machine; the tests read the cpus from the
kernel.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.errors import FinegrainError, Reason
from task_executor.host.helper_client import SlotPlace
from tests.task_executor.helper.conftest import MIB, Host, alive, eventually

CPUS = sorted(os.sched_getaffinity(0))
FIRST, SECOND = str(CPUS[0]), str(CPUS[-1])
BOTH = f"{FIRST},{SECOND}"

# Starts a task that spins in two threads and a child; returns its pid.
SPINNER = """
import os, threading
def spin():
    while True:
        pass
if os.fork() == 0:
    spin()
threading.Thread(target=spin, daemon=True).start()
print("spins", flush=True)
spin()
"""


async def spin(host: Host, name: str, cpus: str = BOTH) -> int:
    await host.slot(name, cpus=cpus, cpu_milli=100)
    pid = await host.start(
        "", name, allocation_id=name, argv=[sys.executable, "-I", "-S", "-c", SPINNER]
    )
    await eventually(lambda: host.output(name) == "spins\n", "it spins")
    return pid


def allowed(pid: int) -> set[str]:
    """Returns the cpus of all threads of a process and its children."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    assert len(pids) == 2
    threads = [task for each in pids for task in Path(f"/proc/{each}/task").iterdir()]
    assert len(threads) == 3
    found = set()
    for thread in threads:
        status = (thread / "status").read_text()
        line = next(each for each in status.splitlines() if each.startswith("Cpus_allowed_list"))
        found.add(line.split()[1])
    return found


@pytest.mark.needs("root", "cgroup-v1")
async def test_spinning_tasks_are_moved_off_a_cpu_and_back_and_live_on(host: Host) -> None:
    pids = [await spin(host, name) for name in ("one", "two")]
    both = allowed(pids[0])
    for cpus, shown in ((FIRST, {FIRST}), (SECOND, {SECOND}), (BOTH, both)):
        await host.client.place_slots([SlotPlace(name, 1, cpus) for name in ("one", "two")])
        assert [allowed(pid) for pid in pids] == [shown, shown]
        told = {each.limits.cpus for each in (await host.client.inspect()).slots}
        assert told == {cpus}
    assert all(map(alive, pids))


@pytest.mark.needs("root", "cgroup-v1")
async def test_after_a_kill_of_the_helper_they_are_where_they_were_put_last(host: Host) -> None:
    pid = await spin(host, "one")
    await host.client.place_slots([SlotPlace("one", 1, SECOND)])
    host.kill_helper()
    host.restart_helper()
    (slot,) = (await host.client.inspect()).slots
    assert slot.limits.cpus == SECOND
    await host.client.resize_slot(replace(slot.limits, cpu_milli=200))
    assert allowed(pid) == {SECOND}
    await host.client.place_slots([SlotPlace("one", 1, FIRST)])
    assert allowed(pid) == {FIRST}
    assert alive(pid)


@pytest.mark.needs("root", "cgroup-v1")
async def test_a_cpu_that_this_host_lacks_moves_nobody(host: Host) -> None:
    pids = [await spin(host, name) for name in ("one", "two")]
    before = allowed(pids[0])
    with pytest.raises(FinegrainError) as refused:
        await host.client.place_slots([SlotPlace("one", 1, FIRST), SlotPlace("two", 1, "8000")])
    assert refused.value.reason is Reason.CARVE_FAILED
    assert refused.value.details["file"].endswith("cpuset.cpus")
    assert [allowed(pid) for pid in pids] == [before, before]


@pytest.mark.needs("root", "cgroup-v1")
async def test_best_effort_gives_way_and_cpus_of_its_own_have_no_quota(host: Host) -> None:
    await host.slot("idle", best_effort=True, cpus=BOTH)
    await host.slot("pinned", cpus=FIRST, cpu_limit_milli=-1)
    for name in ("idle", "pinned"):
        await host.start("sleep 60", name, allocation_id=name)
    found = {}
    for name in ("idle", "pinned"):
        record = host.record(name)
        cpu = Path(record["slot"]["cpu"])
        files = ("cpu.shares", "cpu.cfs_quota_us")
        found[name] = [(cpu / file).read_text().strip() for file in files]
    assert found == {"idle": ["2", "100000"], "pinned": ["1024", "-1"]}


async def test_without_groups_all_threads_of_its_tasks_move(plain_host: Host) -> None:
    host = plain_host
    pid = await spin(host, "one", FIRST)
    assert allowed(pid) == {FIRST}
    await host.client.place_slots([SlotPlace("one", 1, SECOND)])
    assert allowed(pid) == {SECOND}
    assert await host.run("grep Cpus_allowed_list /proc/self/status", "late", allocation_id="one")
    assert host.output("late").split() == ["Cpus_allowed_list:", SECOND]
    host.kill_helper()
    host.restart_helper()
    await host.client.place_slots([SlotPlace("one", 1, FIRST)])
    assert allowed(pid) == {FIRST}
    assert alive(pid)


@pytest.mark.needs("root", "cgroup-v1")
async def test_best_effort_beside_busy_slots_is_gone_when_it_is_destroyed(host: Host) -> None:
    """A process needs cpu time to end: the more memory it has, the longer it takes."""
    hold = "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('holds')"
    await host.slot("idle", memory_bytes=512 * MIB)
    code = [sys.executable, "-I", "-S", "-u", "-c", hold + "\nimport time; time.sleep(600)"]
    pid = await host.start("", "idle", allocation_id="idle", argv=code)
    await eventually(lambda: host.output("idle") == "holds\n", "it has its memory")
    limits = (await host.client.inspect()).slots[0].limits
    await host.client.resize_slot(replace(limits, best_effort=True))
    await host.slot("busy", cpu_milli=2000 * len(CPUS))
    for number in range(len(CPUS)):
        await host.start("while :; do :; done", f"busy-{number}", allocation_id="busy")
    await host.client.destroy_slot("idle", 1)
    assert not alive(pid)
