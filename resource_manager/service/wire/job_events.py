"""Builds slot messages from the plain data in job events; see `engine/lifecycle/journal.py`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.mapping.shared import by_identity
from finegrain.mapping.stored import STORED
from finegrain.resources import ResourceProfile
from finegrain.rpc.mapping.fields import numbers_of
from finegrain.rpc.wire import KNOWN_MAX, duration_ms_to_proto, profile_to_proto
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.rpc.wire_topology import isolation_to_proto
from finegrain.v1 import cpus_pb2, resources_pb2, slots_pb2
from finegrain.values.isolation import Isolation
from finegrain.values.states import SlotState

_STATES: Mapping[str, Any] = {
    state.value: number
    for state, number in numbers_of(SlotState, slots_pb2.SlotState.DESCRIPTOR).items()
}
_RESIZE_STATES: Mapping[str, Any] = {
    "ORDERED": slots_pb2.SLOT_RESIZE_STATE_ORDERED,
    "WAITING": slots_pb2.SLOT_RESIZE_STATE_WAITING,
}


def slot_status_of_event(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the SlotStatus message for the slot in a job event."""
    # Number and text fields have the same names. The other fields are converted.
    fields = dict(data)
    # The event that ended a slot only names the slot.
    if "profile" not in data:
        return fields
    fields["profile"] = _profile_of_event(data["profile"])
    fields["state"] = _STATES[data["state"]]
    if (isolation := data.get("isolation")) is not None:
        fields["isolation"] = _isolation(isolation)
    if (time_ms := fields.pop("allocated_time_ms", None)) is not None:
        fields["allocated_time"] = {
            "seconds": time_ms // 1000,
            "nanos": time_ms % 1000 * 1_000_000,
        }
    if (limit_ms := fields.pop("time_limit_ms", None)) is not None:
        fields["time_limit"] = duration_ms_to_proto(limit_ms)
    if resizes := data.get("resizes"):
        fields["resizes"] = [_resize_of_event(each) for each in resizes]
    if (assignment := data.get("assignment")) is not None:
        message = fields["assignment"] = _assignment(assignment)
        fields["cpus"] = message.cpus
    return fields


def _resize_of_event(data: Mapping[str, Any]) -> slots_pb2.SlotResize:
    assignment = data.get("assignment")
    return slots_pb2.SlotResize(
        resize_number=data["resize_number"],
        profile=_profile_of_event(data["profile"]),
        memory_bytes=data["memory_bytes"],
        cpu_limit_milli=data["cpu_limit_milli"],
        state=_RESIZE_STATES[data["state"]],
        assignment=assignment and _assignment(assignment),
    )


def _assignment(data: Mapping[str, Any]) -> cpus_pb2.CpuAssignment:
    return assignment_to_proto(STORED.from_json(CpuAssignment, data))


def _profile_message(data: Mapping[str, Any]) -> resources_pb2.ResourceProfile:
    # A cache key must be hashable. Amounts are hashable, but mappings of resources and lists of
    # devices are not.
    if all(isinstance(each, int) for each in data.values()):
        return _plain_profile(tuple(data.items()))
    return profile_to_proto(ResourceProfile.from_dict(data))


@lru_cache(KNOWN_MAX)
def _plain_profile(items: tuple[tuple[str, int], ...]) -> resources_pb2.ResourceProfile:
    return profile_to_proto(ResourceProfile.from_dict(dict(items)))


def _isolation_message(data: Mapping[str, Any]) -> resources_pb2.IsolationReport:
    return isolation_to_proto(STORED.from_json(Isolation, data))


# The journal shares one dict between all slots with equal profiles, and with equal isolation. Slots
# that were read from the store have separate dicts.
_profile_of_event = by_identity(_profile_message, KNOWN_MAX)
_isolation = by_identity(_isolation_message, KNOWN_MAX)
