"""Parts of messages are converted once, and never the wrong one."""

import pytest

from finegrain.errors import InvalidArgument
from finegrain.resources import MIB
from finegrain.rpc.known import DATA_BYTES_MAX, Known
from finegrain.rpc.wire import profile_from_proto, profile_to_proto
from finegrain.rpc.wire_topology import isolation_from_proto, isolation_to_proto
from finegrain.v1 import resources_pb2


def test_keeps_a_bounded_number_of_values_and_no_large_ones() -> None:
    known: Known[int] = Known(2)
    known.keep(b"a", 1)
    known.keep(b"b", 2)
    assert (known.get(b"a"), known.get(b"b")) == (1, 2)
    known.keep(b"c", 3)
    assert (known.get(b"a"), known.get(b"c")) == (None, 3)
    known.keep(b"x" * (DATA_BYTES_MAX + 1), 4)
    assert known.get(b"x" * (DATA_BYTES_MAX + 1)) is None


def test_a_profile_that_came_before_is_the_same_object_and_others_are_not() -> None:
    message = resources_pb2.ResourceProfile(cpu_milli=77, task_heap_memory_bytes=MIB)
    first = profile_from_proto(message, "profile")
    message.cpu_milli = 78
    second = profile_from_proto(message, "profile")
    assert (first.cpu_milli, second.cpu_milli) == (77, 78)
    message.cpu_milli = 77
    assert profile_from_proto(message, "profile") is first
    assert profile_to_proto(first) == message


def test_what_is_refused_is_refused_every_time_with_its_own_field() -> None:
    message = resources_pb2.ResourceProfile(cpu_milli=-5)
    for field in ("requests[0].profile", "requests[7].profile"):
        with pytest.raises(InvalidArgument) as caught:
            profile_from_proto(message, field)
        assert caught.value.details["field"] == f"{field}.cpu_milli"
    isolation = resources_pb2.IsolationReport(driver="a\nb")
    for field in ("isolation", "report.slots[3].isolation"):
        with pytest.raises(InvalidArgument) as caught:
            isolation_from_proto(isolation, field)
        assert caught.value.details["field"] == f"{field}.driver"


def test_isolation_comes_back_as_it_was_with_notes() -> None:
    message = resources_pb2.IsolationReport(cpu="quota", driver="v2", notes=["no pids", "no swap"])
    assert isolation_to_proto(isolation_from_proto(message, "isolation")) == message
