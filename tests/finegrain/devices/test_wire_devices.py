"""Devices in messages: written values are read again, and malformed values are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare
from finegrain.devices.names import device_requests
from finegrain.devices.request import DeviceRequest, LabelRule
from finegrain.errors import InvalidArgument
from finegrain.resources import ResourceProfile
from finegrain.rpc.wire import profile_from_proto, profile_to_proto
from finegrain.rpc.wire_cpus import assignment_from_proto, assignment_to_proto
from finegrain.rpc.wire_devices import devices_from_topology, devices_to_topology
from finegrain.v1 import devices_pb2, resources_pb2
from tests.support.devices import made_up

RULES = st.lists(
    st.builds(LabelRule, st.sampled_from(["rack", "type"]), st.just(("a", "b")), st.booleans()),
    max_size=2,
).map(tuple)


@st.composite
def gpu_requests(draw: st.DrawFn) -> dict[str, int]:
    count = draw(st.integers(1, 8))
    part = st.integers(1, 100)
    return draw(
        st.one_of(
            part.map(lambda n: {"gpu": n}),
            st.just({"gpu": 100 * count}),
            st.just({"gpu-core": 100 * count}),
            part.map(lambda n: {"gpu-memory-ratio": n}),
            st.tuples(part, st.integers(1, 2**40)).map(
                lambda pair: {"gpu-core": pair[0], "gpu-memory": pair[1]}
            ),
            st.tuples(part, part).map(
                lambda pair: {
                    "gpu.shared": count,
                    "gpu-core": pair[0] * count,
                    "gpu-memory-ratio": pair[1] * count,
                }
            ),
            st.integers(count, 2**40).map(lambda n: {"gpu.shared": count, "gpu-memory": n}),
            st.just({"nvidia.com/gpu": count}),
            st.just(
                {
                    "gpu.shared": 1,
                    "huawei.com/npu-core": 4,
                    "huawei.com/npu-cpu": 3,
                    "gpu-memory": 2**33,
                }
            ),
        )
    )


@st.composite
def profiles(draw: st.DrawFn) -> ResourceProfile:
    (gpu,) = device_requests(draw(gpu_requests()))
    gpu = replace(gpu, model=draw(st.sampled_from(["", "H100"])), selector=draw(RULES))
    if not gpu.is_shared:
        gpu = replace(gpu, scope=draw(st.sampled_from(["", "numa", "pcie"])))
    (nic,) = device_requests({"rdma": draw(st.sampled_from([1, 50, 100, 300]))})
    required = draw(st.booleans())
    nic = replace(
        nic,
        near=draw(st.sampled_from(["", "gpu"])),
        functions=draw(st.one_of(st.none(), RULES)),
        every=nic.count == 1 and draw(st.booleans()),
    )
    if nic.near:
        nic = replace(nic, near_required=required, per_group=required or draw(st.booleans()))
    if draw(st.booleans()):
        nic = replace(nic, count=4, amounts=(("rdma", 1),), every=False)
    return ResourceProfile(1_000, devices=(gpu, nic))


@given(profiles())
def test_a_request_is_read_as_it_was_written(profile: ResourceProfile) -> None:
    message = resources_pb2.ResourceProfile.FromString(
        profile_to_proto(profile).SerializeToString()
    )
    assert profile_from_proto(message, "profile") == profile


def test_the_devices_of_a_host_and_of_a_slot_are_read_as_they_were_written() -> None:
    host = made_up(4, nodes=2, nics=2, in_pairs=True)
    message = resources_pb2.HostTopology()
    devices_to_topology(host, message)
    assert devices_from_topology(message, "topology") == host
    shares = (DeviceShare("rdma", "mlx5_0", 0, (("rdma", 1),), ("0000:1f:00.2",)),)
    assignment = CpuAssignment(devices=shares)
    assert assignment_from_proto(assignment_to_proto(assignment), "assignment") == assignment


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (devices_pb2.DeviceHint(type="fpga"), "a type that is requested \\(gpu, rdma\\)"),
        (devices_pb2.DeviceHint(type="rdma", near="rdma"), "another type that is requested"),
        (devices_pb2.DeviceHint(type="rdma", near_required=True), "a type in near as well"),
        (devices_pb2.DeviceHint(type="gpu", scope="rack"), "numa or pcie"),
        (devices_pb2.DeviceHint(type="rdma", scope="numa"), "nothing, or whole GPUs"),
        (devices_pb2.DeviceHint(type="gpu", as_count=True), "false for GPUs"),
        (devices_pb2.DeviceHint(type="gpu", every=True), "at most 100 with every"),
        (devices_pb2.DeviceHint(type="rdma", every=True, as_count=True), "false with every"),
        (devices_pb2.DeviceHint(type="gpu", vendor="amd"), "nvidia, whose devices"),
    ],
)
def test_hints_that_cannot_be_followed_are_refused(
    hint: devices_pb2.DeviceHint, expected: str
) -> None:
    message = resources_pb2.ResourceProfile(devices={"nvidia.com/gpu": 2, "rdma": 100})
    message.device_hints.append(hint)
    with pytest.raises(InvalidArgument, match=expected):
        profile_from_proto(message, "profile")


def test_whole_and_shared_gpus_are_told_apart() -> None:
    def shared(**resources: int) -> bool:
        named = {name.replace("_", "-"): each for name, each in resources.items()}
        (request,) = device_requests(named)
        assert isinstance(request, DeviceRequest)
        return request.is_shared

    assert not shared(gpu=200)
    assert shared(gpu=50)
    assert shared(gpu_core=100, gpu_memory=1)
