"""What becomes of a gang: it is placed, granted, broken up and ended as a whole.

The members of a gang that have not ended stand in one and the same state. While they wait, the gang
has one place in line, that of its first member. It is placed in one decision, or not at all.
Members stay ALLOCATING until the executors have confirmed all of them, then all are granted at
once; whatever undoes one before that sends all back, and frees what the others have. So a job
master never sees half a gang, and no two gangs hold halves. After it was granted each slot goes its
own way, but for one thing: members that ask for another slot when theirs is lost
(`restart_on_loss`) go back into line together.

The moves of `lifecycle/moves.py` that a member cannot make alone stand here under the same names,
and do for requests without a gang what those do. Where there is room, `placement/gang_search.py`
knows; what is accepted, `requests/gang_intake.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from finegrain.errors import Reason
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import Gang, Request, Slot
from resource_manager.engine.model.scheduling_key import SchedulingKey, scheduling_key
from resource_manager.engine.model.state_tables import GangInput
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.gang_room import Share
from resource_manager.engine.placement.gang_search import find_together, passed_by
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.placement_pass import PlacementPass
from resource_manager.engine.queue.gangs import GangLedger, MemberRequest, WaitingGang, living
from resource_manager.engine.queue.non_batchable import NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.queue.requests import Requests


def waiting_gangs(gangs: GangLedger) -> Iterator[tuple[Gang, list[Request]]]:
    """Gangs that wait, in the order of their places in line, with their living members in order of
    arrival.
    """
    for waiting in gangs.in_order():
        yield waiting.gang, waiting.members


@dataclass(slots=True, eq=False)
class GangMoves:
    """Moves gangs, and requests that may belong to one, through their states."""

    journal: Journal
    changes: ChangeTracker
    endings: dict[str, Ending]
    gangs: GangLedger
    hosts: Hosts
    queue: WaitingQueue
    rejection_clock: RejectionClock
    requests: Requests
    slots: Slots
    timers: Timers
    transitions: Transitions
    moves: RequestMoves

    def current_requests(self, waiting: WaitingGang) -> tuple[MemberRequest, ...]:
        """What a gang that waits asks for, with the hosts that its members must not have now."""
        if any(each.allocation_id in self.slots.superseded for each in waiting.members):
            return tuple(self._by_request(waiting))
        return waiting.kind.member_requests

    def begin_to_wait(self, gang: Gang) -> None:
        """Puts a new gang into the line."""
        if gang.spec.timeout_ms is not None:
            gang.waiting_until_ms = self.journal.now_ms + gang.spec.timeout_ms
        self.queue_gang(gang)

    def queue_gang(self, gang: Gang, *, tried: bool = False) -> None:
        """Puts a gang into the line, at its place."""
        members = list(living(self.requests, gang))
        self.gangs.begin_to_wait(gang, members, self.queue.non_batchables, tried=tried)
        if gang.waiting_until_ms is not None:
            self.timers.arm(Timer.GANG, gang.gang_id, gang.waiting_until_ms)

    def try_gang(self, placing: PlacementPass, item: NonBatchable) -> bool:
        """Places all members of a gang that waits, if there is room for all of them."""
        waiting = self.gangs.waiting[item.name]
        waiting.tried = True
        if passed_by(self.hosts, waiting.kind):
            return False
        requests = self.current_requests(waiting)
        found = find_together(self.hosts, waiting, requests)
        if found is None:
            return False
        self.place_together(waiting, requests, found)
        placing.follow(
            [self.hosts[name] for name in dict.fromkeys(share.host_id for share in found)]
        )
        return True

    def place_together(
        self,
        waiting: WaitingGang,
        requests: Sequence[MemberRequest],
        found: Iterable[Share],
    ) -> None:
        """Books slots for all members of a gang that waits, on hosts that have room for them;
        `requests` are `current_requests`.
        """
        groups = self._by_request(waiting)
        members = [iter(groups[request_kind]) for request_kind in requests]
        for share in found:
            some = list(islice(members[share.wish], share.count))
            self.moves.place(some, self.hosts[share.host_id])
        self.transitions.move_gang(waiting.gang, GangInput.PLACE)
        self.gangs.unconfirmed[waiting.gang.gang_id] = len(waiting.members)
        self.gangs.stop_waiting(waiting.gang, self.queue.non_batchables)

    def confirm(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """The executor carved the slot. The last one of a gang lets all of them be granted."""
        gang = self.gangs.of(self.requests[slot.allocation_id])
        if gang is None:
            self.moves.confirm(slot, isolation=isolation, cpus=cpus)
            return
        self.moves.carve(slot, isolation=isolation, cpus=cpus)
        self.gangs.unconfirmed[gang.gang_id] -= 1
        if self.gangs.unconfirmed[gang.gang_id]:
            return
        del self.gangs.unconfirmed[gang.gang_id]
        self.transitions.move_gang(gang, GangInput.GRANT)
        gang.waiting_until_ms = None
        for request in living(self.requests, gang):
            self.moves.grant(self.slots[request.allocation_id, request.generation])

    def requeue(self, request: Request, slot: Slot, reason: str, message: str) -> None:
        """Back to the old place in line; a gang goes back as a whole.

        What becomes of the slot itself is the caller's next move.
        """
        gang = self.gangs.of(request)
        if gang is None:
            self.moves.requeue(request, slot, reason, message)
        else:
            self._break_up(gang, request, reason, message)

    def lose(self, slot: Slot, reason: str, message: str) -> None:
        """The slot's request has lost it; likewise."""
        request = self.requests.served_by(slot)
        gang = self.gangs.of(request) if request is not None else None
        if request is None or gang is None:
            self.moves.lose(slot, reason, message)
            return
        if request.state is RequestState.GRANTED and not request.spec.restart_on_loss:
            self.moves.lose(slot, reason, message)
            return
        self.journal.slot_event("slot_lost", slot, reason=reason, message=message)
        self._break_up(gang, request, reason, message)

    def decline(self, slot: Slot) -> None:
        """Nobody accepted the executor's direct offer. (Members of a gang are not offered directly;
        if an executor does so all the same, a gang that is not granted yet goes back.)
        """
        request = self.requests.served_by(slot)
        if (
            request is None
            or not request.spec.gang_id
            or request.state is not RequestState.ALLOCATING
        ):
            self.moves.decline(slot)
            return
        self.lose(slot, Reason.OFFER_NOT_ACCEPTED, "its executor says that nobody accepted it")
        self.moves.vanish(slot)

    def give_up(
        self,
        request: Request,
        *,
        alone: bool = False,
        reason: str = "",
        message: str = "",
        grace_ms: int | None = None,
    ) -> None:
        """Ends a living request on somebody's wish, and with one of a gang that is not granted all
        of them.

        `alone`: the wish is about a slot that was granted. Its gang may have gone back into line
        while the wish was on its way; the others are waited with as before.
        """
        gang = self.gangs.of(request)
        if gang is None or request.state is RequestState.GRANTED:
            self.moves.give_up(request, reason=reason, message=message, grace_ms=grace_ms)
            return
        waiting = self.gangs.waiting.get(gang.gang_id)
        if alone and waiting is not None and len(waiting.members) > 1:
            self.gangs.stop_waiting(gang, self.queue.non_batchables)
            self.moves.give_up(request, reason=reason, message=message, grace_ms=grace_ms)
            self.queue_gang(gang, tried=waiting.tried)
            return
        self._leave(gang, GangInput.END)
        gang.waiting_until_ms = None
        for member in list(living(self.requests, gang)):
            self.moves.give_up(member, reason=reason, message=message, grace_ms=grace_ms)

    def dequeue(self, request: Request) -> None:
        """A request that waits shall not be placed any more: it is about to end."""
        gang = self.gangs.of(request)
        if gang is None:
            self.queue.remove(request)
        else:
            self.gangs.stop_waiting(gang, self.queue.non_batchables)

    def gang_timer_fired(self, gang_id: str) -> int:
        """Ends a gang that has waited for too long; answers with how many requests ended."""
        waiting = self.gangs.waiting.get(gang_id)
        if waiting is None or waiting.gang.waiting_until_ms is None:
            return 0
        gang = waiting.gang
        if self.journal.now_ms < (gang.waiting_until_ms or 0):
            self.timers.arm(Timer.GANG, gang_id, gang.waiting_until_ms or 0)
            return 0
        message = f"gang {gang_id} could not be placed as a whole within {gang.spec.timeout_ms} ms"
        why = (Reason.GANG_TIMEOUT, message)
        self.reject_gang(waiting, {member.allocation_id: why for member in waiting.members})
        return len(waiting.members)

    def reject_gang(self, waiting: WaitingGang, outcomes: Mapping[str, tuple[str, str]]) -> None:
        """Ends a gang that may not wait any longer.

        Args: outcomes: reason and message by allocation id, for every member; the job master is
        told in this order.
        """
        self._leave(waiting.gang, GangInput.END)
        waiting.gang.waiting_until_ms = None
        for allocation_id, (reason, message) in outcomes.items():
            self.moves.reject(self.requests[allocation_id], reason, message)

    def _leave(self, gang: Gang, what: GangInput) -> None:
        """It is not to be placed, nor are confirmations waited for."""
        self.transitions.move_gang(gang, what)
        self.gangs.stop_waiting(gang, self.queue.non_batchables)
        self.gangs.unconfirmed.pop(gang.gang_id, None)

    def _by_request(self, waiting: WaitingGang) -> dict[MemberRequest, list[Request]]:
        """The members, by what they ask for and which hosts they must not have."""
        alike: dict[tuple[SchedulingKey, frozenset[str]], list[Request]] = {}
        for request in waiting.members:
            superseded = self.slots.superseded.get(request.allocation_id, ())
            elsewhere = frozenset(slot.executor_id for slot in superseded)
            alike.setdefault((scheduling_key(request.spec), elsewhere), []).append(request)
        return {
            MemberRequest(profile, labels, len(some), elsewhere, cpus): some
            for ((profile, labels, cpus), elsewhere), some in alike.items()
        }

    def _break_up(self, gang: Gang, culprit: Request, reason: str, message: str) -> None:
        """All living members go back to their place in line. The slots of all but the culprit are
        taken down.
        """
        was_granted = culprit.state is RequestState.GRANTED
        members = list(living(self.requests, gang))
        others = f"{culprit.allocation_id} of the same gang was lost: {message}"
        self.journal.cluster_event(
            "gang_broken",
            job_id=gang.job_id,
            allocation_id=culprit.allocation_id,
            reason=reason,
            message=f"gang {gang.gang_id} goes back into line: {message}",
        )
        self._leave(gang, GangInput.BREAK)
        for member in members:
            slot = self.slots[member.allocation_id, member.generation]
            if member is culprit:
                self.moves.requeue(member, slot, reason, message)
            else:
                self.moves.requeue(member, slot, Reason.GANG_BROKEN, others)
                self.moves.free(slot)
        if was_granted:
            gang.waiting_since_time_ms = self.journal.at.time_ms
            self.changes.gang(gang)
            if gang.spec.timeout_ms is not None:
                gang.waiting_until_ms = self.journal.now_ms + gang.spec.timeout_ms
        if gang.job_id not in self.endings:
            self.queue_gang(gang)
            self.rejection_clock.gang_requeued(gang.gang_id, self.journal.now_ms)
