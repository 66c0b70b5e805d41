"""States of what the resource manager and executors report, as words. Each is the number of the
same name in the protocol; the comments there say what may follow what.
"""

from __future__ import annotations

from enum import StrEnum


class RequestState(StrEnum):
    """State of a slot request."""

    PENDING = "PENDING"  # durable and queued
    ALLOCATING = "ALLOCATING"  # placed; the executor is carving
    GRANTED = "GRANTED"  # its slot exists
    CANCELLED = "CANCELLED"  # ended: taken back before it was granted
    REJECTED = "REJECTED"  # ended: could not be served
    RELEASED = "RELEASED"  # ended: had a slot and gave it back
    LOST = "LOST"  # ended: its slot was lost

    @property
    def has_ended(self) -> bool:
        """True where nothing more will happen to the request."""
        return self not in (RequestState.PENDING, RequestState.ALLOCATING, RequestState.GRANTED)


class SlotState(StrEnum):
    """State of a slot at the resource manager; capacity is booked in every one of them."""

    PENDING = "PENDING"  # ordered; the executor has not confirmed
    ALLOCATED = "ALLOCATED"  # carved and enforced on its host
    FREEING = "FREEING"  # being taken down, or of an executor whose true state is unknown


class ExecutorState(StrEnum):
    """State of an executor at the resource manager."""

    UNCONFIRMED = "UNCONFIRMED"  # stored, and not registered since the resource manager started
    ACTIVE = "ACTIVE"  # registered and reporting
    LOST = "LOST"  # silent for longer than the lost timeout


class TaskState(StrEnum):
    """State of a task."""

    STARTING = "STARTING"  # its process is being made
    RUNNING = "RUNNING"  # its process runs
    EXITED = "EXITED"  # it and all its children are gone
    FAILED = "FAILED"  # it never ran

    @property
    def has_ended(self) -> bool:
        """True where nothing more will happen to the task."""
        return self in (TaskState.EXITED, TaskState.FAILED)


class GangPlacement(StrEnum):
    """Where the members of a gang go."""

    ANYWHERE = "ANYWHERE"  # wherever they fit
    SAME_EXECUTOR = "SAME_EXECUTOR"  # all on one executor
    SAME_LABEL = "SAME_LABEL"  # on executors with one and the same value of a label
    SPREAD = "SPREAD"  # each on an executor of its own


class ResizeState(StrEnum):
    """State of a change of a slot's size."""

    WAITING = "WAITING"  # queued: no room yet, or the slot uses more than it will have
    ORDERED = "ORDERED"  # the executor was told; the larger of both sizes is booked


class ProvidedExecutorState(StrEnum):
    """State of an executor that was asked for."""

    ASKED = "ASKED"  # durable; whether its provider started it is not known
    STARTED = "STARTED"  # its provider has started it; it has not registered yet
    REGISTERED = "REGISTERED"  # it came
    STOPPING = "STOPPING"  # being given back, until its provider says that nothing is left
