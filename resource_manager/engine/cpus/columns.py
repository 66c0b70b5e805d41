"""What the index of hosts counts of their cpus, so that hosts that cannot serve a request exactly
are not looked at: numbers that are *necessary*, never sufficient.

Decides which numbers those are, on the side of who asks and on the side of who has them. Hosts
without a known topology have none of these columns. Refuses to know which cpus are chosen (the
package `cpus`).
"""

from __future__ import annotations

from finegrain.cpu_policy import BindPolicy, CpuPolicy, NumaPolicy
from finegrain.resources import CPU_MILLI, ResourceProfile
from resource_manager.engine.cpus.ledger import CpuBooks

PIN_CPUS = "pin.cpus"
"""Cpus that one more slot could have to itself."""

PIN_CORE_CPUS = "pin.core_cpus"
"""Those of them that belong to cores which are free altogether."""

PIN_NODE_CPUS = "pin.node_cpus"
"""Those of one NUMA node, where they are the most."""

NODE_CPU_MILLI = "node.cpu_milli"
"""What slots in the shared pools could still have of one NUMA node, where that is the most."""

CPU_COLUMNS = (PIN_CPUS, PIN_CORE_CPUS, PIN_NODE_CPUS, NODE_CPU_MILLI)

CPU_MILLI_EACH = 1_000


def cpu_need(profile: ResourceProfile, policy: CpuPolicy) -> dict[str, int]:
    """What a host must have at least, beside the amounts of the profile."""
    one_node = policy.numa is NumaPolicy.SINGLE_NUMA_NODE and policy.numa_required
    if not policy.qos.is_pinned:
        lies_on_one = one_node and not policy.best_effort and profile.cpu_milli
        return {NODE_CPU_MILLI: profile.cpu_milli} if lies_on_one else {}
    cpus = -(-profile.cpu_milli // CPU_MILLI_EACH)
    need = {PIN_CPUS: cpus}
    if policy.bind is BindPolicy.FULL_PCPUS and policy.bind_required:
        need[PIN_CORE_CPUS] = cpus
    if one_node:
        need[PIN_NODE_CPUS] = cpus
    return need


def cpu_offer(books: CpuBooks) -> dict[str, int]:
    """What a host has of these columns."""
    room = books.pin_room()
    return {
        PIN_CPUS: room.cpus,
        PIN_CORE_CPUS: room.whole_core_cpus,
        PIN_NODE_CPUS: room.most_on_a_node,
        NODE_CPU_MILLI: max(books.available(at, CPU_MILLI) for at in books.layout.cpu_nodes),
    }


def amounts_only(need: dict[str, int]) -> dict[str, int]:
    """A need without what is said of cpus here: what sums and executors yet to come can tell."""
    if not any(name in need for name in CPU_COLUMNS):
        return need
    return {name: amount for name, amount in need.items() if name not in CPU_COLUMNS}
