"""Which gangs there are, and which of them wait. Knows names, numbers and what the members ask for;
whether there is room, and what becomes of a gang, is not its business.

A gang that waits is one unit in the line (`non_batchable.py`), at the place of its first member.
Gangs that ask for the same are of one *kind*: where one of them does not fit, none does, so a
failed search is remembered once per kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from finegrain.errors import InvariantBroken
from finegrain.resources import ResourceProfile
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Gang,
    GangSpec,
    GangState,
    Instant,
    Request,
    RequestSpec,
)
from resource_manager.engine.model.scheduling_key import (
    CpuKey,
    Labels,
    SchedulingKey,
    is_topology_constrained,
    scheduling_key,
)
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable, NonBatchables


@dataclass(frozen=True, slots=True)
class Where:
    """Where the members of a gang go in relation to each other; `label` only with SAME_LABEL."""

    placement: GangPlacement
    label: str = ""

    @classmethod
    def of(cls, spec: GangSpec) -> Where:
        """What a gang asks for."""
        return cls(spec.placement, spec.label)


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """Members of a gang that ask for the same: how many of them, and the executors that they must
    not have, since those still hold an older slot of theirs.
    """

    profile: ResourceProfile | None  # None: unknown
    labels: Labels
    count: int
    elsewhere: frozenset[str] = frozenset()
    cpus: CpuKey | None = None  # what they say of their cpus; None: nothing

    @property
    def key(self) -> SchedulingKey:
        """The shape that each of them would wait with by itself."""
        return self.profile, self.labels, self.cpus

    @property
    def best_effort(self) -> bool:
        """True if they book best-effort cpu."""
        return self.cpus is not None and self.cpus[0].best_effort

    @property
    def topology_constrained(self) -> bool:
        """True if amounts alone never say whether a host can serve one."""
        return is_topology_constrained(self.profile, self.cpus)


@dataclass(frozen=True, slots=True)
class FailedSearch:
    """A search that found nothing: as of this version and length of the log of what grew in the
    index of all executors.
    """

    version: int
    log_length: int


@dataclass(slots=True, eq=False)
class GangKind:
    """What equal gangs ask for, with what was learnt about it."""

    where: Where
    member_requests: tuple[MemberRequest, ...]
    users: int = 0  # gangs of this kind that wait
    failed_search: FailedSearch | None = None  # since the last search nothing grew that helps
    verdict: tuple[int, str] | None = None  # (version of the cluster, feasibility) as last judged


@dataclass(slots=True, eq=False)
class WaitingGang:
    """A gang that waits, with its living members in order of arrival."""

    gang: Gang
    kind: GangKind
    members: list[Request]
    tried: bool = False
    may_reject: bool = False  # False: all members allow to wait for an executor that may come
    # How it fared when executors that still hold older slots were left out.
    failed_search: tuple[tuple[MemberRequest, ...], FailedSearch] | None = None
    # Why members wait, by what they ask for, as of a state of the books.
    reasons: tuple[int, dict[SchedulingKey, str]] = (-1, {})


@dataclass(slots=True)
class GangLedger:
    """All gangs by id. Of those that live, each waits, or has slots of which some are `unconfirmed`
    (so many), or is granted.
    """

    by_id: dict[str, Gang] = field(default_factory=dict)  # in order of arrival
    waiting: dict[str, WaitingGang] = field(default_factory=dict)  # in no order
    unconfirmed: dict[str, int] = field(default_factory=dict)
    by_job: Counter[str] = field(default_factory=Counter)  # wishes of gangs of a job that wait
    moves: int = 0  # rises whenever a gang begins or ends to wait
    _kinds: dict[tuple[Where, tuple[MemberRequest, ...]], GangKind] = field(default_factory=dict)

    def in_order(self) -> list[WaitingGang]:
        """Those that wait, in order of their places in line."""
        return sorted(self.waiting.values(), key=lambda each: each.gang.arrival_number)

    def of(self, request: Request) -> Gang | None:
        """The gang of a request, if it has one."""
        return self.by_id[request.spec.gang_id] if request.spec.gang_id else None

    def waits(self, request: Request) -> bool:
        """True if a member waits with its gang; one that has ended does not."""
        return request.spec.gang_id in self.waiting and request.state not in ENDED_REQUEST_STATES

    def begin_to_wait(
        self,
        gang: Gang,
        members: list[Request],
        non_batchables: NonBatchables,
        *,
        tried: bool = False,
    ) -> None:
        """Puts a gang into the line, at its old place."""
        self.moves += 1
        kind = self._kind_of(gang.spec, members)
        kind.users += 1
        may_reject = not all(each.spec.allow_pending for each in members)
        self.waiting[gang.gang_id] = WaitingGang(gang, kind, members, tried, may_reject)
        self.by_job[gang.job_id] += len(kind.member_requests)
        labels = set(members[0].spec.required_labels)
        labels.intersection_update(*(each.spec.required_labels for each in members))
        non_batchables.add(
            NonBatchable(
                gang.arrival_number,
                Kind.GANG,
                gang.gang_id,
                job_id=gang.job_id,
                labels=tuple(sorted(labels)),
                required_labels=frozenset(member.labels for member in kind.member_requests),
                count=len(members),
            )
        )

    def stop_waiting(self, gang: Gang, non_batchables: NonBatchables) -> None:
        """Takes a gang out of the line, if it is there."""
        waiting = self.waiting.pop(gang.gang_id, None)
        if waiting is None:
            return
        self.moves += 1
        non_batchables.remove(gang.arrival_number)
        kind = waiting.kind
        self.by_job[gang.job_id] -= len(kind.member_requests)
        if not self.by_job[gang.job_id]:
            del self.by_job[gang.job_id]
        kind.users -= 1
        if not kind.users:
            del self._kinds[kind.where, kind.member_requests]

    def forget(self, request: Request) -> Gang | None:
        """A request is struck from the books, the latest ones of a job first; the gang that goes
        with it, if this was the last that was left of it.
        """
        gang = self.of(request)
        if gang is None:
            return None
        gang.members.pop()
        return None if gang.members else self.by_id.pop(gang.gang_id)

    def restore(self, gangs: Iterable[Gang]) -> None:
        """Takes in what the store kept; members and what follows from them come after that."""
        self.by_id = {g.gang_id: g for g in sorted(gangs, key=lambda gang: gang.arrival_number)}

    def restore_member(self, request: Request) -> None:
        """The next request in order of arrival, which may belong to a gang.

        Raises:
            InvariantBroken: to one that is not stored.
        """
        gang_id = request.spec.gang_id
        if gang_id and gang_id not in self.by_id:
            raise InvariantBroken(
                f"request {request.allocation_id} belongs to gang {gang_id}, which is not stored"
            )
        if gang_id:
            self.by_id[gang_id].members.append(request.allocation_id)

    def sort_out(
        self, requests: dict[str, Request], transitions: Transitions, now: Instant
    ) -> list[Gang]:
        """Finds out where restored gangs stand; answers with those that are to stand in line.

        A gang is granted if the slots of all its living members were carved; else those that were
        carved wait for the rest.
        """
        waiting = []
        for gang in self.by_id.values():
            members = list(living(requests, gang))
            missing = sum(each.state is RequestState.ALLOCATING for each in members)
            for request in members if missing else ():
                transitions.restore_request(request, RequestState.ALLOCATING)
            state = _state_of(members)
            transitions.restore_gang(gang, state)
            if state in (GangState.ENDED, GangState.GRANTED):
                continue
            if state is GangState.ALLOCATING:
                self.unconfirmed[gang.gang_id] = missing
            else:
                waiting.append(gang)
            timeout_ms = gang.spec.timeout_ms
            if timeout_ms is not None:
                left = gang.waiting_since_time_ms + timeout_ms - now.time_ms
                gang.waiting_until_ms = now.monotonic_ms + min(timeout_ms, max(0, left))
        return waiting

    def _kind_of(self, spec: GangSpec, members: Iterable[Request]) -> GangKind:
        key = (Where.of(spec), member_requests_of(members))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = GangKind(*key)
        return kind


def _state_of(members: list[Request]) -> GangState:
    """Where a gang stands as a whole, by its living members, who stand alike."""
    if not members:
        return GangState.ENDED
    match members[0].state:
        case RequestState.GRANTED:
            return GangState.GRANTED
        case RequestState.ALLOCATING:
            return GangState.ALLOCATING
        case _:
            return GangState.WAITING


def living(requests: dict[str, Request], gang: Gang) -> Iterator[Request]:
    """The members that have not ended, in order of arrival."""
    for allocation_id in gang.members:
        request = requests[allocation_id]
        if request.state not in ENDED_REQUEST_STATES:
            yield request


def member_requests_of(members: Iterable[Request]) -> tuple[MemberRequest, ...]:
    """What these members ask for, equal ones counted."""
    return tuple(
        sorted(
            member_requests_for(each.spec for each in members),
            key=lambda member: (repr(member.profile), member.labels, repr(member.cpus)),
        )
    )


def member_requests_for(specs: Iterable[RequestSpec]) -> tuple[MemberRequest, ...]:
    """The same of requests that are no members yet, in the order of the first of each."""
    asked = Counter(scheduling_key(spec) for spec in specs)
    return tuple(
        MemberRequest(profile, labels, count, cpus=cpus)
        for (profile, labels, cpus), count in asked.items()
    )
