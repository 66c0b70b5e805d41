"""Messages between the front and its helper: no field is lost or unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from task_executor.helper.protocol import HELPER_VERBS, check_fields
from task_executor.host.helper_messages import (
    FRAMES,
    ExitRecord,
    HelperInfo,
    HelperState,
    IsolationReport,
    KubeletFiles,
    SlotLimits,
    SlotPlace,
    TaskExited,
    TaskFault,
    TaskOom,
    TaskSpec,
    TaskStarted,
    Usage,
    event,
)
from tests.support.full_values import full_value

ANSWERS = (HelperInfo, HelperState, IsolationReport, KubeletFiles, TaskStarted, Usage)


@pytest.mark.parametrize("kind", ANSWERS)
def test_every_field_of_an_answer_comes_back(kind: type[Any]) -> None:
    value = full_value(kind)
    assert FRAMES.from_json(kind, json.loads(json.dumps(FRAMES.to_json(value)))) == value


@pytest.mark.parametrize("verb", ["create_slot", "resize_slot"])
def test_the_helper_takes_limits_as_they_are(verb: str) -> None:
    limits = SlotLimits("a", 1, 500, 1 << 20, 600, "0-3", "0", 9, True, {"2MB": 1 << 21})
    assert check_fields(verb, FRAMES.to_json(limits), HELPER_VERBS[verb]) == FRAMES.to_json(limits)
    assert FRAMES.to_json(limits).keys() == HELPER_VERBS[verb].keys()


def test_the_helper_takes_places_and_tasks_as_they_are() -> None:
    places = {"slots": [FRAMES.to_json(SlotPlace("a", 1, "0-3", "0"))]}
    assert check_fields("place_slots", places, HELPER_VERBS["place_slots"]) == places
    task = TaskSpec("t", "a", 1, ["sh"], {"A": "b"}, "/", 1, 2, True, 5, 6)
    sent = FRAMES.to_json(task)
    assert sent["argv"] == ["sh"]
    assert check_fields("start_task", sent, HELPER_VERBS["start_task"]) == sent
    assert sent.keys() == HELPER_VERBS["start_task"].keys()


def test_a_slot_on_the_host_is_its_limits_and_whether_it_goes() -> None:
    limits = FRAMES.to_json(SlotLimits("a", 1, 500, 1 << 20))
    content = {"slots": [limits | {"destroying": True}], "tasks": [], "after": ""}
    (slot,) = FRAMES.from_json(HelperState, content).slots
    assert (slot.limits, slot.destroying) == (SlotLimits("a", 1, 500, 1 << 20), True)


def test_a_task_may_have_ended_before_its_start_time_could_be_read() -> None:
    assert FRAMES.from_json(TaskStarted, {"pid": 7, "start_time_ticks": None}).pid == 7


def test_events() -> None:
    error = {"reason": "TERMINATED", "message": "gone", "details": {"pid": 7}}
    told = {"event": "task_exited", "task_id": "t", "record": {"error": error, "oom_kills": 1}}
    fault = TaskFault("TERMINATED", "gone", {"pid": 7})
    assert event(told) == TaskExited("t", ExitRecord(oom_kills=1, error=fault))
    assert event({"event": "task_oom", "task_id": "t"}) == TaskOom("t")
    assert event({"event": "of a newer helper"}) is None
