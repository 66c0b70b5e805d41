"""Describes machines in short form, as executors report them: `2s2n4c2t`, or a recorded machine.

`2s2n4c2t` has 2 sockets, 2 NUMA nodes per socket, 4 cores per node and 2 threads per core. Siblings
are numbered as on most x86 servers: first one thread of every core, then the next.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    EXTENDED_PREFIX,
    GIB,
    MEMORY_BYTES,
)
from tests.support.cpu_layouts import RECORDED, as_reported, recorded

NODE_MEMORY = 16 * GIB
LOCAL, SAME_SOCKET, REMOTE = 10, 12, 21
HUGE = "hugepages-2Mi"
_WORD = re.compile(r"(\d+)s(\d+)n(\d+)c(\d+)t")


@dataclass(frozen=True)
class Machine:
    """The hardware of an executor's host."""

    topology: dict[str, Any]
    cpus: CpuSet  # online and allowed
    node_memory: dict[int, int]  # bytes by NUMA node

    def announced(
        self,
        *,
        kept_back: CpuSet = EMPTY,
        isolated: CpuSet = EMPTY,
        policy: dict[str, Any] | None = None,
        huge_pages: int = 0,
    ) -> dict[str, Any]:
        """Returns the description of these cpus that an executor announces.

        Args:
            kept_back: reserved cpus, which are not part of the slots' capacity.
            isolated: cpus isolated from the kernel's load balancing.
            policy: the host policy of its configuration.
            huge_pages: number of 2 MiB pages on each node.
        """
        told: dict[str, Any] = {
            "slot_cpus": str(self.cpus - kept_back),
            "numa": [
                {
                    "numa_node_id": node,
                    "memory_bytes": memory,
                    "default_memory": True,
                    **({"extended": {HUGE: huge_pages}} if huge_pages else {}),
                }
                for node, memory in sorted(self.node_memory.items())
            ],
        }
        if kept_back:
            told["reserved_cpus"] = str(kept_back)
        if isolated:
            told["isolated_cpus"] = str(isolated)
        if policy:
            told["policy"] = policy
        return told

    def total(
        self, *, kept_back: CpuSet = EMPTY, strict: bool = False, huge_pages: int = 0
    ) -> dict[str, int]:
        """Returns the total amounts of an executor with this configuration.

        Best-effort slots may also run on reserved cpus, unless these are reserved strictly.
        """
        slot_cpus = self.cpus - kept_back
        total = {
            CPU_MILLI: 1_000 * len(slot_cpus),
            BEST_EFFORT_CPU_MILLI: 1_000 * len(slot_cpus if strict else self.cpus),
            MEMORY_BYTES: sum(self.node_memory.values()) or NODE_MEMORY,
        }
        if huge_pages:
            total[EXTENDED_PREFIX + HUGE] = huge_pages * len(self.node_memory)
        return total


def machine(word: str, node_memory: int = NODE_MEMORY) -> Machine:
    """Returns the machine that `word` describes, or the recorded machine of this name.

    Raises:
        ValueError: `word` is neither.
    """
    if word in RECORDED:
        found = recorded(word)
        return Machine(
            json.loads(as_reported(found)),
            found.online & found.allowed,
            {node.id: node.memory_bytes or 0 for node in found.numa_nodes},
        )
    if not (shape := _WORD.fullmatch(word)):
        raise ValueError(f"a machine is like 2s2n4c2t, or the name of a recorded one, not {word}")
    sockets, nodes, cores, threads = map(int, shape.groups())
    return _regular(sockets, nodes, cores, threads, node_memory)


def _regular(sockets: int, nodes: int, cores: int, threads: int, node_memory: int) -> Machine:
    nodes_all = sockets * nodes
    cores_all = nodes_all * cores
    of_core = [
        CpuSet(core + thread * cores_all for thread in range(threads)) for core in range(cores_all)
    ]

    def distance(one: int, other: int) -> int:
        if one == other:
            return LOCAL
        return SAME_SOCKET if one // nodes == other // nodes else REMOTE

    cpus = CpuSet(range(cores_all * threads))
    topology = {
        "online_cpus": str(cpus),
        "allowed_cpus": str(cpus),
        "cores": [
            {
                "cpus": str(each),
                "package_index": core // (cores * nodes),
                "numa_node_id": core // cores,
            }
            for core, each in enumerate(of_core)
        ],
        "numa_nodes": [
            {
                "numa_node_id": node,
                "cpus": str(
                    CpuSet(c for each in of_core[node * cores : (node + 1) * cores] for c in each)
                ),
                "memory_bytes": node_memory,
                "distances": [distance(node, other) for other in range(nodes_all)],
            }
            for node in range(nodes_all)
        ],
        "memory_bytes": node_memory * nodes_all,
    }
    return Machine(topology, cpus, dict.fromkeys(range(nodes_all), node_memory))
