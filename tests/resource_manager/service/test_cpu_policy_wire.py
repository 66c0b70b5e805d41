"""Tests cpu policies in requests: each invalid combination names the field and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.errors import InvalidArgument
from finegrain.resources import GIB
from finegrain.v1 import cpus_pb2 as pb
from finegrain.v1 import resources_pb2, slots_pb2
from finegrain.values.bounds import AMOUNT_MAX
from resource_manager.service.wire import decoding, encoding
from resource_manager.service.wire.ranges import request_ranges

LSE, LSR, LS, BE = pb.QOS_CLASS_LSE, pb.QOS_CLASS_LSR, pb.QOS_CLASS_LS, pb.QOS_CLASS_BE
FULL, SPREAD = pb.BIND_POLICY_FULL_PCPUS, pb.BIND_POLICY_SPREAD_BY_PCPUS
BURST = pb.BIND_POLICY_CONSTRAINED_BURST
CORES, NODES = pb.EXCLUSIVE_POLICY_PCPU_LEVEL, pb.EXCLUSIVE_POLICY_NUMA_NODE_LEVEL
REQUIRED, PREFERRED = pb.STRENGTH_REQUIRED, pb.STRENGTH_PREFERRED


def near(**rule: Any) -> pb.NeighborRule:
    return pb.NeighborRule(**{"labels": {"app": "db"}, **rule})


def asks(
    cpu_milli: int | None = 2000, cpu_limit_milli: int = 0, **policy: Any
) -> slots_pb2.SlotRequest:
    """Returns a slot request; without a profile if `cpu_milli` is None."""
    profile = None
    if cpu_milli is not None:
        profile = resources_pb2.ResourceProfile(cpu_milli=cpu_milli, task_heap_memory_bytes=GIB)
    return slots_pb2.SlotRequest(
        allocation_id="slot-1",
        profile=profile,
        cpu_limit_milli=cpu_limit_milli,
        cpu_policy=pb.CpuPolicy(**policy),
    )


def taken_in(message: slots_pb2.SlotRequest) -> CpuPolicy:
    """Returns the request's policy as the engine gets it."""
    return decoding.slot_request(message, "requests[0]").cpu_policy


def test_a_request_says_all_that_it_wants() -> None:
    policy = taken_in(
        asks(
            qos=LSR,
            bind=FULL,
            bind_strength=REQUIRED,
            exclusive=CORES,
            numa=pb.NUMA_POLICY_SINGLE_NUMA_NODE,
        )
    )
    assert policy == CpuPolicy(
        qos=QosClass.LSR,
        bind=BindPolicy.FULL_PCPUS,
        bind_required=True,
        exclusive=ExclusivePolicy.PCPU_LEVEL,
        numa=NumaPolicy.SINGLE_NUMA_NODE,
        numa_required=True,
    )


def test_who_says_nothing_gets_a_plain_slot() -> None:
    assert taken_in(slots_pb2.SlotRequest(allocation_id="slot-1")) is PLAIN
    assert taken_in(asks(None)) == taken_in(asks(qos=LS)) == PLAIN


@pytest.mark.parametrize(
    "message",
    [
        asks(qos=LSE),
        asks(qos=LSR, cpu_limit_milli=2000),
        asks(qos=LSR, bind=pb.BIND_POLICY_NONE),
        asks(qos=LSR, bind=SPREAD, bind_strength=REQUIRED, exclusive=NODES),
        asks(qos=LSE, exclusive=NODES, exclusive_strength=REQUIRED),
        asks(500, 4000, qos=LS),
        asks(500, 4000, qos=LS, bind=BURST),
        asks(500, 4000, qos=LS, bind=BURST, bind_strength=REQUIRED),
        asks(500, qos=LS, bind=FULL, exclusive=CORES),
        asks(500, numa=pb.NUMA_POLICY_RESTRICTED, numa_strength=PREFERRED),
        asks(None, numa=pb.NUMA_POLICY_SINGLE_NUMA_NODE),
        asks(None, qos=BE),
        asks(500, 500, qos=BE, bind=SPREAD, exclusive=NODES),
        asks(qos=LSR, bind=FULL, bind_strength=PREFERRED),
        asks(qos=LSR, bind_strength=PREFERRED),
        asks(qos=LSR, slot_labels={"app": "db"}, neighbors=[near(level=pb.NEIGHBOR_LEVEL_CORE)]),
        asks(neighbors=[near(apart=True, strength=PREFERRED), near()]),
    ],
    ids=lambda message: " ".join(str(message).split()[5:]),
)
def test_what_goes_together_comes_back_as_it_went(message: slots_pb2.SlotRequest) -> None:
    spec = decoding.slot_request(message, "requests[0]")
    shown = encoding.write(slots_pb2.SlotRequest, spec)
    assert decoding.slot_request(shown, "requests[0]") == spec


WRONG = [
    (
        asks(neighbors=[near(level=pb.NEIGHBOR_LEVEL_NUMA)]),
        "cpu_policy.neighbors[0].level",
        "numa",
        "level host with qos LS, or qos LSE or LSR",
    ),
    (asks(neighbors=[near(), near(apart=True)]), "cpu_policy.neighbors[1]", "apart", "opposite"),
    (asks(neighbors=[near(labels={})]), "cpu_policy.neighbors[0].labels", "empty", "the labels"),
    (asks(neighbors=[near()] * 5), "cpu_policy.neighbors", "5 items", "at most 4"),
    (asks(slot_labels={"a b": ""}), "cpu_policy.slot_labels key", "a b", "1 to 63"),
    (asks(None, qos=LSE), "profile", "absent", "a multiple of 1000"),
    (asks(1500, qos=LSR), "profile.cpu_milli", "1500", "whole cpus with qos LSR"),
    (asks(0, qos=LSR), "profile.cpu_milli", "0", "or cpu_policy.qos LS for parts"),
    (asks(2000, 3000, qos=LSE), "cpu_limit_milli", "3000", "0 or cpu_milli (2000) with qos LSE"),
    (asks(2000, 3000, qos=BE), "cpu_limit_milli", "3000", "0 or cpu_milli (2000) with qos BE"),
    (asks(qos=LSR, bind=BURST), "cpu_policy.bind", "ConstrainedBurst", "is for qos LS"),
    (asks(qos=BE, bind=BURST), "cpu_policy.bind", "ConstrainedBurst", "is for qos LS"),
    (asks(bind=FULL, bind_strength=REQUIRED), "cpu_policy.bind_strength", "REQUIRED", "qos LSE or"),
    (
        asks(qos=BE, bind=SPREAD, bind_strength=REQUIRED),
        "cpu_policy.bind_strength",
        "REQUIRED",
        "STRENGTH_PREFERRED with qos BE, or qos LSE or LSR",
    ),
    (
        asks(qos=LS, exclusive=CORES, exclusive_strength=REQUIRED),
        "cpu_policy.exclusive_strength",
        "REQUIRED",
        "PCPULevel applies only to dedicated cpus",
    ),
    (
        asks(qos=BE, exclusive=NODES, exclusive_strength=REQUIRED),
        "cpu_policy.exclusive_strength",
        "REQUIRED",
        "or qos LSE or LSR",
    ),
    (
        asks(qos=LSR, bind_strength=REQUIRED),
        "cpu_policy.bind_strength",
        "REQUIRED",
        "bind Default requires nothing",
    ),
    (
        asks(qos=LSR, exclusive=pb.EXCLUSIVE_POLICY_NONE, exclusive_strength=REQUIRED),
        "cpu_policy.exclusive_strength",
        "REQUIRED",
        "exclusive None requires nothing",
    ),
    (
        asks(numa=pb.NUMA_POLICY_NONE, numa_strength=REQUIRED),
        "cpu_policy.numa_strength",
        "REQUIRED",
        "numa None requires nothing",
    ),
    (
        asks(numa=pb.NUMA_POLICY_BEST_EFFORT, numa_strength=REQUIRED),
        "cpu_policy.numa_strength",
        "REQUIRED",
        "or numa Restricted or SingleNUMANode",
    ),
    (asks(qos=17), "cpu_policy.qos", "17", "a known QosClass"),
    (asks(bind=17), "cpu_policy.bind", "17", "a known BindPolicy"),
    (asks(exclusive=17), "cpu_policy.exclusive", "17", "a known ExclusivePolicy"),
    (asks(numa=17), "cpu_policy.numa", "17", "a known NumaPolicy"),
    (asks(numa_strength=17), "cpu_policy.numa_strength", "17", "a known Strength"),
]


@pytest.mark.parametrize(("message", "field", "value", "expected"), WRONG)
def test_each_wrong_combination_is_named_with_a_way_out(
    message: slots_pb2.SlotRequest, field: str, value: str, expected: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decoding.slot_request(message, "requests[7]")
    assert caught.value.field == f"requests[7].{field}"
    assert value in caught.value.details["value"]
    assert expected in caught.value.expected


def test_members_of_ranges_keep_to_the_same_rules() -> None:
    asked = asks(1500, qos=LSR)
    asked.allocation_id = ""
    many = slots_pb2.RequestRange(range_id="many", count=5, request=asked)
    with pytest.raises(InvalidArgument, match=r"^ranges\[0\]\.request\.profile\.cpu_milli is 1500"):
        request_ranges([many])
    asked.profile.cpu_milli = 3000
    many.request.CopyFrom(asked)
    (found,) = request_ranges([many])
    assert found.request.cpu_policy.qos is QosClass.LSR


@given(
    st.builds(
        asks,
        cpu_milli=st.none() | st.integers(0, 5000) | st.sampled_from([1000, 2000]),
        cpu_limit_milli=st.sampled_from([0, 1000, 2000, AMOUNT_MAX, -1]),
        qos=st.integers(0, 5),
        bind=st.integers(0, 5),
        bind_strength=st.integers(0, 3),
        exclusive=st.integers(0, 4),
        exclusive_strength=st.integers(0, 3),
        numa=st.integers(0, 5),
        numa_strength=st.integers(0, 3),
    )
)
def test_whatever_is_taken_in_keeps_the_rules(message: slots_pb2.SlotRequest) -> None:
    try:
        spec = decoding.slot_request(message, "r")
    except InvalidArgument as error:
        assert error.field.startswith("r.")  # noqa: PT017  either outcome is right
        return
    policy, profile = spec.cpu_policy, spec.profile
    if policy.qos.is_pinned:
        assert profile is not None
        assert profile.cpu_milli > 0
        assert profile.cpu_milli % 1000 == 0
        assert spec.cpu_limit_milli in (0, profile.cpu_milli)
        assert policy.bind is not BindPolicy.CONSTRAINED_BURST
    else:
        assert not policy.exclusive_required
        assert not policy.bind_required or policy.bind is BindPolicy.CONSTRAINED_BURST
