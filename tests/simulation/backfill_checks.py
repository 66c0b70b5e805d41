"""Checks that slots on reserved capacity end before the owner of the reservation may start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Set
from weakref import WeakKeyDictionary

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Slot, SlotKey
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.state import State


class BackfillChecks:
    """Records the promised starts of reservations, and counts backfilled slots."""

    def __init__(self) -> None:
        self.backfilled = 0
        # by owner: the earliest start that was expected since the owner has its reservation
        self._earliest: WeakKeyDictionary[State, dict[int, tuple[Reservation, int]]] = (
            WeakKeyDictionary()
        )

    def decided(self, state: State, new: Collection[SlotKey]) -> Iterator[str]:
        """Checks a batch; must be called for each batch, also for a batch without new slots.

        Yields new slots on capacity that is reserved for others, if they will probably run for
        longer than the owner may have to wait.
        """
        earliest = self._note_promises(state)
        by_host: dict[str, list[SlotKey]] = {}
        for key in new:
            host = state.hosts.get(state.slots[key].executor_id)
            if host is None or host.reserved is None or key in host.reserved.before:
                continue
            # Slots of the owner's job may have been placed before the reservation was made.
            if state.slots[key].job_id != host.reserved.own_job:
                by_host.setdefault(host.host_id, []).append(key)
        for host_id, keys in by_host.items():
            host, owner = state.hosts[host_id], state.reservations.on_host[host_id].owner
            start = earliest.get(owner.number)
            until_ms = None if start is None else start[1]
            late = [key for key in keys if not _ends_before(state, state.slots[key], until_ms)]
            in_time = set(keys) - set(late)
            self.backfilled += sum(_is_on_reserved(host, host.slots[key]) for key in in_time)
            for key in late:
                # The slots that end in time may have been placed after this slot, and then took no
                # capacity from it.
                if _is_on_reserved(host, host.slots[key], apart_from=in_time):
                    yield (
                        f"{key[0]} is placed at {state.journal.now_ms} on {host_id}, which is"
                        f" reserved for {owner.title} from {until_ms}"
                    )

    def _note_promises(self, state: State) -> dict[int, tuple[Reservation, int]]:
        """Returns the earliest expected start by owner.

        If another owner has the plan for a while, the promise to the first owner ends. In the
        meantime, slots of any length may be placed on its hosts.
        """
        earliest = self._earliest.setdefault(state, {})
        reservations = state.reservations.by_number
        for number in earliest.keys() - reservations.keys():
            del earliest[number]
        for number, each in reservations.items():
            if (start_ms := each.promised_ms) is None:
                continue
            known, known_ms = earliest.get(number, (each, start_ms))
            # If its hosts can no longer serve the owner, a plan gets other hosts and another start.
            same = known.hosts.keys() == each.hosts.keys()
            earliest[number] = each, min(start_ms, known_ms) if same else start_ms
        return earliest


def _ends_before(state: State, slot: Slot, until_ms: int | None) -> bool:
    """Returns whether a new slot will probably end before a time (monotonic)."""
    spec = state.requests[slot.allocation_id].spec
    expected_ms = state.run_times.expected_ms(spec, slot.job_id)
    if until_ms is None or expected_ms is None:
        return False
    return state.journal.now_ms + expected_ms <= until_ms


def _is_on_reserved(host: Host, slot: Slot, *, apart_from: Set[SlotKey] = frozenset()) -> bool:
    """Returns whether a slot uses capacity that its host reserves for another request.

    Args:
        host: the host.
        slot: the slot.
        apart_from: new slots that do not count.
    """
    kept = host.reserved
    assert kept is not None
    since = sum(
        (
            Counter(each.booked)
            for key, each in host.slots.items()
            if key not in kept.before and key not in apart_from
        ),
        Counter[str](),
    )
    return any(
        since[name] + kept.amounts[name] > host.total.get(name, 0)
        for name in slot.booked.keys() & kept.amounts.keys()
    )
