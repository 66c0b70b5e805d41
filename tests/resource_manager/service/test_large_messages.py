"""A large message of an executor is refused because of its counts, before its items are decoded.

A registration of 781 KiB with 400,000 empty NUMA nodes once stopped all other calls for 2.2 s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.rpc.mapping.fields import is_map, is_repeated
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.bounds import AMOUNT_MAX, TOTAL_MAX
from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.paused import at_once
from resource_manager.service.wire import decoding, encoding
from tests.support.engine_cluster import EngineCluster
from tests.support.full_messages import full_message

ITEMS = 70_000
CALLS_MAX = 20_000
"""Maximum number of function calls to decode a message that must be refused. The number is a
measure of the time.
"""
FIRST = {"device_hints": {"type": "gpu"}, "selector": {"name": "a"}, "functions": {"name": "a"}}
"""First items of the lists that `full_message` leaves empty."""
SCALARS = {FieldDescriptor.TYPE_STRING: "7", FieldDescriptor.TYPE_BYTES: b"7"}

Path = tuple[FieldDescriptor, ...]


def lists_of(kind: Descriptor, above: Path = ()) -> Iterator[Path]:
    """Yields each list and map of a message, also in its nested messages."""
    for field in kind.fields:
        path = (*above, field)
        if is_repeated(field) or is_map(field):
            yield path
        if is_map(field) or field.message_type is None:
            continue
        if field.message_type not in [each.message_type for each in above]:
            yield from lists_of(field.message_type, path)


def name_of(path: Path) -> str:
    return ".".join(each.name for each in path)


def fill(message: Any, path: Path) -> None:
    """Fills one list of a message in which every field is set."""
    for field in path[:-1]:
        inner = getattr(message, field.name)
        if is_repeated(field):
            message = inner[0] if len(inner) else inner.add(**FIRST[field.name])
        else:
            message = inner
    field = path[-1]
    items = getattr(message, field.name)
    if is_map(field):
        entry = field.message_type
        assert entry is not None
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        for number in range(ITEMS):
            name = number if key.type not in SCALARS else f"n{number}"
            if value.message_type is None:
                items[name] = SCALARS.get(value.type, 1)
            else:
                items[name].SetInParent()
    elif field.message_type is not None:
        for _ in range(ITEMS):
            items.add()
    else:
        items.extend([SCALARS.get(field.type, 1)] * ITEMS)


def calls_of(decode: Callable[[], object]) -> tuple[int, FinegrainError | None]:
    """Returns how many functions a decoder calls, and its error."""
    count, error = 0, None

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        decode()
    except FinegrainError as caught:
        error = caught
    finally:
        sys.setprofile(None)
    return count, error


def decoded(message: Any) -> Callable[[], object]:
    if isinstance(message, slots_pb2.SlotReport):
        return lambda: decoding.report(message, "report")
    return lambda: decoding.registration(message)


def sound(kind: Any) -> Any:
    """A message that is decoded without an error up to its lists."""
    message = full_message(kind)
    if isinstance(message, slots_pb2.SlotReport):
        message.unchanged = False
        message.slots[0].state = slots_pb2.SLOT_STATE_ALLOCATED
        message.ended[0].reason = "RELEASED"
    else:
        message.address, message.protocol_version = "127.0.0.1:7", decoding.PROTOCOL_VERSION
    return message


KINDS = (rm_pb2.RegisterExecutorRequest, slots_pb2.SlotReport)
LISTS = [
    pytest.param(kind, path, id=f"{kind.DESCRIPTOR.name}.{name_of(path)}")
    for kind in KINDS
    for path in lists_of(kind.DESCRIPTOR)
    if name_of(path).partition(".")[0] != "report"  # the report has its own entry in KINDS
]


@pytest.mark.parametrize(("kind", "path"), LISTS)
def test_no_list_is_decoded_before_it_is_counted(kind: Any, path: Path) -> None:
    message = sound(kind)
    fill(message, path)
    # Lists that a resource manager does not read need no check.
    calls, error = calls_of(decoded(message))
    assert calls < CALLS_MAX, f"{calls} calls, {error}"


def test_a_report_may_have_many_slots() -> None:
    report = slots_pb2.SlotReport(report_number=1, rm_epoch=1)
    for number in range(decoding.REPORTED_SLOTS_MAX + 1):
        report.slots.add(
            allocation_id="a",
            job_id="j",
            generation=number + 1,
            state=slots_pb2.SLOT_STATE_ALLOCATED,
        )
    with pytest.raises(InvalidArgument, match="at most 32768"):
        decoding.report(report, "report")
    del report.slots[-1]
    assert len(decoding.report(report, "report").slots) == decoding.REPORTED_SLOTS_MAX


def test_the_sum_of_a_thousand_large_executors_can_be_shown() -> None:
    cluster = EngineCluster(jobs=())
    for number in range(1_100):
        cluster.host(f"host-{number}", 4_000, memory_bytes=AMOUNT_MAX)
    view = at_once(cluster_view(cluster.state))
    assert view.total["memory_bytes"] == 1_100 * AMOUNT_MAX > TOTAL_MAX
    shown = encoding.write(
        cluster_pb2.GetClusterResponse,
        view,
        rm_epoch=1,
        software_version="1",
        start_time=None,
    )
    assert shown.total.memory_bytes == TOTAL_MAX
    assert shown.executors["active"] == 1_100
