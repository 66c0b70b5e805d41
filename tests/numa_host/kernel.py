"""Reads from the kernel a host's cpus and nodes, and the cpus on which a process runs.

Decides where to look. Does not depend on finegrain's rules.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from finegrain.cpuset import CpuSet, union
from tests.systemd_host.machine import limit

CPUS = Path("/sys/devices/system/cpu")
NODES = Path("/sys/devices/system/node")
PAGE = 4096
READS_MAX = 20


def online() -> CpuSet:
    return CpuSet.parse((CPUS / "online").read_text().strip())


def set_online(cpu: int, on: bool) -> None:
    (CPUS / f"cpu{cpu}/online").write_text("1" if on else "0")


def can_go_offline(cpu: int) -> bool:
    return (CPUS / f"cpu{cpu}/online").exists()


def core_of(cpu: int) -> CpuSet:
    """The hardware threads of a cpu's core that run."""
    text = (CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    return CpuSet.parse(text.strip())


def package_of(cpu: int) -> int:
    return int((CPUS / f"cpu{cpu}/topology/physical_package_id").read_text())


def nodes() -> dict[int, CpuSet]:
    """NUMA nodes with their cpus that run."""
    return {
        int(path.name.removeprefix("node")): CpuSet.parse((path / "cpulist").read_text().strip())
        for path in NODES.glob("node[0-9]*")
    }


def nodes_of(cpus: CpuSet) -> set[int]:
    return {node for node, mine in nodes().items() if mine & cpus}


def are_whole_cores(cpus: CpuSet) -> bool:
    return union(core_of(cpu) for cpu in cpus) == cpus


def are_distinct_cores(cpus: CpuSet) -> bool:
    return len({str(core_of(cpu)) for cpu in cpus}) == len(cpus)


# -- a process -----------------------------------------------------------------------------------


def confined_to(pid: int) -> CpuSet:
    """Returns the cpus of the process's group, which are also the cpus of the process. Raises
    AssertionError if both differ for longer than a move takes.
    """
    for _ in range(READS_MAX):
        group = CpuSet.parse(limit(pid, "cpuset.cpus.effective", "cpuset/cpuset.effective_cpus"))
        status = CpuSet.parse(_status(pid, "Cpus_allowed_list"))
        scheduled = CpuSet(os.sched_getaffinity(pid))
        if group == status == scheduled:
            return group
        time.sleep(0.1)
    raise AssertionError(f"{group} by group, {status} and {scheduled} by process")


def memory_nodes_of(pid: int) -> CpuSet:
    """The nodes whose memory its group may use. AssertionError: the process says otherwise."""
    group = CpuSet.parse(limit(pid, "cpuset.mems.effective", "cpuset/cpuset.effective_mems"))
    assert group == CpuSet.parse(_status(pid, "Mems_allowed_list"))
    return group


def runs_on(pid: int) -> int:
    """The cpu that it ran on last."""
    return int(_stat(pid)[36])


def cpu_ticks(pid: int) -> int:
    """Returns the cpu time that the process has used, in ticks."""
    return sum(int(value) for value in _stat(pid)[11:13])


def state_of(pid: int) -> str:
    return _stat(pid)[0]


def pages_by_node(pid: int) -> dict[int, int]:
    """Its anonymous pages on each node."""
    found: dict[int, int] = {}
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        words = line.split()
        if not any(word.startswith("anon=") for word in words):
            continue
        for word in words:
            name, _, count = word.partition("=")
            if name[:1] == "N" and name[1:].isdecimal():
                found[int(name[1:])] = found.get(int(name[1:]), 0) + int(count)
    return found


def _status(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise AssertionError(f"/proc/{pid}/status has no {name}")


def _stat(pid: int) -> list[str]:
    """Fields from the third on: its state, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
