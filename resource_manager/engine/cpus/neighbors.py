"""Applies the rules about neighbors to one host: which of its cpus a slot may have.

A required rule `apart` counts in both directions. A slot does not go near slots that its own rules
exclude, and not near slots whose rules exclude it. A slot without dedicated cpus and without NUMA
nodes counts as a slot on all cpus of the host.

Example: node 0 has cpus 0-7, node 1 has cpus 8-15. Slot `a` has the label app=db and cpus 0-1. A
slot that must be near app=db at level numa may have cpus 0-7. A slot that must be apart from app=db
at this level may have cpus 8-15. At level host, the slot that must be near may have all cpus, and
the slot that must be apart has no place on the host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from finegrain.cpu_policy import CpuPolicy
from finegrain.neighbors import Level, NeighborRule
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.model.entities import SlotKey
from resource_manager.engine.model.host_refusal import HostRefusal

ZONES_MAX = 256
"""The largest number of sets of cpus that the module tries for one slot."""

SLOTS_NAMED_MAX = 3
"""The largest number of slots that one refusal names."""


@dataclass(frozen=True, slots=True)
class Zones:
    """The cpus that a slot may have according to the rules about neighbors.

    Attributes:
        masks: sets of cpus. All cpus of the slot must be in the same set.
        blocker: the reason for a refusal if no set has enough suitable cpus.
        rules: a text for people about the rules that exclude some cpus. It is empty if no cpu is
            excluded.
    """

    masks: tuple[int, ...]
    blocker: CpuBlocker
    rules: str

    @property
    def is_whole_host(self) -> bool:
        """True if the rules exclude no cpu."""
        return not self.rules


def zones_of(
    ledger: CpuLedger,
    request: CpuRequest,
    dropped: Collection[NeighborRule] = (),
) -> Zones | HostRefusal:
    """Returns the cpus that the slot may have according to the rules, or why the rules exclude the
    host.

    Args:
        ledger: the cpu ledger of the host.
        request: the request. Its preferred rules count like required rules.
        dropped: preferred rules that do not count.
    """
    policy, layout = request.policy, ledger.layout
    excluded, excluding = 0, list[str]()
    for rule, keys, text in _apart(ledger, policy, dropped):
        if rule.level is Level.HOST:
            return HostRefusal(CpuBlocker.NOT_APART, text)
        excluded |= _union_of(domains(layout, rule.level), _union(ledger, keys))
        excluding.append(text)
    masks, near = [layout.cpus & ~excluded], False
    for rule in policy.neighbors:
        if rule.apart or rule in dropped:
            continue
        keys = _matching(ledger, policy, rule)
        if not keys:
            # The first of several slots that must be near each other has no neighbor yet.
            if rule in request.without_neighbor:
                continue
            return HostRefusal(CpuBlocker.NOT_NEAR, f"has no slot that {_text(rule)}")
        if rule.level is Level.HOST:
            continue
        there = _union(ledger, keys)
        parts = [each for each in domains(layout, rule.level) if each & there]
        masks = list(dict.fromkeys(mask & part for mask in masks for part in parts))[:ZONES_MAX]
        near = True
        excluding.append(f"has {_named(keys)}, which {_text(rule)}")
    if excluding and not policy.qos.is_pinned:
        blocker = CpuBlocker.NOT_NEAR if near else CpuBlocker.NOT_APART
        text = f"{'; '.join(excluding)}; a slot without dedicated cpus runs on all cpus"
        return HostRefusal(blocker, text)
    return Zones(
        tuple(each for each in masks if each),
        CpuBlocker.NOT_NEAR if near else CpuBlocker.NOT_APART,
        "; ".join(excluding),
    )


def growth_zone(ledger: CpuLedger, key: SlotKey, policy: CpuPolicy, current: int) -> int:
    """Returns the cpus that a slot may get when it grows. Only required rules count.

    Args:
        ledger: the cpu ledger of the host.
        key: the slot.
        policy: the policy of the slot.
        current: the cpus of the slot.
    """
    layout = ledger.layout
    allowed = layout.cpus
    preferred = [rule for rule in policy.neighbors if not rule.required]
    for rule, keys, _ in _apart(ledger, policy, preferred):
        others = [each for each in keys if each != key]
        if rule.level is not Level.HOST and others:
            allowed &= ~_union_of(domains(layout, rule.level), _union(ledger, others))
    for rule in policy.neighbors:
        if rule.required and not rule.apart and rule.level is not Level.HOST:
            allowed &= _union_of(domains(layout, rule.level), current)
    return allowed


def broken_rules(ledger: CpuLedger) -> Iterator[tuple[SlotKey, NeighborRule]]:
    """Yields each slot with each required rule `apart` of the slot that other slots of the host
    break.
    """
    for key, policy in ledger.neighbors.items():
        here = _position(ledger, key)
        for rule in policy.neighbors:
            others = [each for each in _matching(ledger, policy, rule) if each != key]
            if rule.apart and rule.required and others:
                parts = domains(ledger.layout, rule.level)
                if _union_of(parts, here) & _union(ledger, others):
                    yield key, rule


def conflicts(ledger: CpuLedger) -> bool:
    """Returns whether two slots have the same cpus, slots have more of a node or device than there
    is, or a required rule `apart` is broken on the host.
    """
    return any(broken_rules(ledger)) or bool(ledger.problems())


def domains(layout: CpuLayout, level: Level) -> tuple[int, ...]:
    """Returns the cpus of each part of a host at a level. At level l3, all cores without a known
    cache are one part. So two slots count as apart only if their caches are known to differ.
    """
    match level:
        case Level.HOST:
            return (layout.cpus,)
        case Level.NUMA:
            return tuple(node.mask for node in layout.nodes if node.mask)
        case Level.L3:
            return layout.cache_masks
        case Level.CORE:
            return layout.core_masks


def _apart(
    ledger: CpuLedger, policy: CpuPolicy, dropped: Collection[NeighborRule]
) -> Iterator[tuple[NeighborRule, list[SlotKey], str]]:
    """Yields the rules that keep the slot apart from present slots. These are rules of the slot,
    and required rules of present slots. Each item has the rule, the present slots and a text for
    people.
    """
    for rule in policy.neighbors:
        if rule.apart and rule not in dropped and (keys := _matching(ledger, policy, rule)):
            yield rule, keys, f"has {_named(keys)}, which {_text(rule)}"
    for key, other in ledger.neighbors.items():
        if other.neighbor_job == policy.neighbor_job:
            for rule in other.neighbors:
                if rule.apart and rule.required and rule.selects(policy.slot_labels):
                    yield rule, [key], f"has {_named([key])}, whose rule {rule} excludes this one"


def _matching(ledger: CpuLedger, policy: CpuPolicy, rule: NeighborRule) -> list[SlotKey]:
    return [
        key
        for key, other in ledger.neighbors.items()
        if other.neighbor_job == policy.neighbor_job and rule.selects(other.slot_labels)
    ]


def _position(ledger: CpuLedger, key: SlotKey) -> int:
    """Returns the cpus on which a slot may run."""
    assignment, layout = ledger.holdings[key], ledger.layout
    if assignment is not None and assignment.cpus:
        return assignment.cpus.bits
    if assignment is not None and assignment.numa:
        known = layout.position_of_node
        return sum(
            layout.nodes[known[each.node]].mask for each in assignment.numa if each.node in known
        )
    return layout.cpus


def _union(ledger: CpuLedger, keys: Collection[SlotKey]) -> int:
    cpus = 0
    for key in keys:
        cpus |= _position(ledger, key)
    return cpus


def _union_of(parts: Collection[int], cpus: int) -> int:
    """Returns all cpus of the parts that contain at least one of `cpus`."""
    touched = 0
    for part in parts:
        if part & cpus:
            touched |= part
    return touched


def _text(rule: NeighborRule) -> str:
    return f"the rule {rule} {'excludes' if rule.apart else 'requires'}"


def _named(keys: Collection[SlotKey]) -> str:
    names = [allocation_id for allocation_id, _ in keys if allocation_id.strip("\0")]
    more = len(names) - SLOTS_NAMED_MAX
    text = ", ".join(names[:SLOTS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"slot{'s' if len(names) > 1 else ''} {text}" if names else "slots of the same gang"
