"""CPU policies, assignments and host settings: no value is lost in a conversion, and bad values are
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
    PolicyOrigin,
    QosClass,
    settle,
)
from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.mapping.stored import STORED
from finegrain.rpc.wire_cpu_words import (
    BIND,
    EXCLUSIVE,
    HOST_BIND,
    NUMA,
    QOS,
    STRATEGY,
    Words,
)
from finegrain.rpc.wire_cpus import (
    DEFAULT_BINDS,
    assignment_from_proto,
    assignment_to_proto,
    cpu_policy_from_proto,
    cpu_policy_to_proto,
    effective_policy_to_proto,
    host_cpus_from_proto,
    host_cpus_to_proto,
    host_policy_from_proto,
    host_policy_to_proto,
)
from finegrain.v1 import cpus_pb2 as pb

cpu_sets = st.builds(CpuSet, st.sets(st.integers(0, 300), max_size=8))
numbers = st.one_of(st.integers(-3, 8), st.integers(-(2**31), 2**31 - 1))
texts = st.one_of(st.text(max_size=9), st.sampled_from(["0-3", "", "cpu_milli", "extended.x"]))
assignments = st.builds(
    CpuAssignment,
    qos=st.sampled_from(QosClass),
    cpus=cpu_sets,
    bind=st.sampled_from([each for each in BindPolicy if each is not BindPolicy.DEFAULT]),
    exclusive=st.sampled_from(
        [each for each in ExclusivePolicy if each is not ExclusivePolicy.DEFAULT]
    ),
    numa=st.lists(
        st.builds(
            NodeShare,
            st.integers(0, 40),
            st.sampled_from([(("cpu_milli", 2000),), (("extended.hugepages-2Mi", 3),), ()]),
        ),
        max_size=3,
        unique_by=lambda share: share.node,
    ).map(tuple),
    memory_nodes=cpu_sets,
    pools=st.lists(
        st.builds(PoolName, st.integers(0, 3), st.integers(-1, 9)), max_size=3, unique=True
    ).map(tuple),
    notes=st.lists(st.sampled_from(["no whole core was left", "x"]), max_size=2).map(tuple),
)
host_policies = st.builds(
    HostPolicy,
    bind=st.none() | st.sampled_from(HostBindPolicy),
    numa_strategy=st.none() | st.sampled_from(NumaStrategy),
    alignment=st.none()
    | st.sampled_from([each for each in NumaPolicy if each is not NumaPolicy.DEFAULT]),
    reserved_cpus=st.none() | cpu_sets,
    reserved_strict=st.none() | st.booleans(),
    default_bind=st.none() | st.sampled_from(DEFAULT_BINDS),
    default_exclusive=st.none()
    | st.sampled_from([each for each in ExclusivePolicy if each is not ExclusivePolicy.DEFAULT]),
)


VOCABULARIES: list[tuple[Words[Any], Any, Any]] = [
    (QOS, QosClass, pb.QosClass),
    (BIND, BindPolicy, pb.BindPolicy),
    (EXCLUSIVE, ExclusivePolicy, pb.ExclusivePolicy),
    (NUMA, NumaPolicy, pb.NumaPolicy),
    (STRATEGY, NumaStrategy, pb.NumaStrategy),
    (HOST_BIND, HostBindPolicy, pb.HostBindPolicy),
]


@pytest.mark.parametrize(("words", "kind", "wrapper"), VOCABULARIES)
def test_every_word_has_a_number_and_every_number_a_word(
    words: Words[Any], kind: Any, wrapper: Any
) -> None:
    said = [each for each in kind if each != "Default"]
    assert {words.number(each) for each in said} == set(wrapper.values()) - {0}
    assert [words.optional_word(words.number(each), "x") for each in said] == said


@pytest.mark.parametrize("numa", NumaPolicy)
@pytest.mark.parametrize("required", [False, True])
def test_policies_come_back_as_they_went(numa: NumaPolicy, required: bool) -> None:
    strength = required and numa is not NumaPolicy.DEFAULT
    policy = CpuPolicy(
        QosClass.LSR, BindPolicy.FULL_PCPUS, required, numa=numa, numa_required=strength
    )
    message = cpu_policy_to_proto(policy)
    assert message is not None
    assert cpu_policy_from_proto(message, "cpu_policy") == policy


def test_what_is_not_said_has_the_strength_of_its_policy() -> None:
    said = pb.CpuPolicy(
        bind=pb.BIND_POLICY_FULL_PCPUS,
        exclusive=pb.EXCLUSIVE_POLICY_PCPU_LEVEL,
        numa=pb.NUMA_POLICY_SINGLE_NUMA_NODE,
    )
    policy = cpu_policy_from_proto(said, "x")
    assert (policy.qos, policy.bind_required, policy.exclusive_required) == ("LS", False, False)
    assert policy.numa_required
    said.numa = pb.NUMA_POLICY_BEST_EFFORT
    assert not cpu_policy_from_proto(said, "x").numa_required
    said.numa, said.numa_strength = pb.NUMA_POLICY_RESTRICTED, pb.STRENGTH_PREFERRED
    assert not cpu_policy_from_proto(said, "x").numa_required


def test_who_says_nothing_is_plain() -> None:
    assert cpu_policy_from_proto(pb.CpuPolicy(), "x") == PLAIN
    assert cpu_policy_from_proto(pb.CpuPolicy(qos=pb.QOS_CLASS_LS), "x") == PLAIN
    assert cpu_policy_to_proto(PLAIN) is None


@given(assignments)
def test_assignments_come_back_as_they_went(assignment: CpuAssignment) -> None:
    assert assignment_from_proto(assignment_to_proto(assignment), "assignment") == assignment


@given(host_policies)
def test_settings_come_back_as_they_went(policy: HostPolicy) -> None:
    assert host_policy_from_proto(host_policy_to_proto(policy), "policy") == policy
    assert STORED.from_json(HostPolicy, STORED.to_json(policy)) == policy


def test_reserving_no_cpu_is_another_thing_than_not_saying() -> None:
    none, unsaid = HostPolicy(reserved_cpus=CpuSet()), HostPolicy()
    assert host_policy_from_proto(host_policy_to_proto(none), "x") == none
    assert host_policy_from_proto(host_policy_to_proto(unsaid), "x") == unsaid != none


def test_what_holds_tells_where_it_comes_from() -> None:
    operator = HostPolicy(HostBindPolicy.FULL_PCPUS_ONLY, reserved_cpus=CpuSet.of(0))
    own = HostPolicy(reserved_cpus=CpuSet.of(1), reserved_strict=True)
    layers = ((PolicyOrigin.OPERATOR, operator), (PolicyOrigin.CONFIGURATION, own))
    message = effective_policy_to_proto(settle(layers))
    assert message.policy.bind == pb.HOST_BIND_POLICY_FULL_PCPUS_ONLY
    assert (message.policy.reserved_cpus, message.strictly_reserved_cpus) == ("0-1", "0-1")
    assert message.policy.reserved_strict
    assert message.origins["bind"] == "operator"
    assert message.origins["alignment"] == "built-in"
    assert len(message.policy.ListFields()) == 7


def test_what_a_host_announces_is_kept_as_text() -> None:
    message = pb.HostCpus(
        slot_cpus="3,0-1",
        isolated_cpus="3",
        policy=pb.HostPolicy(alignment=pb.NUMA_POLICY_RESTRICTED),
        numa=[
            pb.NumaCapacity(numa_node_id=0, memory_bytes=2**40, default_memory=True),
            pb.NumaCapacity(numa_node_id=2, extended={"hugepages-2Mi": 7, "hugepages-1Gi": 0}),
        ],
    )
    text = host_cpus_from_proto(message, "host_cpus")
    data = json.loads(text)
    assert (data["slot_cpus"], data["isolated_cpus"]) == ("0-1,3", "3")
    assert data["policy"] == {"alignment": "Restricted"}
    assert data["numa"][0]["memory_bytes"] == 2**40
    assert data["numa"][1]["extended"] == {"hugepages-2Mi": 7}
    assert host_cpus_from_proto(host_cpus_to_proto(text), "host_cpus") == text


def test_a_host_that_announces_nothing() -> None:
    assert host_cpus_from_proto(pb.HostCpus(), "host_cpus") == "{}"
    assert host_cpus_to_proto("{}") == pb.HostCpus()


@pytest.mark.parametrize(
    ("read", "field"),
    [
        (lambda: cpu_policy_from_proto(pb.CpuPolicy(qos=9), "p"), "p.qos"),  # type: ignore[arg-type]
        (lambda: cpu_policy_from_proto(pb.CpuPolicy(bind=9), "p"), "p.bind"),  # type: ignore[arg-type]
        (lambda: cpu_policy_from_proto(pb.CpuPolicy(numa=-1), "p"), "p.numa"),  # type: ignore[arg-type]
        (
            lambda: cpu_policy_from_proto(pb.CpuPolicy(exclusive_strength=3), "p"),  # type: ignore[arg-type]
            "p.exclusive_strength",
        ),
        (lambda: assignment_from_proto(pb.CpuAssignment(cpus="a"), "a"), "a.cpus"),
        (
            lambda: assignment_from_proto(
                pb.CpuAssignment(numa=[pb.NodeShare(), pb.NodeShare()]), "a"
            ),
            "a.numa",
        ),
        (
            lambda: assignment_from_proto(
                pb.CpuAssignment(numa=[pb.NodeShare(amounts={"cpus": 1})]), "a"
            ),
            "a.numa[0].amounts of a dimension",
        ),
        (
            lambda: assignment_from_proto(
                pb.CpuAssignment(pools=[pb.PoolName(numa_node_id=-2)]), "a"
            ),
            "a.pools[0].numa_node_id",
        ),
        (lambda: assignment_from_proto(pb.CpuAssignment(notes=["\n"]), "a"), "a.notes[0]"),
        (lambda: host_policy_from_proto(pb.HostPolicy(reserved_cpus="x"), "h"), "h.reserved_cpus"),
        (
            lambda: host_policy_from_proto(
                pb.HostPolicy(default_bind=pb.BIND_POLICY_CONSTRAINED_BURST), "h"
            ),
            "h.default_bind",
        ),
        (
            lambda: host_cpus_from_proto(
                pb.HostCpus(numa=[pb.NumaCapacity(memory_bytes=-1)]), "host_cpus"
            ),
            "host_cpus.numa[0].memory_bytes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(read: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read()
    assert caught.value.field == field


@given(
    st.builds(
        pb.CpuAssignment,
        qos=st.integers(0, 6),
        cpus=texts,
        bind=st.integers(0, 6),
        numa=st.lists(
            st.builds(
                pb.NodeShare,
                numa_node_id=numbers,
                amounts=st.dictionaries(texts, st.integers(-(2**63), 2**63 - 1), max_size=2),
            ),
            max_size=2,
        ),
        memory_nodes=texts,
        pools=st.lists(st.builds(pb.PoolName, package_index=numbers, numa_node_id=numbers)),
        notes=st.lists(texts, max_size=2),
    )
)
def test_whatever_comes_is_taken_in_or_refused_by_field(message: pb.CpuAssignment) -> None:
    try:
        taken = assignment_from_proto(message, "assignment")
    except InvalidArgument as error:
        assert error.field.startswith("assignment.")  # noqa: PT017  either outcome is right
        return
    assert STORED.from_json(CpuAssignment, STORED.to_json(taken)) == taken
