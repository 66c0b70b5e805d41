"""Finds out why requests and gang members wait, and whether a new request can be accepted.

This module reads the capacity indexes, because a comparison with all hosts would take too long. So
the caller must refresh the indexes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from finegrain.errors import Reason
from finegrain.resources import shared_booking
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import GangPlacement
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.entities import GangSpec, Provision, Request, RequestSpec
from resource_manager.engine.model.scheduling_key import SchedulingKey, scheduling_key
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.texts import amounts_text, largest_text
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.feasibility import (
    INFEASIBLE,
    Feasibility,
    blocking_reservations,
    feasibility,
    free_sums,
    has_room,
    large_and_unsuited,
    largest_on_one,
    needs_topology_somewhere,
    some_host_covers,
)
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import Need
from resource_manager.engine.placement.reserved import Reservations
from resource_manager.engine.planning.gang_feasibility import gang_feasibility
from resource_manager.engine.queue.gangs import (
    GangKind,
    GangLedger,
    MemberRequest,
    WaitingGang,
    Where,
    member_requests_for,
)
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

_MEMBER_REASONS = frozenset(
    {
        Reason.INFEASIBLE_NEVER,
        Reason.INFEASIBLE_NOW_OFFLINE,
        Reason.WAITING_LABELS,
        Reason.WAITING_EXECUTOR,
    }
)
"""If a member waits for one of these reasons, it would also wait without its gang."""

TO_WAIT = "; request less, or let it wait for another executor (allow_pending)"
"""The end of the message of a refusal. The command line replaces this text by a hint with its own
option.
"""

VERDICTS_MAX = 1_000
"""The feasibility of at most this many kinds of gangs is cached."""


@dataclass(slots=True, eq=False)
class WaitingReasons:
    """Finds out why requests wait, and which requests are rejected at once."""

    journal: Journal
    settings: EngineSettings
    elastic: Elastic
    gangs: GangLedger
    hosts: Hosts
    provisions: dict[str, Provision]
    queue: WaitingQueue
    reservations: Reservations
    _gang_verdicts: dict[tuple[Where, tuple[MemberRequest, ...]], Feasibility] = field(
        default_factory=dict
    )
    _gang_verdicts_as_of: tuple[int, int] = (-1, -1)

    def waiting_reason(self, scheduling_class: SchedulingClass) -> Reason:
        """Returns the reason why requests of a scheduling class wait. The indexes must be up to
        date.

        The result is cached until the next event.
        """
        if not scheduling_class.tried:
            return Reason.NOT_YET_CONSIDERED
        # Nothing changes within one event, and many requests share the class.
        number = self.journal.snapshot_number
        if scheduling_class.reason is None or scheduling_class.reason[0] != number:
            scheduling_class.reason = (
                number,
                self._waiting_reason(scheduling_class),
            )
        return Reason(scheduling_class.reason[1])

    def _waiting_reason(self, scheduling_class: SchedulingClass) -> Reason:
        """Finds the reason: checks feasibility first, then the sums of free capacity over all
        hosts, then each host.

        Example: a request needs 4 cpus, and hosts a and b have 2 and 1 free cpus. The sum 3 is less
        than 4: WAITING_CAPACITY. With 3 and 2 free cpus, all hosts together have enough, but no
        single host has enough: WAITING_FRAGMENTED. With 4 free cpus on a, but not on the one NUMA
        node that the request requires: WAITING_TOPOLOGY.
        """
        match feasibility(self.hosts, self.elastic, scheduling_class):
            case Feasibility.NEVER:
                return Reason.INFEASIBLE_NEVER
            case Feasibility.OFFLINE:
                return Reason.INFEASIBLE_NOW_OFFLINE
            case Feasibility.LABELS:
                return Reason.WAITING_LABELS
            case Feasibility.POSSIBLE if any(
                True for _ in blocking_reservations(self.hosts, self.reservations, scheduling_class)
            ):
                return Reason.WAITING_RESERVATION
            case Feasibility.POSSIBLE:
                pass
        # If the request needs more than the sums, it cannot fit on one host. A comparison with the
        # sums is cheaper than a comparison with each host.
        sums = free_sums(self.hosts, scheduling_class)
        amounts = list[Need](needs_of(scheduling_class).amounts)
        # `amounts` has two entries: for hosts with one memory pool, and for hosts with separate
        # pools. The request can fit only if the sums cover one of the two entries.
        if not any(all(sums.get(name, 0) >= amount for name, amount in n.items()) for n in amounts):
            return Reason.WAITING_CAPACITY
        # The request fits on a host, but waits because other requests are served first.
        if has_room(self.hosts, scheduling_class):
            return Reason.WAITING_CAPACITY
        # If some host has all amounts, only its cpus or NUMA nodes can be the reason.
        if needs_topology_somewhere(self.hosts, scheduling_class) and some_host_covers(
            self.hosts, scheduling_class.labels, amounts
        ):
            return Reason.WAITING_TOPOLOGY
        return Reason.WAITING_FRAGMENTED

    def gang_feasibility(
        self, where: Where, member_requests: tuple[MemberRequest, ...]
    ) -> Feasibility:
        """Returns whether a gang could be placed as a whole if all executors were empty.

        The result needs a search, so it is cached until executors or requestable shapes change.
        """
        versions = self.hosts.version, self.elastic.version
        if self._gang_verdicts_as_of != versions or len(self._gang_verdicts) >= VERDICTS_MAX:
            self._gang_verdicts_as_of = versions
            self._gang_verdicts.clear()
        key = where, member_requests
        if key not in self._gang_verdicts:
            self._gang_verdicts[key] = gang_feasibility(
                self.hosts, self.elastic, self.provisions, where, member_requests
            )
        return self._gang_verdicts[key]

    def kind_feasibility(self, kind: GangKind) -> Feasibility:
        """Returns `gang_feasibility` of a kind of gang. The result is cached with the kind until a
        host's size, labels or availability changes.
        """
        version = self.hosts.version
        if kind.verdict is None or kind.verdict[0] != version:
            kind.verdict = version, self.gang_feasibility(kind.where, kind.member_requests)
        return Feasibility(kind.verdict[1])

    def member_reason(self, request: Request) -> Reason:
        """Returns the reason why a member of a gang waits. The indexes must be up to date."""
        spec = request.spec
        waiting = self.gangs.waiting.get(spec.gang_id)
        if waiting is None:  # the job has ended, so the gang is no longer queued
            # The reason is the same as for a request outside a gang.
            return self.waiting_reason(self.queue.class_of(spec))
        return self._member_reason(waiting, scheduling_key(spec))

    def reasons(self, waiting: WaitingGang) -> Iterator[tuple[Reason, int]]:
        """Yields the reasons why the members of a gang wait, each with its number of members."""
        for member in waiting.kind.member_requests:
            yield self._member_reason(waiting, member.key), member.count

    def _member_reason(self, waiting: WaitingGang, key: SchedulingKey) -> Reason:
        """Returns the reason why a member waits. If the member would also wait without the gang,
        this is the member's own reason. Otherwise it is the reason of the gang.
        """
        if not waiting.tried:
            return Reason.NOT_YET_CONSIDERED
        if waiting.reasons[0] != self.journal.snapshot_number:
            waiting.reasons = (self.journal.snapshot_number, {})
        known = waiting.reasons[1]
        if key not in known:
            scheduling_class = self.queue.class_for(key)
            reason = self.waiting_reason(scheduling_class)
            if reason not in _MEMBER_REASONS:
                whole = self._gang_reason(waiting.kind)
                # If even the member alone does not fit, the member's own reason helps users more
                # than WAITING_GANG.
                if whole is not Reason.WAITING_GANG or has_room(self.hosts, scheduling_class):
                    reason = whole
            known[key] = reason
        return Reason(known[key])

    def _gang_reason(self, kind: GangKind) -> Reason:
        match self.kind_feasibility(kind):
            case Feasibility.NEVER:
                return Reason.INFEASIBLE_NEVER
            case Feasibility.OFFLINE:
                return Reason.INFEASIBLE_NOW_OFFLINE
            case _:
                return Reason.WAITING_GANG

    def refusal(self, spec: RequestSpec) -> ItemOutcome | None:
        """Returns the reason why a new request cannot be accepted: the request has invalid values,
        or no host could serve it. Returns None if the request can be accepted.
        """
        return _invalid(self.settings, spec) or self.rejection(spec)

    def rejection(self, spec: RequestSpec) -> ItemOutcome | None:
        """Returns the reason why no host could ever serve a request. Returns None if the request
        can be accepted. The indexes must be up to date.

        A request without `allow_pending` is rejected at once if no known executor and no executor
        of a provider could host it. There is one exception: if no executor is known and no executor
        can be requested, every request waits, and `scheduling/rejecting.py` checks the request
        later.
        """
        scheduling_class = self.queue.class_of(spec)
        verdict = feasibility(self.hosts, self.elastic, scheduling_class)
        # A rejection is final, so requests with `allow_pending` are never rejected here.
        if spec.allow_pending or verdict not in INFEASIBLE:
            return None
        amounts = (
            shared_booking(spec.profile, False, scheduling_class.best_effort)
            if spec.profile
            else {}
        )
        requested = amounts_text(amounts) if amounts else "a default slot"
        if spec.profile and spec.profile.isolation:
            levels = ", ".join(f"{name}={level}" for name, level in spec.profile.isolation)
            requested += f" with isolation {levels}"
        if verdict is Feasibility.LABELS:
            labels = ", ".join(f"{name}={value}" for name, value in spec.required_labels)
            lack = f"no executor that could host {requested} carries the labels {labels}"
        else:
            lack = f"no executor could host {requested}, even when empty"
        # If an executor has enough capacity but is not suitable, the message explains why.
        # Otherwise users would not understand the refusal.
        if unsuited := large_and_unsuited(self.hosts, scheduling_class):
            host, refusal = unsuited
            lack += f" ({host.host_id} has enough capacity, but is unsuitable: {refusal.text})"
        elif (
            verdict is Feasibility.NEVER
            and not self.elastic.provisioning
            and (most := largest_on_one(self.hosts, amounts))
        ):
            lack += f" ({largest_text(amounts, most)})"
        if verdict is Feasibility.NEVER and self.elastic.provisioning:
            lack += ", nor could an executor of a provider"
        return ItemOutcome(
            spec.allocation_id,
            Reason.INFEASIBLE_NEVER,
            f"{lack}{TO_WAIT}",
            tuple((name, str(amount)) for name, amount in amounts.items()),
        )

    def gang_refusals(
        self, gang: GangSpec, members: Sequence[RequestSpec], problems: list[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Returns why a gang cannot be accepted: members are invalid or infeasible, or the whole
        gang can never be placed.

        Args:
            gang: the gang.
            members: the live members of the gang.
            problems: the outcomes of members that are invalid or infeasible even alone.

        Returns:
            An outcome for each member, first `problems`. The list is empty if the gang can be
            accepted.
        """
        if problems:
            return problems + _others(gang, members, problems)
        # If all members have `allow_pending`, the gang is allowed to wait for new executors.
        if all(spec.allow_pending for spec in members):
            return []
        verdict = self.gang_feasibility(Where.of(gang), member_requests_for(members))
        # OFFLINE means that absent executors could host the gang. So the gang is allowed to wait.
        return _impossible(gang, members) if verdict is Feasibility.NEVER else []

    def infeasible_members(self, waiting: WaitingGang) -> list[ItemOutcome]:
        """Returns the outcomes of the members if a queued gang can never be placed, by the same
        rules as for a new gang. Returns an empty list if the gang can be placed some day.
        """
        # The members are checked one by one only if the whole gang, or one kind of member, is
        # infeasible.
        if not waiting.may_reject or not (
            any(
                feasibility(self.hosts, self.elastic, self.queue.class_for(each.key)) in INFEASIBLE
                for each in waiting.kind.member_requests
            )
            or self.kind_feasibility(waiting.kind) in INFEASIBLE
        ):
            return []
        specs = [member.spec for member in waiting.members]
        problems = [each for spec in specs if (each := self.rejection(spec)) is not None]
        return self.gang_refusals(waiting.gang.spec, specs, problems)

    def is_infeasible(self, request: Request) -> bool:
        """Returns True if a pending request would be rejected by a check now."""
        waiting = self.gangs.waiting.get(request.spec.gang_id)
        if waiting is not None:
            return bool(self.infeasible_members(waiting))
        if request.spec.allow_pending or request.spec.gang_id:
            return False
        scheduling_class = self.queue.class_of(request.spec)
        return feasibility(self.hosts, self.elastic, scheduling_class) in INFEASIBLE


def _invalid(settings: EngineSettings, spec: RequestSpec) -> ItemOutcome | None:
    """Returns the error of a request that is invalid on every host; None: the request is valid."""
    profile = spec.profile
    if profile is None:
        return None
    if profile.cpu_milli < settings.cpu_milli_min:
        return _below(spec, "cpu_milli", profile.cpu_milli, settings.cpu_milli_min)
    if profile.memory_bytes < settings.memory_bytes_min:
        return _below(spec, "memory_bytes", profile.memory_bytes, settings.memory_bytes_min)
    if spec.cpu_limit_milli and spec.cpu_limit_milli < profile.cpu_milli:
        return _below(spec, "cpu_limit_milli", spec.cpu_limit_milli, profile.cpu_milli)
    return None


def _below(spec: RequestSpec, field: str, value: int, least: int) -> ItemOutcome:
    return ItemOutcome(
        spec.allocation_id,
        Reason.INVALID_ARGUMENT,
        f"{field} is {value}; expected at least {least}, or no profile at all for a default slot",
        (("field", field), ("value", str(value)), ("least", str(least))),
    )


def _others(
    gang: GangSpec, members: Sequence[RequestSpec], problems: list[ItemOutcome]
) -> list[ItemOutcome]:
    """Returns the outcomes of the members without a problem: these members are rejected, too,
    because a gang is rejected as a whole.
    """
    have_problems = {problem.id for problem in problems}
    first = problems[0]
    message = (
        f"gang {gang.gang_id} is refused as a whole, because of its member {first.id}:"
        f" {first.reason}: {first.message}"
    )
    details = (("gang_id", gang.gang_id), ("allocation_id", first.id))
    return [
        ItemOutcome(spec.allocation_id, Reason.GANG_REFUSED, message, details)
        for spec in members
        if spec.allocation_id not in have_problems
    ]


def _impossible(gang: GangSpec, members: Sequence[RequestSpec]) -> list[ItemOutcome]:
    where = {
        GangPlacement.ANYWHERE: "together",
        GangPlacement.SAME_EXECUTOR: "on one executor",
        GangPlacement.SAME_LABEL: f"on executors with one value of the label {gang.label}",
        GangPlacement.SPREAD: "on an executor each",
    }[gang.placement]
    message = (
        f"the {len(members)} members of gang {gang.gang_id} could not be placed {where}, even if"
        f" all executors were empty{TO_WAIT}"
    )
    details = (("gang_id", gang.gang_id), ("members", str(len(members))))
    return [
        ItemOutcome(spec.allocation_id, Reason.INFEASIBLE_NEVER, message, details)
        for spec in members
    ]
