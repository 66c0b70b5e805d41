"""Tests of cpu messages in both directions: reports of executors, and assignments of slots."""

from __future__ import annotations

import pytest

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import BindPolicy, HostBindPolicy, HostPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.resources import GIB, ResourceProfile
from finegrain.rpc.wire_cpus import assignment_from_proto
from finegrain.v1 import cpus_pb2 as pb
from finegrain.v1 import slots_pb2
from finegrain.v1 import task_executor_pb2 as te_pb2
from resource_manager.engine.lifecycle.journal import slot_to_dict
from resource_manager.engine.model.effects import SendResize
from resource_manager.engine.model.entities import Resize, Slot
from resource_manager.service.wire import decoding, encoding
from resource_manager.service.wire.cpus import cpu_state_from_proto
from resource_manager.service.wire.job_events import slot_status_of_event

PINNED = CpuAssignment(
    QosClass.LSR,
    CpuSet.of(2, 3),
    BindPolicy.FULL_PCPUS,
    numa=(NodeShare(0, (("cpu_milli", 2000), ("memory_bytes", GIB))),),
    memory_nodes=CpuSet.of(0),
    notes=("PCPULevel was not to be had",),
)
PROFILE = ResourceProfile(2000, GIB)
SLOT = Slot("slot-1", 1, "job-1", "host-a", PROFILE, 2000, 100, assignment=PINNED)
KUBELET = pb.KubeletReport(
    cpu_manager_policy="static",
    cpu_manager_options={"full-pcpus-only": "true"},
    topology_manager_policy="restricted",
    reserved_cpus="0",
    policy=pb.HostPolicy(bind=pb.HOST_BIND_POLICY_FULL_PCPUS_ONLY, reserved_cpus="0"),
    containers=[
        pb.KubeletContainer(pod_uid="p1", container="c", cpus="4-5", memory_bytes={0: GIB}),
        pb.KubeletContainer(pod_uid="p2", container="c", cpus="7"),
    ],
)


def test_executors_are_told_which_cpus_a_slot_has() -> None:
    told = encoding.slot_status(SLOT)
    assert (told.cpus, told.assignment.memory_nodes) == ("2-3", "0")
    assert assignment_from_proto(told.assignment, "assignment") == PINNED


def test_job_masters_are_told_the_same_by_the_log_of_their_job() -> None:
    told = slots_pb2.SlotStatus(**slot_status_of_event(slot_to_dict(SLOT, "host-a:7180")))
    assert told.cpus == "2-3"
    assert assignment_from_proto(told.assignment, "assignment") == PINNED


def test_a_slot_of_the_whole_pool_says_nothing() -> None:
    plain = Slot("slot-1", 1, "job-1", "host-a", PROFILE, 2000, 100)
    assert not encoding.slot_status(plain).HasField("assignment")
    assert not slots_pb2.SlotStatus(**slot_status_of_event(slot_to_dict(plain, ""))).HasField(
        "assignment"
    )


def test_what_an_executor_has_carved_is_heard() -> None:
    carved = encoding.slot_status(SLOT)
    carved.state = slots_pb2.SLOT_STATE_ALLOCATED
    report = decoding.report(slots_pb2.SlotReport(report_number=1, slots=[carved]), "report")
    assert report.slots[0].assignment == PINNED
    assert report.slots[0].cpus == "2-3"
    assert report.cpu_state is None


def test_a_change_of_size_carries_the_cpus_of_then() -> None:
    resize = Resize(1, PROFILE, 2000, assignment=PINNED)
    told = encoding.write(
        te_pb2.TaskExecutorServiceResizeSlotRequest,
        SendResize("host-a", "host-a:7180", 1, 2, "slot-1", 1, resize),
        rm_epoch=3,
    )
    assert told.assignment.cpus == "2-3"
    slot = Slot("slot-1", 1, "job-1", "host-a", PROFILE, 2000, 100, resize_number=1, ordered=resize)
    (shown,) = encoding.slot_status(slot).resizes
    (logged,) = slots_pb2.SlotStatus(**slot_status_of_event(slot_to_dict(slot, ""))).resizes
    assert shown.assignment == logged.assignment == told.assignment


def test_what_an_executor_sees_of_its_cpus() -> None:
    message = pb.CpuState(
        offline_cpus="6",
        kubelet=KUBELET,
        host_policy_number=4,
        squeezed_cpus="1-2",
        notes=["cpu 6 is offline"],
    )
    state = cpu_state_from_proto(message, "cpu_state")
    assert (state.offline_cpus, state.kubelet_cpus) == (CpuSet.of(6), CpuSet.of(4, 5, 7))
    assert state.kubelet_memory == ((0, GIB),)
    assert state.kubelet_policy == HostPolicy(
        HostBindPolicy.FULL_PCPUS_ONLY, reserved_cpus=CpuSet.of(0)
    )
    assert (state.host_policy_number, state.notes) == (4, ("cpu 6 is offline",))
    assert encoding.write(pb.CpuState, state) == message


def test_a_host_without_a_kubelet() -> None:
    state = cpu_state_from_proto(pb.CpuState(), "cpu_state")
    assert (state.kubelet, state.kubelet_cpus, state.kubelet_policy) == ("", CpuSet(), HostPolicy())
    assert encoding.write(pb.CpuState, state) == pb.CpuState()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.CpuState(offline_cpus="x"), "offline_cpus"),
        (pb.CpuState(host_policy_number=-1), "host_policy_number"),
        (pb.CpuState(notes=["a"] * 33), "notes"),
        (
            pb.CpuState(kubelet=pb.KubeletReport(containers=[pb.KubeletContainer(cpus="a")])),
            "kubelet.containers[0].cpus",
        ),
        (
            pb.CpuState(
                kubelet=pb.KubeletReport(containers=[pb.KubeletContainer(memory_bytes={1: -1})])
            ),
            "kubelet.containers[0].memory_bytes[1]",
        ),
        (
            pb.CpuState(kubelet=pb.KubeletReport(cpu_manager_options={"a": "\n"})),
            "kubelet.cpu_manager_options[a]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(message: pb.CpuState, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decoding.report(slots_pb2.SlotReport(report_number=1, cpu_state=message), "report")
    assert caught.value.field == f"report.cpu_state.{field}"
