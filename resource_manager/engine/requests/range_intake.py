"""Accepts or rejects ranges of requests. A range is accepted or rejected as a whole.

All members have equal specs, so if one member is invalid, all members are invalid. A call whose
members are all known with the same values is a repetition, and changes nothing.

Example: PART_MEMBERS_MAX is 10,000, and a job submits members 0 to 24,999 of range "r".

  part   members             arrival numbers (the next free number is 500)
  1      r.0 to r.9999       500 to 10,499
  2      r.10000 to r.19999  10,500 to 20,499
  3      r.20000 to r.24999  20,500 to 25,499

The resource manager stores these three rows. If the job submits some of these members again,
nothing changes. If the job submits r.24000 to r.25999, the call is refused, because only some of
these members are known. If the job submits r.25000 to r.25999, the range is accepted.
"""

from __future__ import annotations

from finegrain.errors import Reason
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.lifecycle.known import taken
from resource_manager.engine.model.entities import Job, RangeSpec, RequestRange
from resource_manager.engine.queue.ranges import Part, RangeLedger, enqueue_members, parts_of
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def new_members(ranges: RangeLedger, spec: RangeSpec) -> int:
    """Returns the number of requests that the range adds. The result is 0 if the range repeats or
    overlaps a known range.
    """
    end = spec.first_index + spec.count
    known = ranges.overlapping(spec.range_id, spec.first_index, end)
    return 0 if known else spec.count


def submit_range(state: State, job: Job, spec: RangeSpec) -> ItemOutcome:
    """Accepts a range if it is new and valid.

    Args:
        state: the state of the engine.
        job: the job that submits the range.
        spec: the spec of the range.

    Returns:
        One outcome for the whole range.
    """
    # Check first for a repetition, which must be accepted even if the members fit on no executor
    # any more.
    known = _known(state.requests, state.ranges, job, spec)
    if known is not None:
        return known
    request = spec.request
    if (problem := state.waiting_reasons.refusal(request)) is not None:
        state.journal.cluster_event(
            "request_rejected",
            job_id=job.job_id,
            allocation_id=spec.range_id,
            reason=problem.reason,
            message=problem.message,
        )
        return problem
    # The arrival numbers are consecutive, so that a member's number can be computed from its index.
    first_arrival = state.numbers.next_arrival(spec.count)
    for piece in parts_of(spec):
        row = RequestRange(
            spec=piece,
            job_id=job.job_id,
            arrival_number=first_arrival + piece.first_index - spec.first_index,
            create_time_ms=state.journal.at.time_ms,
        )
        part = Part.of(row)
        state.ranges.add(part)
        state.new_parts.append(part)
        state.changes.request_range(row)
        # In the queue, a part is only one interval, even if it has very many members.
        enqueue_members(state.queue, part, part.first, part.end)
        state.request_timeouts.start_part(part)
    job.live_requests += spec.count
    state.requests.live += spec.count
    # The first request of a job decides whether all its requests have profiles; see `_refuse_mix`.
    if job.specified is None:
        job.specified = request.profile is not None
        job.witness_allocation_id = f"{spec.range_id}.{spec.first_index}"
        state.changes.job(job)
    return ItemOutcome(spec.range_id)


def _known(
    requests: Requests, ranges: RangeLedger, job: Job, spec: RangeSpec
) -> ItemOutcome | None:
    """Returns the outcome of a range that is known or whose ids are taken. Returns None if the
    range is new.
    """
    range_id, first, end = spec.range_id, spec.first_index, spec.first_index + spec.count
    # all parts of a range have the same job and request
    for part in ranges.named_parts(range_id)[:1]:
        if part.row.job_id != job.job_id or part.spec.request != spec.request:
            return taken(range_id)
    parts = ranges.overlapping(range_id, first, end)
    if parts:
        # Parts do not overlap, so the sums are equal only if all members are known.
        has = sum(min(end, part.end) - max(first, part.first) for part in parts)
        return ItemOutcome(range_id) if has == spec.count else _overlaps(spec, parts)
    # The id of the range and the ids of its members must not belong to other requests.
    if requests.named(range_id) is not None or not ranges.is_free(range_id, first, end):
        return taken(range_id)
    return None


def _overlaps(spec: RangeSpec, parts: list[Part]) -> ItemOutcome:
    first, last = spec.first_index, spec.first_index + spec.count - 1
    known = (max(first, parts[0].first), min(last, parts[-1].end - 1))
    return ItemOutcome(
        spec.range_id,
        Reason.ALREADY_EXISTS,
        f"range {spec.range_id} already has some of the members {first} to {last}, in the interval"
        f" {known[0]} to {known[1]}; request only the other members, or choose a new id",
        (("first_index", str(first)), ("count", str(spec.count))),
    )
