"""Accepts or rejects gangs. A gang is accepted if all its members are valid and the gang could be
placed as a whole.

If one member has a problem, all members are rejected, and the outcomes of the other members name
this member. If a job master sends the same gang again, nothing changes. `lifecycle/gangs.py` has an
example of what happens to an accepted gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from finegrain.errors import InvalidArgument, Reason
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.lifecycle.known import taken
from resource_manager.engine.lifecycle.waiting import WaitingReasons
from resource_manager.engine.model.entities import (
    EQUAL_IN_GANG,
    Gang,
    GangSpec,
    Job,
    Request,
    RequestSpec,
)
from resource_manager.engine.queue.gangs import (
    GangLedger,
)
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def refused_members(
    state: State, job: Job, gangs: Sequence[GangSpec], requests: Sequence[RequestSpec]
) -> dict[str, ItemOutcome]:
    """Returns the problems of gang members, by allocation id. A member without a problem can be
    accepted.

    Args:
        state: the engine's state, with indexes that are up to date.
        job: the job that submits the requests.
        gangs: the gangs that the call declares.
        requests: all requests of the call.

    Raises:
        InvalidArgument: the call declares a gang without members, or declares a gang twice.
    """
    # Group the requests of the call by gang, and collect the gangs of each allocation id.
    members: dict[str, dict[str, RequestSpec]] = {}
    belongs: dict[str, set[str]] = {}
    for spec in requests:
        belongs.setdefault(spec.allocation_id, set()).add(spec.gang_id)
        if spec.gang_id:
            # If an id occurs twice in a gang, the first request counts. An id that occurs in two
            # gangs is in `shared`.
            members.setdefault(spec.gang_id, {}).setdefault(spec.allocation_id, spec)
    # Allocation ids that the call uses in several gangs, or both in a gang and outside gangs.
    shared = {name for name, gang_ids in belongs.items() if len(gang_ids) > 1}
    refused: dict[str, ItemOutcome] = {}
    # An error in the declaration of a gang rejects the whole call, and not only some members.
    for gang_id, count in Counter(gang.gang_id for gang in gangs).items():
        if count > 1:
            raise InvalidArgument("gangs", gang_id, "each gang once")
        if gang_id not in members:
            raise InvalidArgument(
                "gangs", gang_id, "gangs that requests of the same call belong to"
            )
    # Check each declared gang as a whole.
    for gang in gangs:
        some = members.pop(gang.gang_id)
        problems = _refused(state, job, gang, list(some.values()), shared)
        refused.update({each.id: each for each in problems})
    # The remaining members belong to gangs that the call does not declare.
    for gang_id, some in members.items():
        for name in some:
            message = f"gang_id is {gang_id}; expected a gang that the same call declares"
            refused[name] = _invalid(name, "gang_id", gang_id, message)
    return refused


def join(ledger: GangLedger, request: Request, gangs: Iterable[GangSpec], *, time_ms: int) -> None:
    """Adds an accepted member to its gang. The first member creates the gang.

    Args:
        ledger: all gangs.
        request: the accepted member.
        gangs: the gangs that the call declares.
        time_ms: the wall clock time of the call.
    """
    by_id = ledger.by_id
    gang = by_id.get(request.spec.gang_id)
    if gang is None:
        # The call declares the gang, because members of undeclared gangs have been rejected.
        spec = next(each for each in gangs if each.gang_id == request.spec.gang_id)
        gang = Gang(spec, request.job_id, request.arrival_number, time_ms)
        by_id[gang.gang_id] = gang
    gang.members.append(request.allocation_id)


def accept_gang(state: State, gang: Gang) -> None:
    """Puts a gang into the queue after all its members have been accepted."""
    state.changes.gang(gang)
    state.gang_moves.begin_to_wait(gang)
    state.journal.cluster_event(
        "gang_pending",
        job_id=gang.job_id,
        allocation_id=gang.members[0],
        message=f"gang {gang.gang_id} of {len(gang.members)}, {gang.spec.placement}",
    )


def _refused(
    state: State,
    job: Job,
    gang: GangSpec,
    members: list[RequestSpec],
    shared: set[str],
) -> list[ItemOutcome]:
    """Returns the problems of the members of one gang. The list is empty if the gang can be
    accepted.
    """
    known = state.gangs.by_id.get(gang.gang_id)
    # If the gang is known, only compare it with the stored gang: a repeated gang must be accepted
    # even if it does not fit on the hosts any more.
    if known is not None:
        return [] if _same(state.requests, job, known, gang, members) else _exists(gang, members)
    most = state.settings.gang_members_max
    # Every member gets the same outcome, because the answer to a call has one outcome for each
    # request.
    if len(members) > most:
        message = f"gang {gang.gang_id} has {len(members)} members; expected at most {most}"
        return [_invalid(m.allocation_id, "gang_id", gang.gang_id, message) for m in members]
    problems = [
        problem
        for spec in members
        if (
            problem := _problem(
                state.requests,
                state.waiting_reasons,
                members[0],
                spec,
                shared=shared,
            )
        )
        is not None
    ]
    return state.waiting_reasons.gang_refusals(gang, members, problems)


def _same(
    requests: Requests, job: Job, known: Gang, gang: GangSpec, members: list[RequestSpec]
) -> bool:
    names = {spec.allocation_id for spec in members}
    return (
        known.job_id == job.job_id
        and known.spec == gang
        and names == set(known.members)
        # All members are known, but this call possibly gives a member other values.
        and all(requests[spec.allocation_id].spec == spec for spec in members)
    )


def _exists(gang: GangSpec, members: list[RequestSpec]) -> list[ItemOutcome]:
    message = (
        f"gang {gang.gang_id} exists with other content, other members or another owner;"
        " choose a new id"
    )
    return [ItemOutcome(m.allocation_id, Reason.ALREADY_EXISTS, message) for m in members]


def _problem(
    requests: Requests,
    waiting_reasons: WaitingReasons,
    first: RequestSpec,
    spec: RequestSpec,
    *,
    shared: set[str],
) -> ItemOutcome | None:
    """Returns the problem of one member, or None if the member has no problem. `first` is the first
    member of the gang.
    """
    name = spec.allocation_id
    if requests.is_taken(name) or name in shared:
        return taken(name)
    if spec.target_address:
        message = (
            f"target_address is {spec.target_address}; expected none for a gang member, because a"
            " gang is offered as a whole"
        )
        return _invalid(name, "target_address", spec.target_address, message)
    # After a loss, all members are queued again together, so they must have the same values of
    # these fields.
    for flag in EQUAL_IN_GANG:
        value, expected = getattr(spec, flag), getattr(first, flag)
        if value != expected:
            message = (
                f"{flag} is {value}, but {expected} for {first.allocation_id} of the same gang;"
                " expected the same value for all members"
            )
            return _invalid(name, flag, str(value), message)
    return waiting_reasons.refusal(spec)


def _invalid(name: str, field: str, value: str, message: str) -> ItemOutcome:
    details = (("field", field), ("value", value))
    return ItemOutcome(name, Reason.INVALID_ARGUMENT, message, details)
