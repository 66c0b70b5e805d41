"""Slots change their size on this machine (cgroup v1), and their tasks go on."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.errors import FinegrainError, Reason
from task_executor.helper.paths import read_json
from task_executor.host.helper_client import HelperClient, SlotLimits
from tests.support.cpu_quota import SMALL_QUOTAS_MILLI, assert_quota_holds
from tests.task_executor.helper.conftest import MIB, Host, alive, eventually

pytestmark = [pytest.mark.needs("root", "cgroup-v1")]

# Holds memory, and gives half of it back when it gets a byte on its standard input.
HOLDER = """
import mmap, sys
held = [mmap.mmap(-1, {mib} << 19) for _ in range(2)]
for part in held:
    part.write(b"x" * len(part))
print("holds", flush=True)
sys.stdin.read(1)
held.pop().close()
print("less", flush=True)
sys.stdin.read(1)
"""
# Fills the page cache of its slot, and reads that file again and again.
READER = """
import os, time
with open("{file}", "wb+") as file:
    for _ in range({mib}):
        file.write(b"x" * (1 << 20))
    os.fsync(file.fileno())
    print("cached", flush=True)
    while True:
        time.sleep(0.05)
        file.seek(0)
        while file.read(1 << 20):
            pass
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def group_of(host: Host, controller: str) -> Path:
    """The slot's group."""
    record = host.record("task")
    return Path(record["slot"][controller])


def in_kernel(host: Host) -> dict[str, int]:
    files = {
        "cpu": ("cpu.cfs_quota_us", "cpu.shares"),
        "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    }
    return {
        file: int((group_of(host, controller) / file).read_text())
        for controller, names in files.items()
        for file in names
    }


def promised(limits: SlotLimits) -> dict[str, int]:
    cap = limits.cpu_limit_milli or limits.cpu_milli
    return {
        "cpu.cfs_quota_us": cap * 100,
        "cpu.shares": limits.cpu_milli * 1024 // 1000,
        "memory.limit_in_bytes": limits.memory_bytes,
        "memory.memsw.limit_in_bytes": limits.memory_bytes,
    }


async def test_quota_and_memory_follow_up_and_down_while_a_task_runs(host: Host) -> None:
    limits = await host.slot(cpu_milli=500, memory_bytes=64 * MIB)
    pid = await host.start("sleep 60")
    sizes = [(1500, None, 256), (1500, 1800, 256), (200, 900, 32), (10, None, 16), (500, None, 64)]
    for cpu_milli, cpu_limit_milli, mib in sizes:
        new = replace(
            limits,
            cpu_milli=cpu_milli,
            cpu_limit_milli=cpu_limit_milli,
            memory_bytes=mib * MIB,
        )
        report = await host.client.resize_slot(new)
        assert report.complete
        assert in_kernel(host) == promised(new)
        assert (await host.client.inspect()).slots[0].limits == new
    assert alive(pid)


async def test_a_task_may_use_what_its_slot_has_grown_by(host: Host) -> None:
    limits = await host.slot(memory_bytes=48 * MIB)
    grown = replace(limits, memory_bytes=192 * MIB)
    wait_and_take = "import sys; sys.stdin.read(1); x = bytearray(120 << 20); print(len(x) >> 20)"
    await host.start("", argv=python(wait_and_take), stdin=True)
    await host.client.resize_slot(grown)
    await host.client.write_input("task", 0, b"!", eof=True)
    assert (await host.exit_of()).exit_code == 0
    assert host.output() == "120\n"


async def test_less_than_what_is_held_is_refused_until_it_is_given_back(host: Host) -> None:
    limits = await host.slot(memory_bytes=128 * MIB)
    pid = await host.start("", argv=python(HOLDER.format(mib=80)), stdin=True)
    await eventually(lambda: host.output() == "holds\n", "it has its memory")
    smaller = replace(limits, cpu_milli=100, memory_bytes=64 * MIB)
    with pytest.raises(FinegrainError, match="bytes of memory are in use") as refused:
        await host.client.resize_slot(smaller)
    assert refused.value.reason is Reason.BELOW_USE
    assert refused.value.details["asked"] == str(64 * MIB)
    assert int(refused.value.details["used"]) >= 80 * MIB
    assert in_kernel(host) == promised(limits)
    assert (await host.client.inspect()).slots[0].limits == limits
    await host.client.write_input("task", 0, b"!")
    await eventually(lambda: host.output() == "holds\nless\n", "it has given half of it back")
    await host.client.resize_slot(smaller)
    assert in_kernel(host) == promised(smaller)
    assert alive(pid)
    assert (await host.client.usage()).slots[0].oom_kills == 0


async def test_nobody_dies_of_a_change_that_is_refused(host: Host) -> None:
    """A task allocates more and more memory while a smaller size of its slot is requested
    repeatedly.
    """
    limits = await host.slot(memory_bytes=256 * MIB)
    grow = (
        "import time\nheld = []\nwhile len(held) < 180:\n"
        " held.append(bytearray(b'x') * (1 << 20)); print(len(held), flush=True)\n"
        " time.sleep(0.01)\ntime.sleep(600)"
    )
    pid = await host.start("", argv=python(grow))
    await eventually(lambda: host.output().count("\n") >= 64, "it has more than it is to have")
    refused = 0
    while host.output().count("\n") < 180:
        with pytest.raises(FinegrainError) as answer:
            await host.client.resize_slot(replace(limits, memory_bytes=64 * MIB))
        assert answer.value.reason is Reason.BELOW_USE
        refused += 1
    assert refused > 5
    assert alive(pid)
    assert in_kernel(host) == promised(limits)
    assert (await host.client.usage()).slots[0].oom_kills == 0


async def test_page_cache_makes_room(host: Host, place: Path) -> None:
    limits = await host.slot(memory_bytes=256 * MIB)
    pid = await host.start("", argv=python(READER.format(file=place / "big", mib=180)))
    await eventually(lambda: host.output() == "cached\n", "the file is written")
    usage = group_of(host, "memory") / "memory.usage_in_bytes"
    assert int(usage.read_text()) > 100 * MIB
    await host.client.resize_slot(replace(limits, memory_bytes=48 * MIB))
    assert int(usage.read_text()) <= 48 * MIB
    assert alive(pid)
    assert (await host.client.usage()).slots[0].oom_kills == 0


@pytest.mark.full
async def test_a_spinners_rate_follows_its_quota(host: Host) -> None:
    low, high = SMALL_QUOTAS_MILLI
    limits = await host.slot(cpu_milli=low)
    pid = await host.start("while :; do :; done")
    for cpu_milli in (low, high, low):
        await host.client.resize_slot(replace(limits, cpu_milli=cpu_milli))
        await assert_quota_holds(group_of(host, "cpu"), cpu_milli)
    assert alive(pid)


@pytest.mark.full
async def test_a_helper_killed_anywhere_in_a_resize_ends_with_one_size_in_kernel_and_record(
    host: Host, place: Path
) -> None:
    """The caller repeats the call, as the front does; meanwhile page cache keeps the kernel
    busy.
    """
    rng = random.Random(4)
    small = await host.slot(cpu_milli=300, memory_bytes=48 * MIB)
    big = replace(small, cpu_milli=900, memory_bytes=384 * MIB)
    pid = await host.start("", argv=python(READER.format(file=place / "big", mib=300)))
    await eventually(lambda: host.output() == "cached\n", "the file is written")
    await host.client.resize_slot(big)
    for turn in range(12):
        wanted = (small, big)[turn % 2]
        resize = asyncio.create_task(host.client.resize_slot(wanted))
        await asyncio.sleep(rng.choice((0.0, 0.002, 0.005, 0.01, 0.02, 0.04)))
        host.kill_helper()
        host.restart_helper()
        await resize
        assert in_kernel(host) == promised(wanted)
        assert (await host.client.inspect()).slots[0].limits == wanted
        record = read_json(host.state / "slots" / "slot.1.json")
        assert record is not None
        assert (record["limits"]["memory_bytes"], record["to"]) == (wanted.memory_bytes, None)
    assert alive(pid)
    assert (await host.client.usage()).slots[0].oom_kills == 0


async def test_a_helper_that_comes_back_alone_finishes_by_itself(host: Host, place: Path) -> None:
    """The call is not repeated, because the front died together with the helper."""
    big = await host.slot(memory_bytes=256 * MIB)
    await host.start("sleep 60")
    small = replace(big, memory_bytes=32 * MIB)
    record = read_json(host.state / "slots" / "slot.1.json")
    assert record is not None
    host.kill_helper()
    unfinished = record | {"to": record["limits"] | {"memory_bytes": small.memory_bytes}}
    (host.state / "slots" / "slot.1.json").write_text(json.dumps(unfinished))
    host.restart_helper()
    other = await HelperClient.connect(host.config.socket_path)
    await eventually(lambda: in_kernel(host) == promised(small), "it has gone on")
    assert (await other.inspect()).slots[0].limits == small
    await other.close()
