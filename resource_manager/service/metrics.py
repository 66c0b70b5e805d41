"""All metrics of the resource manager, declared in one place.

The number of label values is limited by the configuration, by the executors or by the resource
groups. Ids of jobs and allocations are never labels. At each scrape, `observe_state` fills the
gauges of the cluster.
"""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from finegrain.resources import CPU_MILLI, MEMORY_BYTES, MEMORY_PARTS, Amounts

_FAST_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class ResourceManagerMetrics:
    """All metrics of one resource manager, on a dedicated registry."""

    def __init__(self, software_version: str) -> None:
        self.registry = registry = CollectorRegistry()
        self.build_info = Gauge(
            "finegrain_build_info",
            "Version of this process; the value is always 1.",
            ("version", "python"),
            registry=registry,
        )
        self.build_info.labels(software_version, platform.python_version()).set(1)
        self._define_writer(registry)
        self._define_calls(registry)
        self._define_cluster(registry)
        self._define_devices(registry)
        self._define_groups(registry)

    def _define_writer(self, registry: CollectorRegistry) -> None:
        self.rm_epoch = Gauge(
            "finegrain_rm_epoch", "Epoch of this resource manager.", registry=registry
        )
        self.leader = Gauge(
            "finegrain_rm_leader",
            "1 while this resource manager leads; 0 while it starts or is a standby.",
            registry=registry,
        )
        self.certificate_end = Gauge(
            "finegrain_rm_certificate_expiry_timestamp_seconds",
            "When the certificate of this resource manager expires. It is renewed every day.",
            registry=registry,
        )
        self.decision_seconds = Histogram(
            "finegrain_rm_placement_duration_seconds",
            "Time to process one batch, without the commit.",
            buckets=_FAST_S,
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "finegrain_rm_db_commit_duration_seconds",
            "Time to make one batch durable.",
            buckets=_FAST_S,
            registry=registry,
        )
        self.commit_failures = Counter(
            "finegrain_rm_db_commit_failures_total",
            "Batches that could not be stored and were discarded.",
            registry=registry,
        )
        self.step_failures = Counter(
            "finegrain_rm_step_failures_total",
            "Batches dropped because a bug may have left the state inconsistent.",
            registry=registry,
        )
        self.reloads = Counter(
            "finegrain_rm_reloads_total",
            "Number of times that the state was dropped and read again.",
            registry=registry,
        )
        self.queue_items = Gauge(
            "finegrain_rm_queue_items", "Items waiting for the writer.", registry=registry
        )
        self.refused_overload = Counter(
            "finegrain_rm_refused_overload_total",
            "Calls rejected because too many items were waiting.",
            registry=registry,
        )
        self.ledger_mismatches = Gauge(
            "finegrain_rm_ledger_mismatches",
            "Number of broken invariants; while it is above 0, no slots are granted.",
            registry=registry,
        )
        self.loop_lag = Histogram(
            "finegrain_rm_event_loop_lag_seconds",
            "Delay of the event loop: how much later than planned it woke up.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=registry,
        )

    def _define_calls(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "finegrain_rm_calls_total",
            "Calls by method and status.",
            ("method", "status"),
            registry=registry,
        )
        self.requests = Counter(
            "finegrain_rm_requests_total",
            "Slot requests by outcome.",
            ("outcome",),
            registry=registry,
        )
        for outcome in (
            "accepted",
            "refused",
            "granted",
            "cancelled",
            "rejected",
            "released",
            "lost",
            "requeued",
        ):
            self.requests.labels(outcome)
        self.request_wait_seconds = Histogram(
            "finegrain_rm_request_wait_seconds",
            "Time from the acknowledgment of a request to its first grant.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 3600),
            registry=registry,
        )
        self.unproven_epochs = Counter(
            "finegrain_rm_unproven_epochs_total",
            "Registrations of executors with an epoch that no resource manager has signed",
            registry=registry,
        )
        self.slot_reports = Counter(
            "finegrain_rm_slot_reports_total",
            "Reports of executors by result.",
            ("result",),
            registry=registry,
        )
        for result in ("applied", "stale", "rejected"):
            self.slot_reports.labels(result)
        self.commands = Counter(
            "finegrain_rm_commands_total",
            "Commands to executors by outcome.",
            ("command", "outcome"),
            registry=registry,
        )
        self.provider_calls = Counter(
            "finegrain_rm_provider_calls_total",
            "Calls to providers (start, stop, status) by outcome.",
            ("provider", "call", "outcome"),
            registry=registry,
        )
        self.provider_call_seconds = Histogram(
            "finegrain_rm_provider_call_duration_seconds",
            "Duration of calls to providers.",
            ("provider", "call"),
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 15, 30, 60, 300),
            registry=registry,
        )
        self.watch_streams = Gauge(
            "finegrain_rm_watch_streams", "Watch streams that are open.", registry=registry
        )

    def _define_cluster(self, registry: CollectorRegistry) -> None:
        self.pending = Gauge(
            "finegrain_rm_pending_requests",
            "Pending requests, by primary reason.",
            ("reason",),
            registry=registry,
        )
        self.oldest_pending = Gauge(
            "finegrain_rm_oldest_pending_age_seconds",
            "Age of the request that has waited longest; 0: none waits.",
            registry=registry,
        )
        self.reservations = Gauge(
            "finegrain_rm_reservations",
            "Starved requests, gangs and growing slots that capacity is reserved for.",
            registry=registry,
        )
        self.oldest_reservation = Gauge(
            "finegrain_rm_oldest_reservation_age_seconds",
            "Age of the oldest reservation; 0: there is none.",
            registry=registry,
        )
        self.reserved_executors = Gauge(
            "finegrain_rm_reserved_executors",
            "Executors with capacity reserved for starved requests.",
            registry=registry,
        )
        self.reserved_free_cpu_cores = Gauge(
            "finegrain_rm_reserved_free_cpu_cores",
            "Free CPU cores that are idle because they are reserved for starved requests.",
            registry=registry,
        )
        self.revoked_slots = Gauge(
            "finegrain_rm_slots_being_revoked",
            "Revocable slots that are ending for other requests.",
            registry=registry,
        )
        self.jobs = Gauge("finegrain_rm_jobs", "Jobs that have not ended.", registry=registry)
        self.executors = Gauge(
            "finegrain_rm_executors", "Executors by state.", ("state",), registry=registry
        )
        self.provided_executors = Gauge(
            "finegrain_rm_provided_executors",
            "Executors that were requested from providers, by shape and state.",
            ("shape", "state"),
            registry=registry,
        )
        self.executor_up = Gauge(
            "finegrain_executor_up",
            "1 if the executor is registered and reports.",
            ("executor",),
            registry=registry,
        )
        self.heartbeat_age = Gauge(
            "finegrain_executor_heartbeat_age_seconds",
            "Time since the last report.",
            ("executor",),
            registry=registry,
        )
        self.slots = Gauge(
            "finegrain_executor_slots", "Slots that exist.", ("executor",), registry=registry
        )
        self.cpu_cores = Gauge(
            "finegrain_cpu_cores",
            "CPU cores of an executor: total, reserved for the system, allocated, used by slots.",
            ("executor", "state"),
            registry=registry,
        )
        self.memory_bytes = Gauge(
            "finegrain_memory_bytes",
            "Memory of an executor: total, reserved for the system, allocated, used by slots.",
            ("executor", "state"),
            registry=registry,
        )
        self.extended = Gauge(
            "finegrain_extended_resource_units",
            "Countable resources of an executor: total, allocated.",
            ("executor", "resource", "state"),
            registry=registry,
        )

    def _define_devices(self, registry: CollectorRegistry) -> None:
        self.device_units = Gauge(
            "finegrain_device_units",
            "Devices of an executor by dimension, where 0.5 is half of a device: total, allocated, "
            "and unusable (free, but on devices that get no new work).",
            ("executor", "dimension", "state"),
            registry=registry,
        )
        self.device_memory_bytes = Gauge(
            "finegrain_device_memory_bytes",
            "Memory of the GPUs of an executor: total (what slots can have), reserved by the "
            "driver, allocated, and unusable (free, but on GPUs that get no new work).",
            ("executor", "state"),
            registry=registry,
        )
        self.devices_unusable = Gauge(
            "finegrain_devices_unusable",
            "Devices of an executor that get no new work, by reason: cordoned or unhealthy.",
            ("executor", "type", "reason"),
            registry=registry,
        )
        self.device_info = Gauge(
            "finegrain_device_info",
            "A device with its model; the value is always 1.",
            ("executor", "type", "minor", "uuid", "model"),
            registry=registry,
        )
        self.device_usable = Gauge(
            "finegrain_device_usable",
            "1 if the device gets new work.",
            ("executor", "type", "minor", "uuid"),
            registry=registry,
        )
        self.device_allocated = Gauge(
            "finegrain_device_allocated_ratio",
            "Part of a device that slots have, by dimension; 1: the whole device.",
            ("executor", "type", "minor", "uuid", "dimension"),
            registry=registry,
        )

    def _define_groups(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            full = f"finegrain_rm_group_{name}"
            return Gauge(full, text, ("group", *labels), registry=registry)

        self.group_weight = gauge("weight", "Weight of a resource group.")
        self.group_entitled = gauge(
            "entitled_share_ratio",
            "Part of all usage that a group should get by its weight, among the groups with work.",
        )
        self.group_share = gauge(
            "share_ratio", "Part of all present usage that the slots of a group cause."
        )
        self.group_service = gauge(
            "service_cost_seconds", "Recent usage: cost times seconds, decayed."
        )
        self.group_pending = gauge("pending_requests", "Pending requests.")
        self.group_oldest_wait = gauge(
            "oldest_wait_seconds",
            "Age of the request that has waited longest; 0: none waits.",
        )
        self.group_slots = gauge("slots", "Slots that exist.")
        self.group_jobs = gauge("jobs", "Jobs that have not ended.")
        self.group_cpu_cores = gauge(
            "cpu_cores", "CPU cores of a group: used (booked), measured, minimum, maximum.", "state"
        )
        self.group_memory_bytes = gauge(
            "memory_bytes", "Memory of a group: used (booked), measured, minimum, maximum.", "state"
        )
        self.group_slot_limits = gauge(
            "slot_limits", "Limits of a group in slots: minimum, maximum.", "state"
        )
        self.group_extended = gauge(
            "extended_resource_units",
            "Countable resources of a group: used (booked), minimum, maximum.",
            "resource",
            "state",
        )
        self.group_device_units = gauge(
            "device_units",
            "Devices of a group by dimension, where 0.5 is half of a device: used (booked), "
            "minimum, maximum.",
            "dimension",
            "state",
        )
        self.group_device_memory_bytes = gauge(
            "device_memory_bytes",
            "Memory of GPUs that was requested in bytes: used (booked), minimum, maximum.",
            "state",
        )

    def set_amounts(self, executor_id: str, state: str, amounts: Amounts) -> None:
        """Sets the gauges of an executor's CPU and memory for one state.

        Args:
            executor_id: the executor.
            state: total, reserved, allocated, used (by slots) or host_used (by all programs).
            amounts: the amounts in this state. Memory is the sum of all memory dimensions.
        """
        memory = amounts.get(MEMORY_BYTES, 0) + sum(amounts.get(part, 0) for part in MEMORY_PARTS)
        self.cpu_cores.labels(executor_id, state).set(amounts.get(CPU_MILLI, 0) / 1000)
        self.memory_bytes.labels(executor_id, state).set(memory)
