"""Measures the CPU and memory that slots and the whole host use, for reports and metrics. Placement
ignores these measurements.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from finegrain.v1 import slots_pb2
from finegrain.values.usage import HostUsage
from task_executor.engine.slots import SlotKey
from task_executor.host.helper_messages import Usage
from task_executor.host.host_use import HostMeter
from task_executor.service.encoding import write
from task_executor.service.slot_keeper import SlotKeeper

MEASURE_S_MIN = 1.0
ANSWER_S_MAX = 1.0
SEND_S_MIN = 4.0
"""Shortest time between two reports with measurements. Without this limit, a busy executor would
send measurements many times a second.
"""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Usage of all slots together, of each slot, and of the whole host.

    `counted` is False if the kernel does not measure the usage of slots (isolation none).
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    counted: bool = False
    host: HostUsage | None = None
    slots: tuple[slots_pb2.SlotUsage, ...] = ()


class Meter:
    """Measures the usage at most once per second, and keeps the last result."""

    def __init__(
        self,
        keeper: SlotKeeper,
        host: HostMeter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keeper = keeper
        self._host = host
        self._clock = clock
        self._measured_at = -MEASURE_S_MIN
        self._sent_at = -SEND_S_MIN
        self._cpu_usec: dict[SlotKey, int] = {}
        self.latest = UsageSample()

    async def report(self) -> slots_pb2.UsageReport | None:
        """Returns the usage for a slot report; None: the last report had measurements, and is not
        old.
        """
        now = self._clock()
        if now - self._sent_at < SEND_S_MIN:
            return None
        self._sent_at = now
        await self.refresh()
        latest = self.latest
        return slots_pb2.UsageReport(
            cpu_milli=latest.cpu_milli,
            memory_bytes=latest.memory_bytes,
            tasks=self._keeper.tasks.running(),
            host=None if latest.host is None else write(slots_pb2.HostUsage, latest.host),
            slots=latest.slots,
        )

    async def refresh(self) -> None:
        """Measures again if the last result is old enough.

        If the helper does not answer in time, the meter keeps the last result of the slots.
        """
        now = self._clock()
        elapsed_s = now - self._measured_at
        if elapsed_s < MEASURE_S_MIN:
            return
        # Set the time before the call, so that a slow helper is not called again at once.
        self._measured_at = now
        host = self._host.measure()
        if not len(self._keeper.table):
            self.latest = UsageSample(counted=self.latest.counted, host=host)
            self._cpu_usec = {}
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
        self.latest = self._sample(usage, elapsed_s, host)
        self._keeper.operators.measured(
            {
                task.task_id: task.memory_current_bytes
                for task in usage.tasks
                if task.memory_current_bytes is not None
            }
        )

    def _sample(self, usage: Usage, elapsed_s: float, host: HostUsage) -> UsageSample:
        before, self._cpu_usec = self._cpu_usec, {}
        slots = []
        for slot in usage.slots:
            if slot.memory_current_bytes is None:
                continue
            key, usec = SlotKey(slot.allocation_id, slot.generation), slot.cpu_usec or 0
            self._cpu_usec[key] = usec
            # If a slot is new since the last measurement, all its CPU time is from this interval.
            used_usec = max(usec - before.get(key, 0), 0)
            slots.append(
                slots_pb2.SlotUsage(
                    allocation_id=slot.allocation_id,
                    generation=slot.generation,
                    cpu_milli=round(used_usec / elapsed_s / 1000),
                    memory_bytes=slot.memory_current_bytes,
                    pids=slot.pids or 0,
                )
            )
        return UsageSample(
            cpu_milli=sum(each.cpu_milli for each in slots),
            memory_bytes=sum(each.memory_bytes for each in slots),
            counted=bool(slots),
            host=host,
            slots=tuple(slots),
        )
