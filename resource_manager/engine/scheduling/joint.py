"""Places requests of many jobs together, if each job gets the same slots as it would get if
requests were placed one at a time.

With fair order, jobs alternate slot by slot. So the search for hosts and the bookings would run
once for each slot. But often, all requests that are next in order certainly fit. In this case, the
choice of a host cannot change which job is next. So this module first chooses the requests in fair
order, and afterwards places them by scheduling class.

Example: the classes with room need at most 2 cpus and 8 GiB. Host a has 5 cpus and 20 GiB free, so
two slots of any of these classes fit on host a. Host b has 4 cpus and 30 GiB free, so two slots fit
on host b, too. Wherever a slot is placed, it takes at most one of these four places. So four
requests certainly fit, in any order and on any hosts.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from finegrain.errors import InvariantBroken
from finegrain.resources import MEMORY_BYTES, Amounts, shared_booking
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.fairness.job_heaps import JobHeaps, JobTournaments
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.lifecycle.quota_checks import QuotaChecks
from resource_manager.engine.model.entities import Request
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

FIRST_COST = 8
"""The extra cost, in placed requests, of the first request of a class in a cycle, of each gang and
of each resize.
"""

JOINT_PER_PLACEMENT = 2
"""A request that is placed alone costs as much as this number of requests that are placed
together.
"""

JOINT_MIN = 16
"""If fewer requests than this can be placed together, they are placed one job at a time, because
the preparation would cost more than it saves.
"""

PART_OF_CLASS = 4
"""This number of requests of a class is placed before the next class, so that slots with different
needs share a host.
"""

JOBS_PER_REQUEST = 8
"""If there are more jobs than this for each request that can be placed, the jobs are not sorted,
because sorting would cost more than it saves.
"""


@dataclass(slots=True)
class Budget:
    """The work that one cycle can still do."""

    checks: int  # checks of classes that find no room
    tries: int  # failed tries, see `TRIES_MAX`
    moves: int  # moves of job queues, see `MOVES_MAX`
    placements: int  # placed requests, see `PLACED_MAX`


@dataclass(slots=True, eq=False)
class JointPlacement:
    """Chooses requests of many jobs in fair order, and places them by class."""

    costs: Costs
    flows: FlowTree
    hosts: Hosts
    moves: RequestMoves
    queue: WaitingQueue
    quotas: QuotaChecks
    requests: Requests
    slots: Slots

    def serve(self, placer: Placer, budget: Budget, served: set[SchedulingClass]) -> int:
        """Places the next requests in fair order, as long as they certainly fit.

        Args:
            placer: the placement pass.
            budget: the work that the cycle can still do.
            served: the classes of which the cycle has placed a request.

        Returns:
            The number of placed requests. If it is 0, the next request must be placed alone.
        """
        queue = self.queue
        plain = {each: self._slot_of(each) for each in queue.fitting if _is_plain(each)}
        allowance = budget.placements * JOINT_PER_PLACEMENT
        # Search for room for all waiting requests and one more, because one place is kept free
        # below. With this limit, the search does not have to examine every host for a few requests.
        most = min(allowance, sum(each.waiting for each in plain) + 1)
        left = self._certain_room(plain, most) - 1 if most > JOINT_MIN else 0
        if left < JOINT_MIN:
            return 0
        flows = self.flows
        limited = bool(flows.waiting_jobs or flows.users.flows) or any(
            flow.maximum for flow in (flows.root, *flows.groups.values())
        )
        few = len(queue.by_job) <= JOBS_PER_REQUEST * left
        jobs = JobHeaps(flows) if few else JobTournaments(flows)
        chosen: dict[SchedulingClass, list[Request]] = {}
        placed = 0
        while allowance > 0 and budget.moves > 0 and (job := jobs.first()) is not None:
            job_queue = queue.order.first_queue_of(job.name)
            scheduling_class = job_queue.scheduling_class
            if scheduling_class not in queue.fitting:
                # The queue of a class without room is deactivated only when the queue comes first
                # in order.
                queue.deactivate(job_queue)
                budget.moves -= 1
                jobs.served(job)
                continue
            slot = plain.get(scheduling_class)
            if slot is None:
                break
            booked, cost, highest_cost = slot
            length = jobs.run_length(job, highest_cost)
            numbers = queue.order.next_of(job_queue, min(length, allowance))
            count = len(numbers)
            if placed + count > left:
                break
            # If a quota admits only some of the requests, they must be placed one job at a time,
            # because the quota possibly blocks the queue.
            if limited and self.quotas.admitted_of(scheduling_class, job.name, count) < count:
                break
            requests = [self.requests.at(number) for number in numbers]
            if scheduling_class not in served:
                served.add(scheduling_class)
                allowance -= FIRST_COST
            chosen.setdefault(scheduling_class, []).extend(requests)
            # The next choice depends on the usage and on the queue, so update the usage and the
            # queue now.
            flows.place(job.name, booked, count, cost)
            queue.taken(job_queue, count)
            allowance -= count
            placed += count
            jobs.served(job)
        budget.placements = allowance // JOINT_PER_PLACEMENT
        at = 0
        while chosen:
            for scheduling_class, requests in list(chosen.items()):
                self._place(placer, scheduling_class, requests[at : at + PART_OF_CLASS])
                if len(requests) <= at + PART_OF_CLASS:
                    del chosen[scheduling_class]
            at += PART_OF_CLASS
        return placed

    def is_possible(self) -> bool:
        """Returns whether requests of several jobs are allowed to be placed together."""
        hosts, costs = self.hosts, self.costs
        return (
            self.queue.order.is_fair
            # Gangs and resizes would have to be placed before some of the requests.
            and not self.queue.non_batchables.in_pass
            # On these hosts, amounts alone do not decide whether a slot fits.
            and not hosts.indexes.aligning
            and not hosts.refusing
            # A request must not be placed on the host of its superseded slot.
            and not self.slots.superseded
            # With separate pools, the amounts that a slot books depend on its host.
            and not (costs.separate_pools and costs.total.get(MEMORY_BYTES))
        )

    def _place(
        self, placer: Placer, scheduling_class: SchedulingClass, requests: list[Request]
    ) -> None:
        placed = 0
        for host_id, share in placer.place(scheduling_class, len(requests)):
            run = requests[placed : placed + share]
            self.moves.place(run, self.hosts[host_id], charged=True)
            placed += share
        if placed < len(requests):
            raise InvariantBroken(
                f"only {placed} of {len(requests)} requests fit that certainly had room"
            )

    def _certain_room(self, classes: Container[SchedulingClass], most: int) -> int:
        """Returns how many requests of these classes certainly fit, in any order and on any hosts.
        The result is at most `most`.
        """
        needed: dict[str, int] = {}
        for each in self.queue.fitting:
            if each in classes:
                needs = needs_of(each)
                need = needs.separate if self.costs.separate_pools else needs.pooled
                for name, amount in need.items():
                    needed[name] = max(needed.get(name, 0), amount)
        index = self.hosts.indexes.main
        found = 0
        for position in index.covering([needed]) if needed else ():
            found += index.room(position, needed)
            if found >= most:
                return most
        return found

    def _slot_of(self, scheduling_class: SchedulingClass) -> tuple[Amounts, float, float]:
        """Returns the amounts that a slot of a plain class books, its cost per second, and the
        highest cost on any host.
        """
        assert scheduling_class.profile is not None  # noqa: S101 -- a plain class has a profile
        booked = shared_booking(
            scheduling_class.profile, self.costs.separate_pools, scheduling_class.best_effort
        )
        return booked, self.costs.of(booked), self.quotas.cost_of(scheduling_class)


def _is_plain(scheduling_class: SchedulingClass) -> bool:
    """Returns whether two conditions are met: amounts alone decide on which hosts a class fits, and
    every host books the same amounts for the class.
    """
    return (
        scheduling_class.profile is not None
        and not scheduling_class.labels
        and not scheduling_class.topology_constrained
        and not needs_of(scheduling_class).preferred
    )
