"""Checks the cpu ledger of each host against its slots; part of `all.py`."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import CPU_MILLI
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.hosts.cpu_allocator import cpus_booked
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import SlotKey

MILLI_PER_CPU = 1_000


def cpu_problems(host: Host) -> Iterator[str]:
    """Yields problems of the cpus of a host: its ledger, settings, and assignments to slots."""
    title, ledger = f"executor {host.host_id}", host.cpus
    # The host has not reported its topology, so there is nothing more to compare.
    if ledger is None:
        if host.aligning:
            yield f"{title} aligns all slots, and nothing is known of its cpus"
        return
    if host.aligning != host.present.policy.alignment.aligns:
        yield f"{title} aligns all slots: {host.aligning}, its settings say otherwise"
    if ledger.policy != host.present.policy:
        yield f"{title} gives cpus by other settings than those that hold there"
    for problem in ledger.problems():
        yield f"{title}: {problem}"
    yield from _holdings(host, ledger)


def _holdings(host: Host, ledger: CpuLedger) -> Iterator[str]:
    """Compares the cpus in the ledger with the assignments of slots."""
    assigned: dict[SlotKey, object] = dict(ledger.holdings)
    for key, slot in host.slots.items():
        if key not in assigned:
            yield f"slot {key} is not in the cpu ledger of its executor {host.host_id}"
            continue
        if assigned.pop(key) != cpus_booked(slot):
            yield f"slot {key} holds other cpus or NUMA nodes than it was given"
        assignment = slot.assignment
        # While a resize is in flight, the slot books the amounts of both sizes.
        if assignment is None or not assignment.cpus or slot.ordered is not None:
            continue
        booked = slot.booked.get(CPU_MILLI, 0)
        if booked != len(assignment.cpus) * MILLI_PER_CPU:
            yield f"slot {key} has dedicated cpus {assignment.cpus}, and books {booked} cpu_milli"
    for key in assigned:
        yield f"the cpu ledger of executor {host.host_id} has slot {key}, which is not there"
