"""Assigns cpus, NUMA nodes, shared pools and devices of one host to one slot.

The policies are resolved and the candidate cpus known before. This tries as few masks of nodes as
the NUMA policy admits, the best first.

Example: on the empty host a slot needs one NUMA node, but no single node has enough now; both nodes
together have.

    SingleNUMANode, Restricted (required)    refused: NUMA_UNALIGNED
    the same, only preferred                 on both nodes, with a note
    BestEffort                               on both nodes, with a note
    any but SingleNUMANode, and the empty    on two nodes, without a note: none fewer would do
    host would need two nodes

A preferred policy that cannot be met falls back to BestEffort, and then to a slot without
alignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import BindPolicy, NumaPolicy
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.devices.device import DeviceShare
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
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resolve import Resolved
from resource_manager.engine.cpus.shortages import no_suitable_pool, not_enough, unaligned
from resource_manager.engine.cpus.take import Short, Taken
from resource_manager.engine.cpus.whole_cores import sums_to, total_widths, whole_widths
from resource_manager.engine.devices.choose import choose_devices
from resource_manager.engine.model.host_refusal import HostRefusal


class Case:
    """One request on one host."""

    def __init__(
        self, ledger: CpuLedger, request: CpuRequest, resolved: Resolved, candidates: int | None
    ) -> None:
        self._ledger = ledger
        self._request = request
        self._resolved = resolved
        self._candidates = candidates  # cpus to choose from; None: it runs in pools
        self._without_devices: HostRefusal | None = None  # of nodes that would do otherwise

    def anywhere(self, notes: tuple[str, ...]) -> CpuAssignment | HostRefusal:
        """Assigns what the slot needs, on any nodes.

        Args:
            notes: preferences that could not be met so far.
        """
        devices = self._devices_on(None)
        if isinstance(devices, HostRefusal):
            return devices
        if self._candidates is not None:
            found = self._pinned(self._candidates, notes, devices)
        elif self._resolved.bind is BindPolicy.CONSTRAINED_BURST:
            found = self._bursting(notes)
        else:
            found = CpuAssignment(self._resolved.qos, notes=(*self._resolved.notes, *notes))
        if isinstance(found, HostRefusal) or not devices:
            return found
        return replace(found, devices=devices)

    def _devices_on(self, nodes: Sequence[int] | None) -> tuple[DeviceShare, ...] | HostRefusal:
        """Chooses devices at these nodes (positions); None: at any nodes."""
        if not self._request.devices:
            return ()
        known = self._ledger.layout.nodes
        ids = None if nodes is None else {known[at].id for at in nodes}
        request = self._request
        return choose_devices(self._ledger.devices, request.devices, ids, among=request.among)

    def _pinned(
        self, candidates: int, notes: tuple[str, ...], devices: tuple[DeviceShare, ...]
    ) -> CpuAssignment | HostRefusal:
        """Assigns dedicated cpus, near to the devices if there are enough."""
        nodes = self._nodes_of(devices)
        near = pick_on(self._ledger, self._resolved, candidates, nodes) if nodes else None
        taken = near or pick(self._ledger, self._resolved, candidates)
        if isinstance(taken, Short):
            return shortage(taken, self._resolved)
        return self._with_cpus(taken, notes)

    def _nodes_of(self, devices: Iterable[DeviceShare]) -> list[int]:
        """Returns the positions of the nodes that devices are attached to."""
        layout, position = self._ledger.devices.layout, self._ledger.layout.position_of_node
        found = (
            layout.devices[layout.position[each.type, each.uuid]].numa_node for each in devices
        )
        return sorted({position[node] for node in found if node is not None and node in position})

    def _bursting(self, notes: tuple[str, ...]) -> CpuAssignment | HostRefusal:
        """Binds the slot to the shared pool of one node: the smallest one that suits its cpu
        limit.
        """
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
        """Returns the nodes whose shared pool is as large as the limit and can promise the booking,
        best fit first.
        """
        ledger = self._ledger
        limit, booked = self._burst_limit(), self._request.cpu_milli
        found = []
        for at in ledger.layout.cpu_nodes:
            size = (ledger.shared_cpus & ledger.layout.nodes[at].mask).bit_count() * MILLI
            available = ledger.available(at, CPU_MILLI)
            if size >= limit and available >= booked:
                # Sorted ascending, so that larger pools stay free for slots with larger limits.
                found.append((size, available, at))
        return [at for _, _, at in sorted(found)]

    def _burst_limit(self) -> int:
        return max(self._request.cpu_limit_milli, self._request.cpu_milli)

    def aligned(self) -> CpuAssignment | HostRefusal:
        """Assigns NUMA nodes by the policy in force; falls back as far as the policy is only
        preferred.
        """
        resolved = self._resolved
        found = self._aligned_by(resolved.numa)
        if not isinstance(found, HostRefusal):
            return found
        # BestEffort demands nothing, so it may give way even if it is required.
        if resolved.numa_required and resolved.numa is not NumaPolicy.BEST_EFFORT:
            return found
        note = f"NUMA policy {resolved.numa} was preferred: {found.text}"
        if resolved.numa is not NumaPolicy.BEST_EFFORT:
            instead = self._aligned_by(NumaPolicy.BEST_EFFORT)
            if not isinstance(instead, HostRefusal):
                return replace(instead, notes=(*instead.notes, note))
        # The slot goes without alignment, as it would on a host that does not align.
        return self.anywhere((note,))

    def _aligned_by(self, policy: NumaPolicy) -> CpuAssignment | HostRefusal:
        resolved = self._resolved
        if resolved.bind is not BindPolicy.CONSTRAINED_BURST:
            return self._on_nodes(policy, self.needs(), ())
        suited = self._burst_nodes()
        found: CpuAssignment | HostRefusal = no_suitable_pool(
            self._ledger, self._request, self._burst_limit()
        )
        if suited:
            # A pool belongs to one node, so the slot can only be on one, whatever the policy says.
            found = self._on_nodes(NumaPolicy.SINGLE_NUMA_NODE, self.needs(suited), ())
        if not isinstance(found, HostRefusal) or resolved.bind_required:
            return found
        note = f"{resolved.bind} was preferred: {found.text}"
        return self._on_nodes(policy, self.needs(), (note,))

    def needs(self, nodes: Sequence[int] | None = None) -> Quantities:
        """Returns what the slot needs of NUMA nodes, and what `nodes` have (None: all nodes)."""
        ledger, resolved, candidates = self._ledger, self._resolved, self._candidates
        liked = None if candidates is None else preferred_cpus(ledger, resolved, candidates)
        amounts = dict(self._request.amounts)
        return quantities(
            ledger, amounts, resolved.strategy, candidates, nodes=nodes, preferred_cpus=liked
        )

    def _on_nodes(
        self, policy: NumaPolicy, needs: Quantities, notes: tuple[str, ...]
    ) -> CpuAssignment | HostRefusal:
        """Tries masks of more and more nodes, as far as the policy admits. It stops at the first
        size of which one works, because narrower masks are always preferred.
        """
        # No mask can have more than all nodes together, so this saves trying them.
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
        # A mask with a node that has nothing left of a dimension is no hint. All nodes together may
        # still do, and BestEffort admits them.
        if found is None and policy is NumaPolicy.BEST_EFFORT:
            found = self.assigned_on(needs, needs.nodes, notes)
        if found is None:
            # Where only devices were missing, this says which.
            return self._without_devices or unaligned(policy, needs, smallest)
        return self._noted(found, smallest)

    def _noted(self, found: CpuAssignment, smallest: int | None) -> CpuAssignment:
        """Adds a note if a BestEffort slot is on more nodes than it would need on the empty
        host.
        """
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
        """Assigns the best mask of one size that works; None: none does."""
        provider = hints(needs, masks, preferred_size)
        # Masks are ranked by counts. If the cpus cannot be chosen on one, the next best is tried.
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
        """Returns False if whole cores are required and no choice of cores on these nodes has
        exactly that many threads. This check is cheap; choosing cpus without result is not.
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
        """How many whole cores of each width there are among the candidates, per node."""
        layout, candidates = self._ledger.layout, self._candidates or 0
        return [whole_widths(cores, candidates) for cores in layout.cores_of_node]

    def assigned_on(
        self, needs: Quantities, nodes: Sequence[int], notes: tuple[str, ...]
    ) -> CpuAssignment | None:
        """Assigns all of these nodes; None if they cannot serve the slot.

        Args:
            needs: what the slot needs of nodes.
            nodes: positions of the nodes.
            notes: preferences that could not be met so far.
        """
        ledger, resolved = self._ledger, self._resolved
        parts: dict[int, dict[str, int]] = {}
        taken: Taken | None = None
        if self._candidates is not None:
            taken = pick_on(ledger, resolved, self._candidates, nodes)
            if taken is None:
                return None
        for name, need in needs.need.items():
            # The choice of cpus decides the split; `split` could give a node other cpus than were
            # taken.
            if name == CPU_MILLI and taken is not None:
                its = _cpus_by_node(ledger.layout, taken.cpus)
            else:
                shared_out = split(need, needs.of(name, nodes))
                if shared_out is None:
                    return None
                its = shared_out
            for at, amount in its.items():
                parts.setdefault(at, {})[name] = amount
        devices = self._devices_on(nodes)
        if isinstance(devices, HostRefusal):
            self._without_devices = devices
            return None
        bound = tuple(
            NodeShare(ledger.layout.nodes[at].id, tuple(sorted(parts[at].items())))
            for at in sorted(parts)
        )
        memory = CpuSet(ledger.layout.nodes[at].id for at in needs.places(MEMORY_BYTES, nodes))
        if taken is not None:
            return self._with_cpus(taken, notes, bound, memory, devices)
        # A slot on several nodes runs in the pools of all of them.
        pools = sorted({pool for at in nodes for pool in ledger.pools(at)})
        return CpuAssignment(
            resolved.qos,
            # the note says why it is not what was preferred
            bind=BindPolicy.NONE if notes else resolved.bind,
            numa=bound,
            memory_nodes=memory,
            pools=tuple(pools),
            notes=(*resolved.notes, *notes),
            devices=devices,
        )

    def _with_cpus(
        self,
        taken: Taken,
        notes: tuple[str, ...],
        numa: tuple[NodeShare, ...] = (),
        memory_nodes: CpuSet = EMPTY,
        devices: tuple[DeviceShare, ...] = (),
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
            devices=devices,
        )


def _admits(policy: NumaPolicy, size: int, smallest: int | None) -> bool:
    """Returns True if the policy admits masks of this many nodes."""
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        return size == 1
    if policy is NumaPolicy.RESTRICTED:
        return size == smallest
    # Fewer nodes than on the empty host cannot work, so they are not tried.
    return policy is NumaPolicy.BEST_EFFORT and size >= (smallest or 1)


def _cpus_by_node(layout: CpuLayout, cpus: int) -> Mapping[int, int]:
    """Returns thousandths of a cpu by node, for nodes that have some of the cpus."""
    counts = {at: (layout.nodes[at].mask & cpus).bit_count() * MILLI for at in layout.cpu_nodes}
    return {at: count for at, count in counts.items() if count}
