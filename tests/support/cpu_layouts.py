"""Cpu layouts for tests: of recorded machines and of regular ones."""

import json
from pathlib import Path

from finegrain.cpuset import CpuSet
from finegrain.rpc.wire_topology import topology_from_proto, topology_to_proto
from finegrain.topology import Core, CpuKind, HostTopology, HugePages, NumaNode, Package
from resource_manager.engine.cpus.layout import CpuLayout, layout_of_rows

DATA = Path(__file__).parents[1] / "data" / "topologies"
RECORDED = [entry["name"] for entry in json.loads((DATA / "index.json").read_text())]


def recorded(name: str) -> HostTopology:
    """Returns the topology of a recorded machine, as host detection describes it.

    Tests of the detection check that the two agree.
    """
    record = json.loads((DATA / f"{name}.json").read_text())
    kinds = [
        CpuKind(f"kind {at}", CpuSet.parse(kind["cpus"]), None, "")
        for at, kind in enumerate(record.get("cpu_kinds") or ())
    ]

    def kind_of(cpus: CpuSet) -> int | None:
        return next((at for at, kind in enumerate(kinds) if cpus <= kind.cpus), None)

    return HostTopology(
        online=CpuSet.parse(record["cpus"]["online"]),
        allowed=CpuSet.parse(record["cpus"]["allowed"]),
        cores=tuple(
            Core(
                cpus := CpuSet.parse(core["cpus"]),
                core["core_id"],
                core["package"],
                core["numa_node"],
                core["l3"],
                kind_of(cpus),
            )
            for core in record["cores"]
        ),
        numa_nodes=tuple(
            NumaNode(
                node["id"],
                CpuSet.parse(node["cpus"]),
                node["memory_bytes"],
                tuple(HugePages(each["size"], each["count"]) for each in node["hugepages"]),
                tuple(node["distances"] or ()),
            )
            for node in record["numa"]["nodes"]
        ),
        packages=tuple(Package(CpuSet.parse(each["cpus"]), None) for each in record["packages"]),
        cpu_kinds=tuple(kinds),
    )


def as_reported(topology: HostTopology) -> str:
    """Returns the topology as the resource manager stores it."""
    return json.dumps(topology_from_proto(topology_to_proto(topology), "topology"))


def machine(
    packages: int, nodes: int, cores: int, threads: int, memory_bytes: int = 0
) -> CpuLayout:
    """Returns the layout of a regular host.

    Siblings are numbered as on most x86 servers: first one thread of every core, then the next.

    Args:
        packages: number of packages.
        nodes: NUMA nodes of each package.
        cores: cores of each node.
        threads: threads of each core.
        memory_bytes: passed to `layout_of_rows`.
    """
    all_cores = packages * nodes * cores
    return layout_of_rows(
        [
            (thread * all_cores + core, core, core // cores, core // (cores * nodes))
            for core in range(all_cores)
            for thread in range(threads)
        ],
        memory_bytes,
    )


def cpus(text: str) -> int:
    """Returns a list of cpus as a bit set, as the layout uses them."""
    return CpuSet.parse(text).bits


def listed(bits: int) -> str:
    """Returns a bit set as a list of cpus: the inverse of `cpus`."""
    return str(CpuSet.from_bits(bits))
