"""Explains why a request waits, and finds the smallest changes with which it would fit.

An explanation uses the same checks as placement (`placement/fit.py`), so it agrees with the
decisions of the scheduler. An explanation describes one moment, and reserves no capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from finegrain.errors import Reason
from finegrain.values.explanations import Counterfactual, Dimension
from finegrain.values.states import JobCondition, RequestState, SlotState
from resource_manager.engine.explain.fairness import Step, steps
from resource_manager.engine.explain.gangs import GangExplanation, explain_gang
from resource_manager.engine.explain.lists import RequestView, request_view
from resource_manager.engine.explain.more_fit import MoreFit, count_more
from resource_manager.engine.explain.provisions import planned_on, waits_for
from resource_manager.engine.explain.remedies import blocking_slots, counterfactuals
from resource_manager.engine.explain.reservations import (
    ReservationView,
    held_for_others,
    reservation_of,
)
from resource_manager.engine.explain.resizes import ResizeExplanation, explain_resizes
from resource_manager.engine.explain.revocations import revocable_text, revoked_text
from resource_manager.engine.explain.survey import Survey
from resource_manager.engine.explain.waiting_reasons import (
    pending_reason,
    rejection_notice,
    waiting_block,
)
from resource_manager.engine.fairness.flows import limited_title
from resource_manager.engine.fairness.quotas import QuotaBlock
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host, known_request
from resource_manager.engine.model.entities import Job, Request, Slot
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.texts import amount_text
from resource_manager.engine.placement.device_constraint import DEVICES
from resource_manager.engine.placement.fit import CPUS, Verdict
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.state import State

EXECUTORS_DEFAULT = 20

AWAITED_SHOWN = 5
"""An explanation names at most this many of the jobs for which a job waits."""

_CONDITIONS = {
    JobCondition.OK: "success",
    JobCondition.ANY: "end",
    JobCondition.FAILED: "failure",
}


@dataclass(frozen=True, slots=True)
class ExecutorVerdict:
    """The result of the comparison of a request with one executor: whether the request fits, and
    what the executor lacks.
    """

    executor_id: str
    fits: bool
    blockers: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    message: str
    # the reason why cpus, NUMA nodes or devices are not suitable; None if they are suitable
    cpu: HostRefusal | None = None
    more_fit: int = 0  # number of equal slots that fit on the executor now


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a request. The class mirrors ExplainResponse of the protocol."""

    view: RequestView
    primary_reason: str
    summary: str
    snapshot_number: int
    requests_ahead: int = 0
    executors_considered: int = 0
    executors_fitting: int = 0
    executors: list[ExecutorVerdict] = field(default_factory=list)
    dimensions: list[Dimension] = field(default_factory=list)
    would_fit_if: list[Counterfactual] = field(default_factory=list)
    blocked_by: list[Slot] = field(default_factory=list)
    resizes: list[ResizeExplanation] = field(default_factory=list)
    # the pending executor for which the request waits: a provider is starting this executor, but
    # the executor has not registered yet
    planned_on: str = ""
    gang: GangExplanation | None = None  # None if the request is not a member of a queued gang
    steps: tuple[Step, ...] = ()  # rank of the job at each level of the fairness tree
    limits: list[QuotaBlock] = field(default_factory=list)  # the maxima that block the request
    reservation: ReservationView | None = None  # the capacity that is reserved for the request
    # reservations of other owners on hosts where the request would fit without these reservations
    held_for_others: list[ReservationView] = field(default_factory=list)
    more_fit: int = 0  # number of further equal slots that fit now, on all executors
    more_may_fit: bool = False  # True if some executors were not counted


def explain(
    state: State,
    allocation_id: str,
    executor_id: str = "",
    max_executors: int = EXECUTORS_DEFAULT,
) -> Explanation:
    """Explains the state of a request.

    If the request is queued, the function compares the request with executors, to find out why it
    waits. If the request has a slot, the result instead contains the unfinished resizes of the
    slot. In both cases, the result also shows how many more slots of this kind fit on the executors
    now. If the request has ended, the result contains only its state.

    Args:
        state: the engine's state; its indexes must be up to date.
        allocation_id: the id of the request.
        executor_id: the id of the only executor to compare. If it is empty, all executors are
            compared.
        max_executors: the largest number of executors to list for a queued request. The executors
            on which the request almost fits come first.

    Raises:
        NotFound: the request or the executor does not exist.
    """
    request = known_request(state.requests, allocation_id)
    hosts: Iterable[Host] = state.hosts.values()
    if executor_id:
        hosts = [known_host(state.hosts, executor_id)]
    hosts = list(hosts)
    view = request_view(state, request)
    # Only a queued request is compared with executors, so this branch ends the function for other
    # requests.
    if request.state is not RequestState.PENDING:
        slot = state.slots.of(request)
        resizes = explain_resizes(state, slot) if slot is not None else []
        number = state.journal.snapshot_number
        summary = _state_text(view, state.gangs.unconfirmed.get(request.spec.gang_id, 0))
        summary += revoked_text(state.hosts, slot) if slot is not None else ""
        reservation = reservation_of(state, request, slot)
        more = MoreFit()
        if request.state in (RequestState.ALLOCATING, RequestState.GRANTED):
            more = count_more(state.hosts, hosts, state.queue.class_of(request.spec))
        return Explanation(
            view,
            view.reason,
            summary,
            number,
            resizes=resizes,
            reservation=reservation,
            more_fit=more.total,
            more_may_fit=not more.is_complete,
        )
    scheduling_class = state.queue.class_of(request.spec)
    reservation = reservation_of(state, request, None)
    # Capacity that is reserved for this request counts as free.
    reserved_hosts = (
        {one.executor_id for one in reservation.executors}
        if reservation is not None
        else frozenset[str]()
    )
    # The survey compares the request with the hosts. The lines after it collect other possible
    # reasons why the request waits.
    survey = Survey.of(hosts, scheduling_class, reserved_hosts)
    # No slot fits on a host that is not among the candidates.
    more = count_more(state.hosts, survey.candidates, scheduling_class)
    reason = pending_reason(state, request)
    ahead = _requests_ahead(state.gangs, state.queue, request)
    planned = planned_on(state.queue, state.elastic, request)
    block = waiting_block(state.queue, state.gangs, state.quotas, request)
    if state.dependencies.awaited(request.job_id):
        block = None  # the job must not have slots yet, so the limits of its groups do not matter
    others = held_for_others(state, scheduling_class)
    # The texts of these reasons depend on the request. The text of any other reason is fixed.
    known = {
        Reason.WAITING_EXECUTOR: waits_for(state.provisions, state.started, planned)
        if planned
        else "",
        Reason.WAITING_GROUP_LIMIT: _quota_message(block) if block is not None else "",
        Reason.WAITING_USER_LIMIT: _quota_message(block) if block is not None else "",
        Reason.WAITING_DEPENDENCY: _awaited_text(
            state.dependencies.awaited(request.job_id), state.jobs
        ),
        Reason.WAITING_RESERVATION: _reserved_text(others),
        Reason.WAITING_TOPOLOGY: _topology_text(survey),
    }
    notices = rejection_notice(state, request), revocable_text(state, request)
    fairness = state.settings.fairness
    in_turn = fairness.order == "fair"
    return Explanation(
        view=view,
        primary_reason=reason,
        summary="; ".join(
            filter(None, (_waiting(reason, survey, None if in_turn else ahead, known), *notices))
        ),
        snapshot_number=state.journal.snapshot_number,
        requests_ahead=ahead,
        executors_considered=len(survey.hosts),
        executors_fitting=survey.fitting,
        executors=[_verdict(one, more) for one in survey.nearest(max_executors)],
        dimensions=survey.dimensions(),
        would_fit_if=counterfactuals(state.settings, survey),
        blocked_by=blocking_slots(survey),
        planned_on=planned,
        gang=explain_gang(state, request),
        steps=steps(state.flows, request.job_id, state.jobs, fairness.usage_measure)
        if in_turn
        else (),
        limits=[block] if block is not None else [],
        reservation=reservation,
        held_for_others=others,
        more_fit=more.total,
        more_may_fit=not more.is_complete,
    )


def _verdict(one: Verdict, more: MoreFit) -> ExecutorVerdict:
    free, total = one.at.free, one.host.total
    return ExecutorVerdict(
        executor_id=one.host.host_id,
        fits=one.fits,
        blockers=one.blockers,
        dimensions=tuple(
            Dimension(name, requested, free.get(name, 0), free.get(name, 0), total.get(name, 0))
            for name, requested in one.requested.items()
        ),
        message=_verdict_message(one),
        cpu=one.host_refusal,
        more_fit=more.by_host.get(one.host.host_id, 0),
    )


def _verdict_message(one: Verdict) -> str:
    """Describes, for people, what one executor lacks. Obstacles that can disappear when slots end
    come first.
    """
    if one.fits:
        return "fits now"
    # False sorts before True, so transient obstacles come first.
    obstacles = sorted(one.obstacles, key=lambda obstacle: not obstacle.transient)
    texts = (obstacle.constraint.text(obstacle, one.requested, one.at) for obstacle in obstacles)
    return "; ".join(filter(None, texts))


def _requests_ahead(gangs: GangLedger, queue: WaitingQueue, request: Request) -> int:
    gang = gangs.of(request)
    # All members of a gang are queued with the arrival number of the gang.
    number = request.arrival_number if gang is None else gang.arrival_number
    ahead = sum(scheduling_class.count_before(number) for scheduling_class in queue.classes())
    return ahead + sum(
        len(waiting.members)
        for waiting in gangs.waiting.values()
        if waiting.gang.arrival_number < number
    )


def _state_text(view: RequestView, unconfirmed: int) -> str:
    """Describes a request that has a slot or has ended."""
    request = view.request
    match request.state:
        case RequestState.ALLOCATING:
            where = view.slot.slot.executor_id if view.slot else ""
            if view.slot and view.slot.slot.state is SlotState.ALLOCATED:
                return f"placed on {where}; waits for {unconfirmed} other slots of its gang"
            return f"placed on {where}, which has not confirmed yet"
        case RequestState.GRANTED:
            where = view.slot.slot.executor_id if view.slot else ""
            return f"granted on {where} as generation {request.generation}"
        case _:
            why = f": {request.message or request.reason}" if request.reason else ""
            return f"ended as {request.state}{why}"


def _awaited_text(awaited: Mapping[str, JobCondition], jobs: Mapping[str, Job]) -> str:
    """Names the jobs for which a job waits."""
    parts = [
        f"{_CONDITIONS[condition]} of job {each} ({jobs[each].name})"
        for each, condition in islice(awaited.items(), AWAITED_SHOWN)
    ]
    more = f", and for {len(awaited) - AWAITED_SHOWN} more jobs"
    return f"its job waits for the {', the '.join(parts)}{more * (len(awaited) > AWAITED_SHOWN)}"


def _quota_message(block: QuotaBlock) -> str:
    dimension = block.dimension
    has = amount_text(dimension, block.used, block.maximum, of=" of at most ")
    needs = f"but the request needs {amount_text(dimension, block.need)}"
    return f"{limited_title(block.group_id)} has {has}, {needs}"


def _reserved_text(others: list[ReservationView]) -> str:
    names = ", ".join(f"gang {r.gang_id}" if r.gang_id else r.allocation_id for r in others)
    return f"there is room, but it is reserved for {names}, which waited too long"


def _topology_text(survey: Survey) -> str:
    """Describes the number of hosts with enough free amounts, and the reason why one of these hosts
    is not suitable.
    """
    by_cpus, by_devices = (survey.blocked_only_by.get(each, []) for each in (CPUS, DEVICES))
    blocked = [*by_cpus, *by_devices]
    if not blocked:
        return "no executor has suitable free capacity"
    count = len(blocked) + survey.unchecked
    some = "1 executor has the amounts" if count == 1 else f"{count} executors have the amounts"
    # The text names the host with the lowest id, so that the same state always gives the same text.
    one = survey.verdict(min(host_id for _, _, host_id in blocked))
    what = "devices" if not by_cpus else "cpus and NUMA nodes"
    text = f"{some}, but no suitable {what}"
    return f"{text} ({one.host.host_id}: {one.host_refusal.text})" if one.host_refusal else text


def _waiting(reason: str, survey: Survey, ahead: int | None, known: dict[Reason, str]) -> str:
    """Describes why a request is queued. `known` contains the texts that depend on the request."""
    texts = known | {
        Reason.NOT_YET_CONSIDERED: "has just arrived and was not considered yet",
        Reason.WAITING_FRAGMENTED: "enough is free in sum, but on no single executor",
        Reason.WAITING_LABELS: "no executor that carries the required labels is large enough"
        " and suitable",
        Reason.INFEASIBLE_NOW_OFFLINE: "only executors that are lost, draining or"
        " unreachable could host it",
        Reason.INFEASIBLE_NEVER: "no known executor could host it, even when empty",
        Reason.WAITING_GANG: "it would fit, but its gang as a whole does not",
    }
    # A text for this particular reason comes before the general texts.
    if reason in texts:
        text = texts[Reason(reason)]
    elif not survey.hosts:
        text = "no executor has registered yet"
    elif survey.refused:
        text = "an executor with room refused an equal slot recently and is tried again later"
    else:
        text = "not enough is free"
    usable = f"{survey.usable} of {len(survey.hosts)} executors usable"
    if ahead is None:
        return f"{text}; {usable}"
    earlier = "1 request came" if ahead == 1 else f"{ahead} requests came"
    return f"{text}; {usable}, {earlier} earlier"
