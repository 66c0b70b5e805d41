"""Computes how much normal memory the NUMA nodes offer, and which nodes serve slots by default.

Memory of nodes without CPUs is HBM, CXL, persistent or GPU memory. It is counted separately and is
not a slot's default, except where it is the nearest memory of CPUs on a node without memory. Huge
pages are not part of normal memory. Limits of control groups and reserves are applied elsewhere.
"""

from dataclasses import dataclass

from finegrain.topology import HostTopology, NumaNode


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Normal memory by node id, of the nodes whose memory this process may use.

    `total_bytes` is that of all default nodes; None if the host does not report it.
    """

    default_bytes: dict[int, int]
    other_bytes: dict[int, int]
    total_bytes: int | None


def node_memory(topology: HostTopology, warnings: list[str]) -> NodeMemory:
    """Returns the memory that the nodes offer. Appends warnings for the operator to `warnings`."""
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
    # The sum is unknown if the size of one node is.
    together = None if unknown else sum(default.values())
    machine = _machine_bytes(topology, default_ids)
    # The nodes show too little, so only the machine's total is known.
    if together is None or (topology.node_memory_grows and machine is not None):
        total = machine
    else:
        # The smaller number is the safe one.
        total = together if machine is None else min(together, machine)
    return NodeMemory(_fitted(default, total), other, total)


def _machine_bytes(topology: HostTopology, default_ids: set[int]) -> int | None:
    """Returns the machine's total without huge pages and without nodes that are not default.

    It is below the sum of the nodes on old kernels, which include reserved pages in the nodes. None
    if it is unknown, or contradicts the nodes so much that nothing would be left.
    """
    if topology.memory_total_bytes is None:
        return None
    hugepages = sum(pages.total_bytes for pages in topology.hugepages)
    # Old kernels count huge pages for the machine only, others also by node.
    hugepages = max(hugepages, sum(node.hugepages_bytes for node in topology.numa_nodes))
    others = sum(
        node.normal_memory_bytes or 0 for node in topology.numa_nodes if node.id not in default_ids
    )
    left = topology.memory_total_bytes - hugepages - others
    return left if left > 0 else None


def _fitted(sizes: dict[int, int], total: int | None) -> dict[int, int]:
    """Scales the nodes' sizes in proportion, rounded down, so that their sum is at most `total`."""
    together = sum(sizes.values())
    if total is None or total == together:
        return sizes
    if together == 0:
        # Sizes are unknown. A single node has the total; for several nodes the split is not known.
        return {node_id: total if len(sizes) == 1 else 0 for node_id in sizes}
    return {node_id: size * total // together for node_id, size in sizes.items()}


def _default_ids(topology: HostTopology, warnings: list[str]) -> set[int]:
    allowed = [node for node in topology.numa_nodes if node.memory_allowed]
    # A node of unknown size is kept: it may well have memory.
    default_ids = {node.id for node in allowed if node.cpus and node.memory_bytes != 0}
    memory_only = [node for node in allowed if not node.cpus and node.memory_bytes]
    for node in topology.numa_nodes:
        if node.cpus and node.memory_bytes == 0 and memory_only:
            default_ids |= _partners(topology, node, allowed)
    if not default_ids and memory_only:
        warnings.append(
            "no memory near the CPUs may be used: the memory of nodes without CPUs is used"
        )
        default_ids = {node.id for node in memory_only}
    return default_ids


def _partners(topology: HostTopology, lacking: NumaNode, allowed: list[NumaNode]) -> set[int]:
    """Returns the nodes whose memory serves the CPUs of `lacking`: the nearest with memory.

    What the firmware reports (which CPUs reach a node best) has priority over distances.
    """
    having = [node for node in allowed if node.memory_bytes]
    near = [node for node in having if not node.nearest_cpus.isdisjoint(lacking.cpus)]
    ids = [node.id for node in topology.numa_nodes]
    # Columns cannot be assigned to nodes, so only the firmware's answer is left.
    if len(lacking.distances) != len(ids):
        return {node.id for node in near}
    distance = dict(zip(ids, lacking.distances, strict=True))
    # Memory that the firmware calls near competes with that of ordinary nodes, by distance.
    candidates = having if not near else near + [node for node in having if node.cpus]
    closest = min((distance[node.id] for node in candidates), default=None)
    return {node.id for node in candidates if distance[node.id] == closest}
