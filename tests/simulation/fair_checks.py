"""Checks fair sharing whatever fails: quotas, reservations and reuse of slots.

No maximum is exceeded, minima come first, capacity is reserved only for pending requests, and
answers about groups and reuse are durable. This module computes the usage of groups itself; the
engine's invariants check the order by virtual time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from finegrain.errors import Reason
from finegrain.mapping.rows import Row
from finegrain.resources import Amounts
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.fairness.quotas import SLOTS, counted, fulfilment, needs_slots
from resource_manager.engine.model.effects import Changes, Effect, PublishClusterEvent
from resource_manager.engine.model.entities import Group, JobState, Request, RequestSpec, Slot
from resource_manager.engine.model.events import SlotsReuseRequested
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.queue.scheduling_classes import JobQueue
from resource_manager.engine.state import State
from resource_manager.storage import tables
from resource_manager.storage.rows import GROUPS, RANGES, REQUESTS
from tests.simulation.backfill_checks import BackfillChecks
from tests.simulation.job_checks import limits_of, waits
from tests.simulation.revocation_checks import only_by_revocation

if TYPE_CHECKING:
    from tests.simulation.database import Database

Key = tuple[str, int]
Booked = dict[Key, dict[str, int]]
"""Amounts of slots, in the form in which quotas count them."""

MANY_SHAPES = 1_000
"""With a smaller `classes_tried_max`, a pass may not reach a group below its minimum."""


@dataclass
class FairChecks:
    """Records of groups, of reused slots, and of the last bookings."""

    did: Counter[str] = field(default_factory=Counter)
    # State after the last batch, for every manager that assumes that it leads:
    _booked: WeakKeyDictionary[State, Booked] = field(default_factory=WeakKeyDictionary)
    # all versions of a group that were ever durable
    _durable: dict[str, set[Row]] = field(default_factory=dict)
    # versions since the last durable one: a later call of the same batch may have replaced them
    _replaced: dict[str, set[Row]] = field(default_factory=dict)
    _deleted: Counter[str] = field(default_factory=Counter)  # durable deletions, by group
    _backfill: BackfillChecks = field(default_factory=BackfillChecks)
    # request to the slot that serves it instead
    _taken_over: dict[str, Key] = field(default_factory=dict)

    # -- resource managers -----------------------------------------------------------------

    def restored(self, state: State, database: Database) -> Iterator[str]:
        """Compares the groups that a manager has read with the database; yields problems."""
        self._booked[state] = _booked(state)
        for (name,), row in database.rows.keyed(tables.groups).items():
            self._durable.setdefault(name, set()).add(row)
            group = state.groups.get(name)
            if group is None or GROUPS.encode(group) != row:
                yield f"group {name} is {row}, and {group} after a restart"

    def stored(self, changes: Changes) -> Iterator[str]:
        """Checks a durable transaction; yields problems."""
        for group in changes.groups:
            durable = self._durable.setdefault(group.name, set())
            durable.add(GROUPS.encode(group))
            durable |= self._replaced.pop(group.name, set())
        self._deleted.update(changes.deleted_groups)
        for event in changes.job_events:
            key = self._taken_over.get(event.allocation_id)
            if event.state is RequestState.GRANTED and key is not None:
                yield f"slot {key} does the work of {event.allocation_id}, which is granted one"

    def forgotten(self, names: Iterable[str]) -> None:
        """Drops requests that are no longer known."""
        for name in names:
            self._taken_over.pop(name, None)

    def older_books(self) -> None:
        """Drops records that are newer than a restored backup."""
        self._taken_over.clear()

    def decided(self, state: State, effects: Iterable[Effect]) -> Iterator[str]:
        """Checks a batch; yields problems."""
        before, now = self._booked[state], _booked(state)
        self._booked[state] = now
        new = {
            key: more
            for key, booked in now.items()
            # A slot that returns with its executor, to be freed, was not placed.
            if state.slots[key].state is not SlotState.FREEING
            and (more := _beyond(booked, before.get(key, {})))
        }
        kinds = [each.event for each in effects if isinstance(each, PublishClusterEvent)]
        self.did["reservations"] += sum(each.kind == "reservation_made" for each in kinds)
        yield from _held_for_nobody(state)
        limited = any(group.maximum or group.minimum for group in state.groups.values())
        yield from self._backfill.decided(state, new.keys() - before.keys())
        self.did["backfilled"] = self._backfill.backfilled
        if new:
            yield from _above_user_limits(state, now, new)
        if not new or not limited:
            return
        used, added = _sums(state, now), _sums(state, new)
        yield from _above_maximum(state, used, added)
        settled = {each.allocation_id for each in kinds if each.kind == "reservation_ended"}
        placed = [state.slots[key] for key in new if key not in before and key[0] not in settled]
        if state.settings.fairness.order == "fair":
            # Slots that were revoked in this batch counted for their groups before.
            revoked = {
                key: booked
                for key, booked in before.items()
                if (slot := state.slots.get(key)) is not None
                and slot.revoked_for
                and booked != now[key]
            }
            for name, amounts in _sums(state, revoked).items():
                used.setdefault(name, Counter()).update(amounts)
            yield from _minimum_passed_over(state, placed, used, added)

    # -- reuse of slots ----------------------------------------------------------------------

    def asks(self, state: State, event: SlotsReuseRequested) -> set[str]:
        """Returns the requests that a slot had taken over before this call."""
        named = {name: state.requests.named(name) for _, _, name in event.slots}
        return {name for name, each in named.items() if each and each.reason == Reason.REUSED}

    def answers(
        self,
        state: State,
        event: SlotsReuseRequested,
        before: set[str],
        outcomes: list[ItemOutcome],
    ) -> Iterator[str]:
        """Checks the answers to a reuse call; yields problems."""
        used = _sums(state, _booked(state))
        for (name, generation, for_id), outcome in zip(event.slots, outcomes, strict=True):
            if outcome.reason:
                self.did["reuses refused"] += 1
                continue
            if for_id in before:
                self.did["reuses agreed to again"] += 1
                continue
            self.did["reuses agreed to"] += 1
            slot, waiting = state.slots.get((name, generation)), state.requests.named(for_id)
            if waiting is None or waiting.reason != Reason.REUSED:
                yield f"{name} may do the work of {for_id}, which is {waiting}"
            if slot is None or slot.state is not SlotState.ALLOCATED:
                yield f"{name} may do the work of {for_id}, and its slot is {slot}"
            elif not state.hosts[slot.executor_id].eligible:
                yield f"{name} goes on at {slot.executor_id}, where nothing new may be placed"
            else:
                yield from _goes_on_above_maximum(state, slot, used)

    def agreed(self, key: Key, for_id: str, database: Database) -> Iterator[str]:
        """Checks an answer that a job master has received: a slot now serves another request."""
        known = database.rows.has(for_id)
        if known and not _is_taken_over(database, for_id):
            yield f"{key} may do the work of {for_id}, and that is not durable"
        if known and self._taken_over.setdefault(for_id, key) != key:
            yield f"{key} may do the work of {for_id}, as {self._taken_over[for_id]} may"

    # -- groups ----------------------------------------------------------------------------

    def deletions(self, name: str) -> int:
        """Returns how often a group was deleted so far."""
        return self._deleted[name]

    def group_was_decided(self, group: Group) -> None:
        """A batch has given a group this content; the manager answers when it is durable."""
        self._replaced.setdefault(group.name, set()).add(GROUPS.encode(group))

    def group_is_set(self, group: Group) -> Iterator[str]:
        """Checks an answer that an administrator has received: a group has this content."""
        self.did["groups set"] += 1
        if GROUPS.encode(group) not in self._durable.get(group.name, ()):
            yield f"an operator hears of {group}, which was never durable"

    def group_is_deleted(self, name: str, before: int) -> Iterator[str]:
        """Checks an answer that an administrator has received: a group was deleted.

        Args:
            name: the group.
            before: the number of its deletions at the time of the administrator's call.
        """
        self.did["groups deleted"] += 1
        if self._deleted[name] == before:
            yield f"an operator hears that group {name} is struck, which is not durable"


class Limits:
    """The placements that groups, users and dependencies forbid in the present state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._any = any(group.maximum for group in state.groups.values())
        self._any = self._any or bool(state.flows.users.limits)
        self._used: dict[str, Counter[str]] | None = None
        self._users: dict[str, Counter[str]] = {}

    def stop(self, job_id: str, needs: Iterable[Amounts]) -> bool:
        """Returns whether more slots with these amounts are forbidden: by a maximum of the job's
        groups or of its owner, or because the job waits for other jobs.
        """
        if self._awaits(job_id):
            return True
        if not self._any:
            return False
        if self._used is None:
            booked = _booked(self._state)
            self._used, self._users = (
                _sums(self._state, booked),
                _sums_of_users(self._state, booked),
            )
        need = sum((Counter(counted(each)) for each in needs), Counter[str]())
        owner = self._state.jobs[job_id].owner
        limits = [
            (self._used.get(group.name, Counter()), group.maximum)
            for group in _path(self._state, job_id)
        ]
        limits.append((self._users.get(owner, Counter()), limits_of(self._state, owner)))
        return any(
            used[name] + amount > maximum[name]
            for used, maximum in limits
            for name, amount in need.items()
            if name in maximum
        )

    def _awaits(self, job_id: str) -> bool:
        job = self._state.jobs.get(job_id)
        return job is not None and bool(job.depends_on) and waits(self._state, job)

    def stop_request(self, job_id: str, spec: RequestSpec) -> bool:
        """Returns True if one more request of this kind is forbidden."""
        if not self._any and not self._awaits(job_id):
            return False
        shape = self._state.queue.class_of(spec)
        return self.stop(job_id, [self._state.quotas.need_of(shape)])


def _path(state: State, job_id: str) -> list[Group]:
    """Returns the groups above a job, the outermost first."""
    found: list[Group] = []
    job = state.jobs.get(job_id)
    name = job.group if job is not None else ""
    while name:
        found.append(state.groups[name])
        name = found[-1].parent
    return found[::-1]


def _booked(state: State) -> Booked:
    return {key: needs_slots(counted(slot.booked)) for key, slot in state.slots.items()}


def _sums(state: State, amounts: Booked) -> dict[str, Counter[str]]:
    """Adds up amounts of slots by group; a slot counts in all groups above its job."""
    per_job: dict[str, Counter[str]] = {}
    for key, booked in amounts.items():
        per_job.setdefault(state.slots[key].job_id, Counter()).update(booked)
    sums: dict[str, Counter[str]] = {}
    for job_id, booked in per_job.items():
        for group in _path(state, job_id):
            sums.setdefault(group.name, Counter()).update(booked)
    return sums


def _sums_of_users(state: State, amounts: Booked) -> dict[str, Counter[str]]:
    """Adds up amounts of slots by the owner of their jobs."""
    sums: dict[str, Counter[str]] = {}
    for key, booked in amounts.items():
        job = state.jobs.get(state.slots[key].job_id)
        if job is not None:
            sums.setdefault(job.owner, Counter()).update(booked)
    return sums


def _above_user_limits(state: State, now: Booked, more: Booked) -> Iterator[str]:
    """Yields users that exceed a limit because of the present placements."""
    if not state.flows.users.limits:
        return
    used = _sums_of_users(state, now)
    for owner, added in _sums_of_users(state, more).items():
        for dimension, limit in limits_of(state, owner).items():
            if added[dimension] and used[owner][dimension] > limit:
                yield (
                    f"{owner} has {used[owner][dimension]} of {dimension}, of which"
                    f" {added[dimension]} are new; its limit is {limit}"
                )


def _beyond(booked: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {
        name: amount - before.get(name, 0)
        for name, amount in booked.items()
        if amount > before.get(name, 0)
    }


def _above_maximum(
    state: State, used: dict[str, Counter[str]], more: dict[str, Counter[str]]
) -> Iterator[str]:
    """Yields groups that exceed a maximum because of the present placements."""
    for name, added in more.items():
        for dimension, limit in state.groups[name].maximum.items():
            if added[dimension] and used[name][dimension] > limit:
                yield (
                    f"group {name} has {used[name][dimension]} of {dimension}, of which"
                    f" {added[dimension]} are new; its maximum is {limit}"
                )


def _goes_on_above_maximum(
    state: State, slot: Slot, used: dict[str, Counter[str]]
) -> Iterator[str]:
    for group in _path(state, slot.job_id):
        for dimension in needs_slots(counted(slot.booked)).keys() & group.maximum.keys():
            if used[group.name][dimension] > group.maximum[dimension]:
                yield f"{slot.allocation_id} goes on, and group {group.name} has too much"


def _minimum_passed_over(
    state: State,
    placed: list[Slot],
    used: dict[str, Counter[str]],
    more: dict[str, Counter[str]],
) -> Iterator[str]:
    """Yields slots placed before equal requests of a group that lacks its minimum."""
    if state.settings.classes_tried_max < MANY_SHAPES:
        return
    limits = Limits(state)
    lines = [
        line
        for line in state.queue.job_queues()
        if line.numbers
        and _may_go(state, line)
        and not limits.stop(line.job_id, [state.quotas.need_of(line.scheduling_class)])
    ]
    for slot in placed:
        request = state.requests.get(slot.allocation_id)
        if request is None or request.spec.gang_id or slot.executor_id in state.provisions:
            continue
        for line in lines:
            if _is_passed_over(state, line, request, used, more):
                head = state.requests.at(line.numbers.first).allocation_id
                yield f"{slot.allocation_id} was placed before {head}, whose minimum is lacking"


def _may_go(state: State, line: JobQueue) -> bool:
    head = state.requests.at(line.numbers.first).allocation_id
    return line.job_id not in state.endings and head not in state.slots.superseded


def _is_passed_over(
    state: State,
    line: JobQueue,
    request: Request,
    used: dict[str, Counter[str]],
    more: dict[str, Counter[str]],
) -> bool:
    """Returns whether `line` belongs to a group below its minimum, unlike the placed request's.

    Both must be of the same scheduling class. Their groups are compared at the first level where
    they differ. For the placed request's group, the usage from before the placement is compared.
    """
    shape = line.scheduling_class
    if shape.key != scheduling_key(request.spec):
        return False
    if only_by_revocation(state, request, state.requests.at(line.numbers.first).spec):
        return False
    for mine, theirs in zip(
        _steps(state, request.job_id), _steps(state, line.job_id), strict=False
    ):
        if mine == theirs:
            continue
        group, other = state.groups.get(theirs), state.groups.get(mine)
        if group is None or _reached(used.get(theirs, Counter()), group) >= 1:
            return False
        if other is None:
            return True
        had = used.get(mine, Counter()) - more.get(mine, Counter())
        return _reached(had, other) >= 1
    return False


def _reached(used: Counter[str], group: Group) -> float:
    return fulfilment(used, used[SLOTS], group.minimum)


def _steps(state: State, job_id: str) -> list[str]:
    """Returns the path of a job from the outermost group; the last item is no group's name."""
    return [*(group.name for group in _path(state, job_id)), f"/{job_id}"]


def _held_for_nobody(state: State) -> Iterator[str]:
    """Yields reservations whose owner has ended or does not wait."""
    for each in state.reservations.by_number.values():
        owner = each.owner
        job, request = state.jobs.get(owner.job_id), state.requests.named(owner.allocation_id)
        waits = request is not None and (
            request.state is RequestState.PENDING
            or any(
                slot.wanted is not None
                for key, slot in state.slots.items()
                if key[0] == owner.allocation_id
            )
        )
        if job is None or job.state is not JobState.ACTIVE or not waits:
            yield f"{sorted(each.hosts)} are held for {owner.allocation_id}: {request}"


def _is_taken_over(database: Database, name: str) -> bool:
    """Returns whether it is durable that another slot serves a request."""
    row = database.rows.row(tables.requests, (name,))
    if row is not None:
        return REQUESTS.decode(row).reason == Reason.REUSED
    range_id, _, index = name.rpartition(".")
    for (found, _), each in database.rows.keyed(tables.request_ranges).items():
        if found == range_id:
            part = RANGES.decode(each)
            at = int(index)
            if any(
                why[1] == Reason.REUSED and at in members for why, members in part.ended.items()
            ):
                return True
    return False
