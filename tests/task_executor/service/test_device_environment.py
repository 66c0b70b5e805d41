"""How a task learns of its devices; it cannot name other devices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare, HostDevices
from finegrain.errors import InvalidArgument
from finegrain.values.isolation import DeviceIsolation
from task_executor.service.device_environment import check_not_overridden, device_environment
from tests.support.devices import made_up

HOST = made_up(4, in_pairs=True)


def gpus(*minors: int) -> CpuAssignment:
    amounts = (("gpu-core", 50), ("gpu-memory", 40 << 30), ("gpu-memory-ratio", 50))
    shares = tuple(DeviceShare("gpu", f"GPU-{at}", at, amounts) for at in minors)
    return CpuAssignment(devices=shares)


def test_a_task_finds_its_gpus_by_uuid() -> None:
    found = device_environment(HOST, gpus(2, 3))
    assert found["CUDA_VISIBLE_DEVICES"] == found["NVIDIA_VISIBLE_DEVICES"] == "GPU-2,GPU-3"
    assert found["ROCR_VISIBLE_DEVICES"] == ""
    first, second = json.loads(found["FINEGRAIN_DEVICES"])
    assert (first["uuid"], first["minor"], first["model"]) == ("GPU-2", 2, "H100")
    assert first["share"] == {"gpu-core": 50, "gpu-memory": 40 << 30, "gpu-memory-ratio": 50}
    assert second["links"] == {"GPU-2": {"lanes": 4, "path": ""}}


def test_a_task_finds_how_strictly_its_shares_are_enforced() -> None:
    levels = {"gpu-core": "visible-only", "gpu-memory": "watch"}
    stated = DeviceIsolation("gpu", "GPU-3", tuple(levels.items()))
    found = device_environment(HOST, gpus(2, 3), [stated])
    first, second = json.loads(found["FINEGRAIN_DEVICES"])
    assert (first["levels"], second["levels"]) == ({}, levels)


def test_a_task_without_gpus_sees_none() -> None:
    found = device_environment(HOST, None)
    assert (found["CUDA_VISIBLE_DEVICES"], found["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


def test_the_vendor_decides_which_variable_names_a_gpu() -> None:
    amd = HostDevices(tuple(replace(each, vendor="amd") for each in HOST.devices))
    found = device_environment(amd, gpus(1))
    assert (found["ROCR_VISIBLE_DEVICES"], found["CUDA_VISIBLE_DEVICES"]) == ("GPU-1", "")


def test_a_task_is_told_how_much_memory_is_left_beside_its_context() -> None:
    """So two slots with half a GPU fit on it, although CUDA also needs memory for each task."""
    [told] = json.loads(
        device_environment(HOST, gpus(1), context_bytes=300 << 20)["FINEGRAIN_DEVICES"]
    )
    assert told["usable_memory_bytes"] == (40 << 30) - (300 << 20)
    assert 2 * (told["usable_memory_bytes"] + (300 << 20)) <= 80 << 30
    amd = HostDevices(tuple(replace(each, vendor="amd") for each in HOST.devices))
    [told] = json.loads(
        device_environment(amd, gpus(1), context_bytes=300 << 20)["FINEGRAIN_DEVICES"]
    )
    assert "usable_memory_bytes" not in told


def test_the_present_minor_is_told_when_a_device_was_renumbered() -> None:
    renumbered = HostDevices(tuple(replace(each, minor=each.minor + 4) for each in HOST.devices))
    [told] = json.loads(device_environment(renumbered, gpus(1))["FINEGRAIN_DEVICES"])
    assert (told["uuid"], told["minor"]) == ("GPU-1", 5)


def test_a_task_cannot_name_other_gpus() -> None:
    with pytest.raises(InvalidArgument, match="the executor sets it to the GPUs of the slot"):
        check_not_overridden(HOST, {"CUDA_VISIBLE_DEVICES": "0"})
    check_not_overridden(HostDevices(), {"CUDA_VISIBLE_DEVICES": "0"})
    for host in (HOST, HostDevices()):
        with pytest.raises(
            InvalidArgument, match="the executor sets it to the devices of the slot"
        ):
            check_not_overridden(host, {"FINEGRAIN_DEVICES": "[]"})
