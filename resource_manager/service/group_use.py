"""Keeps samples of each resource group for the last hour: the amounts of its slots, their measured
use, and the shares of the group. The samples are in memory only. So after a start, the resource
manager has no samples.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from finegrain.errors import Unavailable
from finegrain.rpc.wire import timestamp_ms_to_proto
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.groups import GroupView, group_views
from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.fairness.groups import in_order
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.state import State
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.runner import Runner

WINDOW_MS = 3_600_000
"""Age of the oldest sample."""

STEP_S = 60.0
"""Time between two samples."""

GROUPS_MAX = 2_000
"""Number of groups that have samples. A group needs about 4 KB."""

SLOTS_AT_ONCE = 200
"""The sum of the measured use pauses after about this many slots, which take about 0.5 ms."""

# in each sample: time, cpu, memory, two shares, waiting requests, measured cpu, measured memory
_NUMBERS = 8
_MEMORY = (
    "memory_bytes",
    "task_heap_memory_bytes",
    "task_off_heap_memory_bytes",
    "managed_memory_bytes",
    "network_memory_bytes",
)


Measured = tuple[int, int]
"""Measured use of slots: thousandths of a core, and bytes of memory."""


class GroupUse:
    """The samples of all groups."""

    def __init__(self) -> None:
        self._samples: dict[str, array[float]] = {}

    def add(
        self, views: Sequence[GroupView], time_ms: int, measured: Mapping[str, Measured] = {}
    ) -> None:
        """Adds one sample of each group, and drops deleted groups.

        A group that has no slot and no request, and had none in the last hour, gets no sample.

        Args:
            views: all groups.
            time_ms: the current time of the wall clock.
            measured: the measured use of the slots of each group.
        """
        kept: dict[str, array[float]] = {}
        for view in views:
            samples = self._samples.get(view.group.name)
            if samples is None:
                if not (view.running or view.waiting) or len(kept) >= GROUPS_MAX:
                    continue
                samples = array("d")
            if samples and samples[-_NUMBERS] > time_ms:
                # The clock was set back. The samples begin again, because their times must rise.
                samples = array("d")
            samples.extend(
                (
                    time_ms,
                    view.used.get("cpu_milli", 0),
                    sum(view.used.get(name, 0) for name in _MEMORY),
                    view.flow.share_now,
                    view.share_entitled,
                    view.waiting,
                    *measured.get(view.group.name, (0, 0)),
                )
            )
            outdated = bisect_right(samples[::_NUMBERS], time_ms - WINDOW_MS)
            del samples[: outdated * _NUMBERS]
            if view.running or view.waiting or any(samples[1::_NUMBERS]):
                kept[view.group.name] = samples
        self._samples = kept

    def of(self, name: str) -> list[cluster_pb2.UsageSample]:
        """Returns the samples of a group, the oldest first."""
        numbers = self._samples.get(name, array("d"))
        rows = zip(*(numbers[at::_NUMBERS] for at in range(_NUMBERS)), strict=True)
        return [
            cluster_pb2.UsageSample(
                sample_time=timestamp_ms_to_proto(int(time_ms)),
                cpu_milli=int(cpu_milli),
                memory_bytes=int(memory_bytes),
                share_now=share_now,
                share_entitled=share_entitled,
                waiting=int(waiting),
                measured_cpu_milli=int(measured_cpu_milli),
                measured_memory_bytes=int(measured_memory_bytes),
            )
            for (
                time_ms,
                cpu_milli,
                memory_bytes,
                share_now,
                share_entitled,
                waiting,
                measured_cpu_milli,
                measured_memory_bytes,
            ) in rows
        ]

    def measured_now(self, name: str) -> Measured | None:
        """Returns the measured use in the last sample of a group. None if there is no sample."""
        numbers = self._samples.get(name)
        return (int(numbers[-2]), int(numbers[-1])) if numbers else None


def measured_by_group(state: State, use: MeasuredUse) -> Paused[dict[str, Measured]]:
    """Adds up the last measurements of slots by group. Each group includes the groups below it.

    The cost is linear in the number of slots, about 2 us for each slot.
    """
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    read = 0
    for executor_id in list(state.hosts):
        slots = use.slots_of_executor(executor_id)
        for key, (cpu_milli, memory_bytes) in slots.items():
            slot = state.slots.get(key)
            if slot is not None:
                total = found[state.jobs[slot.job_id].group]
                total[0] += cpu_milli
                total[1] += memory_bytes
        read += len(slots)
        if read >= SLOTS_AT_ONCE:
            read = 0
            yield
    # The lowest groups come first, so that a sum is complete before it is added to the parent's.
    for group in reversed(in_order(state.groups)):
        if group.parent and group.name in found:
            total, own = found[group.parent], found[group.name]
            total[0] += own[0]
            total[1] += own[1]
    return {name: (cpu_milli, memory_bytes) for name, (cpu_milli, memory_bytes) in found.items()}


async def sample_groups(
    runner: Runner, use: GroupUse, measured: MeasuredUse, clock: Callable[[], Instant]
) -> None:
    """Adds samples until the task is cancelled. Adds no samples while this resource manager does
    not lead.

    The cost of a sample is linear in the number of groups and slots. The read pauses, so that it
    does not delay the writer.
    """

    def sample(state: State) -> Paused[tuple[list[GroupView], int, dict[str, Measured]]]:
        sums = yield from measured_by_group(state, measured)
        at = clock()
        state.flows.advance(at.monotonic_ms)
        return group_views(state.flows, state.groups, {}), at.time_ms, sums

    while True:
        with suppress(Unavailable):
            use.add(*await runner.read_in_slices(sample))
        await asyncio.sleep(STEP_S)
