"""Dedicated cpus, by real processes: tasks run where the assignment says, and no others run there.

What a task may use is read back from the kernel.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.cpuset import CpuSet
from tests.e2e.driving import (
    Daemons,
    Small,
    eventually,
    interrupt,
    read_until,
    slot_groups,
    small_cluster,
    unique,
)
from tests.support.patience import PATIENCE_S

MEMORY = 32 * fg.MIB
TELL_AND_WAIT = ("sh", "-c", "grep Cpus_allowed_list /proc/self/status; exec sleep 1000")


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Small]:
    """One executor with two cpus."""
    with small_cluster(home, executors=1, cpu_milli=2000) as small:
        yield small


@pytest.fixture
def cpus(small: Small) -> CpuSet:
    """All that slots can have."""
    with small.cli.client() as cluster:
        (executor,) = cluster.executors()
    return CpuSet.parse(executor.shared_cpus)


def allowed(pid: int) -> CpuSet:
    """The cpus that the kernel lets a process use."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return CpuSet.parse(value)
    raise AssertionError("the kernel does not say")


def told_by(process: subprocess.Popen[bytes]) -> CpuSet:
    """The cpus that a task of `TELL_AND_WAIT` sees itself."""
    line = read_until(process, b"\n").decode().splitlines()[-1]
    return CpuSet.parse(line.partition(":")[2])


@pytest.mark.quick
def test_a_pinned_slot_has_its_cpu_to_itself_while_it_lives(small: Small, cpus: CpuSet) -> None:
    with small.cli.client() as cluster, cluster.job("beside") as job:
        requests = job.request_slots(
            [
                fg.SlotSpec(cpu_milli=200, memory_bytes=MEMORY),
                fg.SlotSpec(cpu_milli=200, memory_bytes=MEMORY, qos="BE"),
            ]
        )
        tasks = [each.granted().run(["sleep", "1000"]) for each in requests]
        shared, best_effort = (task.pid for task in tasks)
        assert allowed(shared) == allowed(best_effort) == cpus

        asks = ("--cpu", "1", "--memory", "32M", "--qos", "LSR", "--cpu-bind", "FullPCPUs")
        pinned = small.cli.start("run", *asks, "--", *TELL_AND_WAIT)
        own = told_by(pinned)
        (slot,) = [each for each in small.cli.items("slots") if each["cpus"]]
        assert own == CpuSet.parse(slot["cpus"])
        assert len(own) == 1
        assert slot["assignment"]["qos"] == "LSR"
        assert allowed(shared) == cpus - own
        assert allowed(best_effort) == cpus

        interrupt(pinned)
        pinned.communicate(timeout=PATIENCE_S)
        eventually(lambda: allowed(shared) == cpus, "the shared pool has its cpu back")


@pytest.mark.quick
def test_nobody_runs_on_a_cpu_of_the_most_exclusive_class(small: Small, cpus: CpuSet) -> None:
    with small.cli.client() as cluster, cluster.job("beside") as job:
        shared, exclusive = job.request_slots(
            [
                fg.SlotSpec(cpu_milli=200, memory_bytes=MEMORY, qos="BE"),
                fg.SlotSpec(cpu_milli=1000, memory_bytes=MEMORY, qos="LSE"),
            ]
        )
        best_effort = shared.granted().run(["sleep", "1000"]).pid
        with exclusive.granted() as slot:
            own = CpuSet.parse(slot.cpus)
            assert allowed(slot.run(["sleep", "1000"]).pid) == own
            assert allowed(best_effort) == cpus - own
        eventually(lambda: allowed(best_effort) == cpus, "best effort has its cpu back")


def test_what_operators_reserve_is_given_to_nobody(small: Small, cpus: CpuSet) -> None:
    (name,) = small.names
    first = str(min(cpus))
    with small.cli.client() as cluster, cluster.job("pinned") as job:
        assert small.cli("executors", "set", name, "--reserved-cpus", first).code == 0
        try:
            found = cluster.host_policy(name)
            assert found.effective.reserved_cpus == first
            assert found.effective.origins["reserved_cpus"] == "operator"
            spec = fg.SlotSpec(cpu_milli=1000, memory_bytes=MEMORY, qos="LSR")
            (request,) = job.request_slots(spec)
            task = request.granted().run(["sleep", "1000"])
            assert allowed(task.pid) == cpus - CpuSet.parse(first)
            with pytest.raises(fg.RequestRejected, match="even when empty"):
                job.request_slots(fg.SlotSpec(cpu_milli=2000, memory_bytes=MEMORY, qos="LSE"))
        finally:
            cluster.set_host_policy(name, clear=["reserved_cpus"])


def test_slots_are_near_to_and_apart_from_others(small: Small) -> None:
    two = ("run", "--gang", "2", "--cpu", "0.1", "--memory", "32M", "--slot-label", "app=db")
    near = small.cli(*two, "--near", "app=db", "--", "true")
    assert near.code == 0, near.stderr
    with small.cli.client() as cluster, cluster.job("neighbors") as job:
        size: Any = {"cpu_milli": 100, "memory_bytes": MEMORY, "slot_labels": {"app": "db"}}
        (first,) = job.request_slots(fg.SlotSpec(**size))
        first.granted()
        (second,) = job.request_slots(fg.SlotSpec(**size, apart=("app=db",)))
        # the table of verdicts is wrapped
        explained = " ".join(small.cli("explain", second.allocation_id).text.split())
        assert f"has slot {first.allocation_id}, which the rule apart app=db@host" in explained
        (third,) = job.request_slots(fg.SlotSpec(**size, near=("app=db",), apart=("x=y",)))
        assert third.granted().executor_id == first.granted().executor_id
        first.granted().release()
        third.granted().release()
        assert second.granted().executor_id
    wrong = small.cli("run", "--near", "app", "--", "true")
    assert wrong.code == 125
    assert "--near is 'app'; expected KEY=VALUE" in wrong.stderr
    shared = small.cli("run", "--near", "app=db@core", "--", "true")
    assert shared.code == 125
    assert "only dedicated cpus have a place" in shared.stderr


@pytest.mark.needs("cgroup-v1")
def test_best_effort_work_gets_less_cpu_time_while_the_host_is_busy(daemons: Daemons) -> None:
    name = unique("e2e-squeezed")
    daemons.manager.start()
    daemons.manager.endpoint()
    squeeze = ("--best-effort-squeeze", "quota", "--best-effort-squeeze-threshold", "1")
    daemons.executor(name, *squeeze).start()
    daemons.await_executors(name)
    with daemons.cli.client() as cluster, cluster.job("squeezed") as job:
        spec = fg.SlotSpec(cpu_milli=500, memory_bytes=MEMORY, qos="BE")
        (request,) = job.request_slots(spec)
        task = request.granted(PATIENCE_S).run(["sh", "-c", "while :; do :; done"])

        def quota() -> int:
            (file,) = (
                group / "cpu.cfs_quota_us"
                for group in slot_groups(name)
                if (group / "cpu.cfs_quota_us").exists()
            )
            return int(file.read_text())

        # 1 % of the host may be busy, and this task alone uses more.
        eventually(lambda: quota() < 50_000, "the quota is lower")
        task.cancel()


def test_what_does_not_go_together_is_told(small: Small) -> None:
    outcome = small.cli("run", "--cpu", "0.5", "--qos", "LSR", "--", "true")
    assert outcome.code == 125
    assert "--cpu is '0.5'; expected whole cpus with qos LSR" in outcome.stderr
