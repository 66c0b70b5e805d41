"""Keeps samples of each resource group for the last hour: the amounts of its slots, and its shares.
The samples are in memory only. So after a start, the resource manager has no samples.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress

from finegrain.errors import Unavailable
from finegrain.rpc.wire import timestamp_ms_to_proto
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.groups import GroupView, group_views
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.state import State
from resource_manager.service.runner import Runner

WINDOW_MS = 3_600_000
"""Age of the oldest sample."""

STEP_S = 60.0
"""Time between two samples."""

GROUPS_MAX = 2_000
"""Number of groups that have samples. A group needs about 3 KB."""

_NUMBERS = 6  # in each sample: time, cpu, memory, two shares, waiting requests
_MEMORY = (
    "memory_bytes",
    "task_heap_memory_bytes",
    "task_off_heap_memory_bytes",
    "managed_memory_bytes",
    "network_memory_bytes",
)


class GroupUse:
    """The samples of all groups."""

    def __init__(self) -> None:
        self._samples: dict[str, array[float]] = {}

    def add(self, views: Sequence[GroupView], time_ms: int) -> None:
        """Adds one sample of each group, and drops deleted groups.

        A group that has no slot and no request, and had none in the last hour, gets no sample.
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
            )
            for time_ms, cpu_milli, memory_bytes, share_now, share_entitled, waiting in rows
        ]


async def sample_groups(runner: Runner, use: GroupUse, clock: Callable[[], Instant]) -> None:
    """Adds samples until the task is cancelled. Adds no samples while this resource manager does
    not lead.

    The cost of a sample is linear in the number of groups.
    """

    def views(state: State) -> tuple[list[GroupView], int]:
        at = clock()
        state.flows.advance(at.monotonic_ms)
        return group_views(state.flows, state.groups, {}), at.time_ms

    while True:
        with suppress(Unavailable):
            use.add(*await runner.read(views))
        await asyncio.sleep(STEP_S)
