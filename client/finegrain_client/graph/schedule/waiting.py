"""Computes the status of each region of a job for `finegrain job status`, including the reason why
a region waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.units import counted
from finegrain_client.graph.schedule.region import RegionState
from finegrain_client.graph.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStatus:
    """One region of a job at one moment.

    Attributes:
        number: number of the region.
        chains: names of the chains of the region.
        state: state of the region.
        attempt: number of times that the tasks of the region were deployed.
        failures: number of restarts of the region after failures of its tasks.
        losses: number of restarts of the region after a loss of slots, hosts or output.
        tasks: number of tasks of the region.
        tasks_running: number of tasks of the region that were deployed and have not ended.
        slots: number of slots that the region needs.
        slots_missing: number of slots that the region has requested but not received.
        waits_for_regions: regions that must finish before this region can start.
        waits_for_request_of: regions with a request for a slot that this region also needs.
        message: the last failure of the region, for people; empty if there was no failure.
    """

    number: int
    chains: tuple[str, ...]
    state: RegionState
    attempt: int
    failures: int
    losses: int
    tasks: int
    tasks_running: int
    slots: int
    slots_missing: int
    waits_for_regions: tuple[int, ...]
    waits_for_request_of: tuple[int, ...]
    message: str

    @property
    def reason(self) -> str:
        """The reason why the region waits, as a text for people; empty if the region does not
        wait.
        """
        match self.state:
            case RegionState.WAITING if self.waits_for_regions:
                numbers = ", ".join(map(str, self.waits_for_regions))
                plural = "s" if len(self.waits_for_regions) > 1 else ""
                return f"input from region{plural} {numbers}"
            case RegionState.WAITING if self.waits_for_request_of:
                return f"a slot that region {self.waits_for_request_of[0]} has requested"
            case RegionState.REQUESTING:
                return counted(self.slots_missing, "slot")
            case RegionState.CANCELLING:
                return f"the end of {counted(self.tasks_running, 'task')}"
            case RegionState.DELAYED:
                return "the delay before its restart"
            case _:
                return ""


def region_statuses(schedule: Schedule) -> list[RegionStatus]:
    """Returns the status of each region, in order of their numbers."""
    regions = schedule.regions
    requests = {
        number: set(each.request.places) for number, each in regions.items() if each.request
    }
    statuses = []
    for number, region in regions.items():
        unfinished = tuple(
            each
            for each in region.plan.waits_for
            if regions[each].state is not RegionState.FINISHED
        )
        is_waiting = region.state is RegionState.WAITING
        statuses.append(
            RegionStatus(
                number=number,
                chains=region.plan.chains,
                state=region.state,
                attempt=region.attempt,
                failures=region.failures,
                losses=region.losses,
                tasks=sum(each.parallelism for each in region.chains),
                tasks_running=len(region.running),
                slots=region.plan.slots,
                slots_missing=len(region.request.places) if region.request else 0,
                waits_for_regions=unfinished if is_waiting else (),
                waits_for_request_of=tuple(
                    other
                    for other, places in requests.items()
                    if is_waiting and other != number and not places.isdisjoint(region.places)
                ),
                message=region.message,
            )
        )
    return statuses
