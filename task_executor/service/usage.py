"""Measures the CPU and memory that slots use, for reports and metrics. Placement ignores these
measurements.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from finegrain.v1 import slots_pb2
from task_executor.engine.slots import SlotKey
from task_executor.service.slot_keeper import SlotKeeper

MEASURE_S_MIN = 1.0
ANSWER_S_MAX = 1.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Usage of all slots together.

    `counted` is False if the kernel does not measure the usage (isolation none).
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    counted: bool = False


class Meter:
    """Measures the usage at most once per second, and keeps the last result."""

    def __init__(self, keeper: SlotKeeper, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keeper = keeper
        self._clock = clock
        self._measured_at = -MEASURE_S_MIN
        self._cpu_usec: dict[SlotKey, int] = {}
        self.latest = UsageSample()

    async def report(self) -> slots_pb2.UsageReport:
        """Returns the usage for a slot report."""
        await self.refresh()
        return slots_pb2.UsageReport(
            cpu_milli=self.latest.cpu_milli,
            memory_bytes=self.latest.memory_bytes,
            tasks=self._keeper.tasks.running(),
        )

    async def refresh(self) -> None:
        """Measures again if the last result is old enough.

        If the helper does not answer in time, the meter keeps the last result.
        """
        now = self._clock()
        elapsed_s = now - self._measured_at
        if elapsed_s < MEASURE_S_MIN:
            return
        # Set the time before the call. So a slow helper is not called again at once.
        self._measured_at = now
        if not len(self._keeper.table):
            self.latest, self._cpu_usec = UsageSample(counted=self.latest.counted), {}
            return
        try:
            # use a short timeout, because a report waits for this call
            async with asyncio.timeout(ANSWER_S_MAX):
                usage = await self._keeper.helper.usage()
        except (FinegrainError, TimeoutError) as error:
            log.warning(
                "usage_not_measured", error=str(error) or "the helper is slow or not connected"
            )
            return
        counters = {
            SlotKey(slot.allocation_id, slot.generation): slot.cpu_usec
            for slot in usage.slots
            if slot.cpu_usec is not None
        }
        # If a slot is new since the last measurement, all its CPU time is from this interval.
        used_usec = sum(max(usec - self._cpu_usec.get(key, 0), 0) for key, usec in counters.items())
        memory = [s.memory_current_bytes for s in usage.slots if s.memory_current_bytes is not None]
        self.latest = UsageSample(
            cpu_milli=round(used_usec / elapsed_s / 1000),
            memory_bytes=sum(memory),
            counted=bool(memory),
        )
        self._cpu_usec = counters
        self._keeper.operators.measured(
            {
                task.task_id: task.memory_current_bytes
                for task in usage.tasks
                if task.memory_current_bytes is not None
            }
        )
