"""The names by which the memory of GPUs can be limited."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.devices.device import Device, HostDevices
from task_executor.host.memory_regions import (
    CAPACITY_FILE,
    NO_CONTROLLER,
    NO_V2,
    V2_FILE,
    limit_problems,
    limited_as,
)

NVIDIA = Device("gpu", "GPU-a", 0, (), vendor="nvidia", pci_address="0000:3b:00.0")
AMD = Device("gpu", "amd-1", 1, (), vendor="amd", pci_address="0000:03:00.0")


def root(tmp_path: Path, *regions: str) -> Path:
    file = tmp_path / CAPACITY_FILE
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{each} 17163091968\n" for each in regions))
    return tmp_path


def test_nvidia_by_uuid_and_others_by_the_region_of_their_address(tmp_path: Path) -> None:
    names, problems = limited_as(
        HostDevices((NVIDIA, AMD, Device("rdma", "nic", 0, ()))),
        root(tmp_path, "drm/0000:83:00.0/vram", "drm/0000:03:00.0/vram", "drm/0000:03:00.0/gtt"),
    )
    assert names == {"GPU-a": "GPU-a", "amd-1": "drm/0000:03:00.0/vram"}
    assert problems == {}


@pytest.mark.parametrize(
    ("regions", "problem"),
    [
        (("drm/0000:03:00.0/vram0", "drm/0000:03:00.0/vram1"), "have separate limits"),
        (("drm/0000:03:00.0/stolen",), "its kernel driver does not register its memory with dmem"),
        ((), "its kernel driver does not register its memory with dmem"),
    ],
)
def test_gpus_without_a_region_of_their_own(
    regions: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    names, problems = limited_as(HostDevices((AMD,)), root(tmp_path, *regions))
    assert names == {}
    assert problem in problems["amd-1"]


def test_without_the_controller_only_nvidia_gpus_can_be_limited(tmp_path: Path) -> None:
    names, problems = limited_as(HostDevices((NVIDIA, AMD)), tmp_path)
    assert names == {"GPU-a": "GPU-a"}
    assert problems == {"amd-1": NO_CONTROLLER}


def test_fake_gpus_are_not_limited(tmp_path: Path) -> None:
    assert limited_as(HostDevices((NVIDIA,), fake=True), tmp_path) == ({}, {})


def test_what_a_host_lacks_is_known_before_an_executor_runs(tmp_path: Path) -> None:
    host = HostDevices((NVIDIA, AMD))
    assert limit_problems(host, tmp_path) == {"GPU-a": NO_V2, "amd-1": NO_V2}
    root(tmp_path, "drm/0000:03:00.0/vram")
    (tmp_path / V2_FILE).touch()
    found = limit_problems(host, tmp_path, lambda: "the driver is older")
    assert found == {"GPU-a": "the driver is older", "amd-1": ""}
    assert limit_problems(host, tmp_path, lambda: "") == {"GPU-a": "", "amd-1": ""}
