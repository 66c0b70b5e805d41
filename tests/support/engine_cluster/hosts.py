"""Builds executors for tests: hosts with plain amounts, and hosts with cores and NUMA nodes."""

from __future__ import annotations

import json
from typing import Any

from finegrain.cpuset import CpuSet
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.settings import ExecutorShape
from tests.support.engine_cluster.executor import FakeExecutor

DEFAULT_SLOT = ResourceProfile(1_000, 256 * MIB)
NODE_MEMORY_BYTES = 16 * GIB


def host(
    name: str = "host-a",
    cpu_milli: int = 4_000,
    memory_bytes: int = 64 * GIB,
    default_profile: ResourceProfile = DEFAULT_SLOT,
    **more: Any,
) -> FakeExecutor:
    """Makes an executor that reports only amounts, and nothing about its cpus.

    Args:
        name: its executor id.
        cpu_milli: total cpu of the host, in thousandths.
        memory_bytes: its total memory.
        default_profile: the profile of slots for requests without one.
        more: further fields of `FakeExecutor`.
    """
    total = {"cpu_milli": cpu_milli, "memory_bytes": memory_bytes}
    return FakeExecutor(name, total, default_profile, **more)


def provided(name: str, shape: ExecutorShape, **more: Any) -> FakeExecutor:
    """Makes an executor that a provider has started.

    Args:
        name: its executor id, chosen by the resource manager.
        shape: the requested executor shape.
        more: fields of `FakeExecutor` that differ from the shape.
    """
    described: dict[str, Any] = {
        "total": shape.total,
        "default_profile": shape.default_profile,
        "labels": shape.labels,
        "slots_max": shape.slots_max,
        "provided_as": shape.name,
    }
    return FakeExecutor(name, **(described | more))


def numa_host(
    name: str = "host-a",
    nodes: int = 2,
    cores: int = 4,
    threads: int = 2,
    *,
    policy: dict[str, Any] | None = None,
    **more: Any,
) -> FakeExecutor:
    """Makes an executor with all cpus of a regular machine, as described by `topology`.

    Args:
        name: its executor id.
        nodes: number of NUMA nodes, each in its own package.
        cores: cores of each node.
        threads: threads of each core.
        policy: host policy of its configuration.
        more: further fields of `FakeExecutor`.
    """
    count = nodes * cores * threads
    announced: dict[str, Any] = {
        "slot_cpus": f"0-{count - 1}",
        "numa": [
            {"numa_node_id": node, "memory_bytes": NODE_MEMORY_BYTES, "default_memory": True}
            for node in range(nodes)
        ],
    }
    if policy:
        announced["policy"] = policy
    return FakeExecutor(
        name,
        {
            "cpu_milli": 1_000 * count,
            "best_effort_cpu_milli": 1_000 * count,
            "memory_bytes": nodes * NODE_MEMORY_BYTES,
        },
        DEFAULT_SLOT,
        topology=json.dumps(topology(nodes, cores, threads)),
        host_cpus=json.dumps(announced),
        **more,
    )


def topology(nodes: int = 2, cores: int = 4, threads: int = 2) -> dict[str, Any]:
    """Returns the topology of a machine with one package per NUMA node.

    Thread `t` of core `c` is cpu `c + t * nodes * cores`, as on most x86 servers.
    """
    whole = nodes * cores
    cpus = [CpuSet(core + thread * whole for thread in range(threads)) for core in range(whole)]
    return {
        "online_cpus": f"0-{whole * threads - 1}",
        "allowed_cpus": f"0-{whole * threads - 1}",
        "cores": [
            {"cpus": str(each), "package_index": at // cores, "numa_node_id": at // cores}
            for at, each in enumerate(cpus)
        ],
        "numa_nodes": [
            {
                "numa_node_id": node,
                "cpus": str(
                    CpuSet(cpu for each in cpus[node * cores : (node + 1) * cores] for cpu in each)
                ),
                "memory_bytes": NODE_MEMORY_BYTES,
                "distances": [10 if other == node else 20 for other in range(nodes)],
            }
            for node in range(nodes)
        ],
        "memory_bytes": nodes * NODE_MEMORY_BYTES,
    }
