"""Converts settings to the options of the daemons. If a key has no value, the daemon uses its
default.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
)
from finegrain.directories import run_directory, state_directory
from finegrain.options import ListenOptions, LogOptions
from finegrain_cli.config.model import (
    ExecutorSection,
    ListenSection,
    LogSection,
    RmSection,
    Settings,
)
from resource_manager.engine.model.settings import Fairness, Measure, Order
from resource_manager.options import ResourceManagerOptions
from task_executor.options import DeviceType, TaskExecutorOptions

NOT_SERVED = "none"
NO_KUBELET = "none"
DATABASE_FILE = "finegrain.db"


def resource_manager_options(settings: Settings) -> ResourceManagerOptions:
    """Returns the options of `finegrain rm serve`."""
    rm = settings.rm
    return ResourceManagerOptions(
        state_dir=rm_state_dir(rm),
        database_url=rm.database,
        listen=_listen(rm),
        advertise_address=rm.advertise,
        standby=rm.standby,
        join_listen="" if rm.join_listen == NOT_SERVED else rm.join_listen or None,
        join_advertise=rm.join_advertise,
        web_listen="" if rm.web_listen == NOT_SERVED else rm.web_listen or None,
        web_certificate=rm.web_certificate,
        web_key=rm.web_key,
        web_advertise=rm.web_advertise,
        log=_log(settings.log),
        strategy=rm.strategy,
        revocation=rm.revocation == "on",
        revocation_grace_ms=rm.revocation_grace,
        report_interval_ms=rm.report_interval,
        lost_timeout_ms=rm.lost_timeout,
        lease_default_ms=rm.lease,
        cpu_milli_min=rm.cpu_min,
        memory_bytes_min=rm.memory_min,
        job_requests_max=rm.job_requests_max,
        job_scheduling_classes_max=rm.job_scheduling_classes_max,
        requests_max=rm.requests_max,
        infeasible_after_ms=rm.infeasible_after,
        job_calls_max=rm.job_calls_max,
        offer_targets=tuple(rm.offer_targets),
        job_streams_max=rm.job_streams_max,
        job_events_max=rm.job_events_max,
        cluster_events_max=rm.cluster_events_max,
        cluster_events_age_ms=rm.cluster_events_age,
        ended_retention_ms=rm.ended_retention,
        database_lease_ms=rm.database_lease,
        providers_file=_path(rm.providers_file),
        fairness=fairness_options(settings),
        cluster_policy=HostPolicy(
            bind=HostBindPolicy(rm.bind_policy) if rm.bind_policy else None,
            numa_strategy=NumaStrategy(rm.numa_strategy) if rm.numa_strategy else None,
            alignment=NumaPolicy(rm.alignment_policy) if rm.alignment_policy else None,
            default_bind=BindPolicy(rm.default_bind_policy) if rm.default_bind_policy else None,
            default_exclusive=ExclusivePolicy(rm.default_exclusive_policy)
            if rm.default_exclusive_policy
            else None,
        ),
    )


def fairness_options(settings: Settings) -> Fairness:
    """Returns the options of the section `fairness`."""
    section = settings.fairness
    return Fairness(
        order=cast("Order", section.order),
        usage_measure=cast("Measure", section.usage_measure),
        half_life_ms=section.half_life,
        lookahead_ms=section.lookahead,
        starvation_timeout_ms=section.starvation_timeout,
        starvation_placements=section.starvation_placements,
        reservations_max=section.reservations_max,
        reserved_part_max=section.reserved_part_max,
        usage_interval_ms=section.usage_interval,
        slots_max=section.slots_max,
    )


def task_executor_options(settings: Settings) -> TaskExecutorOptions:
    """Returns the options of `finegrain executor serve`."""
    own = settings.executor
    name = own.executor_id or "executor"
    return TaskExecutorOptions(
        state_dir=executor_state_dir(own),
        run_dir=Path(own.run_dir) if own.run_dir else run_directory(name),
        managers=tuple(own.manager),
        executor_id=own.executor_id,
        listen=_listen(own),
        advertise_address=own.advertise,
        join_token_file=_path(own.join_token_file),
        provided_as=own.provided_as,
        log=_log(settings.log),
        labels=tuple(sorted(own.labels.items())),
        reserved_cpus=own.reserved_cpus,
        reserved_cpus_strict=own.reserved_cpus_strict,
        reserved_memory_bytes=own.reserved_memory,
        cpus=own.cpus,
        cpu_milli=own.cpu,
        memory_bytes=own.memory,
        memory_pools=tuple(sorted(own.memory_pools.items())),
        extended=tuple(sorted(own.extended.items())),
        task_ports=own.task_ports,
        devices=own.devices,
        open_devices=tuple(own.open_devices),
        device_types=_device_types(settings),
        gpu_context_bytes=own.gpu_context_memory,
        foreign_gpu_use=own.foreign_gpu_use,
        gpu_partitions=tuple(own.gpu_partitions),
        gpu_partitions_only=own.gpu_partitions_only,
        gpu_parking=own.gpu_parking,
        mps=own.mps,
        fake_gpus=own.fake_gpus,
        bind_policy=own.bind_policy,
        numa_strategy=own.numa_strategy,
        alignment_policy=own.alignment_policy,
        default_bind_policy=own.default_bind_policy,
        default_exclusive_policy=own.default_exclusive_policy,
        best_effort_percent=own.best_effort_percent,
        best_effort_squeeze=own.best_effort_squeeze,
        best_effort_squeeze_threshold=own.best_effort_squeeze_threshold,
        best_effort_squeeze_minimum=own.best_effort_squeeze_minimum,
        kubelet_dir=None if own.kubelet_dir == NO_KUBELET else _path(own.kubelet_dir),
        kubelet_config=_path(own.kubelet_config),
        default_slot_fraction=own.default_slot_fraction,
        default_slot_cpu_milli=own.default_slot_cpu,
        default_slot_memory_bytes=own.default_slot_memory,
        default_slot_memory_percent=tuple(sorted(own.default_slot_memory_percent.items())),
        default_slot_managed_percent=own.default_slot_managed_percent,
        number_of_slots=own.number_of_slots,
        slots_max=own.slots_max,
        pids_max=own.pids_max,
        managed_memory_page_bytes=own.managed_memory_page,
        isolation=own.isolation,
        cgroup_parent=own.cgroup_parent,
        task_user=own.task_user,
        allow_root_tasks=own.allow_root_tasks,
        task_kill_grace_ms=own.task_kill_grace,
        output_limit_bytes=own.output_limit,
        offer_timeout_ms=own.offer_timeout,
        offer_targets=tuple(own.offer_targets),
        orphan_timeout_ms=own.orphan_timeout,
        helper_socket=_path(own.helper_socket),
        helper_state_dir=_path(own.helper_state_dir),
        front_user=own.front_user,
        stop_tasks_on_exit=own.stop_tasks_on_exit,
    )


def executor_state_dir(executor: ExecutorSection) -> Path:
    """Returns the state directory of the executor, even if the directory does not exist yet."""
    return Path(executor.state_dir) if executor.state_dir else state_directory("executor")


def rm_state_dir(rm: RmSection) -> Path:
    """Returns the resource manager's state directory."""
    return Path(rm.state_dir) if rm.state_dir else state_directory("rm")


def database_url(settings: Settings) -> str:
    """Returns the URL of the resource manager's database."""
    path = (rm_state_dir(settings.rm) / DATABASE_FILE).absolute()
    return settings.rm.database or f"sqlite:///{path}"


def _device_types(settings: Settings) -> tuple[DeviceType, ...]:
    return tuple(
        DeviceType(
            name=name,
            paths=tuple(each.paths),
            command=each.command,
            capacities=tuple(sorted(each.capacities.items())),
            shared=each.shared,
            numa_node=each.numa_node,
            model=each.model,
            vendor=each.vendor,
        )
        for name, each in sorted(settings.devices.items())
    )


def _listen(section: ListenSection) -> ListenOptions:
    metrics = section.metrics_listen
    return ListenOptions(
        address=section.listen,
        metrics_address="" if metrics == NOT_SERVED else metrics,
        reflection=section.reflection,
    )


def _log(section: LogSection) -> LogOptions:
    return LogOptions(level=section.level, format=section.format)


def _path(text: str) -> Path | None:
    return Path(text) if text else None
