"""What an executor reports about its devices while it runs, with a scripted driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.devices.condition import DeviceCondition, DeviceHealth
from finegrain.devices.device import GPU, RDMA, Device, HostDevices
from task_executor.host.gpu_monitor import GpuReading, GpuSample
from task_executor.host.kubelet.state import KubeletDevices, KubeletState
from task_executor.service import device_watch
from task_executor.service.device_probe import DeviceProbe
from task_executor.service.device_watch import DeviceWatch
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import eventually

FIRST = Device(GPU, "GPU-0", 0, (("gpu-core", 100),), vendor="nvidia", pci_address="0000:3b:00.0")
NIC = Device(RDMA, "0000:5e:00.0", 0, ((RDMA, 100),), pci_address="0000:5e:00.0")
GOOD = GpuSample("GPU-0", 0, 0, "0000:3b:00.0", recovery_known=True)


class Driver:
    """A driver whose answers a test sets."""

    def __init__(self) -> None:
        self.samples: tuple[GpuSample, ...] = (GOOD,)
        self.problem = ""
        self.readings = 0

    async def read(self) -> GpuReading:
        self.readings += 1
        return GpuReading(
            self.readings, 0.0, {each.uuid: each for each in self.samples}, self.problem
        )

    def close(self) -> None: ...


class Probe:
    """A probe whose result a test sets."""

    def __init__(self) -> None:
        self.problem, self.tested = "", list[str]()

    async def run(self, device: Device) -> str:
        self.tested.append(device.uuid)
        return self.problem


class Watched:
    """A watch of an executor's devices."""

    def __init__(self, executor: Executor, root: Path, *devices: Device, **options: Any) -> None:
        self.driver, self.probe = Driver(), Probe()
        self.keeper = executor.front.keeper
        self.keeper.table.devices.replace_host(HostDevices(devices or (FIRST,)))
        self.kubelet: KubeletState | None = None
        self.moved: list[HostDevices] = []
        self.watch = DeviceWatch(
            self.keeper,
            self.driver,  # type: ignore[arg-type]
            self.probe,  # type: ignore[arg-type]
            kubelet=lambda: self.kubelet,
            own_pids=lambda: (),
            moved=self.moved.append,
            root=root,
            **options,
        )

    async def sees(self, **changes: Any) -> tuple[DeviceCondition, ...]:
        """Returns the conditions after a reading in which the GPU is like this."""
        self.driver.samples = (replace(GOOD, **changes),)
        return await self.refreshed()

    async def refreshed(self) -> tuple[DeviceCondition, ...]:
        await self.watch.refresh()
        await asyncio.sleep(0)  # a probe may begin
        return self.watch.conditions


@pytest.fixture
def watched(executor: Executor, tmp_path: Path) -> Callable[..., Watched]:
    return lambda *devices, **options: Watched(executor, tmp_path / "root", *devices, **options)


async def test_a_device_is_used_again_after_the_probe(watched: Callable[..., Watched]) -> None:
    its = watched()
    assert await its.refreshed() == ()
    [found] = await its.sees(problem="reset it", work_lost=True)
    assert (found.health, found.problem) == (DeviceHealth.UNHEALTHY, "reset it")
    assert not found.work_lost  # not after one reading
    await its.sees()
    await eventually(lambda: its.watch.conditions == (), "the probe has passed")
    assert its.probe.tested == ["GPU-0"]


async def test_a_device_that_fails_its_probe_stays_out(watched: Callable[..., Watched]) -> None:
    its = watched()
    its.probe.problem = "byte 7 came back changed"
    await its.sees(problem="reset it")
    await its.sees()
    await eventually(lambda: its.watch.conditions[0].failures == 2, "the probe has failed")
    [found] = await its.refreshed()
    assert found.health is DeviceHealth.UNHEALTHY
    assert found.problem == "the probe failed: byte 7 came back changed"


async def test_errors_of_programs_end_nothing(watched: Callable[..., Watched]) -> None:
    its = watched()
    for _ in range(40):  # a storm of 10,000 events
        assert await its.sees(xids=(13, 31, 43), xid_count=256, recovery_known=False) == ()
        assert await its.sees(xids=(79, 48), xid_count=256, recovery_known=True) == ()
    assert its.probe.tested == []


async def test_xids_count_where_the_driver_reports_no_recovery_action(
    watched: Callable[..., Watched],
) -> None:
    its = watched()
    [found] = await its.sees(xids=(31, 74), recovery_known=False)
    assert found.problem == "the driver reported XID 74: an NVLink error"
    for _ in range(40):
        [found] = await its.sees(xids=(74,), xid_count=256, recovery_known=False)
    assert found.failures == 1
    assert not found.work_lost
    [found] = await its.sees(recovery_known=False)
    assert found.health is DeviceHealth.PROBING
    assert its.probe.tested == []  # the GPU stays unused for a while


async def test_a_silent_driver_makes_its_devices_unknown(watched: Callable[..., Watched]) -> None:
    its = watched()
    its.driver.problem = "it has not answered since 10:00:00 UTC"
    [found] = await its.refreshed()
    assert (found.health, found.failures) == (DeviceHealth.UNKNOWN, 0)
    its.driver.problem = ""
    await its.refreshed()
    await eventually(lambda: its.watch.conditions == (), "it works")


async def test_a_reading_that_must_be_confirmed_is_followed_by_another_at_once(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []

    def check(_usages: object, at_s: float) -> bool:
        checks.append(at_s)
        return len(checks) == 1

    its = watched(check_use=check)
    monkeypatch.setattr(device_watch, "READ_EVERY_S", 3600)
    running = asyncio.create_task(its.watch.run())
    await eventually(lambda: len(checks) == 2, "it reads again")
    running.cancel()
    await asyncio.wait([running])


async def test_what_a_driver_measures_of_processes(
    watched: Callable[..., Watched], tmp_path: Path
) -> None:
    changes = []
    namespace = tmp_path / "root/proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("pid:[4026531836]")  # that of the host
    its = watched(measured_changed=lambda: changes.append(1))
    await its.watch.find_measured()
    assert its.watch.measured == frozenset()
    await its.sees(measures_processes=True)
    assert its.watch.measured == {"GPU-0"}
    # A GPU that is broken or gone does not change this.
    await its.sees(problem="reset it")
    its.driver.samples = ()
    await its.refreshed()
    assert its.watch.measured == {"GPU-0"}
    # A single reading without processes does not change this either.
    for _ in range(3):
        await its.sees(measures_processes=False)
        await its.sees(measures_processes=False)
        await its.sees(measures_processes=True)
    assert its.watch.measured == {"GPU-0"}
    assert len(changes) == 1
    for _ in range(3):
        await its.sees(measures_processes=False)
    assert its.watch.measured == frozenset()
    assert len(changes) == 2


@pytest.mark.parametrize("foreign_use", ["auto", "avoid"])
async def test_in_a_container_no_process_is_measured(
    foreign_use: str, watched: Callable[..., Watched]
) -> None:
    """In a container, a task of another slot could have the pid that the driver reports."""
    its = watched(foreign_use=foreign_use)  # the folder for tests names no namespace
    await its.sees(measures_processes=True)
    assert its.watch.measured == frozenset()


async def test_a_problem_at_the_start_is_taken_back(watched: Callable[..., Watched]) -> None:
    its = watched(replace(FIRST, problem="it was hot"))
    await its.refreshed()
    healthy = (DeviceCondition(GPU, "GPU-0"),)
    await eventually(lambda: its.watch.conditions == healthy, "it is healthy")


async def test_a_gpu_that_is_gone_and_returns_elsewhere(watched: Callable[..., Watched]) -> None:
    its = watched()
    its.driver.samples = ()
    [found] = await its.refreshed()
    assert found.health is DeviceHealth.GONE
    await its.sees(minor=4, pci_address="0000:af:00.0")
    [host] = its.moved
    assert [(each.minor, each.pci_address) for each in host.devices] == [(4, "0000:af:00.0")]


async def test_a_nic_without_a_port(watched: Callable[..., Watched], tmp_path: Path) -> None:
    its = watched(NIC)
    its.watch._monitor = None
    card = tmp_path / "root/sys/bus/pci/devices/0000:5e:00.0"
    port = tmp_path / "root/sys/class/infiniband/mlx5_0/ports/1"
    (card / "infiniband/mlx5_0").mkdir(parents=True)
    (card / "class").write_text("0x020700\n")
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    [found] = await its.refreshed()
    assert found.health is DeviceHealth.UNHEALTHY
    assert "mlx5_0 port 1 is DOWN" in found.problem
    (port / "state").write_text("4: ACTIVE\n")
    its.watch._nics_at_s = 0.0
    await its.refreshed()
    assert await its.refreshed() == ()


async def test_what_a_kubelet_has_given_to_pods(watched: Callable[..., Watched]) -> None:
    its = watched(FIRST, NIC)
    both = frozenset({"GPU-0", "0000:5e:00.0"})
    its.kubelet = KubeletState(devices=(KubeletDevices("pod", "c", "any", both),))
    found = await its.refreshed()
    assert [each.foreign_text for each in found] == ["pod pod/c", "pod pod/c"]
    its.kubelet = None
    assert await its.refreshed() == ()


async def test_foreign_use_can_be_ignored(watched: Callable[..., Watched]) -> None:
    its = watched(foreign_use="ignore")
    its.kubelet = KubeletState(devices=(KubeletDevices("pod", "c", "any", frozenset({"GPU-0"})),))
    assert await its.refreshed() == ()


@pytest.mark.parametrize(
    ("code", "said", "problem"),
    [
        (0, "", ""),
        (1, "cuInit failed: CUDA_ERROR_UNKNOWN (999)", "cuInit failed: CUDA_ERROR_UNKNOWN (999)"),
        (3, "no CUDA driver", ""),  # then only the driver's data count
        (127, "", ""),  # no interpreter for the user of tasks
    ],
)
async def test_a_probe_runs_in_a_slot_of_its_own(
    code: int, said: str, problem: str, executor: Executor
) -> None:
    helper, keeper = executor.helper, executor.front.keeper
    probe = asyncio.create_task(DeviceProbe(keeper).run(FIRST))
    await eventually(lambda: helper.specs, "the test has started")
    [(task_id, spec)] = helper.specs.items()
    assert spec.env["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    # A comparison with the host does not end the slot, and no report contains it.
    await executor.front.sync.compare()
    assert helper.slots
    assert len(keeper.table) == 0
    helper.write(task_id, said.encode(), "stderr")
    helper.end(task_id, code)
    assert await probe == problem
    assert not helper.slots
    assert keeper.own_slots == set()
