"""Schedules a job. Decides when each region starts, which slots it gets, and which regions run
again.

The schedule is pure: `Schedule.step` takes an event and returns effects. A runner stores the event,
carries out the effects, and reports their results as further events.
"""

from finegrain_client.graph.schedule.effects import (
    CancelRequest,
    CancelTask,
    DeployTask,
    Effect,
    JobEnded,
    PassSlot,
    ReleaseSlot,
    RequestSlots,
    StartDelay,
)
from finegrain_client.graph.schedule.events import (
    CancelOrdered,
    DelayOver,
    Event,
    HostLost,
    JobStarted,
    RequestRejected,
    SlotLost,
    SlotRevoked,
    SlotsGranted,
    TaskEnded,
    TaskFailed,
)
from finegrain_client.graph.schedule.region import RegionState
from finegrain_client.graph.schedule.schedule import Schedule
from finegrain_client.graph.schedule.slots import SlotPlace, TaskId
from finegrain_client.graph.schedule.waiting import RegionStatus, region_statuses

__all__ = [
    "CancelOrdered",
    "CancelRequest",
    "CancelTask",
    "DelayOver",
    "DeployTask",
    "Effect",
    "Event",
    "HostLost",
    "JobEnded",
    "JobStarted",
    "PassSlot",
    "RegionState",
    "RegionStatus",
    "ReleaseSlot",
    "RequestRejected",
    "RequestSlots",
    "Schedule",
    "SlotLost",
    "SlotPlace",
    "SlotRevoked",
    "SlotsGranted",
    "StartDelay",
    "TaskEnded",
    "TaskFailed",
    "TaskId",
    "region_statuses",
]
