"""Reads NVML: the data of a healthy driver, and the result of each failure.

A module whose functions answer or raise replaces the library. One test runs the real binding with a
library of a few lines of C.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finegrain.cpuset import CpuSet
from finegrain.topology import GpuHealth
from task_executor.host.nvml import GpuInventory, PynvmlSource, import_pynvml

GIB = 1024**3


class NVMLError_GpuIsLost(Exception):  # noqa: N801 - the binding's name
    pass


class NVMLError_NotSupported(Exception):  # noqa: N801 - the binding's name
    pass


def driver(**answers: Any) -> SimpleNamespace:
    """Returns a driver with two healthy GPUs, whose handles are their indexes. An answer may be a
    value, a function, or an exception to raise; None removes the function.
    """

    def always(value: Any) -> Callable[..., Any]:
        def answer(*_: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    memory = SimpleNamespace(total=81 * GIB, reserved=GIB)
    healthy: dict[str, Any] = {
        "nvmlMemory_v2": 33554472,
        "nvmlInit": always(None),
        "nvmlShutdown": always(None),
        "nvmlDeviceGetCount": always(2),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": always(b"NVIDIA A100"),
        "nvmlDeviceGetMinorNumber": lambda handle: 7 - handle,
        "nvmlDeviceGetMemoryInfo": always(memory),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(
            busId=f"00000000:{handle + 10}:00.0"
        ),
        "nvmlDeviceGetMigMode": always(NVMLError_NotSupported()),
        "nvmlDeviceGetNumaNodeId": always(NVMLError_NotSupported()),
        "nvmlDeviceGetCpuAffinityWithinScope": always([0b1111, 1]),
        "nvmlDeviceGetTopologyCommonAncestor": always(40),
        "nvmlDeviceGetNvLinkState": always(NVMLError_NotSupported()),
    }
    for name, value in answers.items():
        healthy[name] = value if callable(value) else always(value)
        if value is None:
            del healthy[name]
    return SimpleNamespace(**healthy)


def read(**answers: Any) -> GpuInventory:
    return PynvmlSource(lambda: driver(**answers)).read()  # type: ignore[arg-type, return-value]


def test_healthy_gpus() -> None:
    inventory = read()
    gpu = inventory.gpus[1]
    assert (gpu.uuid, gpu.index, gpu.minor, gpu.pci_bus_id) == ("GPU-1", 1, 6, "0000:11:00.0")
    assert (gpu.name, gpu.memory_bytes, gpu.health) == ("NVIDIA A100", 80 * GIB, GpuHealth.OK)
    assert gpu.cpus == CpuSet.parse("0-3,64")
    assert gpu.schedulable_as == "gpu"
    assert inventory.absence_reason is None
    assert inventory.warnings == ()
    assert [(link.nvlink_count, link.common_ancestor) for link in inventory.links] == [(0, "NODE")]


def test_old_driver_without_reserved_memory() -> None:
    def memory_info(_handle: int, *version: int) -> SimpleNamespace:
        if version:
            raise NVMLError_NotSupported
        return SimpleNamespace(total=16 * GIB)

    assert read(nvmlDeviceGetMemoryInfo=memory_info).gpus[0].memory_bytes == 16 * GIB


@pytest.mark.parametrize(
    ("error", "health"),
    [(NVMLError_GpuIsLost("GPU is lost"), "lost"), (NVMLError_NotSupported(), "unknown")],
)
def test_one_bad_gpu_does_not_hide_the_other(error: Exception, health: str) -> None:
    def memory_info(handle: int, *_version: int) -> SimpleNamespace:
        if handle == 0:
            raise error
        return SimpleNamespace(total=81 * GIB, reserved=GIB)

    inventory = read(nvmlDeviceGetMemoryInfo=memory_info)
    assert [gpu.schedulable_as for gpu in inventory.gpus] == ["nothing", "gpu"]
    assert inventory.gpus[0].health == health
    assert inventory.gpus[0].memory_bytes is None
    assert type(error).__name__ in inventory.warnings[0]


@pytest.mark.parametrize("question", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_that_cannot_be_named_is_left_out(question: str) -> None:
    def answer(index: int) -> Any:
        if index == 0:
            raise NVMLError_GpuIsLost
        return f"GPU-{index}"

    inventory = read(**{question: answer})
    assert [gpu.index for gpu in inventory.gpus] == [1]
    assert "is left out" in inventory.warnings[0]


@pytest.mark.parametrize(
    "question",
    [
        "nvmlDeviceGetName",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetCpuAffinityWithinScope",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetMigMode",
    ],
)
@pytest.mark.parametrize("missing", [True, False], ids=["old binding", "not supported"])
def test_unanswered_questions_leave_the_gpu_usable(question: str, missing: bool) -> None:
    inventory = read(**{question: None if missing else NVMLError_NotSupported()})
    assert [gpu.schedulable_as for gpu in inventory.gpus] == ["gpu", "gpu"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("nvmlInit", "NVML cannot be used: NVMLError_NotSupported: mismatch"),
        ("nvmlDeviceGetCount", "NVML failed: NVMLError_NotSupported: mismatch"),
    ],
)
def test_driver_that_does_not_start_means_no_gpus_and_a_reason(step: str, words: str) -> None:
    inventory = read(**{step: NVMLError_NotSupported("mismatch")})
    assert inventory == GpuInventory(absence_reason=words)


def test_missing_driver_is_named_before_a_missing_package() -> None:
    inventory = PynvmlSource(partial(import_pynvml, "libnone-of-this-name.so.1")).read()
    assert (inventory.absence_reason or "").startswith(
        "NVML cannot be used: NVMLError_LibraryNotFound: libnone-of-this-name.so.1"
    )


def test_missing_package_names_the_extra() -> None:
    def load() -> Any:
        raise ImportError

    assert "finegrain[nvidia]" in (PynvmlSource(load).read().absence_reason or "")


def test_failing_shutdown_is_no_failure() -> None:
    assert len(read(nvmlShutdown=RuntimeError("gone")).gpus) == 2


def test_mig_instances_skip_holes() -> None:
    def instance(handle: int, index: int) -> str:
        if index == 1:
            raise NVMLError_NotSupported
        return f"{handle}/{index}"

    inventory = read(
        nvmlDeviceGetMigMode=[1, 0],
        nvmlDeviceGetMaxMigDeviceCount=3,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetName="NVIDIA A100 MIG 1g.10gb",
        nvmlDeviceGetAttributes_v2=SimpleNamespace(memorySizeMB=9728, multiprocessorCount=14),
        nvmlDeviceGetGpuInstanceId=7,
    )
    gpu = inventory.gpus[0]
    assert gpu.schedulable_as == "mig"
    assert {(each.gpu_instance, each.compute_instance) for each in gpu.mig_instances} == {(7, None)}
    assert gpu.mig_mode_pending
    assert [each.uuid for each in gpu.mig_instances] == ["GPU-0/0", "GPU-0/2"]
    assert gpu.mig_instances[0].profile == "1g.10gb"
    assert gpu.mig_instances[0].memory_bytes == 9728 * 1024**2


def test_direct_nvlinks_are_counted_by_the_far_end() -> None:
    inventory = read(
        nvmlDeviceGetNvLinkState=lambda _handle, link: int(link < 4),
        nvmlDeviceGetNvLinkRemoteDeviceType=0,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, _link: SimpleNamespace(
            busId=f"00000000:{11 - handle}:00.0"
        ),
    )
    assert [(link.nvlink_count, link.via_switch) for link in inventory.links] == [(4, False)]


def test_nvlinks_through_a_switch_join_all() -> None:
    inventory = read(
        nvmlDeviceGetNvLinkState=lambda handle, link: int(link < 12 - handle),
        nvmlDeviceGetNvLinkRemoteDeviceType=2,
    )
    assert [(link.nvlink_count, link.via_switch) for link in inventory.links] == [(11, True)]


LIBRARY = r"""
typedef void *device;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle) {
    *handle = (device)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(device handle, char *text, unsigned size) {
    const char *uuid = "GPU-0000-0"; unsigned i = 0;
    for (; uuid[i]; i++) text[i] = uuid[i];
    text[i - 1] += (long)handle; text[i] = 0; return 0; }
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(device handle, struct memory *memory) {
    if ((long)handle == 2) return 15; /* NVML_ERROR_GPU_IS_LOST */
    memory->total = 16ull << 30; return 0; }
"""
PROGRAM = """
import json
from task_executor.host.nvml import PynvmlSource
inventory = PynvmlSource().read()
print(json.dumps([inventory.absence_reason, [
    [gpu.uuid, gpu.memory_bytes, gpu.health, gpu.minor] for gpu in inventory.gpus
]]))
"""


def read_in_process(library_path: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"LD_LIBRARY_PATH": library_path},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout)


@pytest.mark.needs("cc")
def test_real_binding_with_a_small_library(tmp_path: Path) -> None:
    """The binding loads the library; if the library lacks a function, its value is unknown."""
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    library = tmp_path / "libnvidia-ml.so.1"
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    assert read_in_process(str(tmp_path)) == [
        None,
        [["GPU-0000-1", 16 * GIB, "ok", None], ["GPU-0000-2", None, "lost", None]],
    ]
