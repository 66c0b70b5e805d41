"""A process that the helper executes limits the memory of devices."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from finegrain.errors import FinegrainError, InvalidArgument
from task_executor.helper.protocol import HELPER_VERBS, Fault, check_request
from task_executor.host.helper_messages import SlotMemory
from tests.task_executor.helper.conftest import Host, eventually
from tests.task_executor.helper.fake_cgroups import FakeV2
from tests.task_executor.helper.test_cgroup_drivers import limits, slots_on
from tests.task_executor.helper.test_cgroup_v2_kernel import unified, v2_host

__all__ = ["unified", "v2_host"]

TRIES = 100
REGION = "drm/0000:03:00.0/vram"
NOT_ENABLED = {REGION: "the kernel's dmem controller is not enabled for the slot"}


def test_the_controller_reaches_slots_and_not_their_tasks(tmp_path: Path) -> None:
    """systemd does not know this controller. In a group of a task, a task would not see the limit
    of its slot.
    """
    kernel = FakeV2(own="/a.scope", controllers="cpu cpuset memory pids")
    kernel.files[f"{kernel.root}/cgroup.controllers"] += " dmem"
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    group = slots.driver.slot("a.1")
    task = slots.driver.task(group, "one")
    slots.driver.make(task)
    for path in (group["unified"], slots.driver.supervisors()["unified"]):
        assert kernel.exists(f"{path}/dmem.max")
    assert kernel.exists(f"{task['unified']}/memory.max")
    assert not kernel.exists(f"{task['unified']}/dmem.max")


@pytest.mark.parametrize(
    "wrong", [7, [], {"": 1}, {"../x": 1}, {"GPU-a": -1}, {"GPU-a": "1"}, {"GPU-a\n": 1}]
)
def test_limits_are_checked(wrong: object) -> None:
    slot = {"allocation_id": "a", "generation": 1, "limits": wrong}
    for args in ({"slots": [slot]}, {"slots": [], "probe": wrong}):
        with pytest.raises(Fault):
            check_request({"verb": "limit_device_memory", "args": args}, HELPER_VERBS)


@pytest.mark.needs("root")
async def test_the_answer_is_about_each_slot_and_the_probe(v2_host: Host) -> None:
    await v2_host.slot()
    asked = [SlotMemory("slot", 1, {REGION: 1 << 30}), SlotMemory("slot", 1, {})]
    problems, probe = await v2_host.client.limit_device_memory(asked, {REGION: 1 << 30})
    assert problems == [NOT_ENABLED, {}]
    assert probe == NOT_ENABLED


@pytest.mark.needs("root")
async def test_an_agent_that_is_killed_leaves_the_next_one_its_turn(v2_host: Host) -> None:
    for _ in range(TRIES):
        asked = [v2_host.client.limit_device_memory([], {REGION: 1 << 30}) for _ in range(2)]
        both = asyncio.gather(*asked, return_exceptions=True)
        # The second may begin while the processes are listed.
        pid, *_ = await eventually(lambda: agents_of(v2_host), "an agent runs")
        # Kill it as an out-of-memory kill would; it may have ended just before.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        first, second = await both
        assert agents_of(v2_host) == []
        if isinstance(first, FinegrainError):
            break
    else:
        pytest.fail("each agent had answered before it was killed")
    assert "the device agent has failed" in first.message
    assert second == ([], NOT_ENABLED)


def agents_of(host: Host) -> list[int]:
    """Returns the processes of the helper that run the agent, or will run it soon."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == host.pid and b"device_agent" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def test_a_wrong_device_is_refused_with_its_name(v2_host: Host) -> None:
    with pytest.raises(InvalidArgument, match="UUID of a GPU"):
        await v2_host.client.limit_device_memory([], {"../x": 1})
