"""Decides whether one host can serve a slot, and chooses the slot's cpus, NUMA nodes and devices.

This module serves slots of all kinds. Some slots need dedicated cpus or devices. Other slots are
aligned to NUMA nodes, or are bound to the shared pool of one node. The caller has already checked
the amounts of the host as a whole.

Every assignment meets all required policies. A slot is never refused because of a policy that is
only preferred. If such a policy cannot be met, the assignment has a note about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from finegrain.cpu_assignment import CpuAssignment
from finegrain.neighbors import NeighborRule
from resource_manager.engine.cpus.alignment import Case
from resource_manager.engine.cpus.empty_hosts import ANSWERS_KNOWN_MAX, HostKind, empty_ledger
from resource_manager.engine.cpus.hints import SCORE_MAX, quantities, share_score
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.neighbors import Zones, zones_of
from resource_manager.engine.cpus.numa import MILLI
from resource_manager.engine.cpus.pinning import candidate_cpus
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resolve import resolve
from resource_manager.engine.cpus.shortages import (
    NO_DEVICES_KNOWN,
    NO_NEIGHBORS_KNOWN,
    empty_pool,
    without_topology,
)
from resource_manager.engine.devices.choose import choose_devices
from resource_manager.engine.devices.together import gpus_together
from resource_manager.engine.model.entities import SlotKey
from resource_manager.engine.model.host_refusal import HostRefusal


def assign(ledger: CpuLedger | None, request: CpuRequest) -> CpuAssignment | HostRefusal:
    """Returns the cpus, nodes and devices of one more slot, or why the host cannot have the slot.
    The function does not change the ledger.

    The result depends only on the request and on the present assignments of slots.

    Args:
        ledger: the cpu ledger of the host. None if the host does not report its cores and nodes.
            Such a host serves only slots that need no particular cpus or nodes.
        request: the needs of the slot.
    """
    if request.policy.neighbor_job:
        return _among_neighbors(ledger, request)
    return _assign(ledger, request, None)


def _among_neighbors(ledger: CpuLedger | None, request: CpuRequest) -> CpuAssignment | HostRefusal:
    """Returns the assignment that meets all required rules about neighbors, and as many preferred
    rules as possible. If there is no such assignment, the result is a refusal.
    """
    rules = request.policy.neighbors
    preferred = [rule for rule in rules if not rule.required]
    # A slot that has labels but no rules needs no check on a host with unknown cores, because no
    # slot with required rules is placed on such a host.
    if ledger is None:
        if len(preferred) < len(rules):
            return NO_NEIGHBORS_KNOWN
        return _noted(_assign(None, request, None), preferred, NO_NEIGHBORS_KNOWN)
    refusal: HostRefusal | None = None
    for count in range(len(preferred) + 1):
        for dropped in combinations(preferred, count):
            found = _in_zones(ledger, request, zones_of(ledger, request, dropped))
            if not isinstance(found, HostRefusal):
                return _noted(found, dropped, refusal)
            refusal = found
    # The last attempt dropped all preferred rules, so its refusal is about the required rules and
    # policies.
    return refusal or NO_NEIGHBORS_KNOWN


def _in_zones(
    ledger: CpuLedger, request: CpuRequest, zones: Zones | HostRefusal
) -> CpuAssignment | HostRefusal:
    if isinstance(zones, HostRefusal):
        return zones
    if zones.is_whole_host:
        return _assign(ledger, request, None)
    found: CpuAssignment | HostRefusal | None = None
    for mask in zones.masks:
        found = _assign(ledger, request, Zones((mask,), zones.blocker, zones.rules))
        if not isinstance(found, HostRefusal):
            return found
    return found or HostRefusal(zones.blocker, f"no cpu is left: {zones.rules}")


def _noted(
    found: CpuAssignment | HostRefusal,
    dropped: Sequence[NeighborRule],
    refusal: HostRefusal | None,
) -> CpuAssignment | HostRefusal:
    if isinstance(found, HostRefusal) or not dropped:
        return found
    why = f": {refusal.text}" if refusal is not None else ""
    notes = tuple(f"{rule} was preferred{why}" for rule in dropped)
    return replace(found, notes=(*found.notes, *notes))


def _assign(
    ledger: CpuLedger | None, request: CpuRequest, zone: Zones | None
) -> CpuAssignment | HostRefusal:
    """Chooses cpus, nodes and devices. The slot may have only the cpus in `zone`. If `zone` is
    None, the slot may have any cpus.
    """
    if ledger is None:
        return NO_DEVICES_KNOWN if request.devices else without_topology(request.policy)
    if ledger.time_shared:
        return _with_devices(without_topology(request.policy), ledger, request)
    resolved = resolve(request.policy, request.cpu_milli, ledger.policy, ledger.layout)
    if isinstance(resolved, HostRefusal):
        return resolved
    candidates: int | None = None
    if resolved.count:
        cpus = candidate_cpus(ledger, resolved)
        if isinstance(cpus, HostRefusal):
            return cpus
        if zone is not None:
            cpus &= zone.masks[0]
            if cpus.bit_count() < resolved.count:
                left = f"{resolved.count} cpus needed, but {cpus.bit_count()} are left"
                return HostRefusal(zone.blocker, f"{left}: {zone.rules}")
        candidates = cpus
    elif refusal := empty_pool(ledger, resolved):
        # A slot in a pool needs at least one cpu in the pool, even if it books less than one cpu.
        return refusal
    case = Case(ledger, request, resolved, candidates)
    return case.aligned() if resolved.numa.aligns else case.anywhere(())


def _with_devices(
    found: CpuAssignment | HostRefusal, ledger: CpuLedger, request: CpuRequest
) -> CpuAssignment | HostRefusal:
    """Adds devices to an assignment that has no particular cpus or nodes."""
    if isinstance(found, HostRefusal) or not request.devices:
        return found
    devices = choose_devices(ledger.devices, request.devices, among=request.among)
    if isinstance(devices, HostRefusal):
        return devices
    return replace(found, devices=devices)


def assign_many(
    ledger: CpuLedger, requests: Iterable[CpuRequest]
) -> list[CpuAssignment | HostRefusal]:
    """Returns the assignments of several slots, which are chosen one after the other. The list ends
    with the first refusal. The function does not change the ledger.
    """
    scratch = ledger.scratch()
    found: list[CpuAssignment | HostRefusal] = []
    for number, request in enumerate(requests):
        assignment = assign(scratch, request)
        found.append(assignment)
        if isinstance(assignment, HostRefusal):
            break
        # The assignment is added to the copy, so that the next slot cannot get the same cpus.
        scratch.add(_scratch_key(number), assignment, request.policy)
    return found


def assign_together(
    ledger: CpuLedger, requests: Sequence[CpuRequest]
) -> list[CpuAssignment] | None:
    """Returns the assignments of all slots of a gang on one host. The GPUs of all slots are chosen
    together, and not for one slot after the other. The function does not change the ledger.

    Returns:
        The assignments. The result is None if there are no GPUs to choose together, if some slot
        cannot be assigned in this way, or if `assign_many` meets more of the preferred policies. In
        all three cases, the caller uses `assign_many`.
    """
    sets = gpus_together(ledger.devices, [each.devices for each in requests])
    if sets is None:
        return None
    found = assign_many(
        ledger, [replace(each, among=gpus) for each, gpus in zip(requests, sets, strict=True)]
    )
    given = [each for each in found if isinstance(each, CpuAssignment)]
    if len(given) < len(requests):
        return None
    if any(each.notes for each in given):
        one_by_one = assign_many(ledger, requests)
        if _note_count(one_by_one) < _note_count(given):
            return None
    return given


def _note_count(assignments: Iterable[CpuAssignment | HostRefusal]) -> int:
    return sum(len(each.notes) for each in assignments if isinstance(each, CpuAssignment))


def _scratch_key(number: int) -> SlotKey:
    return "", number  # allocation ids are never empty, so no real slot has this key


def fits_empty(ledger: CpuLedger | None, request: CpuRequest) -> HostRefusal | None:
    """Returns the reason why this host, with its present settings, could not serve the request even
    if the host were empty. The result is None if the host could serve the request. Equal hosts
    share a cached result.
    """
    found = (
        assign(None, request) if ledger is None else _assigned_empty(HostKind.of(ledger), request)
    )
    return found if isinstance(found, HostRefusal) else None


def score(ledger: CpuLedger | None, request: CpuRequest, assignment: CpuAssignment) -> int:
    """Returns the quality of an assignment as a number from 0 to `SCORE_MAX`; a higher number is
    better.

    A host that meets all preferred policies gets at least half of `SCORE_MAX`. Any other host gets
    at most half of `SCORE_MAX`. Each note after the first note halves the score again. Between
    hosts with equally many notes, the score of the NUMA strategy decides. This score is computed
    over the slot's nodes, or over all cpus of the host if the slot is bound to no node.

    Args:
        ledger: the cpu ledger of the host. None if the host does not report its cores and nodes.
        request: the needs of the slot.
        assignment: the result of `assign`.
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
        # Some slots possibly have cpus that are no longer pinnable, for example because an
        # administrator reserved these cpus later. Such cpus do not count.
        taken = (ledger.pinned & ledger.pinnable).bit_count()
        value = share_score(strategy, cpus * MILLI, taken * MILLI + request.cpu_milli)
    unmet = len(assignment.notes)
    return (0 if unmet else SCORE_MAX // 2) + (value // 2 >> max(unmet - 1, 0))


@lru_cache(ANSWERS_KNOWN_MAX)
def _assigned_empty(kind: HostKind, request: CpuRequest) -> CpuAssignment | HostRefusal:
    return assign(empty_ledger(kind), request)
