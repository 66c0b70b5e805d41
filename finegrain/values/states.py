"""Defines the states of requests, slots, executors, tasks and resizes, as words.

The protocol has an enum value for each word. The comments in the protocol list the transitions.
"""

from __future__ import annotations

from enum import StrEnum


class RequestState(StrEnum):
    """State of a slot request."""

    PENDING = "PENDING"  # durable and queued
    ALLOCATING = "ALLOCATING"  # placed; the executor is carving the slot
    GRANTED = "GRANTED"  # its slot exists
    CANCELLED = "CANCELLED"  # ended: cancelled before it was granted
    REJECTED = "REJECTED"  # ended: could not be served
    RELEASED = "RELEASED"  # ended: its slot was released
    LOST = "LOST"  # ended: its slot was lost

    @property
    def has_ended(self) -> bool:
        """True if the request has ended and can no longer change its state."""
        return self not in (RequestState.PENDING, RequestState.ALLOCATING, RequestState.GRANTED)


class JobOutcome(StrEnum):
    """The outcome of an ended job: did its work succeed?"""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class ThreadEnd(StrEnum):
    """What a job master reports about the thread of work in a slot that it gives back or reuses."""

    FINISHED = "FINISHED"  # the thread has its result
    # No thread got its result in the slot. The thread will run again or has its result from another
    # slot, or the slot was not used.
    UNFINISHED = "UNFINISHED"


class JobCondition(StrEnum):
    """The end of another job for which a job waits."""

    OK = "OK"  # the other job must succeed
    ANY = "ANY"  # the other job must end, with any outcome
    FAILED = "FAILED"  # the other job must fail

    def is_met(self, outcome: JobOutcome | None) -> bool:
        """Returns True if the outcome of the other job meets this condition."""
        if self is JobCondition.ANY:
            return True
        return (outcome is JobOutcome.SUCCEEDED) == (self is JobCondition.OK)


class SlotState(StrEnum):
    """State of a slot at the resource manager. In every state, its capacity is booked."""

    PENDING = "PENDING"  # ordered; the executor has not confirmed the slot
    ALLOCATED = "ALLOCATED"  # carved and enforced on its host
    # The slot is being removed, or its executor cannot be reached. Then the slot's state on the
    # host is not known.
    FREEING = "FREEING"


class ExecutorState(StrEnum):
    """State of an executor at the resource manager."""

    UNCONFIRMED = "UNCONFIRMED"  # stored; not registered since the resource manager started
    ACTIVE = "ACTIVE"  # registered and reporting
    LOST = "LOST"  # no report for longer than the lost timeout


class TaskState(StrEnum):
    """State of a task."""

    STARTING = "STARTING"  # its process is being created
    RUNNING = "RUNNING"  # its process runs
    EXITED = "EXITED"  # the task and all its child processes have ended
    FAILED = "FAILED"  # the task has never run

    @property
    def has_ended(self) -> bool:
        """True if the task has ended and can no longer change its state."""
        return self in (TaskState.EXITED, TaskState.FAILED)


class QuotaEnforcement(StrEnum):
    """The ways in which an executor keeps an operator to its quota of managed memory."""

    DECLARED = "DECLARED"  # not enforced: the operator only knows the number
    POOL = "POOL"  # enforced by a memory pool of the client library in the task
    CGROUP = "CGROUP"  # enforced by the kernel, with the memory limit of the operator's task


class GangPlacement(StrEnum):
    """Rules for the executors on which the members of a gang are placed."""

    ANYWHERE = "ANYWHERE"  # on any executors where they fit
    SAME_EXECUTOR = "SAME_EXECUTOR"  # all members on one executor
    SAME_LABEL = "SAME_LABEL"  # on executors with the same value of a label
    SPREAD = "SPREAD"  # each member is on a different executor


class ResizeState(StrEnum):
    """State of a resize of a slot."""

    # the growth of the slot does not fit yet, or the slot uses more than its new size
    WAITING = "WAITING"
    ORDERED = "ORDERED"  # sent to the executor; the larger of the old and the new size is booked


class ProvidedExecutorState(StrEnum):
    """State of an executor that was requested from a provider."""

    ASKED = "ASKED"  # stored; it is not known whether its provider has started it
    STARTED = "STARTED"  # started by its provider, but not registered yet
    REGISTERED = "REGISTERED"  # registered with the resource manager
    STOPPING = "STOPPING"  # being stopped, until the provider reports that nothing of it is left
