"""Measures what the whole host uses: cpus, memory, swap, disks, network, load and temperatures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from finegrain.cpuset import CpuSet
from finegrain.values.usage import HostUsage, Temperature
from task_executor.host.cpu_times import busy_usec

SENSORS_MAX: Final = 64
"""Largest number of temperature sensors in one measurement."""

SENSORS_S: Final = 30.0
"""Time between two readings of the temperatures, because some sensors answer slowly."""


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters of the kernel that only rise, and the time when they were read."""

    at_s: float
    busy_usec: dict[int, int]
    disk_read: int = 0
    disk_write: int = 0
    received: int = 0
    sent: int = 0


class HostMeter:
    """Measures the use of this host. Rates are averages since the previous measurement.

    Args:
        directory: a directory on the file system whose size and use are reported.
        clock: a function that returns the present time in seconds. The time must only rise.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._last = self._counters()
        self._temperatures: tuple[Temperature, ...] = ()
        self._temperatures_at_s = -SENSORS_S

    def measure(self) -> HostUsage:
        """Returns the present use. A value that this host does not report is 0."""
        last, now = self._last, self._counters()
        self._last = now
        elapsed_s = max(now.at_s - last.at_s, 0.001)

        def rate(before: int, after: int) -> int:
            # a counter begins at 0 again if its device was replaced
            return round(max(after - before, 0) / elapsed_s)

        busy = {
            cpu: max(usec - last.busy_usec.get(cpu, usec), 0) for cpu, usec in now.busy_usec.items()
        }
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        disk_total, disk_used = self._disk()
        load = os.getloadavg()
        return HostUsage(
            cpu_milli=round(sum(busy.values()) / elapsed_s / 1_000),
            cpus=str(CpuSet(busy)),
            cpu_busy_percent=tuple(
                min(round(busy[cpu] / elapsed_s / 10_000), 100) for cpu in sorted(busy)
            ),
            memory_total_bytes=memory.total,
            # The meaning of psutil's `used` differs between its versions. So all memory that is not
            # available to new programs counts as used.
            memory_used_bytes=memory.total - memory.available,
            swap_total_bytes=swap.total,
            swap_used_bytes=swap.used,
            disk_total_bytes=disk_total,
            disk_used_bytes=disk_used,
            disk_read_bytes_per_second=rate(last.disk_read, now.disk_read),
            disk_write_bytes_per_second=rate(last.disk_write, now.disk_write),
            network_receive_bytes_per_second=rate(last.received, now.received),
            network_transmit_bytes_per_second=rate(last.sent, now.sent),
            load_1m=round(load[0], 2),
            load_5m=round(load[1], 2),
            load_15m=round(load[2], 2),
            temperatures=self._sensors(now.at_s),
        )

    def _counters(self) -> _Counters:
        disks = psutil.disk_io_counters()
        interfaces = psutil.net_io_counters(pernic=True)
        outside = [each for name, each in interfaces.items() if name != "lo"]
        return _Counters(
            at_s=self._clock(),
            busy_usec=busy_usec(),
            # `disks` is None if the host has no disks
            disk_read=disks.read_bytes if disks else 0,
            disk_write=disks.write_bytes if disks else 0,
            received=sum(each.bytes_recv for each in outside),
            sent=sum(each.bytes_sent for each in outside),
        )

    def _disk(self) -> tuple[int, int]:
        try:
            found = psutil.disk_usage(str(self._directory))
        except OSError:
            return 0, 0
        return found.total, found.used

    def _sensors(self, now_s: float) -> tuple[Temperature, ...]:
        if now_s - self._temperatures_at_s >= SENSORS_S:
            self._temperatures_at_s = now_s
            self._temperatures = tuple(
                Temperature(f"{chip}/{sensor.label or number}", round(sensor.current, 1))
                for chip, sensors in sorted(psutil.sensors_temperatures().items())
                for number, sensor in enumerate(sensors)
            )[:SENSORS_MAX]
        return self._temperatures
