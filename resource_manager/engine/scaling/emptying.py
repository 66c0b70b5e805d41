"""Chooses executors to empty, so that they can be given back to their provider.

An executor is *surplus* if no request waits for capacity, and other executors have enough free
capacity for the work that the executor has now. If an executor has been surplus for the idle
timeout, it gets no new slots. When its slots have ended, it is idle, and is given back like other
idle executors. Executors whose slots end first are chosen first. The ends are known from time
limits, expected run times, and earlier slots. An executor whose end is not known is not chosen.

Example: three executors have 8 cpus each. Their slots have 4, 4 and 2 cpus, and end in 10, 60 and
30 minutes. The first executor is chosen, because the others have 10 cpus free. Then the third is
not chosen: its 2 cpus and the 4 cpus of the first do not fit on the second.

The choice has no effect on requests that need the capacity: if a request waits that fits on such an
executor, the executor gets new slots again in the same cycle.
"""

from __future__ import annotations

from heapq import nsmallest

from finegrain.resources import Amounts, fits, total_of
from finegrain.values.states import ExecutorState, ProvidedExecutorState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.constraint import HostView
from resource_manager.engine.placement.elastic import PENDING
from resource_manager.engine.placement.fit import Fit
from resource_manager.engine.scaling.spare import Spare
from resource_manager.engine.state import State

CANDIDATES_MAX = 64
"""In one pass, the ends of slots are computed for at most this many executors: those with the
fewest slots.
"""


class Emptying:
    """Chooses executors to empty."""

    def __init__(self, state: State) -> None:
        self._state = state

    def choose(self) -> None:
        """Chooses the executors that get no new slots from now on. Planning passes call this."""
        since, now_ms = self._state.elastic.surplus_since_ms, self._state.journal.now_ms
        surplus = [] if self._needs_capacity() else self._surplus()
        names = {host.host_id for host in surplus}
        for name in since.keys() - names:
            del since[name]
        timeout_ms = self._state.elastic.provisioning.idle_timeout_ms
        chosen = {name for name in names if now_ms - since.setdefault(name, now_ms) >= timeout_ms}
        self._set(chosen)

    def use_again(self) -> bool:
        """Lets executors get new slots again if a waiting request fits on one of them. Returns
        whether this is so.
        """
        hosts, queue = self._state.hosts, self._state.queue
        emptying = [hosts[name] for name in self._state.elastic.emptying if name in hosts]
        fitting = [Fit(each) for each in queue.classes() if queue.is_blocked(each)]
        needed = bool(emptying and self._state.gangs.waiting) or any(
            fit.fits(HostView.now(host)) for fit in fitting for host in emptying
        )
        if needed:
            # The capacity was needed, so the executors were not surplus.
            self._state.elastic.surplus_since_ms.clear()
            self._set(set())
        return needed

    def _needs_capacity(self) -> bool:
        """Returns whether a request waits for capacity, or executors were requested."""
        queue = self._state.queue
        return (
            bool(self._state.gangs.waiting)
            or any(queue.is_blocked(each) for each in queue.classes())
            or any(each.state in PENDING for each in self._state.provisions.values())
        )

    def _surplus(self) -> list[Host]:
        """Returns the surplus executors. The executor whose slots end first is the first."""
        candidates, staying = self._candidates()
        # Keep the executors of the last pass if several executors have equal ends.
        ends = [
            (end_ms, host.host_id not in self._state.elastic.emptying, host.host_id, host)
            for host in candidates
            if (end_ms := self._state.run_times.empty_ms(host)) is not None
        ]
        free = total_of(host.free() for host in staying)
        work: Amounts = {}
        spare, found = Spare(self._state), list[Host]()
        for *_, host in sorted(ends, key=lambda each: each[:3]):
            total = host.executor.registration.total
            # The free capacity of the other executors that were not chosen.
            left = {name: amount - host.free().get(name, 0) for name, amount in free.items()}
            moved = total_of((work, host.booked))
            if spare.has(total) and fits(moved, left):
                spare.give(total)
                free, work = left, moved
                found.append(host)
        return found

    def _candidates(self) -> tuple[list[Host], list[Host]]:
        """Returns the executors that are possibly surplus, and all executors with capacity for
        their work. The latter do not include idle executors of providers, which will be given back.
        """
        elastic = self._state.elastic
        provided = {
            each.executor_id
            for each in self._state.provisions.values()
            if each.state is ProvidedExecutorState.REGISTERED
        }
        there = [host for host in self._state.hosts.values() if host.eligible]
        staying = [host for host in there if host.slots or host.host_id not in provided]
        candidates = [
            host
            for host in there
            if host.host_id in provided
            and host.executor.state is ExecutorState.ACTIVE
            and (host.slots or host.emptying)
            and host.reserved is None
            and host.host_id not in elastic.plan.counted_on
        ]
        return nsmallest(CANDIDATES_MAX, candidates, key=lambda each: len(each.slots)), staying

    def _set(self, chosen: set[str]) -> None:
        """Sets the executors that get no new slots."""
        elastic = self._state.elastic
        for name in elastic.emptying ^ chosen:
            if (host := self._state.hosts.get(name)) is not None:
                host.emptying = name in chosen
                self._state.hosts.touch(host)
        elastic.emptying = chosen
