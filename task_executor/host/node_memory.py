"""Computes how much normal memory the NUMA nodes have, and which nodes slots use by default.

Memory of nodes without CPUs is HBM, CXL, persistent or GPU memory. This memory is counted
separately. Slots use such memory by default only if it is the nearest memory for CPUs on a node
without memory. Huge pages are not part of normal memory. `capacity.py` later applies the limits of
control groups and the reserves.
"""

from dataclasses import dataclass

from finegrain.topology import HostTopology, NumaNode


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Normal memory by node id, for the nodes whose memory this process is allowed to use.

    `total_bytes` is the memory of all default nodes; None if the host does not report it.
    """

    default_bytes: dict[int, int]
    other_bytes: dict[int, int]
    total_bytes: int | None


def node_memory(topology: HostTopology, warnings: list[str]) -> NodeMemory:
    """Returns the memory of the nodes, and appends warnings to `warnings`."""
    default_ids = _default_ids(topology, warnings)
    known = {
        node.id: node.normal_memory_bytes or 0
        for node in topology.numa_nodes
        if node.memory_allowed
    }
    default = {node_id: size for node_id, size in known.items() if node_id in default_ids}
    other = {node_id: size for node_id, size in known.items() if node_id not in default_ids}
    unknown = any(
        node.memory_bytes is None for node in topology.numa_nodes if node.id in default_ids
    )
    # If the size of one node is unknown, the sum is unknown.
    together = None if unknown else sum(default.values())
    machine = _machine_bytes(topology, default_ids)
    # If the nodes report less memory than they have, only the machine's total is right.
    if together is None or (topology.node_memory_grows and machine is not None):
        total = machine
    else:
        # Use the smaller number, because it is never too high.
        total = together if machine is None else min(together, machine)
    return NodeMemory(_fitted(default, total), other, total)


def _machine_bytes(topology: HostTopology, default_ids: set[int]) -> int | None:
    """Returns the machine's total, without huge pages and without the nodes that are not default
    nodes.

    Old kernels also count reserved pages in the nodes, so the total is below the sum of the nodes.
    The result is None in two cases: the total is unknown, or the total contradicts the nodes so
    much that nothing would be left.
    """
    if topology.memory_total_bytes is None:
        return None
    hugepages = sum(pages.total_bytes for pages in topology.hugepages)
    # Old kernels count huge pages only for the machine. Other kernels count them for each node too.
    hugepages = max(hugepages, sum(node.hugepages_bytes for node in topology.numa_nodes))
    others = sum(
        node.normal_memory_bytes or 0 for node in topology.numa_nodes if node.id not in default_ids
    )
    left = topology.memory_total_bytes - hugepages - others
    return left if left > 0 else None


def _fitted(sizes: dict[int, int], total: int | None) -> dict[int, int]:
    """Scales the nodes' sizes in proportion, and rounds them down. Their sum is then at most
    `total`.
    """
    together = sum(sizes.values())
    if total is None or total == together:
        return sizes
    if together == 0:
        # The sizes are unknown. Give the total to a single node. With several nodes, it is not
        # known how the total is divided. So no node gets memory.
        return {node_id: total if len(sizes) == 1 else 0 for node_id in sizes}
    return {node_id: size * total // together for node_id, size in sizes.items()}


def _default_ids(topology: HostTopology, warnings: list[str]) -> set[int]:
    allowed = [node for node in topology.numa_nodes if node.memory_allowed]
    # Keep a node of unknown size, because it probably has memory.
    default_ids = {node.id for node in allowed if node.cpus and node.memory_bytes != 0}
    memory_only = [node for node in allowed if not node.cpus and node.memory_bytes]
    for node in topology.numa_nodes:
        if node.cpus and node.memory_bytes == 0 and memory_only:
            default_ids |= _partners(topology, node, allowed)
    if not default_ids and memory_only:
        warnings.append(
            "this process may not use the memory near the CPUs, so the memory of nodes without "
            "CPUs is used"
        )
        default_ids = {node.id for node in memory_only}
    return default_ids


def _partners(topology: HostTopology, lacking: NumaNode, allowed: list[NumaNode]) -> set[int]:
    """Returns the nodes with the nearest memory to the CPUs of `lacking`, a node without memory.

    The firmware's report of the nearest CPUs of each node has priority over distances.
    """
    having = [node for node in allowed if node.memory_bytes]
    near = [node for node in having if not node.nearest_cpus.isdisjoint(lacking.cpus)]
    ids = [node.id for node in topology.numa_nodes]
    # If the distances cannot be assigned to nodes, use only the firmware's report.
    if len(lacking.distances) != len(ids):
        return {node.id for node in near}
    distance = dict(zip(ids, lacking.distances, strict=True))
    # Compare the nodes that the firmware reports as near with ordinary nodes, by distance.
    candidates = having if not near else near + [node for node in having if node.cpus]
    closest = min((distance[node.id] for node in candidates), default=None)
    return {node.id for node in candidates if distance[node.id] == closest}
