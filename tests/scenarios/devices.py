"""Devices in stories: the devices of hosts, and the devices that requests name."""

from __future__ import annotations

from finegrain.devices.device import (
    GPU,
    GPU_MEMORY,
    RDMA,
    DeviceShare,
    HostDevices,
)
from finegrain.devices.request import DeviceRequest
from finegrain.resources import GIB
from finegrain.rpc.wire_devices import requests_from_proto
from finegrain.v1 import devices_pb2, resources_pb2
from tests.scenarios.words import Words
from tests.support.devices import made_up

NAMES = {
    "gpu": "gpu",
    "gpu_core": "gpu-core",
    "gpu_ratio": "gpu-memory-ratio",
    "gpu_shared": "gpu.shared",
    "rdma": "rdma",
    "fpga": "fpga",
}
"""Options of requests, with the names of the resources."""


def host_devices(words: Words, nodes: int) -> HostDevices:
    """Returns the devices of a host: `gpus=`, `gpu_mem=` in GiB, `gpu_model=`, `nics=`; with
    `links=pairs`, pairs of GPUs are joined by NVLink.
    """
    return made_up(
        words.number("gpus"),
        nodes=nodes,
        memory_bytes=words.number("gpu_mem", 80) * GIB,
        model=words.values.pop("gpu_model", "H100"),
        nics=words.number("nics"),
        in_pairs=words.values.pop("links", "") == "pairs",
    )


def requests(words: Words) -> tuple[DeviceRequest, ...]:
    """Returns the requested devices, in hundredths of a device; `gpu_mem` is in GiB."""
    message = resources_pb2.ResourceProfile()
    for option, name in NAMES.items():
        if amount := words.number(option):
            message.devices[name] = amount
    if memory := words.number("gpu_mem"):
        message.devices["gpu-memory"] = memory * GIB
    model, scope = words.values.pop("gpu_model", ""), words.values.pop("gpu_scope", "")
    if model or scope:
        hint = devices_pb2.DeviceHint(type=GPU, model=model, scope=scope)
        message.device_hints.append(hint)
    near = words.values.pop("near", "")
    if near:
        hint = devices_pb2.DeviceHint(
            type=RDMA, near=near.removesuffix("!"), near_required=near.endswith("!")
        )
        message.device_hints.append(hint)
    for pair in filter(None, words.values.pop("require_isolation", "").split(",")):
        name, _, level = pair.partition(":")
        message.require_isolation[name] = level
    found, _ = requests_from_proto(message, "profile")
    return found


def share(one: DeviceShare) -> str:
    """Returns a slot's share of a device as text: "gpu3 (50 core, 50 memory-ratio)"."""
    parts = " ".join(
        f"{name.removeprefix('gpu-')}="
        + (f"{amount / GIB:g}Gi" if name == GPU_MEMORY else str(amount))
        for name, amount in one.amounts
    )
    functions = f" {','.join(one.functions)}" if one.functions else ""
    return f"{one.type}{one.minor}{functions} ({parts})"
