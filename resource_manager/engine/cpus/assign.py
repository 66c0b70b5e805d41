"""Whether one host can give a slot its cpus and NUMA nodes, and which.

Decides for all classes: slots with cpus of their own, slots that are aligned to NUMA nodes, and
slots that are bound to the shared pool of a node. Refuses to know amounts that lie on no node
(they are in the host's own books, which are asked first), other hosts, and who comes first.

What is required holds of every assignment. What is only preferred never refuses: where it cannot be
had the assignment says so in a note.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import BindPolicy
from resource_manager.engine.cpus.alignment import Case
from resource_manager.engine.cpus.empty_hosts import ANSWERS_KNOWN_MAX, HostKind, empty_ledger
from resource_manager.engine.cpus.hints import SCORE_MAX, quantities, share_score
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.numa import MILLI
from resource_manager.engine.cpus.pinning import candidate_cpus
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resolve import resolve
from resource_manager.engine.cpus.shortages import empty_pool, without_topology
from resource_manager.engine.model.entities import SlotKey


def assign(ledger: CpuLedger | None, request: CpuRequest) -> CpuAssignment | CpuRefusal:
    """The cpus and nodes of one more slot, or why there are none. Changes nothing.

    The same for the same holdings and wish, whatever happened before.

    Args:
        books: None: the host does not tell what its cpus are made of, so it serves what demands
            nothing of single cpus or nodes.
    """
    if ledger is None:
        return without_topology(request.policy)
    resolved = resolve(request.policy, request.cpu_milli, ledger.policy, ledger.layout)
    if isinstance(resolved, CpuRefusal):
        return resolved
    candidates: int | None = None
    if resolved.count:
        cpus = candidate_cpus(ledger, resolved)
        if isinstance(cpus, CpuRefusal):
            return cpus
        candidates = cpus
    elif refusal := empty_pool(ledger, resolved):
        return refusal
    case = Case(ledger, request, resolved, candidates)
    if resolved.numa.aligns:
        return case.aligned()
    if candidates is not None:
        return case.pinned(())
    if resolved.bind is BindPolicy.CONSTRAINED_BURST:
        return case.bursting(())
    return CpuAssignment(resolved.qos, notes=resolved.notes)


def assign_many(
    ledger: CpuLedger, requests: Iterable[CpuRequest]
) -> list[CpuAssignment | CpuRefusal]:
    """What each of several slots gets if they come one after the other; ends with the first
    refusal. Changes nothing.
    """
    scratch = ledger.scratch()
    found: list[CpuAssignment | CpuRefusal] = []
    for number, request in enumerate(requests):
        assignment = assign(scratch, request)
        found.append(assignment)
        if isinstance(assignment, CpuRefusal):
            break
        scratch.add(_scratch_key(number), assignment)
    return found


def _scratch_key(number: int) -> SlotKey:
    return "", number


def fits_empty(ledger: CpuLedger | None, request: CpuRequest) -> CpuRefusal | None:
    """Why this host could not serve the wish even without slots, under the settings and
    circumstances that hold now; None: it could. Hosts that are alike share the answer.
    """
    found = (
        assign(None, request) if ledger is None else _assigned_empty(HostKind.of(ledger), request)
    )
    return found if isinstance(found, CpuRefusal) else None


def score(ledger: CpuLedger | None, request: CpuRequest, assignment: CpuAssignment) -> int:
    """How good an assignment is that `assign` gave, from 0 to `SCORE_MAX`; better hosts have more.

    A host that gives all that was preferred goes before one that does not; among such, by the
    host's NUMA strategy, over the nodes that the slot is bound to, or over all.
    """
    if ledger is None:
        return SCORE_MAX // 2
    layout, strategy = ledger.layout, ledger.policy.numa_strategy
    nodes = [layout.position_of_node[node] for node in assignment.nodes]
    if nodes and layout.nodes:
        candidates = ledger.free if assignment.cpus else None
        needs = quantities(ledger, dict(request.amounts), strategy, candidates)
        value = needs.score(nodes)
    else:
        cpus = ledger.pinnable.bit_count()
        taken = (ledger.pinned & ledger.pinnable).bit_count()
        value = share_score(strategy, cpus * MILLI, taken * MILLI + request.cpu_milli)
    unmet = len(assignment.notes)
    return (0 if unmet else SCORE_MAX // 2) + (value // 2 >> max(unmet - 1, 0))


@lru_cache(ANSWERS_KNOWN_MAX)
def _assigned_empty(kind: HostKind, request: CpuRequest) -> CpuAssignment | CpuRefusal:
    return assign(empty_ledger(kind), request)
