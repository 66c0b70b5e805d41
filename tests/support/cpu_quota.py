"""Checks a cpu quota (cgroup v1) by the kernel's own counters, so that no test needs a clock."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.patience import PATIENCE_S

TOLERANCE = 0.15
PERIODS = 30
"""The kernel hands out slices in advance. With enough periods, these slices do not distort the
sum.
"""
SMALL_QUOTAS_MILLI = (20, 40)
"""Quotas that a spinning process uses up even beside forty others on two cpus."""


@dataclass(frozen=True)
class CpuCounters:
    """Counters of one group: enforcement periods, throttled periods, cpu time."""

    periods: int
    throttled: int
    used_us: float

    @classmethod
    def read(cls, group: Path) -> CpuCounters:
        """Reads the counters of `group`, which exists in the hierarchies `cpu` and `cpuacct`."""
        told = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        usage = Path(str(group).replace("/cpu/", "/cpuacct/", 1)) / "cpuacct.usage"
        used_us = int(usage.read_text()) / 1000
        return cls(int(told["nr_periods"]), int(told["nr_throttled"]), used_us)


async def await_throttling(group: Path, since: CpuCounters, periods: int = PERIODS) -> CpuCounters:
    """Waits until the group's quota was used up in `periods` periods; returns the counters."""
    end = time.monotonic() + PATIENCE_S
    while (now := CpuCounters.read(group)).throttled - since.throttled < periods:
        assert time.monotonic() < end, f"its quota does not hold it: {since}, then {now}"
        await asyncio.sleep(0.05)
    return now


async def assert_quota_holds(group: Path, cpu_milli: int) -> None:
    """Fails unless the kernel limits the spinning processes in `group` to `cpu_milli`.

    A busy machine may leave part of a period's quota unused. Such a period is not throttled, so it
    only widens the upper bound.
    """
    quota_us = int((group / "cpu.cfs_quota_us").read_text())
    period_us = int((group / "cpu.cfs_period_us").read_text())
    assert quota_us == cpu_milli * period_us // 1000
    before = CpuCounters.read(group)
    after = await await_throttling(group, before)
    # The counters may be read in the middle of a period, so allow one period at either end.
    least_us = (after.throttled - before.throttled - 1) * quota_us
    most_us = (after.periods - before.periods + 1) * quota_us
    used_us = after.used_us - before.used_us
    told = f"{used_us=} {least_us=} {most_us=}"
    assert used_us >= (1 - TOLERANCE) * least_us, told
    assert used_us <= (1 + TOLERANCE) * most_us, told
