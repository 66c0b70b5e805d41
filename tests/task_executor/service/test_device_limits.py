"""Which GPUs the kernel limits, what slots report about it, and when limits are set."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.devices.device import Device, HostDevices
from finegrain.errors import InvalidArgument, Unavailable
from finegrain.values.usage import DeviceUsage, SlotDeviceUsage
from task_executor.engine.slots import SlotKey
from task_executor.host.helper_messages import HelperInfo
from task_executor.host.memory_regions import CAPACITY_FILE, NO_CONTROLLER
from task_executor.service.device_limits import NEEDS_ROOT, NEEDS_V2, DeviceLimits
from task_executor.service.device_overuse import OveruseWatch
from task_executor.service.isolation import MANAGED_MEMORY, NOT_LIMITED
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.fake_helper import ENFORCED
from tests.task_executor.service.gpu_host import gpu_slot
from tests.task_executor.service.scripted_rm import ScriptedRM, eventually

MIB = 1 << 20
WHOLE = (("gpu-core", 100), ("gpu-memory", 1000 * MIB), ("gpu-memory-ratio", 100))
PART = (("gpu-core", 25), ("gpu-memory", 250 * MIB + 7), ("gpu-memory-ratio", 25))
COMPUTE = (("gpu-core", 50),)
REGION = "drm/0000:03:00.0/vram0"
V2 = replace(ENFORCED, driver="v2")


class Host:
    """An executor in this process with a GPU of NVIDIA and one of AMD."""

    def __init__(self, executor: Executor, rm: ScriptedRM, root: Path) -> None:
        self.executor, self.rm, self.root = executor, rm, root
        self.helper, self.keeper = executor.helper, executor.front.keeper
        self.helper.enforced = V2
        self.uid = 0
        self.helper.hello = self._hello  # type: ignore[method-assign]
        devices = (
            Device("gpu", "GPU-a", 0, WHOLE, vendor="nvidia"),
            Device("gpu", "amd-1", 1, WHOLE, vendor="amd", pci_address="0000:03:00.0"),
        )
        self.keeper.table.devices.replace_host(HostDevices(devices))
        total = {f"device.{name}": 2 * amount for name, amount in WHOLE}
        share = self.keeper.table.share
        self.keeper.table.share = replace(share, total={**share.total, **total})
        watched = frozenset({"GPU-a"})
        self.keeper.enforcement = replace(self.keeper.enforcement, watched=watched)
        self.has_regions(REGION)
        self.limits = DeviceLimits(self.keeper, root)
        self.keeper.limit_devices = self.limits.set

    async def _hello(self) -> HelperInfo:
        return HelperInfo(2, "fake", 1, "boot", self.uid, self.helper.enforced)

    def has_regions(self, *regions: str) -> None:
        file = self.root / CAPACITY_FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{each} {1000 * MIB}\n" for each in regions))

    async def allocates(
        self, name: str, uuid: str = "GPU-a", amounts: Any = PART, required: str = ""
    ) -> str:
        """Returns the error."""
        order = gpu_slot(name, uuid, 0, amounts)
        if amounts == COMPUTE:
            order.slot.profile.devices.clear()
            order.slot.profile.devices["gpu-core"] = 50
        if required:
            order.slot.profile.require_isolation["gpu-memory"] = required
        return str((await self.rm.allocate(order)).results[0].error.message)

    def offered(self) -> dict[str, str]:
        """Returns the level that would be announced for a share of the memory, by UUID."""
        table, enforcement = self.keeper.table, self.keeper.enforcement
        announced = enforcement.announced(table.devices.host, self.helper.enforced)
        return {each.uuid: dict(each.levels)["gpu-memory"] for each in announced.devices}

    def level(self, name: str) -> str:
        return str(self.slot(name).isolation.gpu_memory)

    def slot(self, name: str) -> Any:
        slot = self.keeper.table.get(SlotKey(name, 1))
        assert slot is not None
        return slot


@pytest.fixture
async def host(executor: Executor, rm: ScriptedRM, tmp_path: Path) -> Host:
    return Host(executor, rm, tmp_path)


async def test_limits_are_set_with_the_group_and_for_all_slots_again(host: Host) -> None:
    await host.limits.refresh()
    assert host.offered() == {"GPU-a": "kernel", "amd-1": "kernel"}
    await host.allocates("one")
    await host.allocates("two", "amd-1")
    # Limits are rounded down to whole MiB, so that they read back as they were written.
    one, two = f'one:{{"GPU-a": {250 * MIB}}}', f'two:{{"{REGION}": {250 * MIB}}}'
    assert host.helper.said("limit_memory")[1:] == [
        f"limit_memory {one} probe []",
        f"limit_memory {two} probe []",
    ]
    calls = host.helper.calls
    assert calls.index(f"limit_memory {one} probe []") > calls.index("create one.1")
    assert await host.limits.refresh() is False  # nothing has changed
    assert host.helper.calls[-1] == f"limit_memory {one} {two} probe ['GPU-a', '{REGION}']"
    # Managed memory escapes the limit of NVIDIA's driver only.
    assert MANAGED_MEMORY in host.slot("one").isolation.notes
    assert MANAGED_MEMORY not in host.slot("two").isolation.notes


async def test_compute_alone_has_no_share_of_the_memory(host: Host) -> None:
    await host.limits.refresh()
    await host.allocates("slot", amounts=COMPUTE)
    assert host.helper.calls[-1] == 'limit_memory slot:{"GPU-a": 0} probe []'
    assert host.level("slot") == "watch"


@pytest.mark.parametrize("level", ["watch", "mps"])
async def test_one_limit_that_fails_lowers_its_slot_only(level: str, host: Host) -> None:
    if level == "mps":
        under_mps = {"GPU-a": {"gpu-core": "mps", "gpu-memory": "mps"}}
        host.keeper.enforcement = replace(host.keeper.enforcement, under_mps=under_mps)
    await host.limits.refresh()
    await host.allocates("fine")
    host.helper.refuse_limits = {"GPU-a": "the driver says no"}
    await host.allocates("lower")
    assert (host.level("fine"), host.level("lower")) == ("kernel", level)
    note = NOT_LIMITED.format(names="gpu0", problem="the driver says no")
    assert note in host.slot("lower").isolation.notes
    assert note not in host.slot("fine").isolation.notes
    message = await host.allocates("strict", required="kernel")
    offer = f"gpu-memory of GPU-a is enforced by {level}, and kernel is required"
    assert f"{offer} (the driver says no)" in message
    # It is tried again.
    host.helper.refuse_limits = {}
    assert await host.limits.refresh() is True
    host.keeper.restate_isolation(V2)
    assert host.level("lower") == "kernel"


async def test_what_the_probe_finds_is_announced(host: Host) -> None:
    host.helper.refuse_probe = {REGION: "no dmem.max here"}
    assert await host.limits.refresh() is True
    assert host.offered() == {"GPU-a": "kernel", "amd-1": "visible-only"}
    await host.allocates("slot", "amd-1")
    assert len(host.helper.said("limit_memory")) == 1  # only the probe
    assert NOT_LIMITED.format(names="gpu1", problem="no dmem.max here") in (
        host.slot("slot").isolation.notes
    )
    host.helper.refuse_probe = {}
    assert await host.limits.refresh() is True
    assert host.offered()["amd-1"] == "kernel"


async def test_hosts_that_cannot(host: Host) -> None:
    host.helper.enforced = ENFORCED
    await host.limits.refresh()
    reason = NEEDS_V2.format(driver="v1")
    assert host.keeper.enforcement.obstacles == {"GPU-a": reason, "amd-1": reason}
    # One sentence covers both, also in the report about the host.
    note = NOT_LIMITED.format(names="gpu0, gpu1", problem=reason)
    assert note in host.keeper.isolation_of(ENFORCED).notes
    host.helper.enforced, host.uid = V2, 1000
    await host.limits.refresh()
    assert host.keeper.enforcement.obstacles["GPU-a"] == NEEDS_ROOT
    assert host.helper.said("limit_memory") == []
    host.uid = 0
    host.has_regions("drm/0000:04:00.0/vram0")
    await host.limits.refresh()
    assert host.offered() == {"GPU-a": "kernel", "amd-1": "visible-only"}
    (host.root / CAPACITY_FILE).unlink()
    await host.limits.refresh()
    assert host.keeper.enforcement.obstacles == {"amd-1": NO_CONTROLLER}


async def test_a_helper_that_does_not_answer(host: Host) -> None:
    await host.limits.refresh()
    host.helper.refuse_limits = Unavailable("the device agent has not answered")
    assert await host.allocates("slot") == ""
    assert host.level("slot") == "watch"
    await host.limits.refresh()
    assert host.offered()["GPU-a"] == "watch"
    assert host.keeper.enforcement.obstacles["GPU-a"] == "the device agent has not answered"


async def test_a_gpu_at_another_address_has_another_region(host: Host) -> None:
    await host.limits.refresh()
    await host.allocates("slot", "amd-1")
    devices = host.keeper.table.devices
    moved = [replace(e, pci_address="0000:05:00.0") for e in devices.host.devices]
    devices.replace_host(HostDevices(tuple(moved)))
    host.has_regions("drm/0000:05:00.0/vram0")
    await host.limits.refresh()
    assert 'slot:{"drm/0000:05:00.0/vram0": ' in host.helper.calls[-1]


async def test_an_ended_slot_is_forgotten(host: Host) -> None:
    await host.limits.refresh()
    host.helper.refuse_limits = {"GPU-a": "no"}
    await host.allocates("slot")
    assert host.keeper.enforcement.unlimited != {}
    await host.keeper.free([(SlotKey("slot", 1), 0)])
    await eventually(lambda: not len(host.keeper.table), "it is gone")
    await host.limits.refresh()
    assert host.keeper.enforcement.unlimited == {}


async def test_what_escapes_the_limit_is_measured(host: Host) -> None:
    """Managed memory is not counted by the driver's limit."""
    await host.limits.refresh()
    await host.allocates("slot")
    assert host.level("slot") == "kernel"
    await host.executor.job_master.submit("/bin/sleep", task_id="task", allocation_id="slot")
    watch = OveruseWatch(host.keeper, host.executor.front.runner)
    for at in range(2):
        use = SlotDeviceUsage("slot", 1, 251 * MIB, 1)
        watch.check([DeviceUsage("gpu", "GPU-a", 251 * MIB, 0, (use,))], float(at))
    await eventually(lambda: host.helper.said("kill task"), "its task is ended")


async def test_a_front_with_an_older_helper(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from task_executor.host.helper_client import HelperClient, HelperError

    client = HelperClient(Path("/nowhere"))

    async def refuses(_verb: str, _args: Any) -> Any:
        await asyncio.sleep(0)
        raise InvalidArgument("verb", "limit_device_memory", "one of hello")

    monkeypatch.setattr(client, "_call", refuses)
    with pytest.raises(HelperError, match="the helper has an earlier version; restart it"):
        await client.limit_device_memory([], {})
