"""Implements the state machine that runs the regions of a plan.

- A region starts when two conditions are met: all regions for which it waits have finished, and all
  its slots are granted. It requests its slots together: either all of them are granted, or none.
- A region that waits occupies no slot. So no region ever waits for slots of another region that
  waits. And the job can finish with the number of slots that its largest region needs.
- When a region finishes, its slots pass to another region if two conditions are met: the profiles
  are equal, and the other region then needs no more slots to start. All other idle slots are
  released.
- If a task of a region fails, the region runs again after a delay, in the same slots. A region that
  lost a slot runs again without a delay.
- If output is lost and a region still needs it, the producer's region runs again. All regions that
  directly or indirectly wait for that region run again, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from finegrain_client.graph.plan import Plan
from finegrain_client.graph.schedule import effects, events
from finegrain_client.graph.schedule.effects import Effect
from finegrain_client.graph.schedule.events import Event
from finegrain_client.graph.schedule.outputs import Outputs
from finegrain_client.graph.schedule.region import RegionRun, RegionState
from finegrain_client.graph.schedule.slots import SlotPlace, SlotRequest, Slots, TaskId

LOSSES_MAX = 20
"""Maximum number of restarts of a region after losses. After one more loss, the job fails: its
tasks are possibly the cause of the losses.
"""

DELAY_MAX_S = 60.0


class Schedule:
    """The schedule of one job.

    Attributes:
        regions: the regions by number.
        slots: the slots that the job has.
        ended: True if `step` has returned JobEnded.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.regions = {each.number: RegionRun(plan, each) for each in plan.regions}
        self.slots = Slots({each.name: (each.profile, each.revocable) for each in plan.groups})
        self.ended = False
        self._region_of = {each.name: each.region for each in plan.chains}
        self._after: dict[int, list[int]] = {each.number: [] for each in plan.regions}
        for region in plan.regions:
            for earlier in region.waits_for:
                self._after[earlier].append(region.number)
        self.outputs = Outputs(plan)
        self._failure: str | None = None
        self._changed = True
        self._next_request = 1
        self._next_slot = 1
        self._effects: list[Effect] = []

    def copy(self) -> Schedule:
        """Returns an independent copy."""
        copied = Schedule.__new__(Schedule)
        copied.__dict__ = dict(self.__dict__)
        copied.regions = {number: each.copy() for number, each in self.regions.items()}
        copied.slots, copied.outputs = self.slots.copy(), self.outputs.copy()
        copied._effects = []
        return copied

    def step(self, event: Event) -> list[Effect]:
        """Applies an event, and returns the effects that the runner must carry out, in order.

        Cost: The cost is linear in the number of slots if a region starts, stops, or loses a slot
        or output. In all other cases the cost is constant.
        """
        self._effects = []
        if self.ended:
            # If slots are granted after the end of the job, they must be released.
            if isinstance(event, events.SlotsGranted):
                self._release_granted(event)
            return self._effects
        self._handle(event)
        if self._changed:
            self._changed = False
            self._invalidate()
            self._settle()
        return self._effects

    def _handle(self, event: Event) -> None:
        match event:
            case events.JobStarted():
                pass  # regions without input start in `_settle`
            case events.SlotsGranted():
                self._granted(event)
            case events.RequestRejected(request, message):
                if any(each.asks_by(request) for each in self.regions.values()):
                    self._fail(message)
            case events.TaskEnded(task):
                self._task_over(task)
            case events.TaskFailed(task, message, input_missing):
                self._task_failed(task, message, input_missing)
            case events.HostLost(host):
                self.outputs.host_lost(host)
                self._slots_lost(self.slots.on_host(host), f"host {host} was lost")
            case events.SlotLost(slot):
                self._slots_lost(self.slots.with_number(slot), f"slot {slot} was lost")
            case events.SlotRevoked(slot):
                places = self.slots.with_number(slot)
                self._slots_lost(places, f"slot {slot} was revoked", counts=False)
            case events.DelayOver(number, attempt):
                self._delay_over(self.regions[number], attempt)
            case events.CancelOrdered():
                self._fail("the job was cancelled")

    def _delay_over(self, region: RegionRun, attempt: int) -> None:
        if region.state is RegionState.DELAYED and region.attempt == attempt:
            self._move(region, RegionState.WAITING)

    def _move(self, region: RegionRun, state: RegionState) -> None:
        region.move(state)
        self._changed = True

    # -- slots that come and go --------------------------------------------------------------

    def _granted(self, event: events.SlotsGranted) -> None:
        for region in self.regions.values():
            if region.request is not None and region.asks_by(event.request):
                for place, slot in region.request.granted(event.hosts):
                    self.slots.put(place, slot)
                region.request = None
                self._deploy(region)
                return
        self._release_granted(event)

    def _release_granted(self, event: events.SlotsGranted) -> None:
        """Releases the slots of a request that was cancelled before its grant arrived."""
        for at in range(len(event.hosts)):
            self._effects.append(effects.ReleaseSlot(event.first_slot + at))

    def _slots_lost(
        self, places: Iterable[SlotPlace], message: str, *, counts: bool = True
    ) -> None:
        """Removes lost slots, and stops the regions that used them. If `counts` is true, the loss
        counts towards the largest number of losses of these regions.
        """
        lost = set(places)
        for place in lost:
            self.slots.take(place)
        # Even if the job has lost no slot, it has possibly lost output on the host.
        self._changed = True
        for region in self.regions.values():
            if not region.occupies_slots or lost.isdisjoint(region.places):
                continue
            # The runner does not report the ends of tasks in lost slots.
            for task in [task for task, place in region.running.items() if place in lost]:
                del region.running[task]
            if region.state is RegionState.RUNNING:
                if counts:
                    self._count_loss(region, message)
                region.message = message
                self._stop(region, delayed=False)
            elif region.state is RegionState.CANCELLING and not region.running:
                self._stopped(region)

    # -- tasks -------------------------------------------------------------------------------

    def _deploy(self, region: RegionRun) -> None:
        region.running = region.next_tasks()
        region.attempt += 1
        hosts: dict[str, set[str]] = {}
        for task, place in region.running.items():
            slot = self.slots.at[place]
            hosts.setdefault(task.chain, set()).add(slot.host)
            self._effects.append(effects.DeployTask(task, slot.number))
        region.hosts = {chain: frozenset(found) for chain, found in hosts.items()}
        self._move(region, RegionState.RUNNING)

    def _task_over(self, task: TaskId) -> None:
        region = self.regions[self._region_of[task.chain]]
        if region.running.pop(task, None) is None or region.running:
            return
        if region.state is RegionState.CANCELLING:
            self._stopped(region)
        else:
            self.outputs.stored(region.plan.number, region.hosts)
            self._move(region, RegionState.FINISHED)

    def _task_failed(self, task: TaskId, message: str, input_missing: str) -> None:
        region = self.regions[self._region_of[task.chain]]
        if task not in region.running or region.state is not RegionState.RUNNING:
            self._task_over(task)
            return
        del region.running[task]
        region.message = message
        if input_missing and self.outputs.missing(input_missing, region.plan.number):
            # The task has not failed: its input is lost. `_invalidate` runs the producer again.
            self._stop(region, delayed=False)
            return
        region.failures += 1
        if region.failures > self._plan.restart.restarts_max:
            self._fail(f"task {task.subtask} of {task.chain} failed: {message}")
        self._stop(region, delayed=True)

    def _stop(self, region: RegionRun, *, delayed: bool) -> None:
        """Ends the tasks of a running region. When the tasks have ended, the region runs again."""
        # The region may have been stopped before, by a failure of the job.
        if region.state is not RegionState.RUNNING:
            return
        region.delayed_restart = delayed
        self._move(region, RegionState.CANCELLING)
        self._effects += [effects.CancelTask(task) for task in region.running]
        if not region.running:
            self._stopped(region)

    def _stopped(self, region: RegionRun) -> None:
        if not region.delayed_restart or self._failure is not None:
            self._move(region, RegionState.WAITING)
            return
        self._move(region, RegionState.DELAYED)
        delay_s = min(
            self._plan.restart.delay_s * 2 ** (region.failures - 1),
            max(DELAY_MAX_S, self._plan.restart.delay_s),
        )
        self._effects.append(effects.StartDelay(region.plan.number, region.attempt, delay_s))

    # -- failures of the job, and output that is lost ----------------------------------------

    def _count_loss(self, region: RegionRun, message: str) -> None:
        region.losses += 1
        region.message = message
        if region.losses > LOSSES_MAX:
            self._fail(f"region {region.plan.number} was restarted {LOSSES_MAX} times: {message}")

    def _fail(self, message: str) -> None:
        """Ends the job: stops all running regions, and starts no more regions."""
        if self._failure is not None:
            return
        self._failure = message
        self._changed = True
        for region in self.regions.values():
            self._stop(region, delayed=False)
            if region.state is RegionState.DELAYED:
                self._move(region, RegionState.WAITING)

    def _invalidate(self) -> None:
        """If needed output of a region is lost, runs this region again, and all regions after
        it.
        """
        found = self.outputs.any_lost
        while found and self._failure is None:
            needed = {
                producer
                for number, region in self.regions.items()
                if region.state is not RegionState.FINISHED
                for producer in self.outputs.lost_input(number)
                if self.regions[producer].state is RegionState.FINISHED
            }
            found = bool(needed)
            for number in sorted(needed):
                self._count_loss(self.regions[number], "its output was lost")
                self._run_again(number)

    def _run_again(self, number: int) -> None:
        seen, queue = {number}, [number]
        for each in queue:
            region = self.regions[each]
            self._stop(region, delayed=False)
            if region.state is RegionState.FINISHED:
                self._move(region, RegionState.WAITING)
            more = [after for after in self._after[each] if after not in seen]
            seen.update(more)
            queue += more

    # -- start of regions --------------------------------------------------------------------

    def _settle(self) -> None:
        """Starts regions in the slots that the job has, releases idle slots, and requests missing
        slots.
        """
        ready = [] if self._failure is not None else [*filter(self._is_ready, self._in_order())]
        # A region in state CANCELLING may have lost slots. Its places without a slot are free.
        occupied = {
            place
            for each in self._in_order()
            if each.occupies_slots
            for place in each.places
            if place in self.slots.at
        }
        idle = set(self.slots.at) - occupied
        for region in ready:
            self._start_in_idle(region, occupied, idle)
        finished = {
            place
            for each in self._in_order()
            if each.state is RegionState.FINISHED
            for place in each.places
        }
        for place in sorted(idle):
            slot = self.slots.take(place).number
            self._effects.append(effects.ReleaseSlot(slot, place in finished))
        still_ready = [each for each in ready if not each.occupies_slots]
        kept = {each.plan.number for each in still_ready}
        for region in self._in_order():
            self._withdraw_request(region, region.plan.number in kept, occupied)
        requested = {
            place for each in self._in_order() if each.request for place in each.request.places
        }
        for region in still_ready:
            self._request(region, occupied, requested)
        self._end_if_over()

    def _in_order(self) -> Iterable[RegionRun]:
        return self.regions.values()

    def _is_ready(self, region: RegionRun) -> bool:
        return region.state in (RegionState.WAITING, RegionState.REQUESTING) and all(
            self.regions[each].state is RegionState.FINISHED for each in region.plan.waits_for
        )

    def _start_in_idle(
        self, region: RegionRun, occupied: set[SlotPlace], idle: set[SlotPlace]
    ) -> None:
        """Deploys a region if it needs no more slots than the idle slots and the slots that it
        shares with running regions.
        """
        pairs = self.slots.cover(region.places - occupied, idle)
        if pairs is None:
            return
        for start, place in pairs:
            idle.discard(start)
            if start != place:
                slot = self.slots.move(start, place)
                self._effects.append(effects.PassSlot(slot.number, place))
        occupied.update(region.places)
        if region.request is not None:
            self._effects.append(effects.CancelRequest(region.request.number))
            region.request = None
        self._deploy(region)

    def _withdraw_request(
        self, region: RegionRun, is_ready: bool, occupied: set[SlotPlace]
    ) -> None:
        """Cancels the request of a region if the region no longer needs exactly the requested
        slots.
        """
        if region.request is None:
            return
        if is_ready and set(region.request.places) == region.places - occupied:
            return
        self._effects.append(effects.CancelRequest(region.request.number))
        region.request = None
        region.move(RegionState.WAITING)

    def _request(
        self, region: RegionRun, occupied: set[SlotPlace], requested: set[SlotPlace]
    ) -> None:
        missing = region.places - occupied
        # A place has one slot. If another region has requested a slot for one of these places, this
        # region waits until that slot is granted.
        if region.request is not None or not missing.isdisjoint(requested):
            return
        requested |= missing
        request = SlotRequest(self._next_request, tuple(sorted(missing)), self._next_slot)
        self._next_request += 1
        self._next_slot += len(missing)
        region.request = request
        region.move(RegionState.REQUESTING)
        self._effects.append(
            effects.RequestSlots(
                request.number, region.plan.number, request.places, request.first_slot
            )
        )

    def _end_if_over(self) -> None:
        states = {each.state for each in self._in_order()}
        if self._failure is None and states == {RegionState.FINISHED}:
            self._effects.append(effects.JobEnded(ok=True))
            self.ended = True
        elif self._failure is not None and not any(
            each.occupies_slots for each in self._in_order()
        ):
            self._effects.append(effects.JobEnded(ok=False, message=self._failure))
            self.ended = True
