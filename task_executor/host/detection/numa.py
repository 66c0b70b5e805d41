"""The NUMA nodes: CPUs, memory, huge pages, distances, and who is near to what.

Node ids are labels with holes; the directories say which nodes exist, no mask file does.  Nodes are
not packages and never derived from them.  Nodes without CPUs (HBM, persistent, CXL, GPU memory) and
nodes without memory are legal.  Nodes that claim the same CPUs are a firmware error: then the host
counts as one node, because no map of it can be trusted, but none of its memory is lost.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from finegrain.cpuset import EMPTY, CpuSet, NodeSet, union
from finegrain.topology import HugePages, NumaNode
from task_executor.host.detection.memory import read_hugepages, read_meminfo
from task_executor.host.detection.reader import TreeReader

NODE: Final = "sys/devices/system/node"


def read_nodes(
    reader: TreeReader,
    online: CpuSet,
    allowed_nodes: NodeSet | None,
    default_page_bytes: int | None,
) -> tuple[NumaNode, ...]:
    """The nodes by ascending id; none when the kernel has no node directory.

    ``allowed_nodes`` is what the cpuset says about memory, None if nothing limits it.
    """
    nodes = [
        _read_node(reader, node_id, online, allowed_nodes, default_page_bytes)
        for node_id in reader.numbered(NODE, "node")
    ]
    if len(union(node.cpus for node in nodes)) < sum(len(node.cpus) for node in nodes):
        reader.warn(
            "NUMA nodes overlap (a firmware error): the host counts as one node with the memory "
            "of all"
        )
        return (merge(nodes, online),)
    homeless = online - union(node.cpus for node in nodes)
    if nodes and homeless:
        reader.warn(f"CPUs {homeless} belong to no NUMA node")
    by_id = {node.id: node for node in nodes}
    return tuple(
        node
        if node.cpus
        else dataclasses.replace(node, nearest_cpus=_nearest_cpus(reader, node, by_id))
        for node in nodes
    )


def merge(nodes: Sequence[NumaNode], online: CpuSet) -> NumaNode:
    """One node instead of several: all CPUs, the memory of those that may be used."""
    usable = [node for node in nodes if node.memory_allowed] or list(nodes)
    known = [node.memory_bytes for node in usable if node.memory_bytes is not None]
    counts: dict[int, int] = {}
    for node in usable:
        for pages in node.hugepages:
            counts[pages.page_bytes] = counts.get(pages.page_bytes, 0) + pages.count
    memory_bytes = sum(known) if known else None
    return NumaNode(
        id=usable[0].id,
        cpus=online,
        memory_bytes=memory_bytes,
        hugepages=tuple(HugePages(size, count) for size, count in sorted(counts.items())),
        distances=(10,),
    )


def grown(
    reader: TreeReader, nodes: tuple[NumaNode, ...], meminfo: dict[str, int]
) -> tuple[tuple[NumaNode, ...], bool]:
    """The nodes, and whether they show less memory than the machine really has.

    Guests whose memory is initialised or given back lazily grow the nodes' MemTotal as memory is
    used, while /proc/meminfo shows all of it from the start.  It shows too when there is more
    memory free than the nodes have at all.  On hosts of several nodes that alone is proof: there
    the difference may as well be a node that was taken offline.  A single node simply has all.

    Where `possible` names nodes that are not there, the difference may be theirs, free or not: it
    is never offered on the others.
    """
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    machine, nodes_total = meminfo.get("MemTotal"), sum(sizes)
    if machine is None or len(sizes) != len(nodes) or nodes_total * 8 >= machine * 7:
        return nodes, False
    possible = reader.cpu_list(f"{NODE}/possible")
    offline = (possible or EMPTY) - NodeSet(reader.numbered(NODE, "node"))
    if offline:
        reader.warn(
            f"NUMA nodes show {nodes_total >> 20} MiB of {machine >> 20} MiB, and nodes {offline} "
            "are offline: only what the nodes show is taken"
        )
        return nodes, False
    alone = len(nodes) == 1 and possible is not None and len(possible) == 1
    if not alone and meminfo.get("MemFree", 0) <= nodes_total:
        return nodes, False
    reader.warn(
        f"NUMA nodes show {nodes_total >> 20} MiB of {machine >> 20} MiB: their memory grows with "
        "use, the machine's total is taken"
    )
    if len(nodes) == 1:
        return (dataclasses.replace(nodes[0], memory_bytes=machine),), False
    return nodes, True


def _read_node(
    reader: TreeReader,
    node_id: int,
    online: CpuSet,
    allowed_nodes: NodeSet | None,
    default_page_bytes: int | None,
) -> NumaNode:
    path = f"{NODE}/node{node_id}"
    cpus = _cpus(reader, path, online)
    meminfo = read_meminfo(reader, f"{path}/meminfo")
    memory_bytes = meminfo.get("MemTotal")
    distances = (reader.text(f"{path}/distance") or "").split()
    return NumaNode(
        id=node_id,
        cpus=cpus,
        memory_bytes=memory_bytes,
        hugepages=read_hugepages(reader, f"{path}/hugepages", meminfo, default_page_bytes),
        distances=tuple(int(each) for each in distances if each.isdecimal() and len(each) < 9),
        memory_allowed=allowed_nodes is None or node_id in allowed_nodes,
    )


def _cpus(reader: TreeReader, path: str, online: CpuSet) -> CpuSet:
    mask = reader.cpu_mask(f"{path}/cpumap")
    listed = reader.cpu_list(f"{path}/cpulist")
    if mask is None:
        return (listed or EMPTY) & online
    if listed is not None and listed & online != mask & online:
        reader.warn(f"/{path}: cpulist and cpumap differ, cpumap is taken")
    return mask & online


def _nearest_cpus(reader: TreeReader, node: NumaNode, nodes: dict[int, NumaNode]) -> CpuSet:
    """CPUs that reach a node without CPUs best: as firmware says, else by smallest distance.

    access1 leaves out initiators that are not CPUs, so it is asked first.
    """
    for access in ("access1", "access0"):
        names = reader.numbered(f"{NODE}/node{node.id}/{access}/initiators", "node")
        cpus = union(nodes[each].cpus for each in names if each in nodes)
        if cpus:
            return cpus
    with_cpus = [other for other in nodes.values() if other.cpus]
    distances = {other.id: distance(node, other.id, list(nodes)) for other in with_cpus}
    known = [each for each in distances.values() if each is not None]
    if not known or min(known) == max(known):
        return EMPTY
    return union(other.cpus for other in with_cpus if distances[other.id] == min(known))


def distance(node: NumaNode, to_id: int, node_ids: Sequence[int]) -> int | None:
    """The node's distance to another: columns follow the ids of the online nodes.

    None where the file is absent, or has another number of columns than there are nodes (offline
    ones counted in): then no column can be attributed.
    """
    if len(node.distances) != len(node_ids) or to_id not in node_ids:
        return None
    return node.distances[node_ids.index(to_id)]
