"""Keeps what executors have measured on their hosts: the last report, and samples of the last hour.

The engine never reads these measurements, because placement counts booked amounts only. The
measurements are kept in memory and not in the database. So after a start, the resource manager has
no measurements until the executors report.

Reports are kept as bytes, and are parsed only when a call reads them. So a report that no call
reads costs little.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from finegrain.errors import InvalidArgument
from finegrain.ids import check_text
from finegrain.rpc.wire import check_amount, timestamp_ms_to_proto
from finegrain.v1 import cluster_pb2, slots_pb2

WINDOW_MS = 3_600_000
"""Age of the oldest sample."""

HOST_STEP_MS, SLOT_STEP_MS = 30_000, 60_000
"""Shortest time between two samples of a host, and of a slot."""

OLD_MS = 120_000
"""A report of this age no longer says what the slots use now."""

SLOTS_MAX, DEVICES_MAX, SENSORS_MAX, CPUS_MAX, TEXT_MAX = 10_000, 1_024, 64, 8_192, 4_096
"""Largest numbers of slots, devices, sensors and cpus in one report, and the largest length of a
text.
"""

_UINT32_MAX = 2**32 - 1
_KIB = 1_024

SlotId = tuple[str, int]  # a pair of allocation id and generation


@dataclass(slots=True)
class _Host:
    """The measurements of one executor.

    Attributes:
        received_ms: the time at which the last report arrived.
        report: the last report, as the executor sent it.
        by_slot: the use of each slot in `report`; None: no call has read it yet.
        times_ms: the times of the samples of the host.
        samples: four numbers for each time: cpu and memory of the slots, cpu and memory of the
            host.
        slot_times_ms: the times of the samples of slots.
        slots: by slot, two numbers for each time in `slot_times_ms` at which the slot existed:
            thousandths of a core, and KiB of memory.
    """

    received_ms: int = 0
    report: bytes = b""
    by_slot: dict[SlotId, slots_pb2.SlotUsage] | None = None
    times_ms: array[int] = field(default_factory=lambda: array("q"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    slot_times_ms: array[int] = field(default_factory=lambda: array("q"))
    slots: dict[SlotId, array[int]] = field(default_factory=dict)


class MeasuredUse:
    """The measurements of all executors.

    An executor that has not reported for an hour is dropped.

    Args:
        clock: returns the present time, in milliseconds since 1970.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        self._swept_ms = 0

    def reported(self, executor_id: str, usage: slots_pb2.UsageReport) -> None:
        """Keeps the measurements of a report. The caller has checked them with `check_usage`."""
        now_ms = self._clock()
        host = self._hosts.setdefault(executor_id, _Host())
        if now_ms < host.received_ms - HOST_STEP_MS:
            # The clock was set back. Drop all samples, because the times of samples must rise.
            host = self._hosts[executor_id] = _Host()
        host.received_ms, host.report, host.by_slot = now_ms, usage.SerializeToString(), None
        if _is_due(host.times_ms, now_ms, HOST_STEP_MS):
            on_host = usage.host
            host.times_ms.append(now_ms)
            host.samples.extend(
                (
                    usage.cpu_milli,
                    usage.memory_bytes,
                    on_host.cpu_milli,
                    on_host.memory_used_bytes,
                )
            )
            outdated = _outdated(host.times_ms, now_ms)
            del host.times_ms[:outdated], host.samples[: 4 * outdated]
        if _is_due(host.slot_times_ms, now_ms, SLOT_STEP_MS):
            _sample_slots(host, usage.slots, now_ms)
        if now_ms - self._swept_ms >= SLOT_STEP_MS:
            self._swept_ms = now_ms
            self._hosts = {
                name: each
                for name, each in self._hosts.items()
                if now_ms - each.received_ms < WINDOW_MS
            }

    def of_executor(self, executor_id: str) -> slots_pb2.UsageReport:
        """Returns the last report, without devices and slots; empty: there is no report."""
        report = self.whole_report(executor_id)
        report.ClearField("devices")
        report.ClearField("slots")
        return report

    def whole_report(self, executor_id: str) -> slots_pb2.UsageReport:
        """Returns the last report of an executor; empty: there is no report."""
        host = self._hosts.get(executor_id)
        return slots_pb2.UsageReport.FromString(host.report) if host else slots_pb2.UsageReport()

    def sum_of(self, executors: Iterable[str]) -> slots_pb2.UsageReport:
        """Returns the use of the slots of some executors together."""
        total = slots_pb2.UsageReport()
        for executor_id in executors:
            if executor_id in self._hosts:
                report = self.whole_report(executor_id)
                total.cpu_milli += report.cpu_milli
                total.memory_bytes += report.memory_bytes
                total.tasks += report.tasks
        return total

    def add_to_slots(self, slots: Iterable[slots_pb2.SlotStatus]) -> None:
        """Sets the use of each slot whose use was measured."""
        for slot in slots:
            host = self._hosts.get(slot.executor_id)
            if host is None:
                continue
            if host.by_slot is None:
                report = slots_pb2.UsageReport.FromString(host.report)
                host.by_slot = {
                    (each.allocation_id, each.generation): each for each in report.slots
                }
            found = host.by_slot.get((slot.allocation_id, slot.generation))
            if found is not None:
                slot.used.CopyFrom(
                    slots_pb2.SlotUsage(
                        cpu_milli=found.cpu_milli, memory_bytes=found.memory_bytes, pids=found.pids
                    )
                )

    def slots_of_executor(self, executor_id: str) -> dict[SlotId, tuple[int, int]]:
        """Returns the use of each slot in the last report: thousandths of a core, and bytes of
        memory. The result is empty if the executor has not reported for two minutes.
        """
        host = self._hosts.get(executor_id)
        if host is None or self._clock() - host.received_ms >= OLD_MS:
            return {}
        report = slots_pb2.UsageReport.FromString(host.report)
        return {
            (each.allocation_id, each.generation): (
                _bounded(each.cpu_milli),
                _bounded(each.memory_bytes // _KIB) * _KIB,
            )
            for each in report.slots
        }

    def samples_of_executor(self, executor_id: str) -> list[cluster_pb2.UsageSample]:
        """Returns the samples of an executor, the oldest first."""
        host = self._hosts.get(executor_id, _Host())
        rows = zip(host.times_ms, *(host.samples[at::4] for at in range(4)), strict=True)
        return [
            cluster_pb2.UsageSample(
                sample_time=timestamp_ms_to_proto(time_ms),
                cpu_milli=cpu_milli,
                memory_bytes=memory_bytes,
                host_cpu_milli=host_cpu_milli,
                host_memory_used_bytes=host_memory_bytes,
            )
            for time_ms, cpu_milli, memory_bytes, host_cpu_milli, host_memory_bytes in rows
        ]

    def samples_of_slot(
        self, executor_id: str, allocation_id: str, generation: int
    ) -> list[cluster_pb2.UsageSample]:
        """Returns the samples of a slot, the oldest first."""
        host = self._hosts.get(executor_id, _Host())
        numbers = host.slots.get((allocation_id, generation), array("I"))
        times_ms = host.slot_times_ms[len(host.slot_times_ms) - len(numbers) // 2 :]
        return [
            cluster_pb2.UsageSample(
                sample_time=timestamp_ms_to_proto(time_ms),
                cpu_milli=cpu_milli,
                memory_bytes=memory_kib * _KIB,
            )
            for time_ms, cpu_milli, memory_kib in zip(
                times_ms, numbers[::2], numbers[1::2], strict=True
            )
        ]


def check_usage(usage: slots_pb2.UsageReport, name: str) -> None:
    """Checks a report. Raises InvalidArgument if the report has more parts than a host can have, or
    an impossible amount.
    """
    host = usage.host
    for part, count, most in (
        ("slots", len(usage.slots), SLOTS_MAX),
        ("devices", len(usage.devices), DEVICES_MAX),
        ("host.temperatures", len(host.temperatures), SENSORS_MAX),
        ("host.cpu_busy_percent", len(host.cpu_busy_percent), CPUS_MAX),
    ):
        if count > most:
            raise InvalidArgument(f"{name}.{part}", f"{count} entries", f"at most {most}")
    for part, amount in (
        ("cpu_milli", usage.cpu_milli),
        ("memory_bytes", usage.memory_bytes),
        ("tasks", usage.tasks),
        ("host.cpu_milli", host.cpu_milli),
        ("host.memory_used_bytes", host.memory_used_bytes),
    ):
        check_amount(f"{name}.{part}", amount)
    check_text(f"{name}.host.cpus", host.cpus, longest=TEXT_MAX, empty_ok=True)
    for each in host.temperatures:
        check_text(f"{name}.host.temperatures", each.sensor, longest=TEXT_MAX, empty_ok=True)


def _is_due(times_ms: array[int], now_ms: int, step_ms: int) -> bool:
    return not times_ms or now_ms - times_ms[-1] >= step_ms


def _outdated(times_ms: array[int], now_ms: int) -> int:
    """Returns how many of the first times are older than the window."""
    return bisect_right(times_ms, now_ms - WINDOW_MS)


def _bounded(amount: int) -> int:
    return min(max(amount, 0), _UINT32_MAX)


def _sample_slots(host: _Host, slots: Iterable[slots_pb2.SlotUsage], now_ms: int) -> None:
    host.slot_times_ms.append(now_ms)
    outdated = _outdated(host.slot_times_ms, now_ms)
    del host.slot_times_ms[:outdated]
    most = 2 * len(host.slot_times_ms)
    # Slots that are not in the report have ended. So drop their samples here.
    present: dict[SlotId, array[int]] = {}
    for each in slots:
        key = (each.allocation_id, each.generation)
        numbers = host.slots.get(key)
        if numbers is None:
            numbers = array("I")
        numbers.append(_bounded(each.cpu_milli))
        numbers.append(_bounded(each.memory_bytes // _KIB))
        del numbers[: max(len(numbers) - most, 0)]
        present[key] = numbers
    host.slots = present
