"""Configured partitions of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.devices.device import Device, HostDevices, Partition
from finegrain.errors import InvalidArgument
from finegrain.rpc.wire_devices import devices_to_topology
from finegrain.v1 import resources_pb2
from task_executor.host.detection import detect
from task_executor.host.gpu_partitions import PARTITIONS_MAX, read_partitions
from task_executor.host.gpu_profiles import gpu_source
from task_executor.options import TaskExecutorOptions
from task_executor.service.host_plan import plan_host

HOST = HostDevices(tuple(Device("gpu", f"GPU-{at}", at, (("gpu-core", 100),)) for at in range(4)))


def test_scores_and_bandwidths_may_be_left_out() -> None:
    assert read_partitions(["1+0", "2+3:2", "0+1+2+3:1:400"], HOST) == (
        Partition((0, 1)),
        Partition((2, 3), 2),
        Partition((0, 1, 2, 3), 1, 400),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,1", "minor numbers of GPUs"),
        ("0+1:fast", "minor numbers of GPUs"),
        ("0+0", r"different GPUs of this host \(0, 1, 2, 3\)"),
        ("3+4", r"different GPUs of this host \(0, 1, 2, 3\)"),
    ],
)
def test_others_are_refused(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        read_partitions([text], HOST)


def test_their_number_is_limited() -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        read_partitions(["0+1"] * (PARTITIONS_MAX + 1), HOST)


def test_an_executor_announces_them() -> None:
    options = TaskExecutorOptions(
        Path("/state"),
        Path("/run"),
        ("127.0.0.1:1",),
        fake_gpus="dgx-a100",
        gpu_partitions=("0+1:2", "2+3"),
        gpu_partitions_only=True,
    )
    plan = plan_host(options, detect(Path("/"), gpu_source("dgx-a100")))
    topology = resources_pb2.HostTopology()
    devices_to_topology(plan.devices, topology)
    assert [(list(e.minors), e.score) for e in topology.device_partitions] == [
        ([0, 1], 2),
        ([2, 3], 1),
    ]
    assert topology.device_partitions_only
