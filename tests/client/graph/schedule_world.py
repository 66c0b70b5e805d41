"""A simulated cluster for schedules: it has few slots, and every allowed event may happen in it."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from finegrain_client.graph.plan import Plan
from finegrain_client.graph.schedule import (
    CancelRequest,
    CancelTask,
    DeployTask,
    Effect,
    Event,
    JobEnded,
    JobStarted,
    PassSlot,
    RegionState,
    ReleaseSlot,
    RequestSlots,
    Schedule,
    SlotsGranted,
    StartDelay,
    TaskId,
)


class World:
    """Carries out the effects of one schedule.

    Attributes:
        plan: the plan of the job.
        capacity: number of slots of the cluster; a request is granted only if all of it fits.
        requests: outstanding requests.
        withdrawn: requests that were cancelled.
        hosts: host of each slot that the job has.
        tasks: slot of each task that runs.
        delays: delays that run, as (region, attempt).
        most_slots: the most slots that the job had at one time.
        passed: how often a slot passed to another place.
    """

    def __init__(self, plan: Plan, capacity: int) -> None:
        self.plan = plan
        self.schedule = Schedule(plan)
        self.capacity = capacity
        self.requests: dict[int, RequestSlots] = {}
        self.withdrawn: list[RequestSlots] = []
        self.hosts: dict[int, str] = {}
        self.tasks: dict[TaskId, int] = {}
        self.delays: list[tuple[int, int]] = []
        self.cancelled: set[TaskId] = set()
        self.ended: JobEnded | None = None
        self.most_slots = 0
        self.passed = 0
        self.deployed = 0
        self.step(JobStarted())

    def copy(self) -> World:
        copied = copy(self)
        copied.schedule = self.schedule.copy()
        copied.requests, copied.hosts = dict(self.requests), dict(self.hosts)
        copied.tasks, copied.delays = dict(self.tasks), list(self.delays)
        copied.withdrawn = list(self.withdrawn)
        copied.cancelled = set(self.cancelled)
        return copied

    def step(self, event: Event) -> list[Effect]:
        """Steps the schedule, carries out the effects, and checks what must always hold."""
        effects = self.schedule.step(event)
        for effect in effects:
            self._carry_out(effect)
        self._check()
        return effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case RequestSlots():
                assert effect.request not in self.requests
                self.requests[effect.request] = effect
            case CancelRequest(request):
                self.withdrawn.append(self.requests.pop(request))
            case PassSlot(slot):
                assert slot in self.hosts
                assert slot not in self.tasks.values()
                self.passed += 1
            case DeployTask(task, slot):
                assert slot in self.hosts
                assert task not in self.tasks
                self.tasks[task] = slot
                self.deployed += 1
            case CancelTask(task):
                assert task in self.tasks
                self.cancelled.add(task)
            case ReleaseSlot(slot):
                assert slot not in self.tasks.values()
                del self.hosts[slot]
            case StartDelay(region, attempt):
                self.delays.append((region, attempt))
            case JobEnded():
                assert self.ended is None
                self.ended = effect

    def _check(self) -> None:
        self.most_slots = max(self.most_slots, len(self.hosts))
        slots = self.schedule.slots.at
        assert sorted(each.number for each in slots.values()) == sorted(self.hosts)
        # A region that waits occupies no slot: each slot belongs to a region that runs or that will
        # soon run.
        occupied = {
            place
            for each in self.schedule.regions.values()
            if each.occupies_slots
            for place in each.places
        }
        assert set(slots) <= occupied
        requested = [place for each in self.requests.values() for place in each.places]
        assert len(requested) == len(set(requested))
        assert not set(requested) & set(slots)
        for region in self.schedule.regions.values():
            if region.state is RegionState.RUNNING:
                assert all(
                    self.schedule.regions[each].state is RegionState.FINISHED
                    for each in region.plan.waits_for
                )
        if self.ended is not None:
            assert (self.hosts, self.tasks, self.requests) == ({}, {}, {})

    def position(self) -> object:
        """Returns the facts that determine how the job can continue. Equal positions need not be
        tried twice.

        The numbers of slots and requests are left out, because they only distinguish slots and
        requests.
        """
        return (
            tuple(each.state for each in self.schedule.regions.values()),
            frozenset(self.schedule.slots.at),
            frozenset((each.region, each.places) for each in self.requests.values()),
            frozenset(self.tasks),
        )

    def grantable(self) -> list[RequestSlots]:
        """Returns the outstanding requests that fit."""
        free = self.capacity - len(self.hosts)
        return [each for each in self.requests.values() if len(each.places) <= free]

    def grant(self, request: RequestSlots, hosts: Iterable[str] = ()) -> None:
        """Grants a request; by default all on one host."""
        chosen = tuple(hosts) or ("host-a",) * len(request.places)
        self.requests.pop(request.request, None)
        for at, host in enumerate(chosen):
            self.hosts[request.first_slot + at] = host
        self.step(SlotsGranted(request.request, request.first_slot, chosen))
