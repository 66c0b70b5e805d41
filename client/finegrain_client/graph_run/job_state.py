"""Keeps the state of a running job: its schedule, and the effects whose results are not known yet.

The state is pure: the same events lead to the same state. A runner that continues a job replays the
events, and then carries out the effects in `outstanding` again.
"""

from __future__ import annotations

from collections.abc import Iterable

from finegrain_client.graph.plan import Plan
from finegrain_client.graph.schedule import (
    CancelOrdered,
    CancelRequest,
    CancelTask,
    DeployTask,
    Effect,
    Event,
    JobEnded,
    RegionState,
    RequestSlots,
    Schedule,
    SlotsGranted,
    StartDelay,
    TaskId,
    region_statuses,
)
from finegrain_client.graph_run.values import GraphProgress, GraphState


class JobState:
    """The state of a job after a sequence of events.

    Attributes:
        plan: plan of the job.
        schedule: schedule of the job.
        requests: unanswered requests for slots, by number.
        host_of_slot: executor of each granted slot, by slot number.
        slot_of_task: slot number of each attempt in `latest`.
        latest: latest attempt of each subtask, by chain and subtask.
        ended: how the job ended, or None if the job has not ended yet.
        cancelled: True if a user cancelled the job.
    """

    def __init__(self, plan: Plan, events: Iterable[Event] = ()) -> None:
        self.plan = plan
        self.schedule = Schedule(plan)
        self.requests: dict[int, RequestSlots] = {}
        self.host_of_slot: dict[int, str] = {}
        self.slot_of_task: dict[TaskId, int] = {}
        self.latest: dict[tuple[str, int], TaskId] = {}
        self.ended: JobEnded | None = None
        self.cancelled = False
        self._delays: dict[int, StartDelay] = {}
        for each in events:
            self.step(each)

    def step(self, event: Event) -> list[Effect]:
        """Applies an event, and returns the effects that the runner must carry out."""
        if isinstance(event, SlotsGranted):
            self.requests.pop(event.request, None)
            for at, host in enumerate(event.hosts):
                self.host_of_slot[event.first_slot + at] = host
        if isinstance(event, CancelOrdered) and self.ended is None:
            self.cancelled = True
        effects = self.schedule.step(event)
        for effect in effects:
            match effect:
                case RequestSlots(number):
                    self.requests[number] = effect
                case CancelRequest(number):
                    self.requests.pop(number, None)
                case DeployTask(task, slot):
                    before = self.latest.get((task.chain, task.subtask))
                    if before is not None:
                        del self.slot_of_task[before]
                    self.latest[task.chain, task.subtask] = task
                    self.slot_of_task[task] = slot
                case StartDelay(region):
                    self._delays[region] = effect
                case JobEnded():
                    self.ended = effect
                case _:
                    pass
        return effects

    def outstanding(self) -> list[Effect]:
        """Returns the effects that an earlier runner has possibly not completed.

        Repeating these effects is safe. The release of slots is not included: a new runner releases
        every slot that the schedule does not have and has not requested.
        """
        found: list[Effect] = list(self.requests.values())
        for number, region in self.schedule.regions.items():
            for task in region.running:
                found.append(DeployTask(task, self.slot_of_task[task]))
                if region.state is RegionState.CANCELLING:
                    found.append(CancelTask(task))
            if region.state is RegionState.DELAYED:
                found.append(self._delays[number])
        if self.ended is not None:
            found.append(self.ended)
        return found

    def granted_slots(self) -> set[int]:
        """Returns the numbers of the slots that the job has."""
        return {each.number for each in self.schedule.slots.at.values()}

    def requested_slots(self) -> set[int]:
        """Returns the numbers of the slots that the job has requested but not received."""
        return {
            each.first_slot + at
            for each in self.requests.values()
            for at in range(len(each.places))
        }

    def host_of_task(self, chain: str, subtask: int) -> str:
        """Returns the executor of the latest attempt of a subtask. The text is empty if the subtask
        had no attempt.
        """
        number = self.slot_of(chain, subtask)
        return "" if number is None else self.host_of_slot[number]

    def slot_of(self, chain: str, subtask: int) -> int | None:
        """Returns the slot number of the latest attempt of a subtask, or None if the subtask had no
        attempt.
        """
        task = self.latest.get((chain, subtask))
        return None if task is None else self.slot_of_task[task]

    @property
    def outcome(self) -> GraphState:
        """The state of the job."""
        if self.ended is None:
            return GraphState.OPEN
        if self.ended.ok:
            return GraphState.FINISHED
        return GraphState.CANCELLED if self.cancelled else GraphState.FAILED

    @property
    def restarts(self) -> int:
        """Number of restarts of all regions."""
        return sum(max(0, each.attempt - 1) for each in self.schedule.regions.values())

    def progress(self) -> GraphProgress:
        """Returns the progress of the job."""
        statuses = region_statuses(self.schedule)
        finished = [each for each in statuses if each.state is RegionState.FINISHED]
        running = [each for each in statuses if each.state is RegionState.RUNNING]
        done = sum(each.tasks for each in finished)
        done += sum(each.tasks - each.tasks_running for each in running)
        waiting = [each for each in statuses if each.reason and not each.waits_for_regions]
        message = ""
        if waiting:
            message = f"region {waiting[0].number} waits for {waiting[0].reason}"
            if waiting[0].message:
                message += f" ({waiting[0].message.splitlines()[0]})"
        return GraphProgress(
            regions=len(statuses),
            regions_finished=len(finished),
            tasks=self.plan.tasks,
            tasks_done=done,
            tasks_running=sum(each.tasks_running for each in statuses),
            slots=len(self.schedule.slots.at),
            restarts=self.restarts,
            message=message,
        )
