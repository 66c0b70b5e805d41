"""Builds the environment variables that tell a task which devices its slot has.

Three of the variables name the slot's GPUs. CUDA, containers and ROCm read these variables, and use
no other GPUs. FINEGRAIN_DEVICES lists all devices as JSON. Tasks of slots without devices also get
all variables, so that such a task does not use a GPU by accident.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import GPU, GPU_MEMORY, DeviceShare, HostDevices
from finegrain.devices.names import MIG_PREFIX
from finegrain.errors import InvalidArgument
from finegrain.values.isolation import DeviceIsolation

CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
ROCR: Final = "ROCR_VISIBLE_DEVICES"
DEVICES: Final = "FINEGRAIN_DEVICES"

NVIDIA_VENDOR: Final = "nvidia"

_NO_DEVICES: Final = "void"
"""Value for the NVIDIA container runtime: the container gets no GPU and no GPU libraries."""


def device_environment(
    host: HostDevices,
    assignment: CpuAssignment | None,
    levels: Iterable[DeviceIsolation] = (),
    *,
    context_bytes: int = 0,
) -> dict[str, str]:
    """Returns the variables that name a slot's devices.

    Args:
        host: the devices of this executor that slots can have. If there are no GPUs among them,
            tasks choose their GPUs themselves. So only FINEGRAIN_DEVICES is set.
        assignment: the devices that are assigned to the slot.
        levels: how strictly the executor enforces the slot's share of each device.
        context_bytes: memory of an NVIDIA GPU that CUDA uses for each task, before the task
            allocates any memory.
    """
    shares = assignment.devices if assignment is not None else ()
    known = {(each.type, each.uuid): dict(each.levels) for each in levels}
    described = json.dumps([_described(host, each, known, context_bytes) for each in shares])
    if not _gives_out_gpus(host):
        return {DEVICES: described}
    vendors = {each.uuid: each.vendor for each in host.devices}
    gpus = [each for each in shares if _is_gpu(each.type)]
    amd = [each.uuid for each in gpus if vendors.get(each.uuid) == "amd"]
    nvidia = [each.uuid for each in gpus if vendors.get(each.uuid) != "amd"]
    return {
        CUDA: ",".join(nvidia),
        NVIDIA: ",".join(nvidia) or _NO_DEVICES,
        ROCR: ",".join(amd),
        DEVICES: described,
    }


def check_not_overridden(host: HostDevices, env: Mapping[str, str]) -> None:
    """Checks that a task does not set variables that this executor sets to the slot's devices.

    Raises:
        InvalidArgument: the task sets such a variable.
    """
    for name in (CUDA, NVIDIA, ROCR, DEVICES) if _gives_out_gpus(host) else (DEVICES,):
        if name in env:
            kind = "devices" if name == DEVICES else "GPUs"
            expected = f"nothing: the executor sets it to the {kind} of the slot; request {kind}"
            raise InvalidArgument(f"spec.env[{name}]", env[name], expected)


def _gives_out_gpus(host: HostDevices) -> bool:
    return any(_is_gpu(each.type) and each.capacity for each in host.devices)


def _is_gpu(type_: str) -> bool:
    return type_ == GPU or type_.startswith(MIG_PREFIX)


def _described(
    host: HostDevices,
    share: DeviceShare,
    levels: Mapping[tuple[str, str], Mapping[str, str]],
    context_bytes: int,
) -> dict[str, Any]:
    """Returns one device as FINEGRAIN_DEVICES shows it."""
    device = next((e for e in host.devices if (e.type, e.uuid) == (share.type, share.uuid)), None)
    found: dict[str, Any] = {
        "type": share.type,
        "minor": share.minor,
        "uuid": share.uuid,
        "share": dict(share.amounts),
        "levels": levels.get((share.type, share.uuid), {}),
    }
    if device is not None:
        found["model"] = device.model
        found["pci_address"] = device.pci_address
        found["numa_node"] = device.numa_node
        memory = dict(share.amounts).get(GPU_MEMORY, 0)
        # CUDA itself uses some memory, and this memory counts as a part of the share. So the task
        # can allocate less than the share.
        if memory and device.vendor == NVIDIA_VENDOR:
            found["usable_memory_bytes"] = max(memory - context_bytes, 0)
        # The minor number has possibly changed since the slot was placed.
        found["minor"] = device.minor
    if share.functions:
        found["functions"] = list(share.functions)
    links = {
        other: {"lanes": link.lanes, "path": link.path}
        for link in host.links
        for one, other in (
            (link.first_uuid, link.second_uuid),
            (link.second_uuid, link.first_uuid),
        )
        if one == share.uuid
    }
    if links:
        found["links"] = links
    return found
