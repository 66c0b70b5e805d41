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

from finegrain.errors import Reason
from finegrain.resources import Amounts, shortfall
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.hosts.bookings import shared_booking
from resource_manager.engine.hosts.host import KNOWN, ONLINE, Host
from resource_manager.engine.model.entities import ExecutorState, RequestSpec
from resource_manager.engine.model.events import ItemOutcome
from resource_manager.engine.model.scheduling_key import Labels
from resource_manager.engine.placement.index import Need
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.reserved_for_others import held_from, is_held_from
from resource_manager.engine.queue.scheduling_classes import Shape
from resource_manager.engine.state import State

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


def judge(host: Host, shape: Shape) -> Judgement:
    """All that stands between a shape and a host."""
    asked = host.booking_for(shape)
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
    if not carries(host, shape.labels):
        blockers.append(Blocker.LABEL_MISMATCH)
    if shortfall(asked, total):
        blockers.append(Blocker.TOTAL_TOO_SMALL)
    blockers.extend(f"INSUFFICIENT_{name.upper()}" for name in missing)
    if host.slots_left() < 1:
        blockers.append(Blocker.SLOT_LIMIT)
    if host.refuses(shape):
        blockers.append(Blocker.REFUSED)
    if is_held_from(host, shape):
        blockers.append(Blocker.HELD)
    if shape.profile is None and not asked:
        blockers.append(Blocker.TOTAL_TOO_SMALL)
    poolless = shape.best_effort and host.lacks_best_effort_pool
    given = host.assign(shape) if poolless or host.exactly(shape) else None
    refusal = given if isinstance(given, CpuRefusal) else None
    if refusal is not None:
        blockers.append(Blocker.TOPOLOGY)
    return Judgement(host, asked, free, total, missing, tuple(dict.fromkeys(blockers)), refusal)


def feasibility(state: State, shape: Shape) -> Feasibility:
    """What the sizes of the hosts say; the indexes must be fresh."""
    version = state.cluster_version
    if shape.verdict is not None and shape.verdict[0] == version:
        return Feasibility(shape.verdict[1])
    verdict = _feasibility(state, shape)
    shape.verdict = (version, verdict)
    return verdict


def _feasibility(state: State, shape: Shape) -> Feasibility:
    if not state.hosts and not state.elastic.provisioning:
        return Feasibility.POSSIBLE  # nobody has come yet; somebody may any moment
    if state.elastic.fits_a_shape(shape):
        return Feasibility.POSSIBLE  # such an executor can be asked for
    if _some_host_could(state, shape, shape.labels, _needs(shape, ONLINE)):
        return Feasibility.POSSIBLE
    if _some_host_could(state, shape, shape.labels, _needs(shape, KNOWN)):
        return Feasibility.OFFLINE
    if shape.labels and (
        _some_host_could(state, shape, (), _needs(shape, KNOWN))
        or state.elastic.fits_a_shape(shape, labels=False)
    ):
        return Feasibility.LABELS
    return Feasibility.NEVER


def _some_host_could(state: State, shape: Shape, labels: Labels, needs: list[Need]) -> bool:
    """True if some host with these labels covers one of these needs, in columns that say what it
    has when empty, and its cpus and NUMA nodes would suit then.

    Hosts that are alike are asked once. From both ends at once: few hosts may cover, or few may
    carry or be of a kind that suits.
    """
    indexes, hosts = state.indexes, state.hosts
    if not (shape.exact or indexes.strict):
        return _some_host_covers(state, labels, needs)
    index, could = indexes.of(labels), _CouldSuit(shape)
    wanted = labels if index is indexes.main else ()
    suiting: Iterable[str] = hosts
    if shape.policy.is_exact and shape.profile is not None:  # default slots differ within a kind
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

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._known: dict[tuple[object, int], bool] = {}

    def __call__(self, host: Host) -> bool:
        if not host.exactly(self._shape):
            return True
        booked = id(host.default_booking) if self._shape.profile is None else host.separate_pools
        kind = id(host.cpu_kind), booked
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = host.could_suit(self._shape)
        return known


def _some_host_covers(state: State, labels: Labels, needs: list[Need]) -> bool:
    index = state.indexes.of(labels)
    if not labels or index is not state.indexes.main:
        return any(True for _ in index.covering(needs))
    # From both ends at once: few hosts may cover, or few may carry.
    for at, name in zip(index.covering(needs), state.indexes.carriers(labels), strict=False):
        if carries(state.hosts[index.ids[at]], labels):
            return True
        if any(index.covers(index.position[name], need) for need in needs):
            return True
    return False


def _sums(state: State, shape: Shape) -> Amounts:
    """What all hosts together have free that carry the labels of a shape."""
    index = state.indexes.of(shape.labels)
    if not shape.labels or index is not state.indexes.main:
        return index.sums
    carriers = [index.position[name] for name in state.indexes.carriers(shape.labels)]
    pooled, separate = shape.amounts
    asked = pooled.keys() | separate.keys()
    return {
        name: sum(index.columns[name][0][at] for at in carriers)
        for name in asked & index.columns.keys()
    }


def _needs(shape: Shape, prefix: str) -> list[Need]:
    needs = {tuple(sorted(need.items())): need for need in (shape.pooled_need, shape.separate_need)}
    return [{prefix + name: amount for name, amount in need.items()} for need in needs.values()]


def waiting_reason(state: State, shape: Shape) -> Reason:
    """Why a shape has to wait that does not fit, as far as is known; the indexes must be fresh."""
    if not shape.tried:
        return Reason.NOT_YET_CONSIDERED
    number = state.snapshot_number
    if shape.reason is None or shape.reason[0] != number:
        shape.reason = (number, _waiting_reason(state, shape))
    return Reason(shape.reason[1])


def _waiting_reason(state: State, shape: Shape) -> Reason:
    match feasibility(state, shape):
        case Feasibility.NEVER:
            return Reason.INFEASIBLE_NEVER
        case Feasibility.OFFLINE:
            return Reason.INFEASIBLE_NOW_OFFLINE
        case Feasibility.LABELS:
            return Reason.WAITING_LABELS
        case Feasibility.POSSIBLE if any(True for _ in held_from(state, shape)):
            return Reason.WAITING_RESERVATION
        case Feasibility.POSSIBLE:
            pass
    sums = _sums(state, shape)
    amounts = list[Need](shape.amounts)
    if not any(all(sums.get(name, 0) >= amount for name, amount in n.items()) for n in amounts):
        return Reason.WAITING_CAPACITY
    if has_room(state, shape):
        return Reason.WAITING_CAPACITY
    if _is_exact_somewhere(state, shape) and _some_host_covers(state, shape.labels, amounts):
        return Reason.WAITING_TOPOLOGY
    return Reason.WAITING_FRAGMENTED


def has_room(state: State, shape: Shape) -> bool:
    """True if some host has room for one now, whether or not it would take it; the indexes must be
    fresh. Of hosts that have to be asked only so many are: whoever waits has asked them all.
    """
    needs: list[Need] = [shape.pooled_need, shape.separate_need]
    if not _is_exact_somewhere(state, shape):
        return _some_host_covers(state, shape.labels, needs)
    index = state.indexes.of(shape.labels)
    asked = 0
    for at in index.covering(needs):
        host = state.hosts[index.ids[at]]
        if index is state.indexes.main and not carries(host, shape.labels):
            continue
        if host.suits(shape):
            return True
        asked += 1
        if asked == ASKED_MAX:
            return False
    return False


def _is_exact_somewhere(state: State, shape: Shape) -> bool:
    """True if there are hosts of which amounts do not say whether one fits."""
    return shape.exact or bool(state.indexes.strict)


def rejection(state: State, spec: RequestSpec) -> ItemOutcome | None:
    """Why a request cannot be taken in; None if it can. The indexes must be fresh.

    A request that no known executor could ever serve, nor one that can be asked for, is refused at
    once, unless it asked to wait for one that may come. While no executor is known at all, and
    none can be asked for, nothing can be said, and everything waits; `scheduling/rejecting.py`
    looks at it later.
    """
    shape = state.queue.shape_of(spec)
    verdict = feasibility(state, shape)
    if spec.allow_pending or verdict not in INFEASIBLE:
        return None
    amounts = shared_booking(spec.profile, False, shape.best_effort) if spec.profile else {}
    asked = _amounts_text(amounts) if amounts else "a default slot"
    if verdict is Feasibility.LABELS:
        labels = ", ".join(f"{name}={value}" for name, value in spec.required_labels)
        lack = f"no executor that could host {asked} carries the labels {labels}"
    else:
        lack = f"no executor could host {asked}, even when empty"
    if unsuited := _large_and_unsuited(state, shape):
        host, refusal = unsuited
        lack += f" ({host.host_id} has that much, but {refusal.text})"
    if verdict is Feasibility.NEVER and state.elastic.provisioning:
        lack += ", nor one that could be asked for"
    return ItemOutcome(
        spec.allocation_id,
        Reason.INFEASIBLE_NEVER,
        f"{lack}; ask for less, or set allow_pending to wait for one that may come",
        tuple((name, str(amount)) for name, amount in amounts.items()),
    )


def _large_and_unsuited(state: State, shape: Shape) -> tuple[Host, CpuRefusal] | None:
    """A host that has the amounts when empty, and whose cpus or NUMA nodes do not suit then; the
    first one, of those that tell what their cpus are made of if there is any.
    """
    if not _is_exact_somewhere(state, shape):
        return None
    amounts = [{KNOWN + name: amount for name, amount in need.items()} for need in shape.amounts]
    index = state.indexes.main
    covering = (state.hosts[index.ids[at]] for at in index.covering(amounts))
    large = [host for host in islice(covering, ASKED_MAX) if carries(host, shape.labels)]
    for host in sorted(large, key=lambda host: host.cpus is None):
        if (refusal := host.never_suits(shape)) is not None:
            return host, refusal
    return None


def _amounts_text(amounts: Amounts) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())
