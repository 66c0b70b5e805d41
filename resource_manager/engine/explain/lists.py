"""Builds the lists for administrators and job masters, in a stable order.

The arguments of each list function include the key after which the page starts, and the largest
number of entries. The function returns a `Page`. The key of the next page is plain data that the
caller can encode. Callers must call these functions between batches of events, and never inside a
batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from finegrain.devices.condition import DeviceCondition
from finegrain.values.states import RequestState
from resource_manager.engine.explain.intervals import (
    RequestInterval,
    intervals,
    intervals_of,
    members_of,
)
from resource_manager.engine.explain.resizes import explain_resizes
from resource_manager.engine.explain.waiting_reasons import pending_reason
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host, known_job
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
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.queue.ranges import split
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.split_maps import END_LENGTH
from resource_manager.engine.state import State

SCANNED_MAX = 10_000
"""The largest number of entries that are examined for one page."""

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Item, _Key]):
    """Some entries of a list. `next_key` is the value of `after` with which the caller gets the
    next page. If `next_key` is None, this page is the last page.
    """

    items: list[_Item]
    next_key: _Key | None


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """An executor with the sums of its slots.

    Attributes:
        total: the capacity that slots can book. It is lower than the registered capacity while cpus
            are reserved, offline, or allocated by a kubelet.
        available: the free capacity for new slots. It is empty while the executor gets no new
            slots.
        unreachable_reason: the reason why the resource manager cannot connect to the executor. It
            is empty if the resource manager can connect.
    """

    executor: Executor
    total: dict[str, int]
    allocated: dict[str, int]
    available: dict[str, int]
    slots: int
    unreachable_reason: str = ""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot, and the address of its executor.

    Attributes:
        resize_message: the reason why the slot's resize waits. It is empty if no resize waits.
        device_conditions: the conditions of the slot's devices that are not healthy, or that
            programs outside slots use.
    """

    slot: Slot
    executor_address: str
    resize_message: str = ""
    device_conditions: tuple[DeviceCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request with the reason for its state, its slot, and its gang.

    Attributes:
        count: 1 for a single request. Otherwise the number of consecutive members of a range that
            are in the same state. `request` is then the first of these members.
        range_id: the id of the range. It is empty if the request is not a member of a range.
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
    """A job with the sums of its slots. A slot that is being freed counts until it is deleted."""

    job: Job
    pending_requests: int
    slots: int
    allocated: dict[str, int]
    awaited_job_ids: tuple[str, ...] = ()  # jobs for which the job still waits


def executor_view(state: State, executor_id: str) -> ExecutorView:
    """Returns the view of one executor.

    Raises:
        NotFound: the executor does not exist.
    """
    return _view_of(known_host(state.hosts, executor_id))


def list_executors(state: State, *, after: str = "", limit: int) -> Page[ExecutorView, str]:
    """Returns executors, ordered by id.

    Args:
        state: the engine's state.
        after: the list starts after this id.
        limit: the largest number of entries to return.
    """
    ids = sorted(state.hosts)
    start = bisect_right(ids, after)
    views = [_view_of(state.hosts[name]) for name in ids[start : start + limit]]
    # There is a next key only if more executors follow.
    return Page(views, ids[start + limit - 1] if len(ids) > start + limit else None)


def list_slots(
    state: State,
    *,
    executor_id: str = "",
    job_id: str = "",
    after: tuple[str, str, int] = ("", "", 0),
    limit: int,
) -> Page[SlotView, tuple[str, str, int]]:
    """Returns slots, ordered by executor, allocation id and generation. A key consists of these
    three values.

    One call skips at most `SCANNED_MAX` slots of other jobs. So a page with a next key can have
    fewer slots than `limit`, or even no slots.

    Args:
        state: the engine's state.
        executor_id: the id of the executor whose slots are returned. If it is empty, the slots of
            all executors are returned.
        job_id: the id of the job whose slots are returned. If it is empty, the slots of all jobs
            are returned.
        after: the list starts after this key.
        limit: the largest number of entries to return.

    Raises:
        NotFound: the executor or the job does not exist.
    """
    if executor_id:
        known_host(state.hosts, executor_id)
    views: list[SlotView] = []
    last, skipped = after, 0
    for slot in _slots_after(state, executor_id, job_id, after):
        if len(views) == limit or skipped == SCANNED_MAX:
            return Page(views, last)
        last = _slot_order(slot)
        if job_id in ("", slot.job_id):
            views.append(slot_view(state, slot))
        else:
            skipped += 1
    return Page(views, None)


def list_requests(
    state: State,
    *,
    job_id: str = "",
    states: Collection[RequestState] = (),
    allocation_ids: Sequence[str] = (),
    after: int = 0,
    limit: int,
) -> Page[RequestView, int]:
    """Returns requests in order of arrival. The key is the arrival number.

    Consecutive members of a range that are in the same state are one entry. One call examines at
    most `SCANNED_MAX` entries. So a page with a next key can have fewer entries than `limit`, or
    even no entries.

    Args:
        state: the engine's state.
        job_id: the id of the job whose requests are returned. If it is empty, the requests of all
            jobs are returned.
        states: the states of the requests to return. If it is empty, all requests that have not
            ended are returned.
        allocation_ids: texts that name the requests to return. If it is empty, all requests are
            returned. A text that is not an id stands for all ids that end with the text. If no id
            ends with the text, it stands for all ids that begin with the text.
        after: the list starts after this key.
        limit: the largest number of entries to return.

    Raises:
        NotFound: the job does not exist.
    """
    wanted = frozenset(states) or frozenset(RequestState) - ENDED_REQUEST_STATES
    # `candidates` is a generator, so only the requests of the page are read.
    candidates, prefixes = _requests_after(state, job_id, after), None
    if allocation_ids:
        allocation_ids = [
            name for each in allocation_ids for name in _full_ids(state.requests, each)
        ]
        # If all ids are known, their requests are looked up. If one id is unknown, all ids are
        # treated as prefixes, and all requests are scanned. Usually, many ids begin with such a
        # prefix, so a page is soon full.
        named = [state.requests.named(each) for each in allocation_ids]
        if all(named):
            candidates = _by_id(state.jobs, job_id, after, filter(None, named))
        else:
            prefixes = IdPrefixes(allocation_ids)
            candidates = _cut(state.requests, candidates, prefixes)
    views: list[RequestView] = []
    last = after
    for scanned, interval in enumerate(candidates):
        # Entries that do not match also count towards `SCANNED_MAX`, so that the time of a call is
        # limited. The next page continues after the last examined entry.
        if scanned == SCANNED_MAX or len(views) == limit:
            return Page(views, last)
        last = interval.last_arrival
        request = interval.request
        if request.state in wanted and (prefixes is None or prefixes(request.allocation_id)):
            views.append(request_view(state, request, interval.count))
    return Page(views, None)


def _full_ids(requests: Requests, text: str) -> Sequence[str]:
    """Returns the ids that a text means. If the text is an id, the result is the text itself.
    Otherwise the result has the ids that end with the text. If there are no such ids, the result
    has the ids that begin with the text.

    Example: "a1b2c3d4.17" means member 17 of the range whose id ends with a1b2c3d4. "a1b2c3d4"
    means all members of this range: the result is the id of the range and a dot. The ids of all
    members begin with this prefix. If no id begins or ends with the text, or if too many ids begin
    with it, the function returns the text.
    """
    ranges = requests.ranges
    if requests.named(text) is not None or text.removesuffix(".") in ranges:
        return (text,)
    ids = ranges.ids
    found = [f"{name}." if name in ranges else name for name in ids.find(text)]
    if (member := split(text)) is not None:
        stem, index = member
        members = (f"{name}.{index}" for name in ids.find(stem) if name in ranges)
        found += [name for name in members if requests.named(name) is not None]
    return found or (text,)


def _by_id(
    jobs: dict[str, Job], job_id: str, after: int, requests: Iterable[Request]
) -> Iterator[RequestInterval]:
    if job_id:
        known_job(jobs, job_id)
    # The keys are arrival numbers, so an id that the caller gave twice appears once.
    found = {request.arrival_number: request for request in requests}
    for number in sorted(found):
        if number > after and job_id in ("", found[number].job_id):
            yield RequestInterval(found[number])


def _cut(
    requests: Requests, found: Iterable[RequestInterval], prefixes: IdPrefixes
) -> Iterator[RequestInterval]:
    """Splits each interval into its members if the prefixes possibly match only some of its
    members.
    """
    for interval in found:
        name = interval.request.allocation_id
        # The ids of the members differ only after the last dot. A prefix that ends at or before
        # this dot matches either all members or no member. So one entry is sufficient.
        if interval.count > 1 and prefixes.tell_apart(name[: name.rfind(".") + 1]):
            yield from members_of(requests, interval)
        else:
            yield interval


def list_jobs(
    state: State,
    *,
    include_ended: bool = False,
    matching: Sequence[str] = (),
    after: int = 0,
    limit: int,
) -> Page[JobView, int]:
    """Returns jobs in order of arrival. The key is the arrival number.

    Args:
        state: the engine's state.
        include_ended: if True, jobs that have ended and are not deleted yet are returned, too.
        matching: texts that select jobs. If it is empty, all jobs are returned. A job is returned
            if one of the texts is its name or its id. It is also returned if its id begins or ends
            with a text of at least four characters.
        after: the list starts after this key.
        limit: the largest number of entries to return.
    """
    texts = tuple(matching)
    parts = tuple(text for text in texts if len(text) >= END_LENGTH)
    exact = [state.jobs[text] for text in texts if text in state.jobs]
    # Jobs are stored in order of arrival, so the list does not have to be sorted.
    jobs = exact if len(exact) == len(texts) == 1 else state.jobs.values()
    found = (
        job
        for job in jobs
        if job.arrival_number > after
        and (include_ended or job.state is JobState.ACTIVE)
        and (
            not texts
            or job.name in texts
            or job.job_id in texts
            or job.job_id.startswith(parts)
            or job.job_id.endswith(parts)
        )
    )
    views = [job_view(state, job) for job in islice(found, limit + 1)]
    more = len(views) > limit
    del views[limit:]
    return Page(views, views[-1].job.arrival_number if more and views else None)


def job_view(state: State, job: Job) -> JobView:
    """Returns the view of one job. The cost does not depend on the number of the job's slots."""
    flow = state.flows.jobs.get(job.job_id)
    if flow is None:  # the job has ended and has no slots
        return JobView(job, 0, 0, {})
    # The fairness tree counts a slot that waits to grow as a pending request. So these slots are
    # subtracted.
    items = state.queue.non_batchables.of_job(job.job_id)
    growing = sum(item.kind is Kind.RESIZE for item in items)
    awaited = tuple(state.dependencies.awaited(job.job_id))
    return JobView(job, flow.waiting - growing, flow.running, dict(flow.used), awaited)


def slot_view(state: State, slot: Slot) -> SlotView:
    """Returns the view of one slot."""
    host = state.hosts[slot.executor_id]
    address, conditions = host.executor.registration.address, host.conditions_of(slot)
    if slot.wanted is None:
        return SlotView(slot, address, device_conditions=conditions)
    # The last explanation describes the resize that waits.
    return SlotView(slot, address, explain_resizes(state, slot)[-1].summary, conditions)


def request_view(state: State, request: Request, count: int = 1) -> RequestView:
    """Returns the view of one request.

    Args:
        state: the engine's state.
        request: the request.
        count: 1 for a single request. Otherwise the number of consecutive members of a range that
            are in the same state. `request` is then the first of these members.
    """
    slot = state.slots.of(request)
    gang = state.gangs.of(request)
    part = state.ranges.at(request.arrival_number)
    return RequestView(
        request=request,
        job_name=state.jobs[request.job_id].name,
        # The stored reason is about the last change of state. For a pending request, the reason why
        # it waits now is computed instead.
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
        available=dict(host.free()) if host.eligible else {},
        slots=len(host.slots),
        unreachable_reason=host.reach.cause if host.reach.unreachable else "",
    )


def _slots_after(
    state: State, executor_id: str, job_id: str, after: tuple[str, str, int]
) -> Iterator[Slot]:
    """Yields the slots after a key, ordered by executor, allocation id and generation. If the job
    has more than `SCANNED_MAX` slots, the function also yields slots of other jobs.
    """
    keys = known_job(state.jobs, job_id).slot_keys if job_id else ()
    # If the job has few slots, its slots are sorted, because sorting them is cheaper than reading
    # the slots of all hosts. For a job with very many slots, the sorting would take too long.
    if job_id and len(keys) <= SCANNED_MAX:
        of_job = (state.slots[key] for key in keys)
        yield from sorted(
            (
                slot
                for slot in of_job
                if executor_id in ("", slot.executor_id) and _slot_order(slot) > after
            ),
            key=_slot_order,
        )
        return
    for host_id in [executor_id] if executor_id else sorted(state.hosts):
        if host_id < after[0]:  # the slots of this host are on earlier pages
            continue
        keys_here: list[SlotKey] = sorted(state.hosts[host_id].slots)
        start = bisect_right(keys_here, after[1:]) if host_id == after[0] else 0
        yield from (state.slots[key] for key in keys_here[start:])


def _slot_order(slot: Slot) -> tuple[str, str, int]:
    return slot.executor_id, slot.allocation_id, slot.generation


def _requests_after(state: State, job_id: str, after: int) -> Iterator[RequestInterval]:
    if job_id:
        yield from intervals_of(state, known_job(state.jobs, job_id), after)
    else:
        yield from intervals(state.requests, state.ranges, state.numbers, after)


class IdPrefixes:
    """Checks whether a text begins with one of many prefixes, in logarithmic time."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._sorted: list[str] = []
        for each in sorted(prefixes):  # a prefix that begins with another prefix is not needed
            if not self._sorted or not each.startswith(self._sorted[-1]):
                self._sorted.append(each)

    def __call__(self, text: str) -> bool:
        # Only one prefix can match: the last of the prefixes that sort before the text or are equal
        # to the text.
        at = bisect_right(self._sorted, text)
        return at > 0 and text.startswith(self._sorted[at - 1])

    def tell_apart(self, prefix: str) -> bool:
        """Returns True if some texts that begin with `prefix` can match, while other such texts do
        not match.
        """
        at = bisect_right(self._sorted, prefix)
        return at < len(self._sorted) and self._sorted[at].startswith(prefix)
