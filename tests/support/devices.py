"""Makes hosts with GPUs and NICs for tests."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import MessageToDict

from finegrain.devices.device import GPU, RDMA, Device, DeviceLink, HostDevices
from finegrain.resources import GIB, Amounts, total_of_devices
from finegrain.rpc.wire_devices import devices_to_topology
from finegrain.v1 import resources_pb2
from tests.support.engine_cluster.executor import FakeExecutor
from tests.support.engine_cluster.hosts import numa_host


def made_up(
    gpus: int,
    *,
    nodes: int = 1,
    memory_bytes: int = 80 * GIB,
    model: str = "H100",
    nics: int = 0,
    in_pairs: bool = False,
) -> HostDevices:
    """Returns GPUs and NICs, evenly over the NUMA nodes, two GPUs and a NIC to a PCIe group.

    Args:
        gpus: number of GPUs.
        nodes: number of NUMA nodes.
        memory_bytes: of each GPU.
        model: of the GPUs.
        nics: number of RDMA NICs.
        in_pairs: GPUs 0 and 1, 2 and 3 and so on are joined by NVLink.
    """
    whole = (("gpu-core", 100), ("gpu-memory", memory_bytes), ("gpu-memory-ratio", 100))
    devices = [
        Device(
            GPU,
            f"GPU-{at}",
            at,
            whole,
            vendor="nvidia",
            model=model,
            numa_node=at * nodes // gpus,
            pcie_group=f"pcie{at // 2}",
            memory_bytes=memory_bytes,
        )
        for at in range(gpus)
    ]
    devices += [
        Device(
            RDMA,
            f"mlx5_{at}",
            at,
            ((RDMA, 100),),
            numa_node=at * nodes // nics,
            pcie_group=f"pcie{at}",
        )
        for at in range(nics)
    ]
    pairs = range(0, gpus - 1, 2) if in_pairs else ()
    links = tuple(DeviceLink(f"GPU-{at}", f"GPU-{at + 1}", 4) for at in pairs)
    return HostDevices(tuple(devices), links)


def announced(host: HostDevices) -> tuple[dict[str, Any], Amounts]:
    """Returns the entries of a host with devices in its topology and in its total."""
    message = resources_pb2.HostTopology()
    devices_to_topology(host, message)
    return MessageToDict(message, preserving_proto_field_name=True), total_of_devices(host.devices)


def with_devices(executor: FakeExecutor, host: HostDevices) -> FakeExecutor:
    """Replaces the devices of an executor by these devices, and returns the executor."""
    topology, total = announced(host)
    old = {name: each for name, each in executor.total.items() if not name.startswith("device.")}
    known = {
        name: each
        for name, each in json.loads(executor.topology).items()
        if not name.startswith(("device", "fake"))
    }
    executor.topology, executor.total = json.dumps({**known, **topology}), {**old, **total}
    return executor


def gpu_host(name: str = "host-a", gpus: int = 4, nodes: int = 2, **more: Any) -> FakeExecutor:
    """Makes an executor with cores, NUMA nodes and GPUs.

    Args:
        name: its executor id.
        gpus: number of GPUs.
        nodes: number of NUMA nodes.
        more: further arguments of `made_up` and `numa_host`.
    """
    of_devices = {"memory_bytes", "model", "nics", "in_pairs"} & more.keys()
    host = made_up(gpus, nodes=nodes, **{each: more.pop(each) for each in of_devices})
    return with_devices(numa_host(name, nodes, **more), host)
