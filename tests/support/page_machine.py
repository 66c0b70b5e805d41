"""The hosts of the simulated cluster of the web page: names, times, amounts and their machine."""

from __future__ import annotations

import time

from google.protobuf.timestamp_pb2 import Timestamp

from finegrain.resources import GIB
from finegrain.v1 import resources_pb2

CPUS, NODES, GPUS = 64, 2, 2
"""Cpus, NUMA nodes and GPUs of a simulated host."""

RESERVED_CPUS = 2
MEMORY_BYTES = 256 * GIB
GPU_MEMORY_BYTES = 80 * GIB
HOSTS_PER_RACK = 40
DEDICATED_SLOTS = 8
START_S = int(time.time()) - 7200
"""The simulation begins two hours ago."""

GROUPS = ("research", "vision", "speech", "production", "search")


def at(seconds: float) -> Timestamp:
    """Returns a time, in seconds after the start of the simulation."""
    return Timestamp(seconds=START_S + int(seconds))


def host_id(number: int) -> str:
    """Returns the id of a host."""
    return f"host-{number:05d}"


def number_of(executor_id: str) -> int:
    """Returns the number of a host."""
    return int(executor_id.rpartition("-")[2])


def job_id(number: int) -> str:
    """Returns the id of a job."""
    return f"job-{number:04d}"


def topology(text: str) -> resources_pb2.HostTopology:
    """Returns the machine of each host: two NUMA nodes, and a GPU at each."""
    half = CPUS // NODES
    machine = resources_pb2.HostTopology(
        online_cpus=f"0-{CPUS - 1}", allowed_cpus=f"0-{CPUS - 1}", memory_bytes=MEMORY_BYTES
    )
    for cpu in range(CPUS):
        node = cpu // half
        machine.cores.add(cpus=str(cpu), package_index=node, numa_node_id=node, l3_index=node)
    for node in range(NODES):
        machine.numa_nodes.add(
            numa_node_id=node,
            cpus=f"{node * half}-{node * half + half - 1}",
            memory_bytes=MEMORY_BYTES // NODES,
            distances=[10, 21],
        )
    for minor in range(GPUS):
        device = machine.devices.add(
            kind="gpu",
            uuid=f"GPU-{minor}",
            minor=minor,
            model=f"A100{text}",
            memory_bytes=GPU_MEMORY_BYTES,
            numa_node_id=minor % NODES,
        )
        device.capacity["gpu-core"], device.capacity["gpu-memory"] = 100, GPU_MEMORY_BYTES
    machine.device_links.add(first_uuid="GPU-0", second_uuid="GPU-1", lanes=12, path="SYS")
    return machine


def isolation_of(note: str) -> resources_pb2.IsolationReport:
    return resources_pb2.IsolationReport(
        cpu="quota",
        cpuset="cgroup",
        memory="hard",
        pids="hard",
        kill="cgroup.kill",
        driver="v2",
        notes=[note],
    )


def amounts_of(cpu_milli: int, memory_bytes: int) -> resources_pb2.ResourceAmounts:
    return resources_pb2.ResourceAmounts(cpu_milli=cpu_milli, memory_bytes=memory_bytes)


def add(total: resources_pb2.ResourceAmounts, more: resources_pb2.ResourceAmounts) -> None:
    total.cpu_milli += more.cpu_milli
    total.memory_bytes += more.memory_bytes
