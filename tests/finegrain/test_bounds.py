"""Resource manager, executor, helper, client and configuration accept exactly the same amounts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import InvalidArgument
from finegrain.rpc.wire import duration_ms_to_proto
from finegrain.v1 import resource_manager_pb2, resources_pb2, slots_pb2
from finegrain.v1 import task_executor_pb2 as te
from finegrain.values import bounds
from finegrain_cli.config.model import Settings
from finegrain_client.durations import grace
from finegrain_client.slot.task import TaskOptions
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.service.wire import decoding
from resource_manager.service.wire.resizes import resize_event
from task_executor.helper.protocol import HELPER_VERBS, MEMORY_UNIT_BYTES, Check, Fields
from task_executor.service.commands import _free_from_proto
from task_executor.service.messages import spec_from_proto
from task_executor.service.task_requests import check_output_offset, submission_of, wait_of

HELPERS = {
    "generation": (1, bounds.COUNTER_MAX),
    "cpu_milli": (bounds.CPU_MILLI_MIN, bounds.CPU_MILLI_MAX),
    "cpu_limit_milli": (-1, bounds.CPU_MILLI_MAX),
    "memory_bytes": (MEMORY_UNIT_BYTES, bounds.AMOUNT_MAX),
    "park_slot.memory_bytes": (0, bounds.AMOUNT_MAX),
    "memory_limit_bytes": (MEMORY_UNIT_BYTES, bounds.AMOUNT_MAX),
    "pids_max": (1, bounds.PIDS_MAX),
    "grace_ms": (0, bounds.GRACE_MS_MAX),
    "log_limit_bytes": (0, bounds.OUTPUT_BYTES_MAX),
    "stdout": (0, bounds.OUTPUT_BYTES_MAX),
    "stderr": (0, bounds.OUTPUT_BYTES_MAX),
    "timeout_ms": (1, bounds.TASK_TIME_MS_MAX),
    "offset": (0, bounds.AMOUNT_MAX),
    "uid": (0, (1 << 32) - 2),
    "gid": (0, (1 << 32) - 2),
    "signum": (1, 64),
}
"""Bounds of the numbers in calls of the helper. If a bound applies to one verb only, its key
contains the verb.
"""


def numbers_of(verb: str, fields: Fields) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, field in fields.items():
        inner = inspect.getclosurevars(field.check).nonlocals
        if "low" in inner:
            full = f"{verb}.{name}"
            yield full if full in HELPERS else name, (inner["low"], inner["high"])
        elif "fields" in inner:
            yield from numbers_of(verb, inner["fields"])


def test_the_helper_has_the_bounds_of_the_others() -> None:
    found = [each for verb, fields in HELPER_VERBS.items() for each in numbers_of(verb, fields)]
    assert {name for name, _ in found} == set(HELPERS)
    assert [(name, HELPERS[name]) for name, _ in found] == found


def sizes_check(verb: str, name: str) -> Check:
    return HELPER_VERBS[verb][name].check


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (sizes_check("create_slot", "hugepages"), "2MB"),
        (sizes_check("limit_device_memory", "probe"), "GPU-1"),
    ],
)
def test_sizes_by_name_have_the_same_bound(check: Check, value: str) -> None:
    assert check("sizes", {value: bounds.AMOUNT_MAX})
    with pytest.raises(Exception, match="an integer from 0 to"):
        check("sizes", {value: bounds.AMOUNT_MAX + 1})


Take = Callable[[int], Any]


def at_manager(**fields: str) -> Take:
    """A request for a slot, whose fields get the value."""

    def take(value: int) -> Any:
        profile = resources_pb2.ResourceProfile(cpu_milli=100, task_heap_memory_bytes=2**23)
        message = slots_pb2.SlotRequest(allocation_id="slot", profile=profile)
        for path in fields.values():
            set_at(message, path, value)
        return decoding.slot_requests_from([message], 0)

    return take


def at_resize(value: int) -> Any:
    profile = resources_pb2.ResourceProfile(cpu_milli=100, task_heap_memory_bytes=2**23)
    message = resource_manager_pb2.ResourceManagerServiceResizeSlotRequest(
        allocation_id="slot", generation=1, resize_number=value, profile=profile
    )
    return resize_event(message, "job")


def at_executor(path: str) -> Take:
    """An order for a slot."""

    def take(value: int) -> Any:
        profile = resources_pb2.ResourceProfile(cpu_milli=100, task_heap_memory_bytes=2**23)
        slot = slots_pb2.SlotStatus(
            allocation_id="slot", generation=1, job_id="job", profile=profile
        )
        set_at(slot, path, value)
        order = te.SlotAllocation(slot=slot, owner="user/alice")
        return spec_from_proto(order, "orders[0]", pids_max_default=1)

    return take


def of_task(path: str) -> Take:
    """A submission of a task."""

    def take(value: int) -> Any:
        spec = te.TaskSpec(argv=["true"])
        message = te.SubmitTaskRequest(
            task_id="task", allocation_id="slot", generation=1, spec=spec
        )
        set_at(message, path, value)
        return submission_of(message)

    return take


def submission_waits(value: int) -> Any:
    return wait_of(te.SubmitTaskRequest(wait=duration_ms_to_proto(value)))


def freed(value: int) -> Any:
    message = te.SlotFree(allocation_id="slot", generation=1, grace=duration_ms_to_proto(value))
    return _free_from_proto(message, "slots[0]")


def set_at(message: Any, path: str, value: int) -> None:
    *outer, name = path.split(".")
    for each in outer:
        message = getattr(message, each)
    if message.DESCRIPTOR.fields_by_name[name].message_type:
        getattr(message, name).CopyFrom(duration_ms_to_proto(value))
    else:
        setattr(message, name, value)


def options(**changes: Any) -> TaskOptions:
    usual: dict[str, Any] = {
        "argv": ("true",),
        "env": {},
        "cwd": "",
        "user": "",
        "timeout_s": None,
        "stdin": None,
        "output": "capture",
        "output_limit_bytes": 0,
    }
    return TaskOptions(**{**usual, **changes})


def configured(name: str, unit: str = "") -> Take:
    """A key of the configuration of executors."""
    return lambda value: Settings.model_validate(
        {"executor": {name: f"{value}{unit}" if unit else value}}
    )


def graced(value: int) -> Any:
    return decoding.grace_ms(duration_ms_to_proto(value), present=True)


UNIT = MEMORY_UNIT_BYTES
AMOUNTS: dict[str, tuple[int, int, list[Take]]] = {
    "cpu": (
        bounds.CPU_MILLI_MAX,
        1,
        [
            at_manager(cpu="profile.cpu_milli"),
            at_executor("profile.cpu_milli"),
            lambda value: fg.SlotSpec(cpu_milli=value),
        ],
    ),
    "cpu limit": (
        bounds.CPU_MILLI_MAX,
        1,
        [
            at_manager(limit="cpu_limit_milli"),
            at_executor("cpu_limit_milli"),
            lambda value: fg.SlotSpec(cpu_milli=100, cpu_limit_milli=value),
        ],
    ),
    "memory": (
        bounds.AMOUNT_MAX,
        1,
        [
            at_manager(memory="profile.task_heap_memory_bytes"),
            at_executor("profile.task_heap_memory_bytes"),
            lambda value: fg.SlotSpec(memory_bytes=value),
        ],
    ),
    "processes": (
        bounds.PIDS_MAX,
        1,
        [
            at_manager(pids="pids_max"),
            at_executor("pids_max"),
            lambda value: fg.SlotSpec(pids_max=value),
            configured("pids_max"),
        ],
    ),
    "time limit of a slot": (
        bounds.TIME_LIMIT_MS_MAX,
        1,
        [
            at_manager(time="time_limit"),
            at_executor("time_limit"),
            lambda value: fg.SlotSpec(time_limit_s=value / 1000),
        ],
    ),
    "priority": (
        bounds.PRIORITY_MAX,
        1,
        [
            at_manager(priority="priority"),
            lambda value: fg.SlotSpec(priority=value),
        ],
    ),
    "time limit of a task": (
        bounds.TASK_TIME_MS_MAX,
        1,
        [of_task("spec.timeout"), lambda value: options(timeout_s=value / 1000)],
    ),
    "wait of a submission": (
        bounds.SUBMIT_WAIT_MS_MAX,
        1,
        [submission_waits, lambda value: options(wait_s=value / 1000)],
    ),
    "stored output": (
        bounds.OUTPUT_BYTES_MAX,
        1,
        [
            of_task("spec.output_limit_bytes"),
            lambda value: options(output_limit_bytes=value),
            lambda value: check_output_offset("offset", value),
            configured("output_limit"),
        ],
    ),
    "memory of a task": (
        bounds.AMOUNT_MAX,
        UNIT,
        [of_task("memory_limit_bytes"), lambda value: options(memory_limit_bytes=value)],
    ),
    "grace": (
        bounds.GRACE_MS_MAX,
        1,
        [graced, freed, lambda value: grace(value / 1000), configured("task_kill_grace", "ms")],
    ),
    "generation": (
        bounds.COUNTER_MAX,
        1,
        [at_resize, at_executor("generation"), of_task("generation")],
    ),
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_the_largest_amount_is_the_same_everywhere(name: str) -> None:
    most, unit, places = AMOUNTS[name]
    for place in places:
        place(most)
        # The configuration raises a separate error, which is a ValueError.
        with pytest.raises((InvalidArgument, ValueError)):
            place(most + unit)


def test_the_smallest_slot_that_is_granted_can_be_carved() -> None:
    smallest = EngineSettings()
    assert smallest.cpu_milli_min >= bounds.CPU_MILLI_MIN
    assert smallest.memory_bytes_min >= MEMORY_UNIT_BYTES


def test_the_environment_of_the_longest_submission_fits_with_what_the_executor_adds() -> None:
    submission_of(
        te.SubmitTaskRequest(
            task_id="task",
            allocation_id="slot",
            generation=1,
            spec=te.TaskSpec(argv=["true"], env={"A": "x" * (bounds.COMMAND_BYTES_MAX - 3)}),
        )
    )
    check = HELPER_VERBS["start_task"]["env"].check
    added = bounds.ADDED_ENVIRONMENT_BYTES_MAX
    check("env", {"A": "x" * (bounds.COMMAND_BYTES_MAX - 3), "B": "x" * (added - 3)})
    with pytest.raises(Exception, match="bytes in total"):
        check("env", {"A": "x" * (bounds.COMMAND_BYTES_MAX - 3), "B": "x" * added})
