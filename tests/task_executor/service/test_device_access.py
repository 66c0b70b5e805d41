"""What a slot reports about its devices: who can open them, and which use escapes its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpuset import EMPTY
from finegrain.devices.device import Device, DeviceShare, HostDevices
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import Isolation
from task_executor.engine.cpu_ledger import CpuBinding
from task_executor.engine.slots import SlotKey, SlotSpec
from task_executor.host.device_nodes import NO_NODES, DeviceNodes, Node
from task_executor.host.helper_messages import IsolationReport, Reconnected
from task_executor.service.device_levels import DeviceEnforcement
from task_executor.service.isolation import (
    DEVICES_VISIBLE_ONLY,
    HOST_MEMORY,
    MEMORY_WATCHED,
    SHARE_VISIBLE_ONLY,
    isolation_of,
)
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation, eventually

CLOSED = IsolationReport(
    "v1", "quota", "cgroup", "hard", "hard", "freezer", hugepages="hard", devices="cgroup"
)
OPEN = replace(CLOSED, devices="none", devices_problem="no controller; mount it")
WHOLE = (("gpu-core", 100), ("gpu-memory", 80), ("gpu-memory-ratio", 100))
HALF = (("gpu-core", 50), ("gpu-memory", 40), ("gpu-memory-ratio", 50))
HOST = HostDevices((Device("gpu", "GPU-0", 0, WHOLE, vendor="nvidia"),))
NODES = DeviceNodes(
    {("gpu", "GPU-0"): frozenset({Node("c", 195, 0)})}, {}, {}, frozenset({("c", 195)})
)


def slot(*shares: DeviceShare) -> SlotSpec:
    assignment = CpuAssignment(devices=shares)
    return SlotSpec("a", 1, "job", ResourceProfile(1000), 1000, 10, assignment=assignment)


def gpu(amounts: tuple[tuple[str, int], ...] = WHOLE) -> DeviceShare:
    return DeviceShare("gpu", "GPU-0", 0, amounts)


def stated(
    report: IsolationReport,
    *shares: DeviceShare,
    host: HostDevices = HOST,
    nodes: DeviceNodes = NODES,
    watched: frozenset[str] = frozenset(),
) -> Isolation:
    return isolation_of(report, slot(*shares), host, DeviceEnforcement(nodes, watched))


def test_a_whole_gpu_is_the_slots_alone() -> None:
    isolation = stated(CLOSED, gpu())
    assert isolation.device_access == "cgroup"
    assert isolation.notes == (HOST_MEMORY["nvidia"],)
    # No other slot can open it, so nothing is left to enforce.
    assert (isolation.gpu_core, isolation.gpu_memory) == ("kernel", "kernel")
    assert (stated(OPEN, gpu()).gpu_core, stated(OPEN, gpu(HALF)).gpu_core) == (
        "visible-only",
        "visible-only",
    )


def test_a_part_of_a_gpu_is_not_limited_by_its_files() -> None:
    isolation = stated(CLOSED, gpu(HALF))
    assert isolation.device_access == "cgroup"
    assert SHARE_VISIBLE_ONLY.format(names="gpu-core and gpu-memory") in isolation.notes


def test_memory_that_is_measured_is_watched() -> None:
    isolation = stated(CLOSED, gpu(HALF), watched=frozenset({"GPU-0"}))
    assert (isolation.gpu_core, isolation.gpu_memory) == ("visible-only", "watch")
    assert MEMORY_WATCHED in isolation.notes
    assert SHARE_VISIBLE_ONLY.format(names="gpu-core") in isolation.notes


def test_each_device_has_its_levels_and_the_weakest_are_the_summary() -> None:
    other = Device("gpu", "GPU-1", 1, WHOLE, vendor="nvidia")
    nodes = replace(NODES, own={**NODES.own, ("gpu", "GPU-1"): frozenset({Node("c", 195, 1)})})
    shares = gpu(), DeviceShare("gpu", "GPU-1", 1, HALF)
    isolation = stated(CLOSED, *shares, host=HostDevices((*HOST.devices, other)), nodes=nodes)
    assert [(each.uuid, dict(each.levels)) for each in isolation.device_levels] == [
        ("GPU-0", {"gpu-core": "kernel", "gpu-memory": "kernel"}),
        ("GPU-1", {"gpu-core": "visible-only", "gpu-memory": "visible-only"}),
    ]
    assert isolation.gpu_memory == "visible-only"
    assert isolation.devices == ""


def test_devices_are_announced_with_what_a_share_and_all_of_them_can_have() -> None:
    enforcement = DeviceEnforcement(NODES, frozenset({"GPU-0"}))
    (device,) = enforcement.announced(HOST, CLOSED).devices
    assert dict(device.levels) == {
        "gpu-core": "visible-only",
        "gpu-memory": "watch",
        "whole": "kernel",
    }
    (fake,) = enforcement.announced(replace(HOST, fake=True), CLOSED).devices
    assert fake.levels == ()


@pytest.mark.parametrize("shares", [(), (gpu(),)], ids=["without devices", "with a GPU"])
def test_where_files_cannot_be_closed_the_note_has_reason_and_fix(
    shares: tuple[DeviceShare, ...],
) -> None:
    isolation = stated(OPEN, *shares)
    assert isolation.device_access == "none"
    assert isolation.notes[0].endswith("no controller; mount it")
    assert (DEVICES_VISIBLE_ONLY in isolation.notes) is bool(shares)
    assert isolation_of(OPEN, None, HOST, DeviceEnforcement(NODES)).notes == isolation.notes[:1]


def test_without_devices_to_give_out_nothing_is_said() -> None:
    for report in (OPEN, CLOSED):
        isolation = isolation_of(report, slot(), HostDevices())
        assert (isolation.device_access, isolation.notes) == ("", ())


def test_a_device_whose_files_are_not_known_is_open_to_others() -> None:
    device = Device("npu", "S/N 1", 0, (("npu", 100),))
    share = DeviceShare("npu", "S/N 1", 0, device.capacity)
    isolation = stated(CLOSED, share, host=HostDevices((device,)), nodes=NO_NODES)
    assert isolation.device_access == "none"
    assert "can open npu0" in isolation.notes[0]
    assert isolation.notes[1] == DEVICES_VISIBLE_ONLY


def test_a_type_that_is_left_open_is_said() -> None:
    left_open = DeviceNodes(open_types=frozenset({"gpu"}))
    isolation = stated(CLOSED, gpu(), nodes=left_open)
    assert isolation.device_access == "none"
    assert "open_devices" in isolation.notes[0]


@pytest.mark.parametrize("vendor", ["AMD", "intel", "nvidia"])
def test_host_memory_that_no_limit_counts_is_said(vendor: str) -> None:
    host = HostDevices((replace(HOST.devices[0], vendor=vendor),))
    assert stated(CLOSED, gpu(), host=host).notes == (HOST_MEMORY[vendor.lower()],)
    assert stated(CLOSED, host=host).notes == ()


def test_fake_devices_have_no_files_and_no_driver() -> None:
    isolation = stated(CLOSED, gpu(), host=replace(HOST, fake=True), nodes=NO_NODES)
    assert (isolation.device_access, isolation.gpu_core) == ("", "none")
    assert not set(isolation.notes) & set(HOST_MEMORY.values())


async def test_a_device_with_another_minor_is_closed_to_the_slots_that_run(
    rm: ScriptedRM, executor: Executor
) -> None:
    """This happens after a reset of GPUs, at a start with devices that were not given out before,
    and when a helper that cannot close files is replaced.
    """
    await rm.allocate(allocation())
    ((key, limits),) = executor.helper.slots.items()
    assert limits.devices_open == {}
    executor.nodes = NODES
    executor.front._devices_moved(executor.front.keeper.table.devices.host)
    await eventually(
        lambda: executor.front.keeper.enforcement.nodes == NODES, "the files are found"
    )
    await executor.front.sync.compare()
    assert executor.helper.slots[key].devices_open == {}
    executor.helper.enforced = CLOSED
    executor.helper.tell(Reconnected())
    await eventually(
        lambda: executor.helper.slots[key].devices_open == {"c 195": ""}, "the files are closed"
    )
    slot = executor.front.keeper.table.get(SlotKey(*key))
    assert slot is not None
    assert slot.isolation.device_access == "cgroup"
    await executor.crash()
    executor.nodes = replace(NODES, majors=NODES.majors | {("c", 226)})
    await executor.start()
    assert executor.helper.slots[key].devices_open == {"c 195": "", "c 226": ""}


async def test_the_limits_of_a_slot_say_what_it_can_open(executor: Executor) -> None:
    keeper = executor.front.keeper
    keeper.enforcement = DeviceEnforcement(NODES)
    assert keeper.limits_of(slot(gpu()), CpuBinding(EMPTY)).devices_open == {}
    keeper.closes_devices = True
    assert keeper.limits_of(slot(gpu()), CpuBinding(EMPTY)).devices_open == {"c 195": "0"}
    assert keeper.limits_of(slot(), CpuBinding(EMPTY)).devices_open == {"c 195": ""}
