"""Assigns cpus, NUMA nodes, shared pools and devices of one host to one slot.

Before this module is called, `resolve.py` has resolved the policies, and `pinning.py` has found the
candidate cpus. A mask is a set of nodes. This module tries the masks that the NUMA policy admits,
the best mask first. It stops at the first mask that works.

Example: a slot would need one NUMA node of the empty host. At present, neither of two nodes alone
has enough, but both nodes together have enough.

    SingleNUMANode, Restricted (required)    refused: NUMA_UNALIGNED
    the same, only preferred                 on both nodes, with a note
    BestEffort                               on both nodes, with a note
    any but SingleNUMANode, and the empty    on both nodes, without a note, because one node is
    host would need two nodes                never enough

If a preferred policy cannot be met, BestEffort is tried instead. If BestEffort fails, too, the slot
is placed without alignment.
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
    """One request on one host, for which cpus, nodes and devices are assigned."""

    def __init__(
        self, ledger: CpuLedger, request: CpuRequest, resolved: Resolved, candidates: int | None
    ) -> None:
        self._ledger = ledger
        self._request = request
        self._resolved = resolved
        self._candidates = candidates  # cpus to choose from; None if the slot runs in shared pools
        # the last refusal because of devices on nodes that have enough of everything else
        self._without_devices: HostRefusal | None = None

    def anywhere(self, notes: tuple[str, ...]) -> CpuAssignment | HostRefusal:
        """Assigns cpus and devices on any nodes.

        Args:
            notes: texts about the preferred policies that could not be met so far.
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
        """Chooses devices that are attached to the nodes at these positions. None stands for any
        nodes.
        """
        if not self._request.devices:
            return ()
        known = self._ledger.layout.nodes
        ids = None if nodes is None else {known[at].id for at in nodes}
        request = self._request
        return choose_devices(self._ledger.devices, request.devices, ids, among=request.among)

    def _pinned(
        self, candidates: int, notes: tuple[str, ...], devices: tuple[DeviceShare, ...]
    ) -> CpuAssignment | HostRefusal:
        """Assigns dedicated cpus. The cpus are on the nodes of the devices if these nodes have
        enough cpus, and on any nodes otherwise.
        """
        nodes = self._nodes_of(devices)
        near = pick_on(self._ledger, self._resolved, candidates, nodes) if nodes else None
        taken = near or pick(self._ledger, self._resolved, candidates)
        if isinstance(taken, Short):
            return shortage(taken, self._resolved)
        return self._with_cpus(taken, notes)

    def _nodes_of(self, devices: Iterable[DeviceShare]) -> list[int]:
        """Returns the positions of the nodes to which devices are attached."""
        layout, position = self._ledger.devices.layout, self._ledger.layout.position_of_node
        found = (
            layout.devices[layout.position[each.type, each.uuid]].numa_node for each in devices
        )
        return sorted({position[node] for node in found if node is not None and node in position})

    def _bursting(self, notes: tuple[str, ...]) -> CpuAssignment | HostRefusal:
        """Binds the slot to the shared pool of one node: the smallest pool that is large enough for
        the slot's cpu limit.
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
        """Returns the nodes with a shared pool that is large enough. The pool must have at least as
        many cpus as the slot's limit, and enough cpu that is not promised to other slots. The node
        with the smallest pool comes first (best fit).
        """
        ledger = self._ledger
        limit, booked = self._burst_limit(), self._request.cpu_milli
        found = []
        for at in ledger.layout.cpu_nodes:
            size = (ledger.shared_cpus & ledger.layout.nodes[at].mask).bit_count() * MILLI
            available = ledger.available(at, CPU_MILLI)
            if size >= limit and available >= booked:
                # Smaller pools come first, so that larger pools stay free for slots with larger
                # limits.
                found.append((size, available, at))
        return [at for _, _, at in sorted(found)]

    def _burst_limit(self) -> int:
        return max(self._request.cpu_limit_milli, self._request.cpu_milli)

    def aligned(self) -> CpuAssignment | HostRefusal:
        """Assigns NUMA nodes by the resolved policy. If the policy is only preferred and cannot be
        met, the method tries BestEffort, and then no alignment.
        """
        resolved = self._resolved
        found = self._aligned_by(resolved.numa)
        if not isinstance(found, HostRefusal):
            return found
        # BestEffort excludes no placement. So a slot that requires BestEffort can also be placed
        # without alignment.
        if resolved.numa_required and resolved.numa is not NumaPolicy.BEST_EFFORT:
            return found
        note = f"NUMA policy {resolved.numa} was preferred: {found.text}"
        if resolved.numa is not NumaPolicy.BEST_EFFORT:
            instead = self._aligned_by(NumaPolicy.BEST_EFFORT)
            if not isinstance(instead, HostRefusal):
                return replace(instead, notes=(*instead.notes, note))
        # The slot is placed without alignment, as on a host that does not align slots.
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
            # A pool belongs to one node, so the slot must be on one node under any policy.
            found = self._on_nodes(NumaPolicy.SINGLE_NUMA_NODE, self.needs(suited), ())
        if not isinstance(found, HostRefusal) or resolved.bind_required:
            return found
        note = f"{resolved.bind} was preferred: {found.text}"
        return self._on_nodes(policy, self.needs(), (note,))

    def needs(self, nodes: Sequence[int] | None = None) -> Quantities:
        """Returns the amounts that the slot needs, and the amounts that `nodes` have. None stands
        for all nodes.
        """
        ledger, resolved, candidates = self._ledger, self._resolved, self._candidates
        preferred = None if candidates is None else preferred_cpus(ledger, resolved, candidates)
        amounts = dict(self._request.amounts)
        return quantities(
            ledger, amounts, resolved.strategy, candidates, nodes=nodes, preferred_cpus=preferred
        )

    def _on_nodes(
        self, policy: NumaPolicy, needs: Quantities, notes: tuple[str, ...]
    ) -> CpuAssignment | HostRefusal:
        """Tries the masks that the policy admits, beginning with the smallest. The search stops at
        the first size for which a mask works, because masks of fewer nodes are always better.
        """
        # If all nodes together have too little of a dimension, no mask has enough.
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
        # A mask is no hint if one of its nodes has no free amount of a dimension. But all nodes
        # together can still have enough, and BestEffort admits the mask of all nodes.
        if found is None and policy is NumaPolicy.BEST_EFFORT:
            found = self.assigned_on(needs, needs.nodes, notes)
        if found is None:
            # If only devices were missing on some nodes, the refusal names the missing devices.
            return self._without_devices or unaligned(policy, needs, smallest)
        return self._noted(found, smallest)

    def _noted(self, found: CpuAssignment, smallest: int | None) -> CpuAssignment:
        """Adds a note if a BestEffort slot is on more nodes than it would need on the empty
        host.
        """
        count = len(found.nodes)
        if self._resolved.numa is not NumaPolicy.BEST_EFFORT or not smallest or count <= smallest:
            return found
        note = f"BestEffort alignment: on {count} NUMA nodes; the empty host would need {smallest}"
        return replace(found, notes=(*found.notes, note))

    def _on_one_of(
        self,
        policy: NumaPolicy,
        needs: Quantities,
        masks: Sequence[int],
        preferred_size: int,
        notes: tuple[str, ...],
    ) -> CpuAssignment | None:
        """Assigns the slot to the best mask that works among masks of one size. The result is None
        if no mask works.
        """
        provider = hints(needs, masks, preferred_size)
        # Masks are ranked by amounts only. If no suitable cpus can be chosen on a mask, the next
        # mask is tried.
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
        """Returns False if whole cores are required, but no choice of cores on these nodes has
        exactly the needed number of threads. This check is much cheaper than a failed choice of
        cpus.
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
        """For each node, the number of whole cores whose threads are all candidates, by number of
        threads per core.
        """
        layout, candidates = self._ledger.layout, self._candidates or 0
        return [whole_widths(cores, candidates) for cores in layout.cores_of_node]

    def assigned_on(
        self, needs: Quantities, nodes: Sequence[int], notes: tuple[str, ...]
    ) -> CpuAssignment | None:
        """Assigns exactly these nodes to the slot. Returns None if the nodes cannot do so.

        Args:
            needs: the amounts that the slot needs of nodes.
            nodes: positions of the nodes.
            notes: texts about the preferred policies that could not be met so far.
        """
        ledger, resolved = self._ledger, self._resolved
        parts: dict[int, dict[str, int]] = {}
        taken: Taken | None = None
        if self._candidates is not None:
            taken = pick_on(ledger, resolved, self._candidates, nodes)
            if taken is None:
                return None
        for name, need in needs.need.items():
            # The amount of cpu must follow the chosen cpus, because `split` could divide it
            # differently.
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
        # A slot on several nodes runs in the shared pools of all these nodes.
        pools = sorted({pool for at in nodes for pool in ledger.pools(at)})
        return CpuAssignment(
            resolved.qos,
            # `notes` explains why the preferred bind policy does not apply.
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
    # Even on the empty host, the slot needs `smallest` nodes, so fewer nodes are not tried.
    return policy is NumaPolicy.BEST_EFFORT and size >= (smallest or 1)


def _cpus_by_node(layout: CpuLayout, cpus: int) -> Mapping[int, int]:
    """Returns the amount of cpu on each node that has some of the cpus, in thousandths of a cpu."""
    counts = {at: (layout.nodes[at].mask & cpus).bit_count() * MILLI for at in layout.cpu_nodes}
    return {at: count for at, count in counts.items() if count}
