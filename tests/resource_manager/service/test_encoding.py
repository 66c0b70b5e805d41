"""Tests that each field of each message that the RM makes of an engine value is set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.message import Message

from finegrain.cpuset import CpuSet
from finegrain.devices.condition import DeviceCondition
from finegrain.rpc.mapping.fields import fields_of
from finegrain.v1 import slots_pb2
from finegrain.values.states import SlotState
from resource_manager.engine.cpus.request import CpuBlocker
from resource_manager.engine.fairness.flows import GROUP
from resource_manager.engine.lifecycle.journal import slot_to_dict
from resource_manager.engine.model.durations import Durations
from resource_manager.engine.model.entities import JobState, RequestSpec, Slot
from resource_manager.engine.model.host_refusal import HostBlocker
from resource_manager.service.wire.encoding import slot_status, write
from resource_manager.service.wire.job_events import slot_status_of_event
from tests.support.full_messages import full_value

SPECIAL: dict[Any, Any] = {
    Durations: Durations(),
    CpuSet: CpuSet.of(7),
    HostBlocker: CpuBlocker.CPU_NOT_ENOUGH,
    dict[str, object]: {"cpu": "quota"},
    "Registration.topology": json.dumps({"online_cpus": "7"}),
    "Registration.host_cpus": json.dumps({"slot_cpus": "7"}),
    "CpuState.kubelet": json.dumps({"reserved_cpus": "7"}),
    "JobView.allocated": {"memory_bytes": 7},
    "Job.state": JobState.ENDED,
    "Job.arrivals": (),
    "Stop.group_id": f"{GROUP}7",
    "Slot.state": SlotState.FREEING,
}
SPECIAL["JobEvent.slot"] = slot_to_dict(full_value(Slot, SPECIAL), "7")

DEPENDS = {
    "JobView": {"detached"},  # the job has a lease
    "QuotaBlock": {"group"},  # the flow's id is not that of a group
}


@pytest.mark.parametrize("pair", write.writings, ids=lambda pair: pair[0].__name__)
def test_every_field_is_set(pair: tuple[type, type[Message]]) -> None:
    kind, message = pair
    made = write(message, full_value(kind, SPECIAL))
    given = set(write.writings[pair].given.split())
    unset = fields_of(message).keys() - {each.name for each, _ in made.ListFields()}
    assert unset - given == DEPENDS.get(kind.__name__, set())


def test_a_request_and_a_slot_with_its_changes_are_whole() -> None:
    asked = write(slots_pb2.SlotRequest, full_value(RequestSpec, SPECIAL))
    assert len(asked.ListFields()) == len(fields_of(slots_pb2.SlotRequest))
    slot = full_value(Slot, SPECIAL)
    shown = slot_status(slot, "7", "no room", [full_value(DeviceCondition, SPECIAL)])
    assert {each.name for each, _ in shown.ListFields()} == {
        *fields_of(slots_pb2.SlotStatus).keys() - {"used"}  # lists add the measured use
    }
    assert [each.message for each in shown.resizes] == ["", "no room"]
    shown.resizes[1].message = ""  # events have no reason here
    shown.ClearField("device_conditions")  # events have these as text
    assert type(shown)(**slot_status_of_event(slot_to_dict(slot, "7"))) == shown
