"""What operators and job masters may look at: lists in a stable order, with sums. Changes nothing.

Every list takes the key after which to begin and the most entries wanted, and returns a `Page`;
the key of the next page is plain data that a caller may encode as it likes. To be called between
batches, never inside one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from finegrain.resources import total_of
from finegrain.values.states import ExecutorState, RequestState
from finegrain.values.usage import Usage
from resource_manager.engine.explain.intervals import (
    RequestInterval,
    intervals,
    intervals_of,
    members_of,
)
from resource_manager.engine.explain.resizes import explain_resizes
from resource_manager.engine.explain.waiting_reasons import pending_by_reason, pending_reason
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host, known_job, known_request
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Executor,
    GangSpec,
    Job,
    JobState,
    Request,
    Slot,
    SlotKey,
)
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State

SCANNED_MAX = 50_000
"""Requests looked at for one page."""

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Item, _Key]):
    """Some entries, and the key to pass as `after` for those that follow; None: that was all."""

    items: list[_Item]
    next_key: _Key | None


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """An executor with its sums. `total` is what can be booked there: less than it registered with
    while cpus are reserved, offline or a kubelet's. `available` is empty while nothing new may be
    placed on it; `unreachable_reason` says why the RM cannot dial it, empty: it can.
    """

    executor: Executor
    total: dict[str, int]
    allocated: dict[str, int]
    available: dict[str, int]
    slots: int
    unreachable_reason: str = ""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot with the address of its executor, and why a change of its size waits."""

    slot: Slot
    executor_address: str
    resize_message: str = ""


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request, why it stands where it stands, its slot while it has one, and its gang.

    `range_id` is that of a member of a range; `count` above 1: it is the first of so many of them
    that stand alike, one behind the other.
    """

    request: Request
    job_name: str
    reason: str
    slot: SlotView | None
    gang: GangSpec | None = None
    count: int = 1
    range_id: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with its sums. Slots that are being freed still count until they are gone."""

    job: Job
    pending_requests: int
    slots: int
    allocated: dict[str, int]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Sums over all executors that are not lost, and counts."""

    total: dict[str, int]
    reserved: dict[str, int]
    allocated: dict[str, int]
    available: dict[str, int]
    used: Usage
    executors: dict[str, int]  # by "active", "unconfirmed", "lost", "draining", "unreachable"
    pending_requests: dict[str, int]  # by primary reason
    slots: int
    jobs: int  # that have not ended


def cluster_view(state: State) -> ClusterView:
    """The sums of the cluster."""
    counts = dict.fromkeys(("active", "unconfirmed", "lost", "draining", "unreachable"), 0)
    for host in state.hosts.values():
        counts[host.executor.state.value.lower()] += 1
        counts["draining"] += host.executor.draining
        counts["unreachable"] += host.reach.unreachable
    here = [h for h in state.hosts.values() if h.executor.state is not ExecutorState.LOST]
    used = [host.executor.used for host in here]
    return ClusterView(
        total=total_of(host.total for host in here),
        reserved=total_of(host.executor.registration.reserved for host in here),
        allocated=total_of(host.booked for host in here),
        available=total_of(host.free() for host in here if host.eligible),
        used=Usage(
            sum(usage.cpu_milli for usage in used),
            sum(usage.memory_bytes for usage in used),
            sum(usage.tasks for usage in used),
        ),
        executors=counts,
        pending_requests=pending_by_reason(state),
        slots=len(state.slots),
        jobs=state.live_jobs,
    )


def executor_view(state: State, executor_id: str) -> ExecutorView:
    """One executor.

    Raises:
        NotFound: no such executor.
    """
    return _view_of(known_host(state.hosts, executor_id))


def list_executors(state: State, *, after: str = "", limit: int) -> Page[ExecutorView, str]:
    """Executors in order of id."""
    ids = sorted(state.hosts)
    start = bisect_right(ids, after)
    views = [_view_of(state.hosts[name]) for name in ids[start : start + limit]]
    return Page(views, ids[start + limit - 1] if len(ids) > start + limit else None)


def list_slots(
    state: State,
    *,
    executor_id: str = "",
    job_id: str = "",
    after: tuple[str, str, int] = ("", "", 0),
    limit: int,
) -> Page[SlotView, tuple[str, str, int]]:
    """Slots in order of executor, allocation id and generation; keys are these three.

    Raises:
        NotFound: no such executor, or no such job.
    """
    if executor_id:
        known_host(state.hosts, executor_id)
    found = islice(_slots_after(state, executor_id, job_id, after), limit + 1)
    views = [slot_view(state, slot) for slot in found]
    more = len(views) > limit
    del views[limit:]
    last = views[-1].slot if views else None
    key = (last.executor_id, last.allocation_id, last.generation) if last and more else None
    return Page(views, key)


def list_requests(
    state: State,
    *,
    job_id: str = "",
    states: Collection[RequestState] = (),
    allocation_ids: Sequence[str] = (),
    after: int = 0,
    limit: int,
) -> Page[RequestView, int]:
    """Requests in queue order; keys are arrival numbers. Without `states`, those that have not
    ended.

    Members of a range who stand alike, one behind the other, are one entry. `allocation_ids` are
    ids or their beginnings; an id that exists stands for itself alone. A page
    may have fewer entries than wanted, or none, and a next one all the same: nobody is held up by
    a search through millions.

    Raises:
        NotFound: no such job.
    """
    wanted = frozenset(states) or frozenset(RequestState) - ENDED_REQUEST_STATES
    candidates, prefixes = _requests_after(state, job_id, after), None
    if allocation_ids:
        named = [state.requests.named(each) for each in allocation_ids]
        if all(named):
            candidates = _by_id(state.jobs, job_id, after, filter(None, named))
        else:
            prefixes = IdPrefixes(allocation_ids)
            candidates = _cut(state.requests, candidates, prefixes)
    views: list[RequestView] = []
    last = after
    for scanned, interval in enumerate(candidates):
        if scanned == SCANNED_MAX or len(views) == limit:
            return Page(views, last)
        last = interval.last_arrival
        request = interval.request
        if request.state in wanted and (prefixes is None or prefixes(request.allocation_id)):
            views.append(request_view(state, request, interval.count))
    return Page(views, None)


def _by_id(
    jobs: dict[str, Job], job_id: str, after: int, requests: Iterable[Request]
) -> Iterator[RequestInterval]:
    if job_id:
        known_job(jobs, job_id)
    found = {request.arrival_number: request for request in requests}
    for number in sorted(found):
        if number > after and job_id in ("", found[number].job_id):
            yield RequestInterval(found[number])


def _cut(
    requests: Requests, found: Iterable[RequestInterval], prefixes: IdPrefixes
) -> Iterator[RequestInterval]:
    """Members one by one where not all names of a stretch may begin as they are asked for."""
    for interval in found:
        name = interval.request.allocation_id
        if interval.count > 1 and prefixes.tell_apart(name[: name.rfind(".") + 1]):
            yield from members_of(requests, interval)
        else:
            yield interval


def get_request(state: State, allocation_id: str) -> RequestView:
    """One request.

    Raises:
        NotFound: there is none of that id (any more).
    """
    return request_view(state, known_request(state.requests, allocation_id))


def list_jobs(
    state: State, *, include_ended: bool = False, after: int = 0, limit: int
) -> Page[JobView, int]:
    """Jobs in order of arrival; keys are arrival numbers."""
    found = (
        job
        for job in state.jobs.values()
        if job.arrival_number > after and (include_ended or job.state is JobState.ACTIVE)
    )
    views = [job_view(state, job) for job in islice(found, limit + 1)]
    more = len(views) > limit
    del views[limit:]
    return Page(views, views[-1].job.arrival_number if more and views else None)


def job_view(state: State, job: Job) -> JobView:
    """One job with its sums."""
    slots = [state.slots[key] for key in job.slot_keys]
    served = sum(state.requests.served_by(slot) is not None for slot in slots)
    return JobView(
        job=job,
        pending_requests=job.live_requests - served,
        slots=len(slots),
        allocated=total_of(slot.booked for slot in slots),
    )


def slot_view(state: State, slot: Slot) -> SlotView:
    """One slot with the address of its executor, and why a change of its size waits."""
    address = state.hosts[slot.executor_id].executor.registration.address
    if slot.wanted is None:
        return SlotView(slot, address)
    return SlotView(slot, address, explain_resizes(state, slot)[-1].summary)


def request_view(state: State, request: Request, count: int = 1) -> RequestView:
    """One request, or so many who stand alike, with its reason and its slot."""
    slot = state.slots.of(request)
    gang = state.gangs.of(request)
    part = state.ranges.at(request.arrival_number)
    return RequestView(
        request=request,
        job_name=state.jobs[request.job_id].name,
        reason=pending_reason(state, request) or request.reason,
        slot=slot_view(state, slot) if slot is not None else None,
        gang=gang.spec if gang is not None else None,
        count=count,
        range_id=part.spec.range_id if part is not None else "",
    )


def _view_of(host: Host) -> ExecutorView:
    return ExecutorView(
        executor=host.executor,
        total=dict(host.total),
        allocated=dict(host.booked),
        available=host.free() if host.eligible else {},
        slots=len(host.slots),
        unreachable_reason=host.reach.cause if host.reach.unreachable else "",
    )


def _slots_after(
    state: State, executor_id: str, job_id: str, after: tuple[str, str, int]
) -> Iterator[Slot]:
    if job_id:
        slots = [state.slots[key] for key in known_job(state.jobs, job_id).slot_keys]
        slots.sort(key=lambda slot: (slot.executor_id, slot.allocation_id, slot.generation))
        for slot in slots:
            key = (slot.executor_id, slot.allocation_id, slot.generation)
            if key > after and executor_id in ("", slot.executor_id):
                yield slot
        return
    for host_id in [executor_id] if executor_id else sorted(state.hosts):
        if host_id < after[0]:
            continue
        keys: list[SlotKey] = sorted(state.hosts[host_id].slots)
        start = bisect_right(keys, after[1:]) if host_id == after[0] else 0
        yield from (state.slots[key] for key in keys[start:])


def _requests_after(state: State, job_id: str, after: int) -> Iterator[RequestInterval]:
    if job_id:
        yield from intervals_of(state, known_job(state.jobs, job_id), after)
    else:
        yield from intervals(state.requests, state.ranges, state.numbers, after)


class IdPrefixes:
    """Whether a text begins with one of many, found in the logarithm of how many there are."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._sorted: list[str] = []
        for each in sorted(prefixes):  # those that begin with another one add nothing
            if not self._sorted or not each.startswith(self._sorted[-1]):
                self._sorted.append(each)

    def __call__(self, text: str) -> bool:
        at = bisect_right(self._sorted, text)
        return at > 0 and text.startswith(self._sorted[at - 1])

    def tell_apart(self, prefix: str) -> bool:
        """True if of the texts with this prefix they may be the beginnings of some only."""
        at = bisect_right(self._sorted, prefix)
        return at < len(self._sorted) and self._sorted[at].startswith(prefix)
