"""Reads the NUMA nodes: CPUs, memory, huge pages, distances, and the CPUs nearest to each.

Node ids are labels and may have gaps. The directories say which nodes exist; mask files do not.
Nodes are not packages and are never derived from them. Nodes without CPUs (HBM, persistent, CXL,
GPU memory) and nodes without memory are legal. Nodes that claim the same CPUs are a firmware error:
the host then counts as one node with the memory of all, because no map of it can be trusted.
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
    """Returns the nodes by ascending id; empty if the kernel has no node directory.

    Args:
        reader: the machine's files.
        online: online CPUs.
        allowed_nodes: nodes whose memory the cpuset allows; None: no limit.
        default_page_bytes: default size of huge pages.
    """
    nodes = [
        _read_node(reader, node_id, online, allowed_nodes, default_page_bytes)
        for node_id in reader.numbered(NODE, "node")
    ]
    # Disjoint nodes have as many cpus together as the sum of each.
    if len(union(node.cpus for node in nodes)) < sum(len(node.cpus) for node in nodes):
        reader.warn(
            "NUMA nodes overlap (a firmware error): the host counts as one node with the memory "
            "of all"
        )
        return (merge(nodes, online),)
    homeless = online - union(node.cpus for node in nodes)
    if nodes and homeless:
        reader.warn(f"CPUs {homeless} belong to no NUMA node")
    # Nodes without cpus need all others, so they are completed in a second step.
    by_id = {node.id: node for node in nodes}
    return tuple(
        node
        if node.cpus
        else dataclasses.replace(node, nearest_cpus=_nearest_cpus(reader, node, by_id))
        for node in nodes
    )


def merge(nodes: Sequence[NumaNode], online: CpuSet) -> NumaNode:
    """Returns one node instead of several: all CPUs, and the memory of the usable nodes."""
    # Memory of nodes that the cpuset forbids would be promised and never given.
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
    """Returns the nodes, and True if they show less memory than the machine really has.

    In guests whose memory is initialised or returned lazily, the MemTotal of nodes grows as memory
    is used, while /proc/meminfo shows all of it from the start. A node that is the only possible
    one then has all of it. On other hosts the difference may also be a node that was taken offline.
    There it only counts if more memory is free than the nodes have in total.

    If `possible` names nodes that do not exist now, the difference may be theirs, free or not. It
    is then never offered on the other nodes.

    Args:
        reader: the machine's files.
        nodes: the nodes as read.
        meminfo: fields of /proc/meminfo.
    """
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    machine, nodes_total = meminfo.get("MemTotal"), sum(sizes)
    # Small differences are normal. More than an eighth means nodes that grow or are offline.
    if machine is None or len(sizes) != len(nodes) or nodes_total * 8 >= machine * 7:
        return nodes, False
    possible = reader.cpu_list(f"{NODE}/possible")
    offline = (possible or EMPTY) - NodeSet(reader.numbered(NODE, "node"))
    if offline:
        reader.warn(
            f"NUMA nodes show {nodes_total >> 20} MiB of {machine >> 20} MiB, and nodes {offline} "
            "are offline: only the memory that the nodes show is used"
        )
        return nodes, False
    # The only possible node has all of the machine's memory, free or not.
    alone = len(nodes) == 1 and possible is not None and len(possible) == 1
    if not alone and meminfo.get("MemFree", 0) <= nodes_total:
        return nodes, False
    reader.warn(
        f"NUMA nodes show {nodes_total >> 20} MiB of {machine >> 20} MiB: their memory grows with "
        "use, the machine's total is used"
    )
    # A single node gets the machine's size. With several, it is not known which of them grows.
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
    # Some kernels have only one of the two files.
    if mask is None:
        return (listed or EMPTY) & online
    if listed is not None and listed & online != mask & online:
        reader.warn(f"/{path}: cpulist and cpumap differ, cpumap is used")
    return mask & online


def _nearest_cpus(reader: TreeReader, node: NumaNode, nodes: dict[int, NumaNode]) -> CpuSet:
    """Returns the CPUs nearest to a node without CPUs: as the firmware says, else by distance.

    access1 excludes initiators that are not CPUs, so it is read first.
    """
    for access in ("access1", "access0"):
        names = reader.numbered(f"{NODE}/node{node.id}/{access}/initiators", "node")
        cpus = union(nodes[each].cpus for each in names if each in nodes)
        if cpus:
            return cpus
    with_cpus = [other for other in nodes.values() if other.cpus]
    distances = {other.id: distance(node, other.id, list(nodes)) for other in with_cpus}
    known = [each for each in distances.values() if each is not None]
    # Equal distances say nothing about which cpus are nearest.
    if not known or min(known) == max(known):
        return EMPTY
    return union(other.cpus for other in with_cpus if distances[other.id] == min(known))


def distance(node: NumaNode, to_id: int, node_ids: Sequence[int]) -> int | None:
    """Returns the node's distance to another; columns follow the ids of the online nodes.

    None if the file is absent or has another number of columns than there are nodes (for example
    because offline nodes are included): then the columns cannot be assigned to nodes.

    Args:
        node: the node whose distances were read.
        to_id: the other node.
        node_ids: ids of all online nodes.
    """
    if len(node.distances) != len(node_ids) or to_id not in node_ids:
        return None
    return node.distances[node_ids.index(to_id)]
