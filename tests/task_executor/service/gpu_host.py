"""The host of a real executor; a driver for tests simulates its GPUs."""

from __future__ import annotations

import json
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare, Pairs
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import devices_pb2
from finegrain.v1 import task_executor_pb2 as te
from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import QUICK_DEVICES, ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)

A = "gpu 0 GPU-a 00000000:3B:00.0 1 81920 600 NVIDIA A100\nrecovery 0 0\n"
B = "gpu 1 GPU-b 00000000:5E:00.0 0 81920 600 NVIDIA A100\nrecovery 1 0\n"
MIB = 1 << 20


class GpuHost:
    """The executor's host, with a driver and a kubelet's folder."""

    def __init__(self, driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> None:
        self.profile = process.folder / "profile"
        self.kubelet = process.folder / "kubelet"
        self._process, self._rm = process, rm
        (self.kubelet / "device-plugins").mkdir(parents=True)
        self.plays(A + B)
        process.intervals |= QUICK_DEVICES
        process.environment |= {
            "LD_LIBRARY_PATH": str(driver.folder),
            "FAKE_NVML_PROFILE": str(self.profile),
        }

    def plays(self, lines: str) -> None:
        fresh = self.profile.with_name("fresh")
        fresh.write_text(lines)
        fresh.replace(self.profile)

    def gives_to_pods(self, *uuids: str) -> None:
        entry = {
            "PodUID": "pod-1",
            "ContainerName": "train",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": {"-1": list(uuids)},
        }
        content = {"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}
        path = self.kubelet / "device-plugins/kubelet_internal_checkpoint"
        path.with_name("fresh").write_text(json.dumps(content))
        path.with_name("fresh").replace(path)

    async def starts(self) -> JobMaster:
        self._process.start(kubelet_dir=str(self.kubelet))
        await eventually(
            lambda: self._rm.reports or self._process.exit_code is not None, "it reports"
        )
        assert self._process.exit_code is None, self._process.log
        return self._rm.job_master()

    def condition(self, uuid: str) -> devices_pb2.DeviceCondition | None:
        """Returns the last reported condition of a device."""
        full = [each for each in self._rm.states if not each.unchanged]
        found = {each.uuid: each for each in full[-1].device_conditions}
        return found.get(uuid)

    async def reports(self, uuid: str, health: str) -> devices_pb2.DeviceCondition:
        """Waits until the device is reported in this state."""

        def seen() -> Any:
            condition = self.condition(uuid)
            return condition if condition is not None and condition.health == health else None

        found: devices_pb2.DeviceCondition = await eventually(seen, f"{uuid} is {health}")
        return found

    async def reports_nothing(self, uuid: str) -> None:
        await eventually(lambda: self.condition(uuid) is None, f"{uuid} is as announced")


def gpu_slot(allocation_id: str, uuid: str, minor: int, amounts: Pairs) -> te.SlotAllocation:
    """Returns the order for a slot that has a share of a GPU."""
    share = CpuAssignment(devices=(DeviceShare("gpu", uuid, minor, amounts),))
    order = allocation(allocation_id, cpu_milli=100, assignment=assignment_to_proto(share))
    order.slot.profile.devices["gpu"] = dict(amounts)["gpu-core"]
    return order
