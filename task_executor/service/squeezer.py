"""Gives best-effort slots fewer cpus, or less CPU time, while other slots use much CPU.

Once a second, `Squeezer` measures how busy the cpus are and how much CPU time each slot uses. From
these numbers, `task_executor.engine.squeeze` computes the cpus that the best-effort slots may use,
or the quota of each best-effort slot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from finegrain.cpu_policy import QosClass
from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import Slot, SlotKey
from task_executor.engine.squeeze import (
    CpuLocation,
    budget_milli,
    cpu_count,
    quota_milli,
    quotas,
    squeeze,
)
from task_executor.host.cpu_times import busy_usec
from task_executor.host.helper_messages import Usage

INTERVAL_S = 1.0
SPARE_STEPS = 2  # consecutive steps with spare CPU before best-effort slots get more cpus

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SqueezeRule:
    """Limits that decide how many cpus best-effort slots get, in percent of the executor's cpus."""

    # best-effort slots lose cpus when a larger part of the cpus is busy
    threshold_percent: int = 65
    minimum_percent: int = 0  # best-effort slots always keep at least this part of the cpus
    # True if the slots get quotas of CPU time, False if they are confined to fewer cpus
    by_quota: bool = False


@dataclass(frozen=True, slots=True)
class _Counters:
    """The CPU time that each cpu and each slot has used until one moment, in microseconds."""

    at: float  # the moment, in seconds of the clock
    cpus: Mapping[int, int]
    slots: Mapping[SlotKey, int]


class Squeezer:
    """Confines best-effort slots to fewer cpus, depending on the measured CPU use.

    Args:
        table: the slots of this executor, and the ledger of their cpus.
        locations: the core, NUMA node and package of each cpu of the host.
        rule: the limits that decide how many cpus best-effort slots get.
        limit_cpu: a function that sets the quotas of slots, and removes the quotas of all other
            slots.
        usage: the call `usage` of the helper, which returns the CPU time that each slot has used.
        update_conditions: a function that moves slots to the present cpus for best-effort slots. It
            is called with `squeezed=CPUS` when these cpus change (None: all cpus).
        cpu_times: a function that returns the busy time of each cpu, in microseconds.
        clock: a function that returns the current time in seconds.
    """

    def __init__(
        self,
        table: SlotTable,
        locations: tuple[CpuLocation, ...],
        rule: SqueezeRule,
        *,
        usage: Callable[[], Awaitable[Usage]],
        limit_cpu: Callable[[Mapping[SlotKey, int]], Awaitable[None]],
        update_conditions: Callable[..., Awaitable[None]],
        cpu_times: Callable[[], Mapping[int, int]] = busy_usec,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._locations = locations
        self._rule = rule
        self._usage = usage
        self._limit_cpu = limit_cpu
        self._quota: int | None = None  # for all best-effort slots together; None: no quota
        self._update_conditions = update_conditions
        self._cpu_times = cpu_times
        self._clock = clock
        self._before: _Counters | None = None
        self._last_warning = ""
        self._spare_steps = 0  # consecutive steps with spare CPU

    async def run(self) -> None:
        """Calls `step` once per interval, until the task is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.step()
            except (FinegrainError, OSError) as error:
                self._warn_once(str(error))

    async def step(self) -> None:
        """Measures CPU use, then gives best-effort slots fewer or more cpus.

        If the host has no best-effort slots, this method measures nothing.

        Raises:
            FinegrainError: the helper does not answer or rejects a call.
            OSError: the CPU times of the kernel cannot be read.
        """
        limits = {
            slot.spec.key: slot.spec.cpu_limit_milli
            for slot in self._table
            if slot.spec.is_best_effort
        }
        if not limits:
            self._before = self._quota = None
            await self._confine(None)
            await self._limit_cpu({})
            return
        now = await self._count()
        # CPU use is the difference between two measurements, so the first step only measures.
        before, self._before = self._before, now
        if now is None or before is None or now.at <= before.at:
            return
        budget = self._budget(before, now)
        if self._rule.by_quota:
            await self._set_quotas(budget, limits, host_cpus=len(now.cpus))
            return
        ledger = self._table.cpus
        pool, squeezed = ledger.pools.best_effort, ledger.conditions.squeezed
        previous = pool if squeezed is None else pool & squeezed
        count = cpu_count(budget, previous=len(previous), host_cpus=len(now.cpus))
        self._spare_steps = self._spare_steps + 1 if count > len(previous) else 0
        if 0 < self._spare_steps < SPARE_STEPS:
            # wait for more steps, because one second with less load is no reason to move slots
            return
        lsr_cpus = union(self._dedicated_cpus(slot, QosClass.LSR) for slot in self._table)
        # First give best-effort slots the cpus that the kubelet reserves. No slot can have these
        # cpus as dedicated cpus.
        kubelet_reserved = ledger.conditions.kubelet_policy.reserved_cpus or EMPTY
        picked = CpuSet(
            squeeze(count, self._locations, pool=pool, lsr_cpus=lsr_cpus, first=kubelet_reserved)
        )
        # If `picked` is empty, the pool is empty, and all slots stay on their cpus.
        if picked:
            await self._confine(None if picked == pool else picked)

    async def _set_quotas(
        self, budget: int, limits: Mapping[SlotKey, int], *, host_cpus: int
    ) -> None:
        """Limits the total CPU time of all best-effort slots to the budget, in thousandths of a
        cpu.
        """
        together = sum(limits.values())
        previous = together if self._quota is None else min(self._quota, together)
        quota = quota_milli(budget, previous=previous, host_cpus=host_cpus)
        self._spare_steps = self._spare_steps + 1 if quota > previous else 0
        if 0 < self._spare_steps < SPARE_STEPS:
            quota = previous
        if quota >= together:
            self._quota = None
            await self._limit_cpu({})
            return
        if quota != self._quota:
            log.debug("best_effort_squeezed", quota_milli=quota)
        self._quota = quota
        await self._limit_cpu(quotas(quota, limits))

    async def _count(self) -> _Counters | None:
        """Returns the counters; None: the kernel does not count the CPU time of slots or cpus."""
        usage = await self._usage()
        slots = {
            SlotKey(each.allocation_id, each.generation): each.cpu_usec
            for each in usage.slots
            if each.cpu_usec is not None
        }
        # If a slot has no counter, its CPU time would count as use by the system.
        if len(slots) < len(usage.slots):
            self._warn_once("the kernel does not count the CPU time of each slot on this host")
            return None
        ledger = self._table.cpus
        online = union(cpus for _, cpus in ledger.host.cpus_by_pool) - ledger.conditions.offline
        times = {cpu: usec for cpu, usec in self._cpu_times().items() if cpu in online}
        if not times:
            self._warn_once("the kernel does not count the busy time of each cpu on this host")
            return None
        self._last_warning = ""
        return _Counters(self._clock(), times, slots)

    def _budget(self, before: _Counters, now: _Counters) -> int:
        """Returns the CPU time that best-effort slots may use, in thousandths of a cpu."""
        usec_per_milli = (now.at - before.at) * 1000
        # If the value of a counter has become smaller, count 0, not a negative use.
        busy = sum(
            max(usec - before.cpus[cpu], 0) for cpu, usec in now.cpus.items() if cpu in before.cpus
        )
        # microseconds of best-effort slots (True) and of other slots (False)
        used = {True: 0, False: 0}
        for key, usec in now.slots.items():
            slot = self._table.get(key)
            # If a slot is new since the last measurement, all its CPU time is from this interval.
            used[slot is not None and slot.spec.is_best_effort] += max(
                usec - before.slots.get(key, 0), 0
            )
        capacity_milli = 1000 * len(now.cpus)
        budget = budget_milli(
            capacity_milli,
            self._rule.threshold_percent,
            others_milli=round(used[False] / usec_per_milli),
            system_milli=round(max(busy - used[True] - used[False], 0) / usec_per_milli),
            reserved_milli=1000 * len(self._table.cpus.policy.reserved_cpus & CpuSet(now.cpus)),
        )
        # Best-effort slots keep the minimum even if other slots need this CPU.
        return max(budget, capacity_milli * self._rule.minimum_percent // 100)

    async def _confine(self, squeezed: CpuSet | None) -> None:
        if self._table.cpus.conditions.squeezed != squeezed:
            log.debug("best_effort_squeezed", cpus="" if squeezed is None else str(squeezed))
            await self._update_conditions(squeezed=squeezed)

    def _dedicated_cpus(self, slot: Slot, qos: QosClass) -> CpuSet:
        assignment = slot.spec.assignment
        return assignment.cpus if assignment and assignment.qos is qos else EMPTY

    def _warn_once(self, why: str) -> None:
        """Logs a warning, unless the last warning had the same text."""
        if why != self._last_warning:
            self._last_warning = why
            log.warning("best_effort_not_squeezed", error=why)
