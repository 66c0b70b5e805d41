"""The kernel gives the processes of a slot exactly the cpus and nodes of the slot, even if other
slots and cpus change.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import finegrain_client as fg
from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain_client.blocking import Slot, Task
from tests.numa_host import kernel
from tests.numa_host.daemons import Host, spin
from tests.systemd_host.machine import alive, eventually, start_ticks

MEMORY = 64 * fg.MIB
LOOKS = 5  # at where a spinning task runs
HOLD = """
held = bytearray(b"x") * (24 << 20)
print("held", flush=True)
import time
time.sleep(3600)
"""


def pinned(cpus: int, qos: str = "LSR", **policies: Any) -> fg.SlotSpec:
    return fg.SlotSpec(cpu_milli=1000 * cpus, memory_bytes=MEMORY, qos=qos, **policies)


def shared(qos: str = "LS", **more: object) -> fg.SlotSpec:
    return fg.SlotSpec(cpu_milli=300, memory_bytes=MEMORY, qos=qos, **more)  # type: ignore[arg-type]


def looked_at(task: Task, cpus: CpuSet) -> None:
    """Checks that the process is confined to these cpus, and runs on them."""
    assert kernel.confined_to(task.pid) == cpus, (kernel.confined_to(task.pid), cpus)
    for _ in range(LOOKS):
        assert kernel.runs_on(task.pid) in cpus
        time.sleep(0.05)


def own(slot: Slot) -> CpuSet:
    assignment = slot.assignment
    assert assignment is not None
    return assignment.cpus


def threads() -> int:
    return max(len(kernel.core_of(cpu)) for cpu in kernel.online())


# -- where slots run -------------------------------------------------------------------------------


def policies_are_what_the_kernel_does(host: Host) -> None:
    """Tests bind, exclusive and NUMA policies, one after the other."""
    smt, whole = threads(), kernel.are_whole_cores
    largest = max(len(cpus) for cpus in kernel.nodes().values())
    checks: list[tuple[fg.SlotSpec, Callable[[CpuSet], bool]]] = [
        (pinned(smt, cpu_bind="FullPCPUs:required"), whole),
        (pinned(2 * smt, "LSE", cpu_bind="FullPCPUs:required"), whole),
        (pinned(2, cpu_bind="SpreadByPCPUs:required"), kernel.are_distinct_cores),
        (pinned(2, numa="SingleNUMANode"), lambda cpus: len(kernel.nodes_of(cpus)) == 1),
        (pinned(largest + smt, numa="Restricted"), lambda cpus: len(kernel.nodes_of(cpus)) == 2),
    ]
    if smt > 1:
        apart = pinned(1, cpu_bind="SpreadByPCPUs", cpu_exclusive="PCPULevel:required")
        checks.append((apart, lambda cpus: len(cpus) == 1))
    for wish, holds in checks:
        with host.slots(wish) as (slot,):
            cpus = own(slot)
            looked_at(spin(slot), cpus)
            assert holds(cpus), (wish, cpus)
            print(f"   {wish.qos} {wish.cpu_bind} {wish.cpu_exclusive} {wish.numa}: {cpus}")
        host.settled()
    if smt > 1:
        with host.slots(apart, apart) as (one, other):
            assert not union(kernel.core_of(cpu) for cpu in own(one)) & own(other)
        host.settled()
    alone = pinned(1, cpu_exclusive="NUMANodeLevel:required")
    with host.slots(alone, alone) as (one, other):
        assert not kernel.nodes_of(own(one)) & kernel.nodes_of(own(other))


def strategies_choose_nodes(host: Host) -> None:
    """The same slot is placed beside another slot, away from it, or half on each node."""
    size = threads()
    with host.cluster() as cluster:
        for strategy, same in (("MostAllocated", True), ("LeastAllocated", False)):
            cluster.set_host_policy(host.name, numa_strategy=strategy)
            with host.slots(pinned(size)) as (first,), host.slots(pinned(size)) as (second,):
                beside = kernel.nodes_of(own(first)) == kernel.nodes_of(own(second))
                assert beside is same, (strategy, own(first), own(second))
            host.settled()
        cluster.set_host_policy(host.name, numa_strategy="DistributeEvenly")
    largest = max(len(cpus) for cpus in kernel.nodes().values())
    with host.slots(pinned(largest + size, cpu_bind="FullPCPUs:required")) as (slot,):
        counts = [len(cpus & own(slot)) for cpus in kernel.nodes().values() if cpus & own(slot)]
        assert max(counts) - min(counts) <= size, counts
        print(f"   DistributeEvenly: {own(slot)}, {counts} by node")
    host.forget_settings()


def alignment_binds_everybody(host: Host) -> None:
    """On a host that aligns, a slot of the shared pools runs on one node, with its memory."""
    with host.cluster() as cluster:
        cluster.set_host_policy(host.name, alignment="SingleNUMANode")
    for qos in ("LS", "BE", "LSR"):
        wish = pinned(1, qos) if qos == "LSR" else shared(qos)
        with host.slots(wish) as (slot,):
            task = spin(slot)
            cpus = kernel.confined_to(task.pid)
            (node,) = kernel.nodes_of(cpus)
            assert kernel.memory_nodes_of(task.pid) == CpuSet([node])
            looked_at(task, cpus)
            if qos != "LSR":
                assert cpus == kernel.nodes()[node]
        host.settled()
    host.forget_settings()


def pools_move_while_tasks_spin(host: Host) -> None:
    """Pinned slots come and go beside spinning ones, which make room and are never lost."""
    everything = kernel.online()
    with host.slots(shared(), shared(), shared("BE")) as (one, other, filler):
        tasks = [spin(each) for each in (one, other, filler)]
        identities = [(task.pid, start_ticks(task.pid)) for task in tasks]
        used = [kernel.cpu_ticks(task.pid) for task in tasks]
        looked_at(tasks[0], everything)
        for wish in _comings_and_goings():
            with host.slots(wish) as (slot,):
                mine = own(slot)
                looked_at(spin(slot), mine)
                for task in tasks[:2]:
                    looked_at(task, everything - mine)
                best_effort = everything - (mine if wish.qos == "LSE" else EMPTY)
                looked_at(tasks[2], best_effort)
            eventually(
                lambda: all(kernel.confined_to(task.pid) == everything for task in tasks),
                "the pools have their cpus back",
            )
        assert identities == [(task.pid, start_ticks(task.pid)) for task in tasks]
        now = [kernel.cpu_ticks(task.pid) for task in tasks]
        assert all(later > before for later, before in zip(now, used, strict=True)), (used, now)


def _comings_and_goings() -> Iterator[fg.SlotSpec]:
    count = len(kernel.online())
    for cpus in (1, threads(), count // 2, count - 1):
        yield pinned(cpus, "LSE" if cpus % 2 else "LSR")


def memory_lies_on_the_node(host: Host) -> None:
    """The memory that a task uses is on the node that its slot is bound to. This is tested for
    every node of the host.
    """
    wish = pinned(1, numa="SingleNUMANode", cpu_exclusive="NUMANodeLevel")
    with host.slots(*[wish] * min(2, len(kernel.nodes()))) as slots:
        for slot in slots:
            assignment = slot.assignment
            assert assignment is not None
            nodes = assignment.memory_nodes
            task = slot.run([sys.executable, "-S", "-c", HOLD])
            assert next(iter(task.output())).data.strip() == b"held"
            assert kernel.memory_nodes_of(task.pid) == nodes
            pages = kernel.pages_by_node(task.pid)
            here = sum(count for node, count in pages.items() if node in nodes)
            elsewhere = sum(pages.values()) - here
            print(f"   bound to memory of {nodes}: {here} pages there, {elsewhere} elsewhere")
            assert here * kernel.PAGE >= 24 << 20
            assert elsewhere <= here // 100  # memory from before the exec


# -- what happens to them --------------------------------------------------------------------------


def cpus_go_offline_and_come_back(host: Host) -> None:
    """A pinned slot that loses a cpu continues to run and is reported. It has the cpu again when
    the cpu returns.
    """
    with host.slots(pinned(2, cpu_bind="SpreadByPCPUs"), shared()) as (slot, beside):
        mine, task, other = own(slot), spin(slot), spin(beside)
        gone = next(cpu for cpu in reversed(list(mine)) if kernel.can_go_offline(cpu))
        everything, born = kernel.online(), start_ticks(task.pid)
        kernel.set_online(gone, False)
        try:
            eventually(lambda: _lost(host) == CpuSet([gone]), "the executor has told of it")
            left = mine - CpuSet([gone])
            eventually(lambda: kernel.confined_to(task.pid) == left, "it runs on what it has")
            looked_at(other, everything - mine)
            with host.cluster() as cluster:
                total = cluster.executor(host.name).total["cpu_milli"]
            assert total == 1000 * (len(everything) - 1), total
        finally:
            kernel.set_online(gone, True)
        eventually(lambda: _lost(host) == EMPTY, "the executor has told that it is back")
        eventually(lambda: kernel.confined_to(task.pid) == mine, "the slot has its cpu again")
        eventually(lambda: kernel.confined_to(other.pid) == everything - mine, "the pool as well")
        assert start_ticks(task.pid) == born
        looked_at(task, mine)


def _lost(host: Host) -> CpuSet:
    with host.cluster() as cluster:
        found = cluster.topology(host.name)
    lost = union(CpuSet.parse(each.cpus) for each in found.lost_cpus)
    return lost if found.now is not None or not lost else EMPTY


def executor_is_killed_and_comes_back(host: Host) -> None:
    """After kill -9, slots and tasks continue on their cpus, and later slots do not get these
    cpus.
    """
    with host.slots(pinned(2, "LSE", numa="SingleNUMANode"), shared()) as (slot, beside):
        task, other = spin(slot), spin(beside)
        born = start_ticks(task.pid), start_ticks(other.pid)
        everything = kernel.online()
        host.executor.kill()
        looked_at(task, own(slot))
        host.executor.start()
        eventually(lambda: _is_active(host), "the executor has registered again")
        looked_at(task, own(slot))
        looked_at(other, everything - own(slot))
        with host.slots(pinned(2)) as (later,):
            assert not own(later) & own(slot)
            looked_at(spin(later), own(later))
            looked_at(other, everything - own(slot) - own(later))
        assert (start_ticks(task.pid), start_ticks(other.pid)) == born
        assert alive(task.pid)


def _is_active(host: Host) -> bool:
    with host.cluster() as cluster:
        return cluster.executor(host.name).state == "ACTIVE"


def reserves_are_set_at_runtime(host: Host) -> None:
    """Reserved: dedicated to no slot. Strictly reserved cpus are in no pool, and tasks on these
    cpus are moved away.
    """
    everything = kernel.online()
    first = CpuSet([min(everything)])
    with host.slots(shared()) as (beside,):
        other = spin(beside)
        host.cli("executors", "set", host.name, "--reserved-cpus", str(first))
        with host.slots(pinned(len(everything) - 2)) as (slot,):  # leaves one cpu
            assert not own(slot) & first
            looked_at(spin(slot), own(slot))
            looked_at(other, everything - own(slot))
        eventually(lambda: kernel.confined_to(other.pid) == everything, "it may go anywhere again")
        host.cli("executors", "set", host.name, "--reserved-strict")
        eventually(
            lambda: kernel.confined_to(other.pid) == everything - first, "it has left the reserve"
        )
        looked_at(other, everything - first)
        host.forget_settings()
        eventually(lambda: kernel.confined_to(other.pid) == everything, "it may go there again")


def best_effort_makes_room(host: Host) -> None:
    """While other slots are busy, best-effort tasks run on fewer cpus. Afterwards they run on as
    many cpus as the threshold (65 % of the host) allows, minus the small use of other processes.
    """
    everything = kernel.online()
    busy = len(everything) - 1
    host.executor.kill()
    host.executor.start("--best-effort-squeeze", "cpuset")
    eventually(lambda: _is_active(host), "the executor has registered again")
    wish = fg.SlotSpec(cpu_milli=1000 * busy, memory_bytes=MEMORY)
    with host.slots(shared("BE")) as (filler,):
        task = spin(filler)
        with host.slots(wish) as (slot,):
            for _ in range(busy):
                spin(slot)
            eventually(
                lambda: len(kernel.confined_to(task.pid)) < len(everything) // 2,
                "best effort has fewer cpus",
            )
            squeezed = kernel.confined_to(task.pid)
            assert len(squeezed) >= 2, squeezed
            print(f"   {busy} cpus busy: best effort on {squeezed}")
            eventually(lambda: _squeezed(host) != EMPTY, "the map shows it")
        enough = len(everything) // 2
        eventually(lambda: len(kernel.confined_to(task.pid)) >= enough, "it has more again")
    host.executor.kill()
    host.executor.start()
    eventually(lambda: _is_active(host), "the executor has registered again")


def _squeezed(host: Host) -> CpuSet:
    with host.cluster() as cluster:
        now = cluster.topology(host.name).now
    return CpuSet.parse(now.squeezed_cpus) if now is not None else EMPTY


def _offered(host: Host, name: str) -> int:
    """Returns the amount of a countable resource in the executor's last registration."""
    with host.cluster() as cluster:
        return cluster.executor(host.name).total.get(f"extended.{name}", 0)


def huge_pages_are_limited(host: Host) -> None:
    """Huge pages of a node are offered, and a slot may use as many as it asked for."""
    pool = Path("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages")
    if not pool.exists():
        print("   this kernel has no huge pages of 2 MiB: nothing to see")
        return
    pool.write_text("16")
    try:
        host.executor.kill()
        host.executor.start()
        there = int(pool.read_text())
        eventually(lambda: _offered(host, "hugepages-2Mi") == there, f"{there} pages are offered")
        print(f"   {there} pages are there, and offered")
        wish = fg.SlotSpec(
            cpu_milli=300,
            memory_bytes=MEMORY,
            extended={"hugepages-2Mi": 4},
            numa="SingleNUMANode",
        )
        with host.slots(wish) as (slot,):
            assert slot.assignment is not None
            assert slot.assignment.memory_nodes == "0"
    finally:
        pool.write_text("0")


def the_map_says_the_same(host: Host) -> None:
    """`finegrain topo` draws every socket, node and core, and the slot on its cpus."""
    with host.slots(pinned(threads(), cpu_bind="FullPCPUs:required")) as (slot,):
        said = host.cli("topo", host.name)
        print("\n".join(f"   {line}" for line in said.splitlines()))
        assert str(own(slot)) in said
        packages = {kernel.package_of(cpu) for cpu in kernel.online()}
        for package in packages:
            assert f"package {package}" in said.lower()


STORIES = (
    policies_are_what_the_kernel_does,
    strategies_choose_nodes,
    alignment_binds_everybody,
    pools_move_while_tasks_spin,
    memory_lies_on_the_node,
    cpus_go_offline_and_come_back,
    reserves_are_set_at_runtime,
    the_map_says_the_same,
    executor_is_killed_and_comes_back,
    best_effort_makes_room,
    huge_pages_are_limited,
)
