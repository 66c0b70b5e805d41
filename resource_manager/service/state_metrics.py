"""Sets the gauges of the cluster from the engine's state, in reads between batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from finegrain.resources import CPU_MILLI, EXTENDED_PREFIX, MEMORY_BYTES
from finegrain.v1 import slots_pb2
from finegrain.values.states import ExecutorState
from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.state import State
from resource_manager.service.device_metrics import device_gauges, observe_devices
from resource_manager.service.group_metrics import observe_groups
from resource_manager.service.group_use import GroupUse
from resource_manager.service.groups_service import views_at
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner

HOSTS_AT_ONCE = 50
"""Number of executors whose gauges one read sets. Each executor has about 20 series."""


async def observe_state(
    metrics: ResourceManagerMetrics,
    runner: Runner,
    measured: MeasuredUse,
    group_use: GroupUse,
    clock: Callable[[], Instant],
) -> None:
    """Sets every gauge that follows from the state, in several reads.

    Series of deleted executors disappear.

    Args:
        metrics: the gauges.
        runner: reads the state.
        measured: the measured use of the executors.
        group_use: the samples of groups.
        clock: returns the current time.
    """
    names = await runner.read_in_slices(
        lambda state: observe_cluster(metrics, state, group_use, clock)
    )
    # Use small reads, so that a scrape of a large cluster does not delay the writer.
    for start in range(0, len(names), HOSTS_AT_ONCE):
        some = names[start : start + HOSTS_AT_ONCE]
        await runner.read(partial(observe_hosts, metrics, some, measured, clock))


def observe_cluster(
    metrics: ResourceManagerMetrics,
    state: State,
    group_use: GroupUse,
    clock: Callable[[], Instant],
) -> Paused[list[str]]:
    """Sets the gauges of the cluster, and clears the gauges of the executors.

    Args:
        metrics: the gauges.
        state: the engine's state.
        group_use: the samples of groups.
        clock: returns the current time.

    Returns:
        All executors, for `observe_hosts`.
    """
    view = yield from cluster_view(state)
    groups = yield from views_at(state, clock)
    yield
    # The code must not pause from here on. Otherwise a scrape could see a gauge that was cleared
    # but not set again.
    at = clock()
    metrics.jobs.set(view.jobs)
    metrics.executors.clear()
    for name, count in view.executors.items():
        metrics.executors.labels(name).set(count)
    metrics.pending.clear()
    for reason, count in view.pending_requests.items():
        metrics.pending.labels(reason).set(count)
    metrics.oldest_pending.set(_oldest_pending_s(state, at))
    _observe_reservations(metrics, state, at)
    observe_groups(metrics, groups, group_use, at.time_ms)
    metrics.provided_executors.clear()
    provided = Counter((each.shape, each.state.lower()) for each in state.provisions.values())
    for (shape, name), count in provided.items():
        metrics.provided_executors.labels(shape, name).set(count)
    for gauge in (
        metrics.executor_up,
        metrics.heartbeat_age,
        metrics.slots,
        metrics.cpu_cores,
        metrics.memory_bytes,
        metrics.extended,
        *device_gauges(metrics),
    ):
        gauge.clear()
    return list(state.hosts)


def observe_hosts(
    metrics: ResourceManagerMetrics,
    names: Iterable[str],
    measured: MeasuredUse,
    clock: Callable[[], Instant],
    state: State,
) -> None:
    """Sets the gauges of some executors. Skips deleted executors.

    Args:
        metrics: the gauges.
        names: the executors.
        measured: the measured use of the executors.
        clock: returns the current time.
        state: the engine's state.
    """
    at = clock()
    for name in names:
        if (host := state.hosts.get(name)) is not None:
            _observe_host(metrics, host, measured.of_executor(name), at)


def _observe_host(
    metrics: ResourceManagerMetrics, host: Host, used: slots_pb2.UsageReport, at: Instant
) -> None:
    executor, name = host.executor, host.host_id
    known, on_host = executor.registration, used.host
    metrics.executor_up.labels(name).set(executor.state is ExecutorState.ACTIVE)
    age_ms = max(0, at.monotonic_ms - executor.report_at_ms)
    metrics.heartbeat_age.labels(name).set(age_ms / 1000)
    metrics.slots.labels(name).set(len(host.slots))
    used_amounts = {CPU_MILLI: used.cpu_milli, MEMORY_BYTES: used.memory_bytes}
    for state, amounts in (
        ("total", host.total),
        ("reserved", known.reserved),
        ("allocated", host.booked),
        ("used", used_amounts),
        (
            "host_used",
            {CPU_MILLI: on_host.cpu_milli, MEMORY_BYTES: on_host.memory_used_bytes},
        ),
    ):
        metrics.set_amounts(name, state, amounts)
    for dimension, total in host.total.items():
        if dimension.startswith(EXTENDED_PREFIX):
            resource = dimension.removeprefix(EXTENDED_PREFIX)
            metrics.extended.labels(name, resource, "total").set(total)
            allocated = host.booked.get(dimension, 0)
            metrics.extended.labels(name, resource, "allocated").set(allocated)
    observe_devices(metrics, host)


def _observe_reservations(metrics: ResourceManagerMetrics, state: State, at: Instant) -> None:
    reservations = state.reservations
    since_ms = (each.since_time_ms for each in reservations.by_number.values())
    oldest_ms = min(since_ms, default=at.time_ms)
    metrics.reservations.set(len(reservations))
    metrics.oldest_reservation.set(max(0, at.time_ms - oldest_ms) / 1_000)
    metrics.reserved_executors.set(len(reservations.on_host))
    metrics.revoked_slots.set(sum(len(host.revoked) for host in state.hosts.values()))
    held = [state.hosts[name] for name in reservations.on_host if name in state.hosts]
    # Capacity that is free but not spare is reserved.
    idle_milli = sum(
        host.free().get(CPU_MILLI, 0) - host.spare().get(CPU_MILLI, 0) for host in held
    )
    metrics.reserved_free_cpu_cores.set(idle_milli / 1_000)


def _oldest_pending_s(state: State, at: Instant) -> float:
    # The oldest request of each scheduling class is at the head of its queue.
    heads = [head for shape in state.queue.classes() if (head := shape.head()) is not None]
    oldest = min((state.requests.at(head).create_time_ms for head in heads), default=None)
    return 0.0 if oldest is None else max(0, at.time_ms - oldest) / 1000
