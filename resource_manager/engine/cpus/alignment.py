"""Where on a host one slot goes: cpus of its own, NUMA nodes, shared pools.

Decides by policies that are resolved and cpus that are known to be his to choose from. Tries as few
things as the policy admits, the best first. Refuses to know other hosts, and whether the slot may
be there at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import BindPolicy, NumaPolicy
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.resources import CPU_MILLI, MEMORY_BYTES
from resource_manager.engine.cpus.empty_hosts import HostKind, fewest_nodes_when_empty
from resource_manager.engine.cpus.hints import (
    Quantities,
    hints,
    masks_by_size,
    quantities,
    remoteness,
)
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.merge import merge_ranked
from resource_manager.engine.cpus.numa import MILLI, positions, split
from resource_manager.engine.cpus.pinning import notes_on, pick, pick_on, preferred_cpus, shortage
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resolve import Resolved
from resource_manager.engine.cpus.shortages import no_suitable_pool, not_enough, unaligned
from resource_manager.engine.cpus.take import Short, Taken, sums_to, total_widths, whole_widths


class Case:
    """One wish on one host."""

    def __init__(
        self, ledger: CpuLedger, request: CpuRequest, resolved: Resolved, candidates: int | None
    ) -> None:
        self._ledger = ledger
        self._request = request
        self._resolved = resolved
        self._candidates = candidates  # the cpus that it can choose from; None: it runs in pools

    def pinned(self, notes: tuple[str, ...]) -> CpuAssignment | CpuRefusal:
        """Cpus of its own, wherever they are."""
        taken = pick(self._ledger, self._resolved, self._candidates or 0)
        if isinstance(taken, Short):
            return shortage(taken, self._resolved)
        return self._with_cpus(taken, notes)

    def bursting(self, notes: tuple[str, ...]) -> CpuAssignment | CpuRefusal:
        """Bound to the shared pool of the node whose size suits the slot's cpu limit best."""
        ledger, resolved = self._ledger, self._resolved
        suited = self._burst_nodes()
        if suited:
            node = ledger.layout.nodes[suited[0]]
            return CpuAssignment(
                resolved.qos,
                bind=resolved.bind,
                numa=(NodeShare(node.id, ((CPU_MILLI, self._request.cpu_milli),)),),
                pools=ledger.pools(suited[0]),
                notes=(*resolved.notes, *notes),
            )
        refusal = no_suitable_pool(self._ledger, self._request, self._burst_limit())
        if resolved.bind_required:
            return refusal
        note = f"{resolved.bind} was preferred: {refusal.text}"
        return CpuAssignment(resolved.qos, notes=(*resolved.notes, *notes, note))

    def _burst_nodes(self) -> list[int]:
        """Nodes whose shared pool suits the limit and can promise the booking, best fit first."""
        ledger = self._ledger
        limit, booked = self._burst_limit(), self._request.cpu_milli
        found = []
        for at in ledger.layout.cpu_nodes:
            size = (ledger.shared_cpus & ledger.layout.nodes[at].mask).bit_count() * MILLI
            available = ledger.available(at, CPU_MILLI)
            if size >= limit and available >= booked:
                found.append((size, available, at))
        return [at for _, _, at in sorted(found)]

    def _burst_limit(self) -> int:
        return max(self._request.cpu_limit_milli, self._request.cpu_milli)

    def aligned(self) -> CpuAssignment | CpuRefusal:
        """On NUMA nodes, as the policy in force will have it."""
        resolved = self._resolved
        found = self._aligned_by(resolved.numa)
        if not isinstance(found, CpuRefusal):
            return found
        if resolved.numa_required and resolved.numa is not NumaPolicy.BEST_EFFORT:
            return found
        note = f"NUMA policy {resolved.numa} was preferred: {found.text}"
        if resolved.numa is not NumaPolicy.BEST_EFFORT:
            instead = self._aligned_by(NumaPolicy.BEST_EFFORT)
            if not isinstance(instead, CpuRefusal):
                return replace(instead, notes=(*instead.notes, note))
        if self._candidates is not None:
            return self.pinned((note,))
        if resolved.bind is BindPolicy.CONSTRAINED_BURST:
            return self.bursting((note,))
        return CpuAssignment(resolved.qos, notes=(*resolved.notes, note))

    def _aligned_by(self, policy: NumaPolicy) -> CpuAssignment | CpuRefusal:
        resolved = self._resolved
        if resolved.bind is not BindPolicy.CONSTRAINED_BURST:
            return self._on_nodes(policy, self.needs(), ())
        suited = self._burst_nodes()
        found: CpuAssignment | CpuRefusal = no_suitable_pool(
            self._ledger, self._request, self._burst_limit()
        )
        if suited:
            found = self._on_nodes(NumaPolicy.SINGLE_NUMA_NODE, self.needs(suited), ())
        if not isinstance(found, CpuRefusal) or resolved.bind_required:
            return found
        note = f"{resolved.bind} was preferred: {found.text}"
        return self._on_nodes(policy, self.needs(), (note,))

    def needs(self, nodes: Sequence[int] | None = None) -> Quantities:
        """What the slot needs of NUMA nodes and what they have; of these nodes, or of all."""
        ledger, resolved, candidates = self._ledger, self._resolved, self._candidates
        liked = None if candidates is None else preferred_cpus(ledger, resolved, candidates)
        amounts = dict(self._request.amounts)
        return quantities(
            ledger, amounts, resolved.strategy, candidates, nodes=nodes, preferred_cpus=liked
        )

    def _on_nodes(
        self, policy: NumaPolicy, needs: Quantities, notes: tuple[str, ...]
    ) -> CpuAssignment | CpuRefusal:
        """Looks at masks of more and more nodes, as far as the policy goes, and stops with the
        first size of which one will do: no larger mask could be preferred to it.
        """
        lacking = needs.lacking(needs.nodes)
        if lacking is not None:
            return not_enough(needs, lacking)
        smallest = fewest_nodes_when_empty(HostKind.of(self._ledger), self._request)
        found = None
        for size, masks in masks_by_size(needs.layout, needs.nodes):
            if _admits(policy, size, smallest):
                found = self._on_one_of(policy, needs, masks, smallest or size, notes)
            if found is not None:
                break
        if found is None and policy is NumaPolicy.BEST_EFFORT:
            found = self.assigned_on(needs, needs.nodes, notes)
        if found is None:
            return unaligned(policy, needs, smallest)
        return self._noted(found, smallest)

    def _noted(self, found: CpuAssignment, smallest: int | None) -> CpuAssignment:
        """Says so if a slot that is to be aligned if possible lies on more nodes than need be."""
        count = len(found.nodes)
        if self._resolved.numa is not NumaPolicy.BEST_EFFORT or not smallest or count <= smallest:
            return found
        note = f"BestEffort alignment: on {count} NUMA nodes, where the empty host needs {smallest}"
        return replace(found, notes=(*found.notes, note))

    def _on_one_of(
        self,
        policy: NumaPolicy,
        needs: Quantities,
        masks: Sequence[int],
        preferred_size: int,
        notes: tuple[str, ...],
    ) -> CpuAssignment | None:
        """On the best mask of one size."""
        provider = hints(needs, masks, preferred_size)
        for best in merge_ranked(
            policy, [provider], remoteness=lambda mask: remoteness(needs.layout, mask)
        ):
            if not best.admitted or best.mask is None:
                return None
            nodes = positions(best.mask)
            found = self.assigned_on(needs, nodes, notes) if self._can_add_up(nodes) else None
            if found is not None:
                return found
        return None

    def _can_add_up(self, nodes: Sequence[int]) -> bool:
        """False if whole cores are required and none on these nodes have so many threads together:
        quickly told, where choosing among cpus in vain is not.
        """
        resolved = self._resolved
        if (
            self._candidates is None
            or not resolved.needs_whole_cores
            or self._ledger.layout.uniform_cores
        ):
            return True
        return sums_to(total_widths(self._whole_cores[at] for at in nodes), resolved.count)

    @cached_property
    def _whole_cores(self) -> list[Mapping[int, int]]:
        """Of the cpus that it can choose from, per node."""
        layout, candidates = self._ledger.layout, self._candidates or 0
        return [whole_widths(cores, candidates) for cores in layout.cores_of_node]

    def assigned_on(
        self, needs: Quantities, nodes: Sequence[int], notes: tuple[str, ...]
    ) -> CpuAssignment | None:
        """On all of these nodes; None if there it cannot be had."""
        ledger, resolved = self._ledger, self._resolved
        parts: dict[int, dict[str, int]] = {}
        taken: Taken | None = None
        if self._candidates is not None:
            taken = pick_on(ledger, resolved, self._candidates, nodes)
            if taken is None:
                return None
        for name, need in needs.need.items():
            if name == CPU_MILLI and taken is not None:
                its = _cpus_by_node(ledger.layout, taken.cpus)
            else:
                shared_out = split(need, needs.of(name, nodes))
                if shared_out is None:
                    return None
                its = shared_out
            for at, amount in its.items():
                parts.setdefault(at, {})[name] = amount
        bound = tuple(
            NodeShare(ledger.layout.nodes[at].id, tuple(sorted(parts[at].items())))
            for at in sorted(parts)
        )
        memory = CpuSet(ledger.layout.nodes[at].id for at in needs.places(MEMORY_BYTES, nodes))
        if taken is not None:
            return self._with_cpus(taken, notes, bound, memory)
        pools = sorted({pool for at in nodes for pool in ledger.pools(at)})
        return CpuAssignment(
            resolved.qos,
            bind=BindPolicy.NONE if notes else resolved.bind,  # the note says that it is not that
            numa=bound,
            memory_nodes=memory,
            pools=tuple(pools),
            notes=(*resolved.notes, *notes),
        )

    def _with_cpus(
        self,
        taken: Taken,
        notes: tuple[str, ...],
        numa: tuple[NodeShare, ...] = (),
        memory_nodes: CpuSet = EMPTY,
    ) -> CpuAssignment:
        resolved = self._resolved
        return CpuAssignment(
            resolved.qos,
            cpus=CpuSet.from_bits(taken.cpus),
            bind=resolved.bind,
            exclusive=taken.exclusive,
            numa=numa,
            memory_nodes=memory_nodes,
            notes=(*resolved.notes, *notes, *notes_on(self._ledger.layout, resolved, taken)),
        )


def _admits(policy: NumaPolicy, size: int, smallest: int | None) -> bool:
    """Whether masks of so many nodes are worth looking at."""
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        return size == 1
    if policy is NumaPolicy.RESTRICTED:
        return size == smallest
    return policy is NumaPolicy.BEST_EFFORT and size >= (smallest or 1)


def _cpus_by_node(layout: CpuLayout, cpus: int) -> Mapping[int, int]:
    """Thousandths per node that has some of the cpus."""
    counts = {at: (layout.nodes[at].mask & cpus).bit_count() * MILLI for at in layout.cpu_nodes}
    return {at: count for at, count in counts.items() if count}
