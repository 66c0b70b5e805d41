"""Tests that any bytes are either accepted or rejected with a field name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from finegrain.errors import FailedPrecondition, InvalidArgument
from finegrain.v1 import cpus_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.bounds import CPU_MILLI_MAX
from finegrain.values.outcomes import ItemOutcome
from resource_manager.service.measured_use import check_usage
from resource_manager.service.submission import Submission, make_submission
from resource_manager.service.wire import decoding
from resource_manager.service.wire.resizes import resize_event

numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 3000))
texts = st.one_of(st.text(max_size=20), st.sampled_from(["slot-1", "job-1", "0-3", "", "1.0"]))
profiles = st.builds(
    resources_pb2.ResourceProfile,
    cpu_milli=numbers,
    task_heap_memory_bytes=numbers,
    extended=st.dictionaries(texts, numbers, max_size=2),
)
assignments = st.builds(
    cpus_pb2.CpuAssignment,
    qos=st.integers(-1, 5),
    cpus=texts,
    exclusive=st.integers(0, 4),
    numa=st.lists(
        st.builds(
            cpus_pb2.NodeShare,
            numa_node_id=st.integers(-2, 70_000),
            amounts=st.dictionaries(texts, numbers, max_size=2),
        ),
        max_size=2,
    ),
)
cpu_states = st.builds(
    cpus_pb2.CpuState,
    offline_cpus=texts,
    host_policy_number=numbers,
    notes=st.lists(texts, max_size=2),
    kubelet=st.none()
    | st.builds(
        cpus_pb2.KubeletReport,
        cpu_manager_policy=texts,
        policy=st.builds(
            cpus_pb2.HostPolicy, alignment=st.integers(0, 6), reserved_cpus=st.none() | texts
        ),
        containers=st.lists(st.builds(cpus_pb2.KubeletContainer, cpus=texts), max_size=2),
    ),
)
slots = st.builds(
    slots_pb2.SlotStatus,
    allocation_id=texts,
    generation=numbers,
    job_id=texts,
    profile=profiles,
    state=st.integers(0, 5),
    cpus=texts,
    cpu_limit_milli=numbers,
    resize_number=numbers,
    isolation=st.builds(resources_pb2.IsolationReport, cpu=texts, notes=st.lists(texts)),
    assignment=st.none() | assignments,
)
ended = st.builds(slots_pb2.EndedSlot, allocation_id=texts, generation=numbers, reason=texts)
reports = st.builds(
    slots_pb2.SlotReport,
    report_number=numbers,
    rm_epoch=numbers,
    command_number=numbers,
    unchanged=st.booleans(),
    as_ordered=st.booleans(),
    slot_isolation=st.none() | st.builds(resources_pb2.IsolationReport, cpu=texts),
    slots=st.lists(slots, max_size=3),
    ended=st.lists(ended, max_size=2),
    available=st.builds(resources_pb2.ResourceAmounts, cpu_milli=numbers, memory_bytes=numbers),
    cpu_state=st.none() | cpu_states,
)


@given(reports)
def test_reports_are_taken_in_whole_or_refused_by_field(message: slots_pb2.SlotReport) -> None:
    try:
        taken = decoding.report(message, "report")
    except InvalidArgument as error:
        assert error.field.startswith("report.")  # noqa: PT017  either outcome is right
        return
    assert taken.report_number >= 1
    assert not (taken.as_ordered and (taken.unchanged or taken.slots))
    assert len({slot.allocation_id for slot in taken.slots}) == len(message.slots)
    for slot in taken.slots:
        assert slot.generation >= 1
        assert 0 <= slot.profile.cpu_milli <= CPU_MILLI_MAX
        assert slot.allocation_id.isprintable()


def whole_call(message: rm_pb2.RequestResourceRequest) -> object:
    specs = decoding.slot_requests_from(message.requests, 0)
    return make_submission(specs, message.gangs, members_max=10)


READERS: list[tuple[Any, Callable[[Any], object]]] = [
    (slots_pb2.SlotReport, lambda message: decoding.report(message, "report")),
    (slots_pb2.SlotRequest, lambda message: decoding.slot_request(message, "requests[0]")),
    (slots_pb2.UsageReport, lambda message: check_usage(message, "usage")),
    (rm_pb2.RegisterExecutorRequest, decoding.registration),
    (rm_pb2.RequestResourceRequest, whole_call),
    (rm_pb2.ResourceManagerServiceResizeSlotRequest, lambda message: resize_event(message, "job")),
]


@pytest.mark.parametrize(
    ("kind", "read"), [pytest.param(kind, read, id=kind.__name__) for kind, read in READERS]
)
@given(data=st.binary(max_size=200))
def test_noise_is_refused(kind: Any, read: Callable[[Any], object], data: bytes) -> None:
    try:
        read(kind.FromString(data))
    except (DecodeError, InvalidArgument, FailedPrecondition):
        return


gangs = st.builds(
    slots_pb2.Gang,
    gang_id=texts,
    placement=st.integers(0, 6),
    label=texts,
    timeout=st.none() | st.builds(Duration, seconds=st.integers(-2, 3)),
)
members = st.builds(
    slots_pb2.SlotRequest,
    allocation_id=texts,
    gang_id=texts,
    restart_on_loss=st.booleans(),
    target_address=st.sampled_from(["", "", "127.0.0.1:1"]),
)


@given(st.lists(gangs, max_size=3), st.lists(members, max_size=4))
def test_gangs_are_taken_in_whole_or_refused_by_field(
    declared: list[slots_pb2.Gang], requests: list[slots_pb2.SlotRequest]
) -> None:
    try:
        call = whole_call(rm_pb2.RequestResourceRequest(requests=requests, gangs=declared))
    except InvalidArgument as error:
        assert error.field.startswith(("gangs", "requests["))  # noqa: PT017
        return
    assert isinstance(call, Submission)
    assert len(call.gangs) == len(declared)
    for spec in call.specs:
        assert not spec.gang_id or not spec.target_address
    assert {spec.gang_id for spec in call.specs} - {""} == {each.gang_id for each in call.gangs}


def test_a_batch_names_both_places_of_an_id_that_it_holds_twice() -> None:
    twice = [slots_pb2.SlotRequest(allocation_id=each) for each in ("a", "b", "a", "a")]
    call = make_submission(decoding.slot_requests_from(twice, 0), (), members_max=10)
    assert [spec.allocation_id for spec in call.specs] == ["a", "b"]
    assert sorted(call.repeated) == [2, 3]
    assert "requests[3].allocation_id" in call.repeated[3].message
    assert "requests[0].allocation_id" in call.repeated[3].message
    outcomes = call.outcomes([ItemOutcome("a"), ItemOutcome("b")])
    assert [bool(each.reason) for each in outcomes] == [False, False, True, True]
