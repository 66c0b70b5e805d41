"""Checks that a gang has either all of its slots or none, in the state and in the view of its job
master.

It computes whether a gang of equal members fits, without the engine. So it finds gangs that wait
although there is enough free capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrain.errors import Reason
from finegrain.resources import fits
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.effects import Changes, Effect, PublishJobEvent
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, GangSpec, Request, Slot
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.queue.gangs import WaitingGang, living
from resource_manager.engine.state import State
from tests.simulation.fair_checks import Limits

if TYPE_CHECKING:
    from tests.simulation.follower import Follower

GRANTED = RequestState.GRANTED
SIZE_EVENTS = frozenset({Reason.RESIZED, Reason.RESIZE_REFUSED})


@dataclass
class GangChecks:
    """Records of every gang that a job master has requested."""

    _gangs: dict[str, dict[str, tuple[GangSpec, list[str]]]] = field(default_factory=dict)
    _placed: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    # The gangs that were overdue at the last tick.
    _overdue: set[WaitingGang] = field(default_factory=set)
    granted: int = 0  # number of gangs

    def asked(self, job_id: str, gang: GangSpec, members: list[str]) -> None:
        """A job master is about to request a gang."""
        self._gangs.setdefault(job_id, {})[gang.gang_id] = gang, members

    def followed(self, master: Follower) -> list[str]:
        """Checks that a job master knows all living members of a gang as granted, or none.

        The log may be behind the state, but never in the middle of a change.
        """
        wrong = []
        for gang_id, (_, members) in self._gangs.get(master.name, {}).items():
            told = {name: master.seen[name].state for name in members if name in master.seen}
            granted = [name for name, state in told.items() if state is GRANTED]
            waiting = [
                name
                for name in members
                if told.get(name, RequestState.PENDING) not in (GRANTED, *ENDED_REQUEST_STATES)
                and (name in told or master.snapshot is None)
            ]
            if granted and waiting:
                wrong.append(f"{master.name} sees {granted} of gang {gang_id}, without {waiting}")
        return wrong

    def late(self, state: State, now_ms: int) -> Iterator[str]:
        """Yields gangs that wait for longer than their timeout. It must be called after a tick,
        with the engine's clock.

        A tick may break up a gang after its timeout. The next tick then ends the gang, unless the
        gang was placed in between: then the gang waits again.
        """
        overdue = {
            waiting
            for waiting in state.gangs.waiting.values()
            if waiting.gang.spec.timeout_ms is not None
            and (waiting.gang.waiting_until_ms or 0) < now_ms
        }
        for waiting in overdue & self._overdue:
            gang = waiting.gang
            yield f"gang {gang.gang_id} still waits, and was to do so until {gang.waiting_until_ms}"
        self._overdue = overdue

    def books(self) -> None:
        """A resource manager has started."""
        self._overdue.clear()

    def decided(self, state: State, effects: Iterable[Effect], changes: Changes) -> Iterator[str]:
        """Checks the gangs that a batch touched; yields problems."""
        touched = [*changes.requests, *changes.moved_requests]
        touched += [
            state.requests[slot.allocation_id]
            for slot in (*changes.slots, *changes.moved_slots)
            if slot.allocation_id in state.requests
        ]
        gangs = {each.spec.gang_id for each in touched} & state.gangs.by_id.keys()
        published = {
            effect.event.allocation_id
            for effect in effects
            if isinstance(effect, PublishJobEvent)
            and effect.event.state is GRANTED
            and effect.event.reason not in SIZE_EVENTS
        }
        for gang_id in sorted(gangs):
            members = list(living(state.requests, state.gangs.by_id[gang_id]))
            if members and members[0].job_id not in state.endings:
                yield from self._together(gang_id, members, published)
                yield from self._where(state, gang_id, members)

    def _together(self, gang_id: str, members: list[Request], published: set[str]) -> Iterator[str]:
        states = {request.allocation_id: str(request.state) for request in members}
        if len(set(states.values())) > 1:
            yield f"gang {gang_id} is not of one mind: {states}"
        told = states.keys() & published
        if told and told != states.keys():
            yield f"only {sorted(told)} of gang {gang_id} are told that they are granted"
        self.granted += bool(told)

    def _where(self, state: State, gang_id: str, members: list[Request]) -> Iterator[str]:
        """Checks each placement once, because labels may change later."""
        slots = [slot for request in members if (slot := state.slots.of(request)) is not None]
        keys = frozenset((slot.allocation_id, slot.generation) for slot in slots)
        if not keys or keys <= self._placed.get(gang_id, frozenset()):
            return
        self._placed[gang_id] = keys
        spec = state.gangs.by_id[gang_id].spec
        if any(slot.executor_id not in state.hosts for slot in slots):
            yield f"gang {gang_id} is on an executor that is not known"
        elif not _stands_right(spec, slots, state):
            where = {slot.allocation_id: slot.executor_id for slot in slots}
            yield f"gang {gang_id} ({spec.placement} {spec.label}) is on {where}"


def _stands_right(spec: GangSpec, slots: list[Slot], state: State) -> bool:
    hosts = [slot.executor_id for slot in slots]
    match spec.placement:
        case GangPlacement.SAME_EXECUTOR:
            return len(set(hosts)) == 1
        case GangPlacement.SPREAD:
            return len(set(hosts)) == len(hosts)
        case GangPlacement.SAME_LABEL:
            values = {state.hosts[name].labels.get(spec.label) for name in hosts}
            return len(values) == 1 and None not in values
        case _:
            return True


def room_for_gangs(state: State) -> Iterator[str]:
    """Yields gangs of equal members that wait although all members fit."""
    if state.unfinished:
        return
    limits = Limits(state)
    waiting: dict[str, list[Request]] = {}
    for request in state.requests.values():
        if request.spec.gang_id and request.state is RequestState.PENDING:
            waiting.setdefault(request.spec.gang_id, []).append(request)
    for gang_id, members in waiting.items():
        alike = {scheduling_key(each.spec) for each in members}
        if members[0].job_id in state.endings or len(alike) > 1:
            continue
        needs = [state.quotas.need_of(state.queue.class_of(each.spec)) for each in members]
        if limits.stop(members[0].job_id, needs):
            continue
        counts = {
            host: count for host in state.hosts.values() if (count := _count(state, host, members))
        }
        if _is_enough(state.gangs.by_id[gang_id].spec, counts, len(members)):
            where = {host.host_id: count for host, count in counts.items()}
            yield f"gang {gang_id} of {len(members)} waits, but there is room on {where}"


def _count(state: State, host: Host, members: list[Request]) -> int:
    """Returns how many members fit on a host now.

    It is 0 if the host refused one recently, or still has an older slot of one.
    """
    spec = members[0].spec
    if not host.eligible or not all(host.labels.get(k) == v for k, v in spec.required_labels):
        return 0
    shape = state.queue.class_of(spec)
    if host.refuses(shape) or (host.reserved is not None and host.needs_topology(shape)):
        return 0
    names = {request.allocation_id for request in members}
    if any(name in names for name, _ in host.slots):
        return 0
    need, free, count = host.booking_for(shape), host.spare(), 0
    while count < min(len(members), host.spare_slots()) and fits(need, free):
        free = {name: amount - need.get(name, 0) for name, amount in free.items()}
        count += 1
    return len(host.assign_many(shape, count)) if host.needs_topology(shape) else count


def _is_enough(spec: GangSpec, counts: dict[Host, int], members: int) -> bool:
    match spec.placement:
        case GangPlacement.SAME_EXECUTOR:
            return max(counts.values(), default=0) >= members
        case GangPlacement.SPREAD:
            return len(counts) >= members
        case GangPlacement.SAME_LABEL:
            per_value: dict[str, int] = {}
            for host, count in counts.items():
                if (value := host.labels.get(spec.label)) is not None:
                    per_value[value] = per_value.get(value, 0) + count
            return max(per_value.values(), default=0) >= members
        case _:
            return sum(counts.values()) >= members
