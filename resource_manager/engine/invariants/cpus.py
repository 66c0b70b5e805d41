"""Whether what the books say about cpus contradicts itself. Part of `all.py`: findings are
sentences, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import CPU_MILLI
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.hosts.cpu_allocator import cpus_booked
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import SlotKey

MILLI_PER_CPU = 1_000


def cpu_problems(host: Host) -> Iterator[str]:
    """What slots hold of their host's cpus, and that nobody holds what is another's."""
    title, books = f"executor {host.host_id}", host.cpus
    if books is None:
        if host.aligning:
            yield f"{title} aligns everybody, and nothing is known of its cpus"
        return
    if host.aligning != host.present.policy.alignment.aligns:
        yield f"{title} aligns everybody: {host.aligning}, its settings say otherwise"
    if books.policy != host.present.policy:
        yield f"{title} gives cpus by other settings than those that hold there"
    for problem in books.problems():
        yield f"{title}: {problem}"
    yield from _holdings(host, books)


def _holdings(host: Host, books: CpuLedger) -> Iterator[str]:
    held: dict[SlotKey, object] = dict(books.holdings)
    for key, slot in host.slots.items():
        if key not in held:
            yield f"slot {key} is not in the books of cpus of its executor {host.host_id}"
            continue
        if held.pop(key) != cpus_booked(slot):
            yield f"slot {key} holds other cpus or NUMA nodes than it was given"
        assignment = slot.assignment
        if assignment is None or not assignment.cpus or slot.ordered is not None:
            continue
        booked = slot.booked.get(CPU_MILLI, 0)
        if booked != len(assignment.cpus) * MILLI_PER_CPU:
            yield f"slot {key} has cpus {assignment.cpus} of its own, and books {booked} cpu_milli"
    for key in held:
        yield f"executor {host.host_id} has cpus of slot {key} in its books, which is not there"
