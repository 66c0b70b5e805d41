"""A slot changes its size under systemd: the kernel enforces the new limits, and the task goes on.

A size below the used memory is refused. A daemon that is killed during the change restarts and
completes it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import finegrain_client as fg
from finegrain_client.blocking import Slot
from tests.systemd_host.machine import (
    FRONT,
    HELPER,
    alive,
    eventually,
    is_active,
    kill_now,
    limit,
    on_v2,
    slot_groups,
    start_ticks,
)
from tests.systemd_host.stories import ANSWER_S, slot_of

# Holds 20 MiB, fills the page cache of its slot, and then spins.
BUSY = """
import os
held = bytearray(b"x") * (20 << 20)
with open("cache", "wb") as file:
    for _ in range(60):
        file.write(held[: 1 << 20])
    os.fsync(file.fileno())
print("ready", flush=True)
while True:
    pass
"""
BIG = (500, 128)
SMALL = (200, 48)
BELOW_USE = (100, 16)


def a_slot_changes_its_size(_program: Path) -> None:
    """The slot grows and shrinks, but not below the used memory; its cpu time follows the quota."""
    with slot_of(fg.SlotSpec(cpu_milli=BIG[0], memory_bytes=BIG[1] * fg.MIB)) as slot:
        pid = _busy(slot)
        for size in (SMALL, (900, 192), SMALL):
            _resize(slot, size)
            assert enforced(pid) == size
            told = slot.status
            assert (told.profile.cpu_milli, told.memory_bytes // fg.MIB) == size
        try:
            _resize(slot, BELOW_USE)
        except fg.ResizeRefused as refused:
            print(f"   {refused}")
        else:
            raise AssertionError(f"{BELOW_USE} is below what the task holds")
        assert enforced(pid) == SMALL
        _rate_is(pid, 0.2)
        _resize(slot, BIG)
        _rate_is(pid, 0.5)
        assert alive(pid)
        assert oom_kills(pid) == 0


def a_resize_survives_what_is_killed_in_it(_program: Path) -> None:
    """Front, helper or both are killed during a change: the kernel has the new size afterwards."""
    with slot_of(fg.SlotSpec(cpu_milli=BIG[0], memory_bytes=BIG[1] * fg.MIB)) as slot:
        pid = _busy(slot)
        who = start_ticks(pid)
        victims: list[tuple[str, ...]] = [(FRONT,), (HELPER,), (FRONT, HELPER)]
        for turn, units in enumerate(victims * 2):
            size = (SMALL, BIG)[turn % 2]
            began = time.monotonic()
            asked = threading.Thread(target=_resize, args=(slot, size))
            asked.start()
            time.sleep(0.1 * turn)
            kill_now(*units)
            asked.join(ANSWER_S)
            assert not asked.is_alive(), "the change was never confirmed"
            assert enforced(pid) == size
            print(f"   {' and '.join(units)}: {time.monotonic() - began:.1f} s")
            eventually(lambda: is_active(FRONT) and is_active(HELPER), "both are back")
        assert start_ticks(pid) == who
        assert oom_kills(pid) == 0


def _busy(slot: Slot) -> int:
    """Starts the task, waits until it has filled its memory, and returns its pid."""
    said: list[bytes] = []
    task = slot.run(
        [sys.executable, "-I", "-S", "-c", BUSY], output=lambda chunk: said.append(chunk.data)
    )
    eventually(lambda: b"ready" in b"".join(said), "it has its memory")
    return task.pid


def _resize(slot: Slot, size: tuple[int, int]) -> None:
    slot.resize(cpu_milli=size[0], memory_bytes=size[1] * fg.MIB, timeout_s=ANSWER_S)


def enforced(pid: int) -> tuple[int, int]:
    """Returns the quota (in thousandths of a core) and the memory (in MiB) of the slot of a
    process. Asserts that the slot's other limits agree with them.
    """
    memory = int(limit(pid, "memory.max", "memory/memory.limit_in_bytes"))
    if on_v2():
        assert limit(pid, "memory.high", "") == "max"
    else:
        assert int(limit(pid, "", "memory/memory.memsw.limit_in_bytes")) == memory
    quota = int(limit(pid, "cpu.max", "cpu/cpu.cfs_quota_us").split()[0]) // 100
    weight = int(limit(pid, "cpu.weight", "cpu/cpu.shares"))
    assert weight == (quota // 10 if on_v2() else quota * 1024 // 1000)
    return quota, memory // fg.MIB


def oom_kills(pid: int) -> int:
    text = limit(pid, "memory.events", "memory/memory.oom_control")
    return int(dict(line.rpartition(" ")[::2] for line in text.splitlines())["oom_kill"])


def _rate_is(pid: int, cores: float) -> None:
    """Asserts the cpu time of the slot over 6 s; an emulated host may give it less, but never
    more.
    """
    before, began = _used_s(pid), time.monotonic()
    time.sleep(6)
    share = (_used_s(pid) - before) / (time.monotonic() - began)
    print(f"   used {share:.2f} of a core with a quota of {cores:.2f}")
    assert cores * 0.4 < share < cores * 1.15


def _used_s(pid: int) -> float:
    if on_v2():
        return int(limit(pid, "cpu.stat", "").split()[1]) / 1e6
    return int((slot_groups(pid)["cpuacct"] / "cpuacct.usage").read_text()) / 1e9


STORIES: tuple[Callable[[Path], None], ...] = (
    a_slot_changes_its_size,
    a_resize_survives_what_is_killed_in_it,
)
