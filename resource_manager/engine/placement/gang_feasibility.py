"""Could a gang ever be placed as a whole, and why do its members wait? Asks the same search that
places gangs, about what hosts could give when empty.

Members that differ are placed largest first, so that a gang of such may be called impossible that
somebody could fit in by hand: it would not be placed either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finegrain.errors import Reason
from resource_manager.engine.hosts.host import KNOWN, ONLINE
from resource_manager.engine.model.entities import Request
from resource_manager.engine.model.scheduling_key import ShapeKey, shape_key
from resource_manager.engine.placement.feasibility import Feasibility, has_room, waiting_reason
from resource_manager.engine.placement.gang_search import seek
from resource_manager.engine.queue.gangs import GangKind, WaitingGang, Where, Wish
from resource_manager.engine.scaling.possible import gang_could_be_provided
from resource_manager.engine.state import State

_OF_THE_MEMBER = frozenset(
    {
        Reason.INFEASIBLE_NEVER,
        Reason.INFEASIBLE_NOW_OFFLINE,
        Reason.WAITING_LABELS,
        Reason.WAITING_EXECUTOR,
    }
)
"""Reasons for which a member would wait on its own as well, whatever is free."""


def gang_feasibility(state: State, where: Where, wishes: Sequence[Wish]) -> Feasibility:
    """What the sizes of the hosts, and of those that could be asked for, say about a gang as a
    whole; the indexes must be fresh.
    """
    provided = bool(state.elastic.provisioning)
    if not state.hosts and not provided:
        return Feasibility.POSSIBLE
    if seek(state, where, wishes, prefix=ONLINE) is not None:
        return Feasibility.POSSIBLE
    if provided and gang_could_be_provided(state, where, wishes):
        return Feasibility.POSSIBLE
    if seek(state, where, wishes, prefix=KNOWN) is not None:
        return Feasibility.OFFLINE
    return Feasibility.NEVER


def kind_feasibility(state: State, kind: GangKind) -> Feasibility:
    """The same, remembered until some host's size, labels or availability changes."""
    version = state.cluster_version
    if kind.verdict is None or kind.verdict[0] != version:
        kind.verdict = (version, gang_feasibility(state, kind.where, kind.wishes))
    return Feasibility(kind.verdict[1])


def member_reason(state: State, request: Request) -> Reason:
    """Why a member of a gang waits, as far as is known; the indexes must be fresh."""
    spec = request.spec
    waiting = state.gangs.waiting.get(spec.gang_id)
    if waiting is None:  # its job has ended
        return waiting_reason(state, state.queue.shape_of(spec))
    return _reason(state, waiting, shape_key(spec))


def reasons(state: State, waiting: WaitingGang) -> Iterator[tuple[Reason, int]]:
    """The same for all members of a gang, counted."""
    for wish in waiting.kind.wishes:
        yield _reason(state, waiting, wish.key), wish.count


def _reason(state: State, waiting: WaitingGang, key: ShapeKey) -> Reason:
    if not waiting.tried:
        return Reason.NOT_YET_CONSIDERED
    if waiting.reasons[0] != state.snapshot_number:
        waiting.reasons = (state.snapshot_number, {})
    known = waiting.reasons[1]
    if key not in known:
        shape = state.queue.shape_at(key)
        reason = waiting_reason(state, shape)
        if reason not in _OF_THE_MEMBER:
            whole = _of_the_gang(state, waiting.kind)
            if whole is not Reason.WAITING_GANG or has_room(state, shape):
                reason = whole
        known[key] = reason
    return Reason(known[key])


def _of_the_gang(state: State, kind: GangKind) -> Reason:
    match kind_feasibility(state, kind):
        case Feasibility.NEVER:
            return Reason.INFEASIBLE_NEVER
        case Feasibility.OFFLINE:
            return Reason.INFEASIBLE_NOW_OFFLINE
        case _:
            return Reason.WAITING_GANG
