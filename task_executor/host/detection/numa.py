"""Reads the NUMA nodes: CPUs, memory, huge pages, distances, and the nearest CPUs of each node.

Node ids can have gaps. A node exists if sysfs has its directory, such as `node0`. This module does
not derive nodes from packages, because a package and a node are different things. Nodes without
CPUs (HBM, persistent memory, CXL, GPU memory) and nodes without memory are allowed. If several
nodes contain the same CPU, the firmware is wrong, and the CPUs of each node are not known. In this
case, the host counts as one node with the memory of all nodes.
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
    """Returns the nodes, sorted by id; empty if the kernel has no node directory.

    Args:
        reader: reads the files of the host.
        online: the online CPUs.
        allowed_nodes: the nodes whose memory the cpuset allows; None: all nodes.
        default_page_bytes: the default size of huge pages.
    """
    nodes = [
        _read_node(reader, node_id, online, allowed_nodes, default_page_bytes)
        for node_id in reader.numbered(NODE, "node")
    ]
    # If the union has fewer cpus than the sum of all nodes, nodes overlap.
    if len(union(node.cpus for node in nodes)) < sum(len(node.cpus) for node in nodes):
        reader.warn(
            "NUMA nodes overlap (a firmware error), so the host counts as one node with the memory "
            "of all nodes"
        )
        return (merge(nodes, online),)
    homeless = online - union(node.cpus for node in nodes)
    if nodes and homeless:
        reader.warn(f"CPUs {homeless} belong to no NUMA node")
    # Nodes without cpus get their nearest cpus in a second step, because this step needs all other
    # nodes.
    by_id = {node.id: node for node in nodes}
    return tuple(
        node
        if node.cpus
        else dataclasses.replace(node, nearest_cpus=_nearest_cpus(reader, node, by_id))
        for node in nodes
    )


def merge(nodes: Sequence[NumaNode], online: CpuSet) -> NumaNode:
    """Returns one node that replaces all nodes, with all CPUs and the memory of usable nodes."""
    # Do not count the memory of nodes that the cpuset forbids. Slots could not use this memory.
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
    """Returns the nodes, and True if their memory grows and the size of each node is unknown.

    In virtual machines that initialize or return memory lazily, the MemTotal of nodes grows as
    memory is used. But /proc/meminfo shows all memory from the start. If only one node is possible,
    this node has all memory. On other hosts, the difference can also belong to a node that was
    taken offline. So these hosts have growing nodes only if more memory is free than all nodes
    report in total.

    If `possible` names nodes that do not exist now, the difference can belong to these nodes. In
    this case, no other node gets the difference.

    Args:
        reader: reads the files of the host.
        nodes: the nodes as they were read before.
        meminfo: the fields of /proc/meminfo.
    """
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    machine, nodes_total = meminfo.get("MemTotal"), sum(sizes)
    # Small differences are normal. A difference of more than 1/8 means that nodes grow or are
    # offline.
    if machine is None or len(sizes) != len(nodes) or nodes_total * 8 >= machine * 7:
        return nodes, False
    possible = reader.cpu_list(f"{NODE}/possible")
    offline = (possible or EMPTY) - NodeSet(reader.numbered(NODE, "node"))
    if offline:
        reader.warn(
            f"NUMA nodes report {nodes_total >> 20} MiB of {machine >> 20} MiB, and nodes "
            f"{offline} are offline: only the memory that the nodes report is used"
        )
        return nodes, False
    # The only possible node has all memory of the machine.
    alone = len(nodes) == 1 and possible is not None and len(possible) == 1
    if not alone and meminfo.get("MemFree", 0) <= nodes_total:
        return nodes, False
    reader.warn(
        f"NUMA nodes report {nodes_total >> 20} MiB of {machine >> 20} MiB: their memory grows "
        "with use, so the machine's total is used"
    )
    # A single node gets the size of the machine. With several nodes, it is unknown which node
    # grows.
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
    """Returns the CPUs that are nearest to a node without CPUs.

    Some kernels list the nearest nodes (initiators) in `access0` and `access1`. These lists have
    priority over distances. The function reads access1 first, because access1 lists only CPUs as
    initiators.
    """
    for access in ("access1", "access0"):
        names = reader.numbered(f"{NODE}/node{node.id}/{access}/initiators", "node")
        cpus = union(nodes[each].cpus for each in names if each in nodes)
        if cpus:
            return cpus
    with_cpus = [other for other in nodes.values() if other.cpus]
    distances = {other.id: distance(node, other.id, list(nodes)) for other in with_cpus}
    known = [each for each in distances.values() if each is not None]
    # If all distances are equal, the nearest cpus are unknown.
    if not known or min(known) == max(known):
        return EMPTY
    return union(other.cpus for other in with_cpus if distances[other.id] == min(known))


def distance(node: NumaNode, to_id: int, node_ids: Sequence[int]) -> int | None:
    """Returns the distance from a node to another node; None if the distance is not known.

    The columns of the file correspond to the ids of the online nodes. The number of columns can
    differ from the number of nodes, for example because the file includes offline nodes. In this
    case, the columns cannot be assigned to nodes, and the distance is not known.

    Args:
        node: the node from which the distance is measured.
        to_id: the id of the other node.
        node_ids: the ids of all online nodes.
    """
    if len(node.distances) != len(node_ids) or to_id not in node_ids:
        return None
    return node.distances[node_ids.index(to_id)]
