"""`finegrain doctor` on devices: which devices are usable, which are not, and the fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.topology import Gpu, GpuHealth, GpuProcess
from finegrain_cli.config.model import Settings
from finegrain_cli.doctor.devices import examine_devices
from finegrain_cli.doctor.findings import Finding, Grade
from task_executor.host.memory_regions import NO_V2
from task_executor.host.nvml import GpuInventory, NoNvml, NvmlSource
from task_executor.host.nvml_fake import FakeNvml

GPU = Gpu("GPU-a", 0, 3, name="A100", memory_bytes=80 << 30)


def examined(source: NvmlSource, root: Path, settings: Settings | None = None) -> list[Finding]:
    cpus = root / "sys/devices/system/cpu"
    cpus.mkdir(parents=True, exist_ok=True)
    (cpus / "online").write_text("0-3")
    return list(examine_devices(settings or Settings(), root, source))


def of_gpu(gpu: Gpu, root: Path) -> list[Finding]:
    return examined(FakeNvml(GpuInventory((gpu,))), root)


def test_nothing_to_complain_about(tmp_path: Path) -> None:
    found = of_gpu(GPU, tmp_path)
    assert [(each.grade, each.message) for each in found] == [
        (Grade.OK, "1 GPUs"),
        (Grade.OK, f"the memory of gpu3 cannot be limited for each slot: {NO_V2}"),
        (Grade.OK, "usable: 1 gpu"),
    ]
    assert {each.grade for each in examined(NoNvml("no library"), tmp_path)} == {Grade.OK}


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("the Python package nvidia-ml-py is not installed", "pip install"),
        ("NVML cannot be used: NVMLError_LibraryNotFound", "install the NVIDIA driver"),
        ("NVML cannot be used: NVMLError_DriverNotLoaded", "modprobe nvidia"),
        ("NVML cannot be used: NVMLError_LibRmVersionMismatch", "reboot"),
        ("NVML cannot be used: RuntimeError", "pip install 'finegrain[nvidia]'"),
    ],
)
def test_each_reason_has_its_fix(reason: str, fix: str, tmp_path: Path) -> None:
    card = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    card.mkdir(parents=True)
    (card / "class").write_text("0x030200")
    (card / "vendor").write_text("0x10de")
    finding = examined(NoNvml(reason), tmp_path)[0]
    assert finding.grade is Grade.WARN
    assert reason in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("gpu", "message", "fix"),
    [
        (replace(GPU, health=GpuHealth.LOST), "gpu3 (GPU-a): the GPU has fallen", "restart"),
        (replace(GPU, health=GpuHealth.FAULTY, problem="reset it"), "reset it", "restarts"),
        (replace(GPU, mig_enabled=True), "MIG mode without instances", "-mig 0"),
        (replace(GPU, mig_mode_pending=True), "next reset", "--gpu-reset -i GPU-a"),
        (replace(GPU, processes=(GpuProcess(42),)), "processes 42", "cordon EXECUTOR/gpu3"),
    ],
)
def test_a_gpu_with_a_problem(gpu: Gpu, message: str, fix: str, tmp_path: Path) -> None:
    warnings = [each for each in of_gpu(gpu, tmp_path) if each.grade is Grade.WARN]
    assert len(warnings) == 1
    assert message in warnings[0].message
    assert fix in warnings[0].fix


def test_configured_types(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"devices": {"npu": {"paths": ["/dev/npu*"]}, "fast": {"paths": ["/dev/fast*"]}}}
    )
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/npu0").write_text("")
    found = examined(NoNvml("no library"), tmp_path, settings)
    assert "no file matches /dev/fast*" in found[-2].message
    assert found[-1].message == "usable: 1 npu"
