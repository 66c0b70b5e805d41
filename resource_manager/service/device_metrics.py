"""Fills the gauges of devices: sums for each executor, and a few series for each device.

The label for reasons has only two values, because texts of drivers and administrators would create
an unlimited number of series. `ListDevices` returns the texts.
"""

from __future__ import annotations

from collections import Counter

from prometheus_client import Gauge

from finegrain.devices.device import GPU_MEMORY
from finegrain.resources import devices_or_bytes
from resource_manager.engine.explain.devices import DeviceView, devices_of
from resource_manager.engine.hosts.host import Host
from resource_manager.service.metrics import ResourceManagerMetrics


def device_gauges(metrics: ResourceManagerMetrics) -> tuple[Gauge, ...]:
    """Returns all gauges that `observe_devices` sets."""
    return (
        metrics.device_units,
        metrics.device_memory_bytes,
        metrics.devices_unusable,
        metrics.device_info,
        metrics.device_usable,
        metrics.device_allocated,
    )


def observe_devices(metrics: ResourceManagerMetrics, host: Host) -> None:
    """Sets the gauges of an executor's devices."""
    name, views = host.host_id, devices_of(host).devices
    sums: Counter[tuple[str, str]] = Counter()
    unusable: Counter[tuple[str, str]] = Counter()
    for view in views:
        _observe_device(metrics, name, view)
        device = view.device
        if device.driver_bytes:
            sums[GPU_MEMORY, "reserved"] += device.driver_bytes
        if view.problem:
            unusable[device.type, "cordoned" if view.cordoned else "unhealthy"] += 1
        for dimension, total in device.capacity:
            # If a device has become smaller, its slots can have more than its capacity.
            allocated = view.allocated.get(dimension, 0)
            sums[dimension, "total"] += total
            sums[dimension, "allocated"] += allocated
            sums[dimension, "unusable"] += max(total - allocated, 0) if view.problem else 0
    for (dimension, state), amount in sums.items():
        if dimension == GPU_MEMORY:
            metrics.device_memory_bytes.labels(name, state).set(amount)
        else:
            units = devices_or_bytes(dimension, amount)
            metrics.device_units.labels(name, dimension, state).set(units)
    for (type_, reason), count in unusable.items():
        metrics.devices_unusable.labels(name, type_, reason).set(count)


def _observe_device(metrics: ResourceManagerMetrics, name: str, view: DeviceView) -> None:
    device = view.device
    labels = (name, device.type, str(device.minor), device.uuid)
    metrics.device_info.labels(*labels, device.model).set(1)
    metrics.device_usable.labels(*labels).set(not view.problem)
    for dimension, total in device.capacity:
        if total:
            part = view.allocated.get(dimension, 0) / total
            metrics.device_allocated.labels(*labels, dimension).set(part)
