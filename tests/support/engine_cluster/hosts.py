"""Executors as tests want them: a host of plain amounts, or one with cores and NUMA nodes."""

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
    """Makes an executor that reports amounts alone, nothing of its cpus.

    Args:
        name: its id.
        cpu_milli: its cpu in total.
        memory_bytes: its memory in total.
        default_profile: what a request without a profile gets there.
        more: further fields of `FakeExecutor`.
    """
    total = {"cpu_milli": cpu_milli, "memory_bytes": memory_bytes}
    return FakeExecutor(name, total, default_profile, **more)


def provided(name: str, shape: ExecutorShape, **more: Any) -> FakeExecutor:
    """Makes an executor as a provider starts it.

    Args:
        name: its id, which the resource manager chose when it asked for it.
        shape: what was asked for.
        more: fields of `FakeExecutor` that differ.
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
    """Makes an executor that has all cpus of a regular machine, described by `topology`.

    Args:
        name: its id.
        nodes: NUMA nodes, each a package.
        cores: cores of each node.
        threads: threads of each core.
        policy: its host policy, as its configuration has it.
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
    """Describes a machine with one package per node.

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
