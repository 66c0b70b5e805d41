"""Writes the texts about chains, regions, edges and slots that all pictures of a plan use."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.devices.device import GPU_MEMORY, WHOLE
from finegrain.units import counted, format_bytes_exactly, format_cpu
from finegrain_client.graph.chains import Obstacle
from finegrain_client.graph.plan import ChainPlan, EdgePlan, Plan, RegionPlan
from finegrain_client.graph.profiles import SlotProfile

OBSTACLES = {
    Obstacle.BLOCKING: "the edge is blocking",
    Obstacle.ALL_TO_ALL: "the edge is all-to-all",
    Obstacle.PARALLELISM: "they have different parallelism",
    Obstacle.INPUTS: "the consumer has several inputs",
    Obstacle.SWITCHED_OFF: "chaining is switched off",
    Obstacle.PROGRAM: "they have different programs",
    Obstacle.GROUP: "they are in different slot sharing groups",
}


def chain_text(chain: ChainPlan) -> str:
    """Returns the chain's operators with its parallelism."""
    return f"{' + '.join(each.name for each in chain.operators)} x{chain.parallelism}"


def region_text(region: RegionPlan) -> str:
    """Returns a text with the region's number, its start, and the number of slots that it needs."""
    after = " and ".join(str(each) for each in region.waits_for)
    when = f"after region {after}" if after else "starts first"
    return f"region {region.number}, {when}, {counted(region.slots, 'slot')}"


def edge_text(edge: EdgePlan) -> str:
    """Returns exchange and pattern of an edge."""
    return f"{edge.exchange}, {edge.pattern}"


def outer_edges(plan: Plan) -> Iterator[tuple[EdgePlan, ChainPlan, ChainPlan]]:
    """Yields the edges between chains, with both chains."""
    for edge in plan.edges:
        if not edge.chained:
            yield edge, plan.chain_of[edge.producer], plan.chain_of[edge.consumer]


def _device_amount(name: str, amount: int) -> str:
    return format_bytes_exactly(amount) if name == GPU_MEMORY else f"{amount / WHOLE:g}"


def profile_text(profile: SlotProfile) -> str:
    """Returns the resources of a slot, in the units that people type."""
    if profile.is_default:
        parts = ["default slot"]
        if profile.default_managed_memory_percent:
            parts.append(f"managed {profile.default_managed_memory_percent} %")
        if profile.default_managed_on_heap_memory_percent:
            parts.append(f"of it on heap {profile.default_managed_on_heap_memory_percent} %")
    else:
        parts = [f"cpu {format_cpu(profile.cpu_milli)}"]
        memory = {
            "heap": profile.task_heap_memory_bytes,
            "off-heap": profile.task_off_heap_memory_bytes,
            "managed": profile.managed_memory_bytes,
            "of it on heap": profile.managed_on_heap_memory_bytes,
            "network": profile.network_memory_bytes,
        }
        parts += [f"{name} {format_bytes_exactly(size)}" for name, size in memory.items() if size]
        parts += [f"{name} {amount}" for name, amount in profile.extended]
        parts += [f"{name} {_device_amount(name, amount)}" for name, amount in profile.devices]
    if profile.ports:
        parts.append(counted(profile.ports, "port"))
    return ", ".join(parts)
