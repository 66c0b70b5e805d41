"""Sets the gauges of resource groups. Each group has a series, but jobs have none."""

from __future__ import annotations

from collections.abc import Iterable

from finegrain.devices.device import GPU_MEMORY
from finegrain.resources import (
    CPU_MILLI,
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    devices_or_bytes,
)
from resource_manager.engine.explain.groups import GroupView
from resource_manager.engine.fairness.quotas import SLOTS
from resource_manager.service.group_use import GroupUse
from resource_manager.service.metrics import ResourceManagerMetrics


def observe_groups(
    metrics: ResourceManagerMetrics, views: Iterable[GroupView], use: GroupUse, time_ms: int
) -> None:
    """Sets the gauges of all groups.

    Series of deleted groups disappear.

    Args:
        metrics: the gauges.
        views: all groups.
        use: the samples of groups.
        time_ms: the current time of the wall clock, in milliseconds.
    """
    for gauge in (
        metrics.group_weight,
        metrics.group_entitled,
        metrics.group_share,
        metrics.group_service,
        metrics.group_pending,
        metrics.group_oldest_wait,
        metrics.group_slots,
        metrics.group_jobs,
        metrics.group_cpu_cores,
        metrics.group_memory_bytes,
        metrics.group_slot_limits,
        metrics.group_extended,
        metrics.group_device_units,
        metrics.group_device_memory_bytes,
    ):
        gauge.clear()
    for view in views:
        _observe(metrics, view, time_ms)
        cpu_milli, memory_bytes = use.measured_now(view.group.name) or (0, 0)
        metrics.group_cpu_cores.labels(view.group.name, "measured").set(cpu_milli / 1_000)
        metrics.group_memory_bytes.labels(view.group.name, "measured").set(memory_bytes)


def _observe(metrics: ResourceManagerMetrics, view: GroupView, time_ms: int) -> None:
    group, flow, name = view.group, view.flow, view.group.name
    oldest_ms = flow.oldest_wait_time_ms
    for gauge, value in (
        (metrics.group_weight, group.weight),
        (metrics.group_entitled, view.share_entitled),
        (metrics.group_share, flow.share_now),
        (metrics.group_service, flow.service),
        (metrics.group_pending, view.waiting),
        (metrics.group_slots, view.running),
        (metrics.group_jobs, view.jobs),
        (
            metrics.group_oldest_wait,
            0 if oldest_ms is None else max(0, time_ms - oldest_ms) / 1_000,
        ),
    ):
        gauge.labels(name).set(value)
    # A group without slots gets series with the value 0, instead of no series.
    used = {CPU_MILLI: 0, MEMORY_BYTES: 0} | dict(view.used)
    for state, amounts in (("used", used), ("minimum", group.minimum), ("maximum", group.maximum)):
        for dimension, amount in amounts.items():
            if dimension == CPU_MILLI:
                metrics.group_cpu_cores.labels(name, state).set(amount / 1_000)
            elif dimension == MEMORY_BYTES:
                metrics.group_memory_bytes.labels(name, state).set(amount)
            elif dimension == SLOTS:
                metrics.group_slot_limits.labels(name, state).set(amount)
            elif dimension == DEVICE_PREFIX + GPU_MEMORY:
                metrics.group_device_memory_bytes.labels(name, state).set(amount)
            elif dimension.startswith(DEVICE_PREFIX):
                of = dimension.removeprefix(DEVICE_PREFIX)
                metrics.group_device_units.labels(name, of, state).set(devices_or_bytes(of, amount))
            else:
                resource = dimension.removeprefix(EXTENDED_PREFIX)
                metrics.group_extended.labels(name, resource, state).set(amount)
