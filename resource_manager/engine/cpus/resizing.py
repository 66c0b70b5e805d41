"""Computes the cpus and NUMA nodes that a slot has after a resize.

A resize does not move a slot. A slot that grows keeps its cpus. A slot that shrinks gives some cpus
back. A slot that is bound to shared pools or NUMA nodes grows in the same pools or on the same
nodes. A slot that is not bound to nodes stays unbound, even if the host's settings have changed and
the host now aligns new slots.

Example: node 0 has cpus 0-7 and 8 GiB, without SMT. A slot is bound to node 0, and has cpus 0-1 and
2 GiB. Other slots on node 0 have cpus 2-3 and 4 GiB.

    new size        result
    4 cpus, 4 GiB   cpus 0-1 and 4-5; node 0 gives 4 cpus and 4 GiB
    7 cpus, 2 GiB   refused, CPU_NOT_ENOUGH: 5 more cpus needed, 4 free
    2 cpus, 5 GiB   refused, NUMA_NOT_ENOUGH_MEMORY: 3 GiB more needed, 2 GiB free on node 0
    1 cpu, 2 GiB    cpu 0; node 0 gives 1 cpu and 2 GiB

The rules are specific to this project. This module uses two published algorithms: Koordinator's
accumulator (`accumulator.py`) chooses additional cpus, and Koordinator's
`tryBestToDistributeEvenly` (`numa.py`) splits amounts over nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
)
from finegrain.cpuset import CpuSet
from finegrain.devices.device import shares_together
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, MEMORY_BYTES
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.neighbors import growth_zone
from resource_manager.engine.cpus.numa import MILLI, memory_positions, positions, split
from resource_manager.engine.cpus.pinning import (
    candidate_cpus,
    demand_of,
    exclusive_claims,
    notes_on,
    shortage,
)
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.cpus.resize_cpus import grow, shrink
from resource_manager.engine.cpus.resolve import Resolved, resolve
from resource_manager.engine.cpus.shortages import amount_text
from resource_manager.engine.cpus.take import Short, Taken
from resource_manager.engine.model.entities import SlotKey
from resource_manager.engine.model.host_refusal import HostRefusal

_CPU = (CPU_MILLI, BEST_EFFORT_CPU_MILLI)


def resized(
    ledger: CpuLedger, key: SlotKey, current: CpuAssignment, request: CpuRequest
) -> CpuAssignment | HostRefusal:
    """Returns the cpus and NUMA nodes of a slot after a resize, or why the resize is impossible.
    The function does not change the ledger.

    Args:
        ledger: the cpu ledger of the slot's host.
        key: the key of the slot in the ledger.
        current: the cpus and NUMA nodes that the slot holds now.
        request: the complete needs of the slot after the resize.
    """
    case = _ResizeCase(ledger, key, current, request)
    if current.cpus:
        return case.pinned()
    # A slot in the whole shared pool is bound to no cpus or nodes, so nothing changes.
    return case.pooled() if current.numa else current


def fits_alone(
    ledger: CpuLedger, key: SlotKey, current: CpuAssignment, request: CpuRequest
) -> HostRefusal | None:
    """Returns the reason why a slot could not have the requested size even if the host had no other
    slot. The result is None if the slot could have the size.

    Args:
        ledger: the cpu ledger of the slot's host.
        key: the key of the slot in the ledger.
        current: the cpus and NUMA nodes that the slot holds now.
        request: the complete needs of the slot after the resize.
    """
    alone = ledger.empty()
    alone.add(key, current)
    found = resized(alone, key, current, request)
    return found if isinstance(found, HostRefusal) else None


def together(before: CpuAssignment, after: CpuAssignment) -> CpuAssignment:
    """Returns the assignment to book while it is unknown whether `before` or `after` applies. The
    result has the cpus, memory nodes and devices of both assignments, and the larger amount on each
    node and device.
    """
    apart = (NodeShare(share.node, share.amounts) for share in (*before.numa, *after.numa))
    most: dict[int, dict[str, int]] = {}
    for node, amounts in apart:
        here = most.setdefault(node, {})
        for name, amount in amounts:
            here[name] = max(amount, here.get(name, 0))
    # Other slots must respect the exclusive policy, whichever of the two assignments has it.
    claims = before if before.exclusive is not ExclusivePolicy.NONE else after
    return replace(
        after,
        cpus=before.cpus | after.cpus,
        exclusive=claims.exclusive,
        numa=_shares(most),
        memory_nodes=before.memory_nodes | after.memory_nodes,
        devices=shares_together(before.devices, after.devices),
    )


class _ResizeCase:
    """One slot and its requested size, for which the assignment is computed."""

    def __init__(
        self, ledger: CpuLedger, key: SlotKey, current: CpuAssignment, request: CpuRequest
    ) -> None:
        self._ledger = ledger
        self._key = key
        self._current = current
        self._request = request

    def pinned(self) -> CpuAssignment | HostRefusal:
        """Returns the new assignment of a slot with dedicated cpus."""
        resolved = self._resolved()
        if isinstance(resolved, HostRefusal):
            return resolved
        current = self._current
        taken = self._cpus(resolved)
        if isinstance(taken, HostRefusal):
            return taken
        shares = self._shares_of_nodes(taken.cpus)
        if isinstance(shares, HostRefusal):
            return shares
        cpus, notes = CpuSet.from_bits(taken.cpus), current.notes
        # Notes describe the choice of cpus, so they stay if the cpus stay.
        if cpus != current.cpus:
            notes = (*resolved.notes, *notes_on(self._ledger.layout, resolved, taken))
            if resolved.numa.aligns and not current.numa:
                notes = (*notes, f"NUMA policy {resolved.numa}: the slot stays where it was placed")
        return replace(current, cpus=cpus, exclusive=taken.exclusive, numa=shares, notes=notes)

    def pooled(self) -> CpuAssignment | HostRefusal:
        """Returns the new assignment of a slot in the shared pools of NUMA nodes."""
        shares = self._shares_of_nodes(0)
        if isinstance(shares, HostRefusal):
            return shares
        current = self._current
        if current.bind is BindPolicy.CONSTRAINED_BURST and (refusal := self._pool_too_small()):
            if self._request.policy.bind_required:
                return refusal
            note = f"{current.bind} was preferred: {refusal.text}"
            return replace(current, numa=shares, notes=tuple(dict.fromkeys((*current.notes, note))))
        return replace(current, numa=shares)

    def _resolved(self) -> Resolved | HostRefusal:
        """Resolves the policies of the slot against the host's settings. The bind policy with which
        the slot was placed still applies, even if the host's settings now contradict it.
        """
        ledger, current, request = self._ledger, self._current, self._request
        host, layout = ledger.policy, ledger.layout
        found = resolve(request.policy, request.cpu_milli, host, layout)
        # A new default of the host must not change the policy of a running slot.
        if isinstance(found, Resolved) and found.bind is current.bind:
            return found
        if isinstance(found, HostRefusal) and found.blocker not in _BLOCKERS_FOR_NEW_SLOTS:
            return found
        # Settings that were changed after the placement must not prevent a resize.
        lenient = replace(host, bind=HostBindPolicy.NONE, alignment=NumaPolicy.NONE)
        found = resolve(request.policy, request.cpu_milli, lenient, layout)
        if isinstance(found, HostRefusal):
            return found
        return replace(found, bind=current.bind, bind_required=found.bind_required)

    def _cpus(self, resolved: Resolved) -> Taken | HostRefusal:
        ledger, current, count = self._ledger, self._current.cpus.bits, resolved.count
        more = count - current.bit_count()
        scratch = ledger.scratch()
        if more > 0:
            # The exclusive claim of the slot itself must not exclude cpus on the same cores or
            # nodes.
            unclaimed = replace(self._current, exclusive=ExclusivePolicy.NONE)
            scratch.replace(self._key, unclaimed)
            free = candidate_cpus(scratch, replace(resolved, count=more))
            if isinstance(free, HostRefusal):
                return free
            policy = self._request.policy
            if policy.neighbor_job:
                free &= growth_zone(ledger, self._key, policy, current)
            bound = bool(self._current.numa)
            whole = demand_of(resolved, count)
            found = grow(
                ledger.layout, current, free, exclusive_claims(scratch), whole, same_nodes=bound
            )
        else:
            # The slot must be removed first. Otherwise its exclusive claim would count as the claim
            # of another slot.
            scratch.remove(self._key)
            # Cpus that the slot can no longer use are given back first.
            current = _without_lost(ledger, current, -more)
            found = shrink(
                ledger.layout, current, exclusive_claims(scratch), demand_of(resolved, count)
            )
        return shortage(found, resolved) if isinstance(found, Short) else found

    def _shares_of_nodes(self, cpus: int) -> tuple[NodeShare, ...] | HostRefusal:
        """Returns the amounts of the slot on each NUMA node to which it is bound. Present amounts
        stay on their nodes. The difference is spread over the nodes as evenly as possible.
        """
        current, ledger = self._current, self._ledger
        if not current.numa:
            return ()
        position = ledger.layout.position_of_node
        parts = {position[s.node]: dict(s.amounts) for s in current.numa if s.node in position}
        needs = dict.fromkeys((name for each in parts.values() for name in each), 0)
        needs.update((name, need) for name, need in self._request.amounts if self._is_bound(name))
        for name, need in needs.items():
            found: dict[int, int] | HostRefusal
            # The amount of cpu follows from the chosen cpus. Other amounts can be spread freely.
            if cpus and name in _CPU:
                found = _cpus_by_node(ledger.layout, cpus)
            else:
                found = self._spread(name, need, parts)
            if isinstance(found, HostRefusal):
                return found
            for at in parts.keys() | found.keys():
                here = parts.setdefault(at, {})
                # The old amount is removed first, because a node that now gives no amount of the
                # dimension must have no entry for the dimension.
                here.pop(name, None)
                if found.get(at):
                    here[name] = found[at]
        return _shares({ledger.layout.nodes[at].id: amounts for at, amounts in parts.items()})

    def _is_bound(self, name: str) -> bool:
        """Returns True if this amount of the slot is bound to nodes. If the nodes give the slot
        only cpu, the slot is bound to a shared pool, and its memory is not bound.
        """
        names = {each for share in self._current.numa for each, _ in share.amounts}
        if name in names or name in _CPU:
            return name in names
        return not names <= set(_CPU) and self._ledger.reports(name)

    def _spread(
        self, name: str, need: int, parts: dict[int, dict[str, int]]
    ) -> dict[int, int] | HostRefusal:
        has = {at: amounts.get(name, 0) for at, amounts in parts.items() if amounts.get(name, 0)}
        more = need - sum(has.values())
        # The amount does not grow, so the slot needs no amounts of other nodes.
        if more <= 0:
            return split(need, list(has.items())) or {}
        nodes: Iterable[int] = parts
        if name == MEMORY_BYTES:
            # If the nodes of the cpus have no memory, the memory comes from other nodes.
            bound = positions(sum(1 << at for at in parts))
            nodes = memory_positions(self._ledger.layout, bound)
        free = [(at, self._ledger.available(at, name)) for at in sorted(nodes)]
        added = split(more, free)
        if added is None:
            return self._node_shortage(name, more, free)
        return {at: has.get(at, 0) + added.get(at, 0) for at in has.keys() | added.keys()}

    def _node_shortage(self, name: str, more: int, free: list[tuple[int, int]]) -> HostRefusal:
        layout = self._ledger.layout
        left = ", ".join(
            f"{layout.nodes[at].id}: {amount_text(name, amount)}" for at, amount in free
        )
        blocker = CpuBlocker.NUMA_NOT_ENOUGH_RESOURCE
        if name in _CPU:
            blocker = CpuBlocker.NUMA_NOT_ENOUGH_CPU
        elif name == MEMORY_BYTES:
            blocker = CpuBlocker.NUMA_NOT_ENOUGH_MEMORY
        return HostRefusal(
            blocker,
            f"the slot grows by {amount_text(name, more)} on the NUMA nodes that it is bound to;"
            f" free by node: {left}",
            (("asked", more), *((f"node {layout.nodes[at].id}", amount) for at, amount in free)),
        )

    def _pool_too_small(self) -> HostRefusal | None:
        ledger, request = self._ledger, self._request
        limit = max(request.cpu_limit_milli, request.cpu_milli)
        position = ledger.layout.position_of_node
        nodes = [position[share.node] for share in self._current.numa if share.node in position]
        size = sum((ledger.shared_cpus & ledger.layout.nodes[at].mask).bit_count() for at in nodes)
        if size * MILLI >= limit:
            return None
        return HostRefusal(
            CpuBlocker.BURST_POOL_TOO_SMALL,
            "the shared pool that the slot is bound to has"
            f" {amount_text(CPU_MILLI, size * MILLI)}, but the new cpu limit is"
            f" {amount_text(CPU_MILLI, limit)}",
            (("asked", limit), ("cpus", size)),
        )


_BLOCKERS_FOR_NEW_SLOTS = (CpuBlocker.BIND_POLICY_CONFLICT, CpuBlocker.NUMA_POLICY_MISMATCH)
"""Reasons of refusals that come from host settings for new slots. These settings do not apply to
resizes.
"""


def _without_lost(ledger: CpuLedger, current: int, surplus: int) -> int:
    """Gives back up to `surplus` cpus that the slot can no longer use. Offline cpus come first,
    then cpus that are now reserved or belong to a kubelet. The other cpus of the cores of these
    cpus come last.
    """
    there = ledger.layout.cpus
    lost = current & ~ledger.pinnable
    cores = sum(core for core in ledger.reported_layout.core_masks if core & lost)
    for part in (lost & ~there, lost & there, cores & current & ~lost):
        left = part
        while left and surplus:
            current &= ~(left & -left)
            left &= left - 1
            surplus -= 1
    return current


def _cpus_by_node(layout: CpuLayout, cpus: int) -> dict[int, int]:
    return {
        at: here * MILLI
        for at, node in enumerate(layout.nodes)
        if (here := (node.mask & cpus).bit_count())
    }


def _shares(parts: dict[int, dict[str, int]]) -> tuple[NodeShare, ...]:
    """Returns the amounts as shares, sorted by node id. Nodes that give nothing are left out."""
    return tuple(
        NodeShare(node, tuple(sorted(amounts.items())))
        for node, amounts in sorted(parts.items())
        if amounts
    )
