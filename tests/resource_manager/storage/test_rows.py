"""Tests of rows: every durable field has a column, round-trips, and keeps its spelling."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import CpuPolicy, HostBindPolicy, HostPolicy, NumaPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import Reason
from finegrain.intervals import IntervalSet
from finegrain.mapping.fields import MappingError
from finegrain.resources import ResourceProfile
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.model.entities import (
    JobEvent,
    Resize,
    Slot,
)
from resource_manager.storage import rows, tables
from resource_manager.storage.codecs import Codec, MoveCodec
from resource_manager.storage.texts import TEXTS
from tests.support.full_values import full_value

CODECS = [each for each in vars(rows).values() if isinstance(each, Codec)]
MOVES = [each for each in vars(rows).values() if isinstance(each, MoveCodec)]
OF_THE_STORE = {"meta", "leadership", "counters"}
"""Tables without entities."""


def test_every_table_of_entities_has_one_codec_of_all_its_columns() -> None:
    kept = [codec.table.name for codec in CODECS]
    assert sorted(kept) == sorted(tables.metadata.tables.keys() - OF_THE_STORE)
    assert all(codec.columns == tuple(codec.table.columns.keys()) for codec in CODECS)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.table.name)
def test_every_durable_field_comes_back_from_its_row(codec: Codec[Any]) -> None:
    """Compiling fails for a field without a column, and for a column without a field."""
    value = full_value(codec.kind, leave=codec.unstored.split())
    row = codec.encode(value)
    assert len(row) == len(codec.table.columns)
    assert None not in row
    assert codec.decode(row) == value
    assert {type(each) for each in row} <= {str, int, bool}  # types that every driver accepts


@pytest.mark.parametrize("codec", MOVES, ids=lambda codec: codec.table.name)
def test_what_changes_is_written_as_in_the_whole_row(codec: MoveCodec[Any]) -> None:
    (whole,) = (each for each in CODECS if each.table is codec.table)
    value = full_value(codec.kind, leave=whole.unstored.split())
    by_name = dict(zip(whole.columns, whole.encode(value), strict=True))
    assert codec.encode(value) == tuple(by_name[name] for name in codec.key + codec.changed)


def test_a_new_field_without_a_column_is_noticed() -> None:
    (whole,) = (each for each in CODECS if each.table is tables.jobs)
    lacking = replace(whole, columns=whole.columns[:-1])
    with pytest.raises(MappingError, match="priority has no column"):
        lacking.decode(())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            ResourceProfile(500, 1 << 20, extended=(("gpu", 1),)),
            '{"cpu_milli":500,"task_heap_memory_bytes":1048576,"extended":{"gpu":1}}',
        ),
        (CpuPolicy(), ""),
        (CpuPolicy(QosClass.LSR, numa_required=True), '{"qos":"LSR","numa_required":true}'),
        (CpuPolicy(numa=NumaPolicy.RESTRICTED), '{"numa":"Restricted"}'),
        (HostPolicy(), "{}"),
        (
            HostPolicy(HostBindPolicy.NONE, reserved_cpus=CpuSet(), reserved_strict=False),
            '{"bind":"None","reserved_cpus":"","reserved_strict":false}',
        ),
        (CpuAssignment(), '{"qos":"LS"}'),
        (
            full_value(CpuAssignment),
            (
                '{"qos":"BE","cpus":"1,9","bind":"ConstrainedBurst","exclusive":"NUMANodeLevel",'
                '"numa":[{"node":1,"amounts":{"numa.amounts 1":2}}],"memory_nodes":"5,9",'
                '"pools":[[1,2]],"notes":["notes 7"],"devices":[{"type":"devices.type 0",'
                '"uuid":"devices.uuid 1","minor":3,"amounts":{"devices.amounts 3":4},'
                '"functions":["devices.functions 4"]}],'
                '"parked_devices":[{"type":"parked_devices.type 0",'
                '"uuid":"parked_devices.uuid 1","minor":3,'
                '"amounts":{"parked_devices.amounts 3":4},'
                '"functions":["parked_devices.functions 4"]}]}'
            ),
        ),
        (
            Resize(3, ResourceProfile(500), 500),
            (
                '{"number":3,"profile":{"cpu_milli":500},"cpu_limit_milli":500,"wait_for_use":false,'
                '"arrival_number":0}'
            ),
        ),
        (
            Resize(3, ResourceProfile(), 500, True, 7, CpuAssignment()),
            (
                '{"number":3,"profile":{},"cpu_limit_milli":500,"wait_for_use":true,'
                '"arrival_number":7,"assignment":{"qos":"LS"}}'
            ),
        ),
    ],
)
def test_texts_are_spelled_as_ever(value: Any, text: str) -> None:
    """Rows of earlier versions remain, and rows are compared."""
    stored = TEXTS[type(value)]
    assert stored.write(value) == text
    assert stored.read(text) == value


def test_collections_are_spelled_as_ever() -> None:
    labels, amounts = TEXTS[tuple[tuple[str, str], ...]], {"cpu_milli": 1}
    assert labels.write((("rack", "a"), ("zone", "b"))) == '{"rack":"a","zone":"b"}'
    assert labels.read('{"rack":"a","zone":"b"}') == (("rack", "a"), ("zone", "b"))
    (ended,) = (each for kind, each in TEXTS.items() if "IntervalSet" in str(kind))
    value = {(RequestState.LOST, Reason.SLOT_BROKEN, "it broke"): IntervalSet([(0, 3), (5, 6)])}
    assert ended.write(value) == '[["LOST","SLOT_BROKEN","it broke",[0,3,5,6]]]'
    assert ended.read(ended.write(value)) == value
    (of_amounts,) = (each for kind, each in TEXTS.items() if "Mapping[str, int]" in str(kind))
    assert of_amounts.read(of_amounts.write(amounts)) == amounts


def test_a_slot_in_an_event_is_the_json_of_its_members() -> None:
    isolation = {"cpu": "quota", "notes": ["no memory limit", "ü"]}
    slot = {"allocation_id": 'a"', "generation": 1, "isolation": isolation, "resizes": [{"n": 1}]}
    event = JobEvent("job", 1, 0, "a", RequestState.GRANTED, slot=slot)
    row = rows.JOB_EVENTS.encode(event)
    assert row[7] == json.dumps(slot, separators=(",", ":"))
    assert rows.JOB_EVENTS.decode(row) == event


def test_members_of_enums_reach_no_driver() -> None:
    event = JobEvent("job", 1, 0, "a", RequestState.GRANTED, Reason.SLOT_BROKEN)
    slot = Slot("a", 1, "job", "host", ResourceProfile(), 0, 0, state=SlotState.FREEING)
    for row in (rows.JOB_EVENTS.encode(event), rows.SLOTS.encode(slot)):
        assert {type(each) for each in row} <= {str, int, bool, type(None)}


def test_equal_texts_give_one_value() -> None:
    for kind in (ResourceProfile, CpuPolicy):
        text = TEXTS[kind].write(full_value(kind))
        assert TEXTS[kind].read(text) is TEXTS[kind].read(str(bytes(text, "utf-8"), "utf-8"))
