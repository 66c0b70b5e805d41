"""Defines all metrics of the task executor.

The number of label values is bounded: labels are dimensions, states, outcomes and methods, but no
ids of jobs, slots or tasks. At each scrape, `update` fills the gauges from the executor's state.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from finegrain.devices.condition import DeviceCondition, DeviceHealth
from finegrain.devices.device import GPU_MEMORY, Device
from finegrain.errors import FinegrainError, Reason
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_PARTS,
    Amounts,
    devices_or_bytes,
)
from finegrain.values.usage import DeviceUsage, HostUsage
from task_executor.engine.cpu_ledger import CpuLedger
from task_executor.engine.slots import CarveState
from task_executor.service.agent import AgentState
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.usage import UsageSample

OUTCOMES = (
    "succeeded",
    "nonzero",
    "failed",
    "cancelled",
    "timed_out",
    "oom_killed",
    "over_share",
    "lost",
)
_CARVE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_FREE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OVERSHOOT_BYTES = tuple(1 << power for power in range(24, 38))  # from 16 MiB to 128 GiB
_REACTION_S = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 5, 10)
_LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class ExecutorMetrics:
    """All metrics of one executor, on a dedicated registry."""

    def __init__(self, software_version: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._counted: dict[str, int] = {}
        self._oom_kills_counted = 0
        self._reports_counted = 0
        build_info = Gauge(
            "finegrain_build_info",
            "Version of this process; the value is always 1.",
            ("version", "python"),
            registry=registry,
        )
        build_info.labels(software_version, platform.python_version()).set(1)
        self._define_amounts(registry)
        self._define_devices(registry)
        self._define_work(registry)
        self._define_conversation(registry)

    def _define_amounts(self, registry: CollectorRegistry) -> None:
        self.cpu_cores = Gauge(
            "finegrain_executor_cpu_cores",
            "CPU cores: total, reserved for the system, allocated to slots, used by slots, used by"
            " all programs of the host (host_used).",
            ("state",),
            registry=registry,
        )
        self.best_effort_cpu_cores = Gauge(
            "finegrain_executor_best_effort_cpu_cores",
            "CPU cores that best-effort slots can book: total, allocated to slots.",
            ("state",),
            registry=registry,
        )
        self.cpus = Gauge(
            "finegrain_executor_cpus",
            "Cpus (hardware threads) by use: dedicated to slots, shared pool, best-effort pool "
            "(which may contain dedicated cpus), reserved, used by a kubelet, offline.",
            ("use",),
            registry=registry,
        )
        self.cpu_bindings_out_of_sync = Gauge(
            "finegrain_executor_cpu_bindings_out_of_sync",
            "1 while slots could not be moved to the cpus of their pool. The executor tries again.",
            registry=registry,
        )
        self.memory_bytes = Gauge(
            "finegrain_executor_memory_bytes",
            "Memory by pool: total, reserved for the system, allocated to slots, used by slots, "
            "used by all programs of the host (host_used).",
            ("pool", "state"),
            registry=registry,
        )
        self.host_load = Gauge(
            "finegrain_executor_host_load_average",
            "Average number of processes that ran or waited to run on the host, over a minute.",
            registry=registry,
        )
        self.host_temperature = Gauge(
            "finegrain_executor_host_temperature_celsius",
            "Temperature of the host, by sensor.",
            ("sensor",),
            registry=registry,
        )
        self.extended = Gauge(
            "finegrain_executor_extended_resource_units",
            "Countable resources: total, allocated to slots.",
            ("resource", "state"),
            registry=registry,
        )
        self.device_units = Gauge(
            "finegrain_executor_device_units",
            "Devices by dimension, where 0.5 is half of a device: total, allocated to slots.",
            ("dimension", "state"),
            registry=registry,
        )
        self.device_memory_bytes = Gauge(
            "finegrain_executor_device_memory_bytes",
            "Memory of GPUs: total, allocated to slots that request GPU memory in bytes.",
            ("state",),
            registry=registry,
        )

    def _define_devices(self, registry: CollectorRegistry) -> None:
        device = ("type", "minor", "uuid")
        self.device_health = Gauge(
            "finegrain_executor_device_health",
            "Health of each device: 1 for the present state, 0 for the other states.",
            (*device, "health"),
            registry=registry,
        )
        self.device_foreign_uses = Gauge(
            "finegrain_executor_device_foreign_uses",
            "Processes and pods that use a device, but belong to no slot.",
            device,
            registry=registry,
        )
        self.device_memory_used = Gauge(
            "finegrain_executor_device_memory_used_bytes",
            "Measured memory use of each GPU: by all processes, and by slots.",
            (*device, "of"),
            registry=registry,
        )
        self.gpu_memory_overshoot = Histogram(
            "finegrain_executor_gpu_memory_overshoot_bytes",
            "GPU memory above a slot's share, each time the executor ended tasks because of it.",
            buckets=_OVERSHOOT_BYTES,
            registry=registry,
        )
        self.gpu_memory_reaction = Histogram(
            "finegrain_executor_gpu_memory_reaction_seconds",
            "Time from the last measurement within the share until the slot's tasks had ended.",
            buckets=_REACTION_S,
            registry=registry,
        )
        self.device_busy = Gauge(
            "finegrain_executor_device_busy_ratio",
            "Fraction of the last second in which a GPU was busy.",
            device,
            registry=registry,
        )

    def _define_work(self, registry: CollectorRegistry) -> None:
        self.slots = Gauge(
            "finegrain_executor_slot_states",
            "Slots that exist, by state.",
            ("state",),
            registry=registry,
        )
        self.tasks = Gauge(
            "finegrain_executor_running_tasks", "Tasks that run now.", registry=registry
        )
        self.tasks_ended = Counter(
            "finegrain_executor_tasks_total",
            "Tasks that have ended since the start of the executor, by outcome.",
            ("outcome",),
            registry=registry,
        )
        self.oom_kills = Counter(
            "finegrain_executor_oom_kills_total",
            "Processes of tasks that the kernel killed because memory was exhausted.",
            registry=registry,
        )
        self.carve_seconds = Histogram(
            "finegrain_executor_carve_duration_seconds",
            "Time to carve one slot on the host.",
            ("outcome",),
            buckets=_CARVE_S,
            registry=registry,
        )
        for outcome in ("carved", "failed"):
            self.carve_seconds.labels(outcome)
        self.free_seconds = Histogram(
            "finegrain_executor_free_duration_seconds",
            "Time from the order to free a slot until the slot is removed from the host.",
            buckets=_FREE_S,
            registry=registry,
        )
        self.resize_seconds = Histogram(
            "finegrain_executor_resize_duration_seconds",
            "Time to change the limits of a slot while its tasks run.",
            ("outcome",),
            buckets=_CARVE_S,
            registry=registry,
        )
        for outcome in ("resized", "below_use", "failed"):
            self.resize_seconds.labels(outcome)
        for outcome in OUTCOMES:
            self.tasks_ended.labels(outcome)

    def _define_conversation(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge(
            "finegrain_executor_rm_connection_up",
            "1 if the resource manager answered the last call.",
            registry=registry,
        )
        self.contact_age = Gauge(
            "finegrain_executor_report_age_seconds",
            "Time since the resource manager last accepted a report.",
            registry=registry,
        )
        self.certificate_end = Gauge(
            "finegrain_executor_certificate_expiry_timestamp_seconds",
            "When the certificate of this executor expires. It is renewed every day.",
            registry=registry,
        )
        self.registration_number = Gauge(
            "finegrain_executor_registration_number",
            "Number of the present registration.",
            registry=registry,
        )
        self.rm_epoch = Gauge(
            "finegrain_executor_rm_epoch",
            "Highest epoch of a resource manager that this executor knows.",
            registry=registry,
        )
        self.reports = Counter(
            "finegrain_executor_reports_total",
            "Reports delivered since the start of the executor.",
            registry=registry,
        )
        self.calls = Counter(
            "finegrain_executor_calls_total",
            "Calls by method and status.",
            ("method", "status"),
            registry=registry,
        )
        self.loop_lag = Histogram(
            "finegrain_executor_event_loop_lag_seconds",
            "Delay of the event loop: how much later than planned it woke up.",
            buckets=_LAG_S,
            registry=registry,
        )

    # -- recorded when it happens --------------------------------------------------------------

    def call_ended(self, method: str, status: str, _seconds: float) -> None:
        """Counts a call. The server calls this with method, status and duration in seconds."""
        self.calls.labels(method.rpartition("/")[2], status).inc()

    def carve_ended(self, seconds: float, carved: bool) -> None:
        """Records the end of a carve. The slot keeper calls this."""
        self.carve_seconds.labels("carved" if carved else "failed").observe(seconds)

    def free_ended(self, seconds: float) -> None:
        """Records that a slot was freed. The slot keeper calls this."""
        self.free_seconds.observe(seconds)

    def overuse_ended(self, excess_bytes: int, seconds: float) -> None:
        """Records that the tasks of a slot above its GPU memory share were ended.

        `OveruseWatch` calls this.
        """
        self.gpu_memory_overshoot.observe(excess_bytes)
        self.gpu_memory_reaction.observe(seconds)

    def resize_ended(self, seconds: float, failure: FinegrainError | None) -> None:
        """Records the end of a resize. The slot keeper calls this.

        Args:
            seconds: the duration of the resize.
            failure: the error of the resize; None if it succeeded.
        """
        outcome = "resized" if failure is None else "failed"
        if failure is not None and failure.reason is Reason.BELOW_USE:
            outcome = "below_use"
        self.resize_seconds.labels(outcome).observe(seconds)

    # -- filled at each scrape -------------------------------------------------------------------

    def update(
        self,
        keeper: SlotKeeper,
        agent: AgentState,
        measured: UsageSample,
        *,
        reserved: Amounts,
        now: float,
    ) -> None:
        """Fills the gauges.

        Args:
            keeper: the slots and tasks of this executor, and its highest epoch.
            agent: the state of the connection to the RM.
            measured: the last measured usage of slots.
            reserved: the amounts that are reserved for the system.
            now: the present time, in seconds of the agent's clock.
        """
        table = keeper.table
        self._set_amounts("total", table.share.total)
        self._set_amounts("reserved", reserved)
        self._set_amounts("allocated", _at_zero(table.share.total) | table.allocated())
        self._set_cpus(table.cpus)
        self.cpu_bindings_out_of_sync.set(int(keeper.cpu_bindings.is_out_of_sync))
        if measured.counted:
            self.cpu_cores.labels("used").set(measured.cpu_milli / 1000)
            self.memory_bytes.labels("all", "used").set(measured.memory_bytes)
        if measured.host is not None:
            self._set_host(measured.host)
        states = [slot.state for slot in table]
        for state in CarveState:
            self.slots.labels(state.value.lower()).set(states.count(state))
        self.tasks.set(keeper.tasks.running())
        self._count_tasks(keeper)
        self.connected.set(int(agent.connected))
        self.contact_age.set(max(now - agent.contact_at, 0))
        self.registration_number.set(agent.registration_number)
        self.rm_epoch.set(keeper.fence.rm_epoch)
        # A counter can only be increased, so add the difference to the last scrape.
        self.reports.inc(agent.reports_sent - self._reports_counted)
        self._reports_counted = agent.reports_sent

    def _set_host(self, host: HostUsage) -> None:
        self.cpu_cores.labels("host_used").set(host.cpu_milli / 1000)
        self.memory_bytes.labels("all", "host_used").set(host.memory_used_bytes)
        self.host_load.set(host.load_1m)
        self.host_temperature.clear()
        for each in host.temperatures:
            self.host_temperature.labels(each.sensor).set(each.celsius)

    def update_devices(
        self,
        devices: Iterable[Device],
        conditions: Iterable[DeviceCondition],
        usages: Iterable[DeviceUsage],
    ) -> None:
        """Fills the gauges of devices.

        Args:
            devices: the registered devices.
            conditions: the conditions of devices whose state differs from the registered state.
            usages: the measured use of devices.
        """
        known = {(each.type, each.uuid): each for each in conditions}
        used = {(each.type, each.uuid): each for each in usages}
        # If a device returns with another minor number, its old series must disappear.
        for gauge in (
            self.device_health,
            self.device_foreign_uses,
            self.device_memory_used,
            self.device_busy,
        ):
            gauge.clear()
        for device in devices:
            key = (device.type, device.uuid)
            labels = (device.type, str(device.minor), device.uuid)
            condition = known.get(key)
            health = DeviceHealth.UNHEALTHY if device.problem else DeviceHealth.HEALTHY
            health = condition.health if condition is not None else health
            for each in DeviceHealth:
                self.device_health.labels(*labels, each.value).set(each is health)
            uses = len(condition.foreign_uses) if condition is not None else 0
            self.device_foreign_uses.labels(*labels).set(uses)
            if (usage := used.get(key)) is not None:
                of_slots = sum(each.memory_bytes for each in usage.slots)
                self.device_memory_used.labels(*labels, "all").set(usage.memory_bytes)
                self.device_memory_used.labels(*labels, "slots").set(of_slots)
                self.device_busy.labels(*labels).set(usage.busy_percent / 100)

    def _set_cpus(self, ledger: CpuLedger) -> None:
        executor_cpus = ledger.host.slot_cpus | ledger.host.reserved
        cpus_by_use = {
            "dedicated": ledger.pinned,
            "shared_pool": ledger.pools.shared,
            "best_effort_pool": ledger.pools.best_effort,
            "reserved": ledger.policy.reserved_cpus & executor_cpus,
            "kubelet": ledger.conditions.kubelet_cpus & executor_cpus,
            "offline": ledger.conditions.offline & executor_cpus,
        }
        for use, cpus in cpus_by_use.items():
            self.cpus.labels(use).set(len(cpus))

    def _count_tasks(self, keeper: SlotKeeper) -> None:
        """Adds to the counters what the task table has counted since the last scrape."""
        tasks = keeper.tasks
        for outcome, count in tasks.outcomes.items():
            self.tasks_ended.labels(outcome).inc(count - self._counted.get(outcome, 0))
            self._counted[outcome] = count
        self.oom_kills.inc(tasks.oom_kills - self._oom_kills_counted)
        self._oom_kills_counted = tasks.oom_kills

    def _set_amounts(self, state: str, amounts: Amounts) -> None:
        for name, amount in amounts.items():
            if name == CPU_MILLI:
                self.cpu_cores.labels(state).set(amount / 1000)
            elif name == BEST_EFFORT_CPU_MILLI:
                self.best_effort_cpu_cores.labels(state).set(amount / 1000)
            elif name == MEMORY_BYTES:
                self.memory_bytes.labels("all", state).set(amount)
            elif name in MEMORY_PARTS:
                self.memory_bytes.labels(name.removesuffix("_memory_bytes"), state).set(amount)
            elif name == DEVICE_PREFIX + GPU_MEMORY:
                self.device_memory_bytes.labels(state).set(amount)
            elif name.startswith(DEVICE_PREFIX):
                of = name.removeprefix(DEVICE_PREFIX)
                self.device_units.labels(of, state).set(devices_or_bytes(of, amount))
            elif name.startswith(EXTENDED_PREFIX):
                resource = name.removeprefix(EXTENDED_PREFIX)
                self.extended.labels(resource, state).set(amount)


def _at_zero(amounts: Amounts) -> dict[str, int]:
    """Returns the same dimensions with amount 0. So a dimension without bookings shows 0."""
    return dict.fromkeys(amounts, 0)
