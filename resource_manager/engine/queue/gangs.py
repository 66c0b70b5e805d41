"""Keeps all gangs, and records which gangs are pending.

A pending gang is one non-batchable item in the queue (`non_batchable.py`), with the arrival number
of its first member. Gangs with equal requests have the same *kind*. If a search finds no room for
one gang, there is no room for any gang of the same kind. So the result of a failed search is stored
once for each kind.
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
from resource_manager.engine.queue.requests import Requests


@dataclass(frozen=True, slots=True)
class Where:
    """The rule for the hosts of a gang's members, for example that all members share a host.
    `label` is used only with SAME_LABEL.
    """

    placement: GangPlacement
    label: str = ""

    @classmethod
    def of(cls, spec: GangSpec) -> Where:
        """Returns the rule that a gang requests."""
        return cls(spec.placement, spec.label)


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """The request of equal members of a gang, and the number of these members.

    Attributes:
        profile: the resource profile of each member, or None if the members get default slots.
        labels: the labels that the executor of a member must carry.
        count: the number of members.
        elsewhere: the executors that must not serve the members, because an older slot of a member
            still exists there.
        cpus: the CPU policy of each member, or None if the members have no CPU policy.
    """

    profile: ResourceProfile | None
    labels: Labels
    count: int
    elsewhere: frozenset[str] = frozenset()
    cpus: CpuKey | None = None

    @property
    def key(self) -> SchedulingKey:
        """The key of the scheduling class that an equal request outside a gang would have."""
        return self.profile, self.labels, self.cpus

    @property
    def best_effort(self) -> bool:
        """True if the members book best-effort cpu."""
        return self.cpus is not None and self.cpus[0].best_effort

    @property
    def topology_constrained(self) -> bool:
        """True if amounts alone do not decide whether a member fits on a host."""
        return is_topology_constrained(self.profile, self.cpus)


@dataclass(frozen=True, slots=True)
class Share:
    """Equal members of a gang that are placed on the same executor.

    Attributes:
        request_index: the position of the members' `MemberRequest` among the requests of the gang.
        host_id: the id of the executor.
        count: the number of members on the executor.
    """

    request_index: int
    host_id: str
    count: int


@dataclass(frozen=True, slots=True)
class FailedSearch:
    """The state of the index of all executors when a search found no room: the version of the
    index, and the length of its growth log. Entries that are added to this log later name the hosts
    that have got more room.
    """

    version: int
    log_length: int


@dataclass(slots=True, eq=False)
class GangKind:
    """The requests of equal gangs, with cached results for all these gangs."""

    where: Where
    member_requests: tuple[MemberRequest, ...]
    users: int = 0  # number of pending gangs of this kind
    # the last failed search, or None if a search can possibly succeed
    failed_search: FailedSearch | None = None
    verdict: tuple[int, str] | None = None  # cached pair (version of the cluster, feasibility)
    # cached pair (version of the cluster, the largest amounts that all members together book)
    need: tuple[int, dict[str, int]] | None = None


@dataclass(slots=True, eq=False)
class WaitingGang:
    """A pending gang. `members` are those members that have not ended, in order of arrival."""

    gang: Gang
    kind: GangKind
    members: list[Request]
    tried: bool = False
    may_reject: bool = False  # False if all members have `allow_pending`
    steps: int = 0  # number of steps of the last exact search
    # The last failed search in which members had to avoid executors: its requests, and the state of
    # the index.
    failed_search: tuple[tuple[MemberRequest, ...], FailedSearch] | None = None
    # cached pair: the version of the state, and for each scheduling key the reason why members with
    # this key wait
    reasons: tuple[int, dict[SchedulingKey, str]] = (-1, {})


@dataclass(slots=True)
class GangLedger:
    """All gangs by id. A gang that has not ended is pending, is being allocated, or is granted.
    While a gang is being allocated, `unconfirmed` counts its slots that executors have not
    confirmed yet.
    """

    by_id: dict[str, Gang] = field(default_factory=dict)  # the gangs in order of arrival
    waiting: dict[str, WaitingGang] = field(default_factory=dict)  # the pending gangs, in no order
    unconfirmed: dict[str, int] = field(default_factory=dict)
    # for each job, the sum of `len(member_requests)` over its pending gangs
    by_job: Counter[str] = field(default_factory=Counter)
    # increased when a gang becomes pending, and when a pending gang changes its state
    moves: int = 0
    _kinds: dict[tuple[Where, tuple[MemberRequest, ...]], GangKind] = field(default_factory=dict)

    def in_order(self) -> list[WaitingGang]:
        """Returns the pending gangs in order of arrival."""
        return sorted(self.waiting.values(), key=lambda each: each.gang.arrival_number)

    def of(self, request: Request) -> Gang | None:
        """Returns the gang of a request, or None if the request has no gang."""
        return self.by_id[request.spec.gang_id] if request.spec.gang_id else None

    def waits(self, request: Request) -> bool:
        """Returns whether a request is a member of a pending gang and has not ended."""
        return request.spec.gang_id in self.waiting and request.state not in ENDED_REQUEST_STATES

    def begin_to_wait(
        self,
        gang: Gang,
        members: list[Request],
        non_batchables: NonBatchables,
        *,
        tried: bool = False,
    ) -> None:
        """Queues a gang with its original arrival number.

        Args:
            gang: the gang.
            members: the members of the gang that have not ended, in order of arrival.
            non_batchables: the items of the queue.
            tried: whether an earlier pass tried the gang. Such a gang does not count as new.
        """
        self.moves += 1
        kind = self._kind_of(gang.spec, members)
        kind.users += 1
        may_reject = not all(each.spec.allow_pending for each in members)
        self.waiting[gang.gang_id] = WaitingGang(gang, kind, members, tried, may_reject)
        self.by_job[gang.job_id] += len(kind.member_requests)
        # A host can serve a member only if it carries the labels that all members require. So the
        # gang is unblocked only when a host with these labels gets more room.
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
                priority=members[0].spec.priority,
            )
        )

    def stop_waiting(self, gang: Gang, non_batchables: NonBatchables) -> None:
        """Removes a gang from the queue, if it is pending."""
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
        # A kind and its cached results are kept only while a gang of this kind is pending.
        if not kind.users:
            del self._kinds[kind.where, kind.member_requests]

    def forget(self, request: Request) -> Gang | None:
        """Removes a deleted request from its gang, if the request has a gang.

        Returns:
            The gang if the request was its last member, because the gang is deleted in this case.
            Otherwise None.
        """
        gang = self.of(request)
        if gang is None:
            return None
        # The latest requests of a job are deleted first, so the deleted request is the last member
        # in the list.
        gang.members.pop()
        return None if gang.members else self.by_id.pop(gang.gang_id)

    def restore(self, gangs: Iterable[Gang]) -> None:
        """Adds stored gangs. Afterwards, the caller must call `restore_member` for each request,
        and finally `derive_states`.
        """
        self.by_id = {g.gang_id: g for g in sorted(gangs, key=lambda gang: gang.arrival_number)}

    def restore_member(self, request: Request) -> None:
        """Adds a stored request to its gang, if the request has a gang. The caller must pass
        requests in order of arrival.

        Raises:
            InvariantBroken: the gang of the request is not stored.
        """
        gang_id = request.spec.gang_id
        if gang_id and gang_id not in self.by_id:
            raise InvariantBroken(
                f"request {request.allocation_id} belongs to gang {gang_id}, which is not stored"
            )
        if gang_id:
            self.by_id[gang_id].members.append(request.allocation_id)

    def derive_states(
        self, requests: Requests, transitions: Transitions, now: Instant
    ) -> list[Gang]:
        """Computes the states of restored gangs from the states of their members.

        A gang is granted if the slots of all its remaining members have been carved. Otherwise,
        members with a carved slot return to ALLOCATING and wait for the other members.

        Args:
            requests: all requests, by allocation id.
            transitions: the object that changes states.
            now: the time of the restart.

        Returns:
            The gangs that the caller must put into the queue.
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
                # Use the wall clock, because the monotonic clock of the previous process is
                # unknown. Limit the remaining time to one timeout, in case the wall clock was set
                # back.
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
    """Returns the state of a gang. The state follows from the remaining members, which all have the
    same state.
    """
    if not members:
        return GangState.ENDED
    match members[0].state:
        case RequestState.GRANTED:
            return GangState.GRANTED
        case RequestState.ALLOCATING:
            return GangState.ALLOCATING
        case _:
            return GangState.WAITING


def living(requests: Requests, gang: Gang) -> Iterator[Request]:
    """Yields the members of a gang that have not ended, in order of arrival."""
    for allocation_id in gang.members:
        request = requests[allocation_id]
        if request.state not in ENDED_REQUEST_STATES:
            yield request


def member_requests_of(members: Iterable[Request]) -> tuple[MemberRequest, ...]:
    """Returns one `MemberRequest` for each group of equal members. The result is sorted, so that
    equal gangs have equal results.
    """
    return tuple(
        sorted(
            member_requests_for(each.spec for each in members),
            # Python cannot order profiles and policies, so sort them by their texts.
            key=lambda member: (repr(member.profile), member.labels, repr(member.cpus)),
        )
    )


def member_requests_for(specs: Iterable[RequestSpec]) -> tuple[MemberRequest, ...]:
    """Returns one `MemberRequest` for each group of equal specs, in the order in which the specs
    first occur.
    """
    counts = Counter(scheduling_key(spec) for spec in specs)
    return tuple(
        MemberRequest(profile, labels, count, cpus=cpus)
        for (profile, labels, cpus), count in counts.items()
    )
