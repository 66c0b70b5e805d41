"""CUDA work on real GPUs: a job that checks itself, shares under MPS, `watch`, and parked slots.

Each test prints the figures for `docs/devices.md`, with driver version and date.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import finegrain_client as fg
from finegrain_client.blocking import Slot, Task
from tests.numa_host.daemons import ANSWER_S, Host
from tests.support.components import REPOSITORY
from tests.systemd_host.machine import eventually

EXAMPLE = REPOSITORY / "examples" / "cuda_vectors.py"
PARKED_MIB = 10 << 10
WATCHED_BYTES = 2 * fg.GIB

# Allocates more than the limit that MPS has set for the process, and then works within the limit.
BEYOND = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
limit = int(os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].removeprefix("0=").removesuffix("M"))
size = ctypes.c_size_t((limit + 64) << 20)
print("allocation of the limit and 64 MiB:", cuda.cuMemAlloc_v2(ctypes.byref(memory), size))
print("allocation of 64 MiB:", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20)))
"""
# Takes 256 MiB every 50 ms, and says when it went beyond its share.
GREEDY = """
import ctypes, sys, time
share, taken = int(sys.argv[1]), 0
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for _ in range(1_000):
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(256 << 20)) == 0
    taken += 256 << 20
    if taken - (256 << 20) <= share < taken:
        print(time.time(), flush=True)
    time.sleep(0.05)
"""


def a_cuda_job_finds_every_element_right(host: Host) -> None:
    """Runs a command on half a GPU."""
    said = host.cli(
        "run", "--cpu", "1", "--memory", "4G", "--gpu", "0.5", "--",
        sys.executable, str(EXAMPLE), "--mebibytes", "1024", "--rounds", "20",
    )  # fmt: skip
    print("   " + said.strip().replace("\n", "; "))
    assert "every element is right" in said, said


def half_gpus_under_mps_do_not_disturb_each_other(host: Host) -> None:
    """An allocation above a limit is refused, and the other slot on the GPU continues."""
    assert shutil.which("nvidia-cuda-mps-control"), "install NVIDIA's MPS"
    level = {"gpu-memory": "mps"}
    with started(host, "--mps"), host.slots(*[_spec(50, level=level)] * 2) as (first, second):
        neighbour = _example(second, "--mebibytes", "512", "--rounds", "100", "--pause", "0.1")
        said = _python(first, BEYOND).wait(ANSWER_S).check().stdout.decode()
        print("   " + said.strip().replace("\n", "; "))
        assert said.splitlines()[0].endswith(": 2"), said  # CUDA_ERROR_OUT_OF_MEMORY
        assert said.splitlines()[1].endswith(": 0"), said
        assert "every element is right" in neighbour.wait(ANSWER_S).check().stdout.decode()


def a_slot_above_its_share_is_ended(host: Host) -> None:
    """Prints by how much and for how long the task was above its share."""
    spec = fg.SlotSpec(
        cpu_milli=1000,
        memory_bytes=4 * fg.GIB,
        devices={"gpu-core": 10, "gpu-memory": WATCHED_BYTES},
        require_isolation={"gpu-memory": "watch"},
    )
    with host.slots(spec) as (slot,):
        done = _python(slot, GREEDY, str(WATCHED_BYTES)).wait(ANSWER_S)
        assert done.end_reason == "GPU_MEMORY_EXCEEDED", done
        assert done.end_time is not None
        beyond = datetime.fromtimestamp(float(done.stdout), UTC)
        print(f"   {done.end_message}; {(done.end_time - beyond).total_seconds():.2f} s above it")


def a_parked_slot_goes_on_bit_identical(host: Host) -> None:
    """The 10 GiB of a slot leave the GPU, another slot computes there, and then the data comes back
    unchanged.
    """
    assert shutil.which("cuda-checkpoint"), "install NVIDIA's cuda-checkpoint"
    options = ("--mebibytes", str(PARKED_MIB), "--rounds", "40", "--pause", "0.5")
    with (
        started(host, "--gpu-parking", "same-gpu"),
        host.slots(_spec(100, memory_gib=16)) as (slot,),
    ):
        work = _example(slot, *options)
        eventually(lambda: _used(host, slot) >= PARKED_MIB << 20, "the work is on the GPU")
        with host.cluster() as cluster:
            begun = time.monotonic()
            cluster.park(slot.allocation_id, timeout_s=ANSWER_S)
            print(f"   parked {PARKED_MIB >> 10} GiB in {time.monotonic() - begun:.1f} s")
            assert not _used(host, slot)
            with host.slots(_spec(100)) as (other,):
                assert "every element" in _example(other).wait(ANSWER_S).check().stdout.decode()
            begun = time.monotonic()
            cluster.unpark(slot.allocation_id, timeout_s=ANSWER_S)
            print(f"   unparked in {time.monotonic() - begun:.1f} s")
        assert "every element is right" in work.wait(ANSWER_S).check().stdout.decode()


@contextmanager
def started(host: Host, *options: str) -> Iterator[None]:
    """The executor runs with these options meanwhile."""
    host.executor.stop()
    host.executor.start(*options)
    try:
        yield
    finally:
        host.settled()
        host.executor.stop()
        host.executor.start()


def _spec(gpu: int, *, memory_gib: int = 4, level: dict[str, str] | None = None) -> fg.SlotSpec:
    return fg.SlotSpec(
        cpu_milli=1000,
        memory_bytes=memory_gib * fg.GIB,
        devices={"gpu": gpu},
        require_isolation=level or {},
    )


def _example(slot: Slot, *options: str) -> Task:
    return slot.run([sys.executable, str(EXAMPLE), *options])


def _python(slot: Slot, code: str, *options: str) -> Task:
    return slot.run([sys.executable, "-I", "-S", "-c", code, *options])


def _used(host: Host, slot: Slot) -> int:
    """Measured memory of GPUs that the slot uses."""
    with host.cluster() as cluster:
        (executor,) = cluster.devices()
    return sum(
        each.memory_bytes
        for device in executor.devices
        if device.usage is not None
        for each in device.usage.slots
        if each.allocation_id == slot.allocation_id
    )


STORIES: tuple[Callable[[Host], None], ...] = (
    a_cuda_job_finds_every_element_right,
    half_gpus_under_mps_do_not_disturb_each_other,
    a_slot_above_its_share_is_ended,
    a_parked_slot_goes_on_bit_identical,
)
