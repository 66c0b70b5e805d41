"""Slots get real GPUs as the driver lists them, and can open no other devices."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import finegrain_client as fg
from finegrain_client.blocking import Slot
from tests.numa_host.daemons import ANSWER_S, Host

MIB = 1 << 20
OPEN = """
import glob, json, os
def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.strerror
    return ""
paths = sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/nvidiactl"))
print(json.dumps({path: opens(path) for path in paths}))
"""
CUDA = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0, "cuInit"
count = ctypes.c_int()
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0, "cuDeviceGetCount"
found = []
for number in range(count.value):
    uuid = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetUuid(uuid, number) == 0, "cuDeviceGetUuid"
    found.append(bytes(uuid).hex())
print(json.dumps(found))
"""
REFUSED = "Operation not permitted"


def listed(*names: str) -> list[list[str]]:
    """Returns the rows of nvidia-smi, one for each GPU; empty if the program is missing or
    fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    ran = subprocess.run(query, capture_output=True, text=True, check=False)
    if ran.returncode:
        return []
    return [[each.strip() for each in line.split(",")] for line in ran.stdout.splitlines()]


def devices_are_those_that_nvidia_smi_lists(host: Host) -> None:
    """Compares GPUs by UUID, PCI address and memory."""
    with host.cluster() as cluster:
        (executor,) = cluster.devices()
    found = {
        each.device.uuid: (each.device.pci_address, each.device.memory_bytes // MIB)
        for each in executor.devices
        if each.device.type == "gpu"
    }
    wanted = {
        uuid: (bus.lower()[-12:], int(memory))
        for uuid, bus, memory, mig in listed(
            "uuid", "pci.bus_id", "memory.total", "mig.mode.current"
        )
        if mig != "Enabled"
    }
    assert found == wanted, (found, wanted)


def a_slot_opens_the_files_of_its_gpu_only(host: Host) -> None:
    """Opens files in a slot with a GPU and in a slot without a GPU. The files are the driver's,
    with the present minor numbers.
    """
    with host.slots(_slot(), _slot({"gpu": 100})) as (without, with_one):
        assert set(_json(without, OPEN).values()) == {REFUSED}
        opened = _json(with_one, OPEN)
        assert with_one.isolation is not None
        assert with_one.isolation.device_access == "cgroup", with_one.isolation
        own = f"/dev/nvidia{_devices(with_one)[0]['minor']}"
        assert {path for path, error in opened.items() if not error} == {own, "/dev/nvidiactl"}
        assert set(opened.values()) <= {"", REFUSED}, opened


def cuda_sees_the_gpus_of_the_slot_only(host: Host) -> None:
    """CUDA works in the slot, although most device files are closed."""
    with host.slots(_slot({"gpu": 100})) as (slot,):
        (uuid,) = (each["uuid"] for each in _devices(slot))
        assert _json(slot, CUDA) == [uuid.removeprefix("GPU-").replace("-", "")]


def _slot(devices: dict[str, int] | None = None) -> fg.SlotSpec:
    return fg.SlotSpec(cpu_milli=1000, memory_bytes=2048 * fg.MIB, devices=devices or {})


def _json(slot: Slot, code: str) -> Any:
    """Returns the JSON that a Python program prints in a task of the slot."""
    done = slot.run([sys.executable, "-I", "-S", "-c", code]).wait(ANSWER_S)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def _devices(slot: Slot) -> list[dict[str, str]]:
    """Returns the devices of a slot, as its tasks find them."""
    done = slot.run(["/bin/sh", "-c", 'echo "$FINEGRAIN_DEVICES"']).wait(ANSWER_S).check()
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


STORIES: tuple[Callable[[Host], None], ...] = (
    devices_are_those_that_nvidia_smi_lists,
    a_slot_opens_the_files_of_its_gpu_only,
    cuda_sees_the_gpus_of_the_slot_only,
)
