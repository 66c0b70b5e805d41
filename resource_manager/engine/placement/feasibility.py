"""Could a shape ever be served, and does one host serve it now? The facts behind placing, refusing
and explaining.

`judge` looks at one host; `feasibility` asks the index about all of them without looking at each,
and remembers the answer with the shape until some host's size, labels or availability changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice

from finegrain.resources import Amounts, shortfall
from finegrain.values.states import ExecutorState
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.hosts.host import KNOWN, ONLINE, Host
from resource_manager.engine.model.scheduling_key import Labels
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import Need
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.reserved import is_held_from
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

ASKED_MAX = 64
"""Hosts that are asked at most whether their cpus and NUMA nodes suit, to tell why somebody waits.
"""


class Feasibility(StrEnum):
    """What the sizes of the hosts say about a shape, whatever is free now."""

    POSSIBLE = "POSSIBLE"  # some executor could serve it when empty
    OFFLINE = "OFFLINE"  # only lost, draining or unreachable executors could
    LABELS = "LABELS"  # only executors without the labels could
    NEVER = "NEVER"  # no executor could


INFEASIBLE = frozenset({Feasibility.LABELS, Feasibility.NEVER})
"""Verdicts with which a request is rejected, unless it allows to wait."""


class Blocker(StrEnum):
    """What can stand between a shape and a host, besides INSUFFICIENT_<DIMENSION>."""

    LOST = "LOST"
    UNCONFIRMED = "UNCONFIRMED"
    DRAINING = "DRAINING"
    UNREACHABLE = "UNREACHABLE"  # it reports, but cannot be dialled
    LABEL_MISMATCH = "LABEL_MISMATCH"
    TOTAL_TOO_SMALL = "TOTAL_TOO_SMALL"
    SLOT_LIMIT = "SLOT_LIMIT"
    REFUSED = "REFUSED"  # the host refused this shape lately
    HELD = "HELD"  # for somebody who was passed over for too long
    TOPOLOGY = "TOPOLOGY"  # its cpus or NUMA nodes do not suit, whatever amounts there are


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one host can do for a shape now. Amounts by dimension."""

    host: Host
    asked: dict[str, int]
    free: dict[str, int]
    total: dict[str, int]
    missing: dict[str, int]
    blockers: tuple[str, ...]
    cpu_refusal: CpuRefusal | None = None  # why cpus or NUMA nodes do not suit; None: they do

    @property
    def fits(self) -> bool:
        """True if a slot could be placed here now."""
        return not self.blockers


def judge(host: Host, scheduling_class: SchedulingClass) -> Judgement:
    """All that stands between a shape and a host."""
    asked = host.booking_for(scheduling_class)
    free = host.free()
    total = dict(host.total)
    missing = shortfall(asked, free)
    blockers: list[str] = []
    if host.executor.state is not ExecutorState.ACTIVE:
        blockers.append(Blocker(host.executor.state.value))
    if host.executor.draining:
        blockers.append(Blocker.DRAINING)
    if host.reach.unreachable:
        blockers.append(Blocker.UNREACHABLE)
    if not carries(host, scheduling_class.labels):
        blockers.append(Blocker.LABEL_MISMATCH)
    if shortfall(asked, total):
        blockers.append(Blocker.TOTAL_TOO_SMALL)
    blockers.extend(f"INSUFFICIENT_{name.upper()}" for name in missing)
    if host.slots_left() < 1:
        blockers.append(Blocker.SLOT_LIMIT)
    if host.refuses(scheduling_class):
        blockers.append(Blocker.REFUSED)
    if is_held_from(host, scheduling_class):
        blockers.append(Blocker.HELD)
    if scheduling_class.profile is None and not asked:
        blockers.append(Blocker.TOTAL_TOO_SMALL)
    poolless = scheduling_class.best_effort and host.lacks_best_effort_pool
    given = (
        host.assign(scheduling_class) if poolless or host.needs_topology(scheduling_class) else None
    )
    refusal = given if isinstance(given, CpuRefusal) else None
    if refusal is not None:
        blockers.append(Blocker.TOPOLOGY)
    return Judgement(host, asked, free, total, missing, tuple(dict.fromkeys(blockers)), refusal)


def feasibility(hosts: Hosts, elastic: Elastic, scheduling_class: SchedulingClass) -> Feasibility:
    """What the sizes of the hosts say, and of those that can be asked for; the indexes must be
    fresh.
    """
    version = hosts.version
    if scheduling_class.verdict is not None and scheduling_class.verdict[0] == version:
        return Feasibility(scheduling_class.verdict[1])
    verdict = _feasibility(hosts, elastic, scheduling_class)
    scheduling_class.verdict = (version, verdict)
    return verdict


def _feasibility(hosts: Hosts, elastic: Elastic, scheduling_class: SchedulingClass) -> Feasibility:
    if not hosts and not elastic.provisioning:
        return Feasibility.POSSIBLE  # nobody has come yet; somebody may any moment
    if elastic.capacities and elastic.fits_a_shape(scheduling_class):
        return Feasibility.POSSIBLE  # such an executor can be asked for
    if _some_host_could(
        hosts, scheduling_class, scheduling_class.labels, _needs(scheduling_class, ONLINE)
    ):
        return Feasibility.POSSIBLE
    if _some_host_could(
        hosts, scheduling_class, scheduling_class.labels, _needs(scheduling_class, KNOWN)
    ):
        return Feasibility.OFFLINE
    if scheduling_class.labels and (
        _some_host_could(hosts, scheduling_class, (), _needs(scheduling_class, KNOWN))
        or elastic.fits_a_shape(scheduling_class, labels=False)
    ):
        return Feasibility.LABELS
    return Feasibility.NEVER


def _some_host_could(
    hosts: Hosts, scheduling_class: SchedulingClass, labels: Labels, needs: list[Need]
) -> bool:
    """True if some host with these labels covers one of these needs, in columns that say what it
    has when empty, and its cpus and NUMA nodes would suit then.

    Hosts that are alike are asked once. From both ends at once: few hosts may cover, or few may
    carry or be of a kind that suits.
    """
    indexes = hosts.indexes
    if not (scheduling_class.topology_constrained or indexes.aligning):
        return some_host_covers(hosts, labels, needs)
    index, could = indexes.of(labels), _CouldSuit(scheduling_class)
    wanted = labels if index is indexes.main else ()
    suiting: Iterable[str] = hosts
    if (
        scheduling_class.policy.topology_constrained and scheduling_class.profile is not None
    ):  # default slots differ within a kind
        kinds = [names for names in indexes.kinds.values() if could(hosts[next(iter(names))])]
        suiting = chain.from_iterable(kinds)
    if wanted:
        suiting = indexes.carriers(wanted)
    for at, name in zip(index.covering(needs), suiting, strict=False):
        for host in (hosts[index.ids[at]], hosts[name]):
            if not (carries(host, wanted) and index.knows(host.host_id) and could(host)):
                continue
            if any(index.covers(index.position[host.host_id], need) for need in needs):
                return True
    return False


class _CouldSuit:
    """Whether cpus and NUMA nodes of hosts would suit one of a shape if they were empty."""

    def __init__(self, scheduling_class: SchedulingClass) -> None:
        self._shape = scheduling_class
        self._known: dict[tuple[object, int], bool] = {}

    def __call__(self, host: Host) -> bool:
        if not host.needs_topology(self._shape):
            return True
        booked = id(host.default_booking) if self._shape.profile is None else host.separate_pools
        kind = id(host.cpu_kind), booked
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = host.could_suit(self._shape)
        return known


def some_host_covers(hosts: Hosts, labels: Labels, needs: list[Need]) -> bool:
    index = hosts.indexes.of(labels)
    if not labels or index is not hosts.indexes.main:
        return next(index.covering_by_block(needs), None) is not None
    # From both ends at once: few hosts may cover, or few may carry.
    for at, name in zip(index.covering(needs), hosts.indexes.carriers(labels), strict=False):
        if carries(hosts[index.ids[at]], labels):
            return True
        if any(index.covers(index.position[name], need) for need in needs):
            return True
    return False


def free_sums(hosts: Hosts, scheduling_class: SchedulingClass) -> Amounts:
    """What all hosts together have free that carry the labels of a shape."""
    index = hosts.indexes.of(scheduling_class.labels)
    if not scheduling_class.labels or index is not hosts.indexes.main:
        return index.sums
    carriers = [index.position[name] for name in hosts.indexes.carriers(scheduling_class.labels)]
    pooled, separate = scheduling_class.amounts
    asked = pooled.keys() | separate.keys()
    return {
        name: sum(index.columns[name][0][at] for at in carriers)
        for name in asked & index.columns.keys()
    }


def _needs(scheduling_class: SchedulingClass, prefix: str) -> list[Need]:
    pooled, separate = scheduling_class.pooled_need, scheduling_class.separate_need
    needs = [pooled] if pooled == separate else [pooled, separate]
    return [dict(zip(map(prefix.__add__, need), need.values(), strict=True)) for need in needs]


def has_room(hosts: Hosts, scheduling_class: SchedulingClass) -> bool:
    """True if some host has room for one now, whether or not it would take it; the indexes must be
    fresh. Of hosts that have to be asked only so many are: whoever waits has asked them all.
    """
    needs: list[Need] = [scheduling_class.pooled_need, scheduling_class.separate_need]
    if not is_exact_somewhere(hosts, scheduling_class):
        return some_host_covers(hosts, scheduling_class.labels, needs)
    index = hosts.indexes.of(scheduling_class.labels)
    asked = 0
    for at in index.covering(needs):
        host = hosts[index.ids[at]]
        if index is hosts.indexes.main and not carries(host, scheduling_class.labels):
            continue
        if host.suits(scheduling_class):
            return True
        asked += 1
        if asked == ASKED_MAX:
            return False
    return False


def is_exact_somewhere(hosts: Hosts, scheduling_class: SchedulingClass) -> bool:
    """True if there are hosts of which amounts do not say whether one fits."""
    return scheduling_class.topology_constrained or bool(hosts.indexes.aligning)


def large_and_unsuited(
    hosts: Hosts, scheduling_class: SchedulingClass
) -> tuple[Host, CpuRefusal] | None:
    """A host that has the amounts when empty, and whose cpus or NUMA nodes do not suit then; the
    first one, of those that tell what their cpus are made of if there is any.
    """
    if not is_exact_somewhere(hosts, scheduling_class):
        return None
    amounts = [
        {KNOWN + name: amount for name, amount in need.items()} for need in scheduling_class.amounts
    ]
    index = hosts.indexes.main
    covering = (hosts[index.ids[at]] for at in index.covering(amounts))
    large = [host for host in islice(covering, ASKED_MAX) if carries(host, scheduling_class.labels)]
    for host in sorted(large, key=lambda host: host.cpus is None):
        if (refusal := host.never_suits(scheduling_class)) is not None:
            return host, refusal
    return None
