"""The executor sets every field of every message that it makes from its values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from finegrain.rpc.mapping.fields import fields_of
from finegrain.v1 import slots_pb2
from task_executor.engine.report_log import NumberedState
from task_executor.engine.slots import CarveState, Slot
from task_executor.host.kubelet import KubeletState
from task_executor.service.encoding import write
from tests.support.full_messages import full_value

SPECIAL: dict[Any, Any] = {
    Mapping[str, Any]: {"cpu": "quota"},
    Path: Path("/"),
    asyncio.Event: asyncio.Event,
    "Slot.state": CarveState.FREEING,
    "NumberedState.unchanged": False,
    "TaskFault.details": {"field": 7},
    "KubeletState.notes": (),
}
SPECIAL["CpuConditions.kubelet"] = full_value(KubeletState, SPECIAL)

DEPENDS = {"NumberedState": {"unchanged"}}  # an unchanged state has no available amounts


@pytest.mark.parametrize("pair", write.writings, ids=lambda pair: pair[0].__name__)
def test_every_field_is_set(pair: tuple[type, type[Message]]) -> None:
    kind, message = pair
    made = write(message, full_value(kind, SPECIAL))
    writing = write.writings[pair]
    unset = fields_of(message).keys() - {each.name for each, _ in made.ListFields()}
    assert unset - {*writing.given.split(), *writing.unset.split()} == DEPENDS.get(
        kind.__name__, set()
    )


def test_a_slot_that_is_being_carved_is_on_no_wire() -> None:
    carving = full_value(Slot, SPECIAL | {"Slot.state": CarveState.CARVING})
    with pytest.raises(KeyError):
        write(slots_pb2.SlotStatus, carving)


def test_an_unchanged_state_says_nothing_of_amounts() -> None:
    state = full_value(NumberedState, SPECIAL | {"NumberedState.unchanged": True})
    assert not write(slots_pb2.SlotReport, state).HasField("available")
