"""Decodes requests to resize a slot, and checks their form.

The engine checks that the slot exists, that the size is possible, and that the number of the resize
is the next number of the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id
from finegrain.rpc.wire import profile_from_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import resources_pb2
from finegrain.values.bounds import COUNTER_MAX, CPU_MILLI_MAX
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import ResizeRequested

_WAITS_FOR_USE = {
    rm_pb2.WHEN_IN_USE_UNSPECIFIED: False,
    rm_pb2.WHEN_IN_USE_REFUSE: False,
    rm_pb2.WHEN_IN_USE_WAIT: True,
}


class ResizeMessage(Protocol):
    """The common fields of the two ResizeSlot calls, for job masters and for administrators."""

    allocation_id: str
    generation: int
    resize_number: int
    cpu_limit_milli: int
    when_in_use: Any
    park: bool

    @property
    def profile(self) -> resources_pb2.ResourceProfile:
        """The new size of the slot, with all dimensions."""

    def HasField(self, field_name: Any) -> bool:
        """Returns True if the message has the field."""


def resize_event(
    message: ResizeMessage, job_id: str | None
) -> Callable[[Instant], ResizeRequested]:
    """Decodes a ResizeSlot call.

    Args:
        message: the call.
        job_id: the job that must own the slot; None: an administrator's call.

    Returns:
        A function that creates the event from the current time.

    Raises:
        InvalidArgument: a field is malformed.
    """
    allocation_id = check_id("allocation_id", message.allocation_id)
    generation, number = message.generation, message.resize_number
    for field, value in (("generation", generation), ("resize_number", number)):
        if not 0 <= value <= COUNTER_MAX:
            raise InvalidArgument(field, value, f"0 to {COUNTER_MAX}")
    if not message.HasField("profile"):
        expected = "the complete new profile of the slot"
        raise InvalidArgument("profile", "absent", expected)
    profile = profile_from_proto(message.profile, "profile")
    limit = message.cpu_limit_milli
    if limit and not profile.cpu_milli <= limit <= CPU_MILLI_MAX:
        expected = f"0, or profile.cpu_milli ({profile.cpu_milli}) to {CPU_MILLI_MAX}"
        raise InvalidArgument("cpu_limit_milli", limit, expected)
    if message.when_in_use not in _WAITS_FOR_USE:
        raise InvalidArgument("when_in_use", message.when_in_use, "a known WhenInUse")
    wait_for_use, park = _WAITS_FOR_USE[message.when_in_use], message.park
    return lambda at: ResizeRequested(
        at, job_id, allocation_id, generation, number, profile, limit, wait_for_use, park
    )
