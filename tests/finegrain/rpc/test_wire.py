"""Messages and their words: no value is lost in a conversion, and bad values are refused."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.mapping.stored import STORED
from finegrain.resources import ResourceProfile, extended_items
from finegrain.rpc.wire import (
    EXTENDED_NAME_PATTERN,
    amounts_from_proto,
    amounts_to_proto,
    duration_ms_from_proto,
    duration_ms_to_proto,
    labels_from_proto,
    profile_from_proto,
    profile_to_proto,
    timestamp_ms_from_proto,
    timestamp_ms_to_proto,
)
from finegrain.rpc.wire_topology import (
    isolation_from_proto,
    isolation_to_proto,
    topology_dict_to_proto,
    topology_from_proto,
)
from finegrain.v1 import resources_pb2
from finegrain.values.bounds import AMOUNT_MAX, CPU_MILLI_MAX
from finegrain.values.isolation import Isolation

amount = st.integers(0, AMOUNT_MAX // 4)
cpu = st.integers(0, CPU_MILLI_MAX)
names = st.from_regex(EXTENDED_NAME_PATTERN, fullmatch=True)
extended = st.dictionaries(names, amount, max_size=4)


@given(cpu, amount, amount, amount, amount, extended)
def test_profiles_come_back_as_they_went(
    cpu: int, heap: int, off_heap: int, managed: int, network: int, more: dict[str, int]
) -> None:
    profile = ResourceProfile(cpu, heap, off_heap, managed, network, extended_items(more))
    assert profile_from_proto(profile_to_proto(profile), "profile") == profile


def test_a_sum_that_no_integer_of_the_protocol_holds_is_cut() -> None:
    total = {"memory_bytes": 1_100 * AMOUNT_MAX, "extended.x": 2**70, "device.gpu-memory": 2**64}
    message = amounts_to_proto(total)
    found = {message.memory_bytes, message.extended["x"], message.devices["gpu-memory"]}
    assert found == {2**63 - 1}


@given(
    st.dictionaries(st.sampled_from(["memory_bytes", "extended.x"]), amount),
    st.dictionaries(st.sampled_from(["cpu_milli", "best_effort_cpu_milli"]), cpu),
)
def test_amounts_come_back_without_zeros(others: dict[str, int], cpus: dict[str, int]) -> None:
    amounts = others | cpus
    again = amounts_from_proto(amounts_to_proto(amounts), "total")
    assert again == {name: value for name, value in amounts.items() if value}


@pytest.mark.parametrize("value", [-1, AMOUNT_MAX + 1, 2**63 - 1, -(2**63)])
def test_amounts_out_of_range_name_their_field(value: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        amounts_from_proto(resources_pb2.ResourceAmounts(memory_bytes=value), "total")
    assert caught.value.field == "total.memory_bytes"


@given(st.integers(0, 4_102_444_800_000))
def test_moments_and_durations_keep_their_milliseconds(value: int) -> None:
    assert timestamp_ms_from_proto(timestamp_ms_to_proto(value)) == value
    if value < 10 * 365 * 24 * 3600 * 1000:
        assert duration_ms_from_proto(duration_ms_to_proto(value), "lease") == value


def test_a_duration_that_is_not_zero_never_becomes_zero() -> None:
    assert duration_ms_from_proto(Duration(nanos=1), "grace") == 1


WRONG_DURATIONS = [
    Duration(seconds=-1),
    Duration(nanos=-1_000_000),
    Duration(nanos=2_000_000_000),
    Duration(seconds=2**62),
    Duration(seconds=-(2**62)),
]


@pytest.mark.parametrize("message", WRONG_DURATIONS, ids=str)
def test_durations_out_of_range_are_refused(message: Duration) -> None:
    with pytest.raises(InvalidArgument, match="grace"):
        duration_ms_from_proto(message, "grace")


def test_labels_are_sorted_and_checked() -> None:
    assert labels_from_proto({"b": "2", "a": ""}, "labels") == (("a", ""), ("b", "2"))
    for wrong in ({"": "x"}, {"a b": "x"}, {"a": "x\n"}, {"a": "x" * 129}, {"a/": "x"}):
        with pytest.raises(InvalidArgument):
            labels_from_proto(wrong, "labels")
    with pytest.raises(InvalidArgument, match="at most"):
        labels_from_proto({f"k{n}": "" for n in range(65)}, "labels")


def test_isolation_and_topology_survive_storage() -> None:
    isolation = resources_pb2.IsolationReport(cpu="quota", memory="hard", notes=["no swap limit"])
    stored = isolation_from_proto(isolation, "isolation")
    assert stored == Isolation("quota", memory="hard", notes=("no swap limit",))
    assert STORED.from_json(Isolation, STORED.to_json(stored)) == stored
    assert isolation_to_proto(stored) == isolation
    declared = resources_pb2.IsolationReport(countable="declared")
    assert isolation_to_proto(isolation_from_proto(declared, "isolation")) == declared
    topology = resources_pb2.HostTopology(
        online_cpus=str(CpuSet.parse("0-3")),
        cores=[resources_pb2.Core(cpus="0-1", numa_node_id=-1)],
        memory_bytes=2**40,
    )
    assert topology_dict_to_proto(topology_from_proto(topology, "topology")) == topology


def test_what_a_newer_version_stored_is_read_as_far_as_it_is_known() -> None:
    stored = {"cpu": "quota", "network": "shaped", "added": {"deep": [{"er": 1}]}}
    assert STORED.from_json(Isolation, stored) == Isolation("quota")


def test_control_characters_do_not_come_in() -> None:
    with pytest.raises(InvalidArgument) as caught:
        isolation_from_proto(resources_pb2.IsolationReport(cpu="\x1b[31m"), "isolation")
    assert caught.value.field == "isolation.cpu"
