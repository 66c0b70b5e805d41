"""Explains why a job is not served yet, by its rank at each level of the fairness tree.

To find the next request, the scheduler starts at the root of the tree. In each group it chooses one
child that has queued requests, until it reaches a job. An explanation has one step for each level
of the path from the root to the explained job. The step is about the flow of the path at this
level. It shows the flow's rank among its siblings, the compared numbers, and the flows that come
before it. The scheduler compares the same numbers (`fairness/flows.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from resource_manager.engine.fairness import threads
from resource_manager.engine.fairness.advice import Advice, advise
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.quotas import fulfilment
from resource_manager.engine.lifecycle.known import known_job
from resource_manager.engine.model.entities import Job
from resource_manager.engine.model.settings import Measure
from resource_manager.engine.state import State

AHEAD_MAX = 5
"""The largest number of flows before the flow of the path that one step names."""

UNITS: Mapping[Measure, str] = {
    "dominant": "share-seconds",
    "slots": "slot-seconds",
    "cpu": "core-seconds",
}
"""The unit of usage in texts, by measure."""

_DIGITS_MAX = 7

_SMALL = 0.05
"""Texts leave out parts of the usage that are below this value."""


@dataclass(frozen=True, slots=True)
class ComparedFlow:
    """A flow with the numbers by which siblings are compared. This class mirrors the message
    FlowTally of the protocol.

    Example: (service 10 + raised 2 + lookahead 4) / weight 2 = 8.

    Attributes:
        name: the name of a group, or the id of a job.
        job_name: the display name of a job; empty for a group.
        service: the decayed usage, in cost times seconds.
        raised: the amount that was added to the usage when the flow began to wait, in the unit of
            `service`.
        lookahead: the expected further usage of the flow's running slots, in the unit of `service`.
        weight: the number by which the sum of `service`, `raised` and `lookahead` is divided.
        tally: the result of this division, which is the virtual time of the flow. The flow with the
            lowest virtual time is served first.
        minimum_reached: the part of the guaranteed minimum that the flow has reached, in
            millionths. None if the flow has no minimum, or has reached the whole minimum.
    """

    name: str
    is_job: bool
    job_name: str
    service: float
    raised: float
    lookahead: float
    weight: float
    tally: float
    running: int
    waiting: int
    minimum_reached: int | None

    @property
    def title(self) -> str:
        """The name of the flow for people, with "job" or "group" before it."""
        if not self.is_job:
            return f"group {self.name}"
        named = self.job_name not in ("", self.name)
        return f"job {self.job_name} ({self.name})" if named else f"job {self.name}"


@dataclass(frozen=True, slots=True)
class Step:
    """The rank of one flow among its siblings that have queued requests.

    Attributes:
        group: the name of the group that contains the siblings. It is empty at the top of the tree.
        flow: the flow on the path to the job.
        position: the rank of `flow`. The flow with rank 1 is served next.
        backlogged: the number of siblings that have queued requests, including `flow`.
        ahead: the flows that come before `flow`, at most `AHEAD_MAX`, in the order in which they
            are served.
        summary: a sentence that describes the step.
    """

    group: str
    flow: ComparedFlow
    position: int
    backlogged: int
    ahead: tuple[ComparedFlow, ...]
    summary: str


def steps(
    tree: FlowTree, job_id: str, jobs: Mapping[str, Job], measure: Measure
) -> tuple[Step, ...]:
    """Returns the steps from the top of the tree to a job. The result is empty if the job has
    ended.

    Args:
        tree: the fairness tree, advanced to the current time.
        job_id: the id of the job.
        jobs: all jobs, which give the names of jobs.
        measure: the measure that the tree uses for usage.
    """
    job = tree.jobs.get(job_id)
    if job is None:
        return ()
    # The path goes from the root to the job. So each pair is a parent and its child.
    path = [job, *job.ancestors()][::-1]
    return tuple(_step(tree, parent, flow, jobs, UNITS[measure]) for parent, flow in pairwise(path))


def _step(tree: FlowTree, parent: Flow, flow: Flow, jobs: Mapping[str, Job], unit: str) -> Step:
    """Compares a flow with its siblings that have queued requests."""
    own = tree.sort_key(flow)
    children = parent.children.by_id.values() if parent.children is not None else ()
    # Flows without queued requests are left out, because the scheduler ignores them.
    others = [(tree.sort_key(each), each) for each in children if each.waiting and each is not flow]
    before = [each for each in others if each[0] < own]
    first = heapq.nsmallest(AHEAD_MAX, before, key=lambda each: each[0])
    # `>=` is used, because a flow with an equal key counts as coming after `flow`.
    next_after = min(
        (each for each in others if each[0] >= own), default=None, key=lambda each: each[0]
    )
    compared = _compared(tree, flow, jobs)
    ahead = tuple(_compared(tree, each, jobs) for _, each in first)
    follower = _compared(tree, next_after[1], jobs) if next_after is not None else None
    if first and first[0][0][:2] != own[:2] and own[0] and first[0][0][0]:
        summary = (
            f"{_after(compared, ahead[0], len(before))}: jobs with priority {-first[0][0][1]} come"
            f" before jobs with priority {-own[1]} in their group"
        )
    else:
        place = parent.name, len(before), len(others) + 1
        summary = _sentence(compared, place, ahead[0] if ahead else None, follower, unit)
    return Step(
        group=parent.name,
        flow=compared,
        position=len(before) + 1,
        backlogged=len(others) + 1,
        ahead=ahead,
        summary=summary,
    )


def _compared(tree: FlowTree, flow: Flow, jobs: Mapping[str, Job]) -> ComparedFlow:
    parts = tree.usage(flow)
    is_job = flow.children is None  # only groups have a dict of children
    job = jobs.get(flow.name) if is_job else None
    reached = fulfilment(flow.used, flow.running, flow.minimum)
    return ComparedFlow(
        name=flow.name,
        is_job=is_job,
        job_name=job.name if job is not None else "",
        service=parts.service,
        raised=parts.raised,
        lookahead=parts.lookahead,
        weight=flow.weight,
        tally=parts.key,
        running=flow.running,
        waiting=flow.waiting,
        # The part is rounded down, because a minimum that is almost reached must not be shown as
        # reached.
        minimum_reached=int(reached * 1_000_000) if reached < 1 else None,
    )


def _sentence(
    flow: ComparedFlow,
    place: tuple[str, int, int],
    first: ComparedFlow | None,
    next_after: ComparedFlow | None,
    unit: str,
) -> str:
    """Describes the position of a flow in one sentence.

    Args:
        flow: the flow to describe.
        place: the name of the group (empty at the top of the tree), the number of flows before
            `flow`, and the number of flows with queued requests.
        first: the flow that is served next. None if `flow` itself is served next.
        next_after: the flow that comes directly after `flow`. None if `flow` comes last.
        unit: the unit of usage.
    """
    group, before, backlogged = place
    if first is None:
        order = f"{flow.title} is served next, out of {backlogged} with queued requests"
        if backlogged == 1:
            where = f"one of group {group}" if group else "group"
            order = f"{flow.title} is the only {where} with queued requests"
    else:
        order = _after(flow, first, before)
    other = first or next_after
    against = f", against {_against_text(flow, other)}" if other is not None else ""
    where = f"; it is number {before + 1} of {backlogged} with queued requests" if before else ""
    return f"{order}: {_own_text(flow, other, unit)}{against}{where}"


def _after(flow: ComparedFlow, first: ComparedFlow, before: int) -> str:
    more = f" and {before - 1} more" if before > 1 else ""
    return f"{flow.title} is served after {first.title}{more}"


def _own_text(flow: ComparedFlow, other: ComparedFlow | None, unit: str) -> str:
    """Describes the virtual time of a flow, with its usage and weight."""
    if flow.minimum_reached is not None:
        return f"it has {_percent(flow.minimum_reached)} of its guaranteed minimum"
    # The text has the lowest number of decimal places with which the two virtual times differ.
    digits = _digits(flow.tally, other.tally) if other is not None else 1
    parts = [f"{flow.service:.{digits}f} so far"]
    if flow.raised > _SMALL:
        parts.append(f"{flow.raised:.{digits}f} added when it began to wait")
    if flow.lookahead > _SMALL:
        parts.append(f"{flow.lookahead:.{digits}f} expected from {_slots(flow.running)}")
    split = f"; of this {', '.join(parts)}" if len(parts) > 1 else ""
    total = flow.service + flow.raised + flow.lookahead
    usage = f"usage {total:.{digits}f} {unit} / weight {flow.weight:.10g}{split}"
    return f"its virtual time is {flow.tally:.{digits}f} ({usage})"


def _against_text(flow: ComparedFlow, other: ComparedFlow) -> str:
    """Describes the value of `other` with which the value of `flow` is compared."""
    if other.minimum_reached is not None:
        return f"{_percent(other.minimum_reached)} of the guaranteed minimum of {other.title}"
    if flow.minimum_reached is not None:
        return f"{other.title}, which has reached its minimum or has no minimum"
    digits = _digits(flow.tally, other.tally)
    total = other.service + other.raised + other.lookahead
    usage = "" if other.weight == 1 else f" (usage {total:.{digits}f} / weight {other.weight:.10g})"
    tied = flow.tally == other.tally
    order = "; of equal flows, the flow that has waited longest is first" if tied else ""
    return f"{other.tally:.{digits}f}{usage} of {other.title}{order}"


def _digits(one: float, other: float) -> int:
    """Returns the number of decimal places that are needed to see a difference between two virtual
    times. The result is 1 if the virtual times are equal.
    """
    for digits in range(1, _DIGITS_MAX):
        if f"{one:.{digits}f}" != f"{other:.{digits}f}":
            return digits
    return 1


def _percent(millionths: int) -> str:
    return f"{millionths // 10_000} %"


def _slots(count: int) -> str:
    return f"{count} running slot" if count == 1 else f"{count} running slots"


def advise_threads(
    state: State, job_id: str, target_ms: int, quantile: float, now_ms: int
) -> Advice:
    """Recommends the number of threads for the work of a job; see `fairness/advice.py`.

    A job that has ended still gets advice until it is deleted.

    Args:
        state: the engine's state.
        job_id: the id of the job.
        target_ms: the time within which a thread should finish.
        quantile: the part of the threads that should meet the target, above 0 and below 1.
        now_ms: the present time (monotonic).

    Raises:
        NotFound: the job does not exist.
    """
    job = known_job(state.jobs, job_id)
    slots = [state.slots[key] for key in job.slot_keys]
    # A slot that is being freed serves no request, so it does not count as a running thread.
    serving = [slot for slot in slots if state.requests.served_by(slot) is not None]
    waiting = max(0, job.live_requests - len(serving))
    return advise(threads.observed(job, serving, waiting, now_ms), target_ms, quantile)
