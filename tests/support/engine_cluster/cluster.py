"""The cluster that tests of the engine create, drive and inspect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Self

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpuset import CpuSet
from finegrain.values.states import RequestState
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.explain.waiting_reasons import pending_reason
from resource_manager.engine.model.entities import CpuState, Slot
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.engine.placement.elastic import PENDING
from tests.support.engine_cluster.calls import JOB, Calls
from tests.support.engine_cluster.executor import FakeExecutor
from tests.support.engine_cluster.hosts import host

FOREVER_MS = 10**9
FAIRNESS = frozenset(each.name for each in fields(Fairness))


def changed(settings: EngineSettings, **values: Any) -> EngineSettings:
    """Returns the settings with some values replaced, including fields of `fairness` by name."""
    fair = {name: values.pop(name) for name in FAIRNESS & values.keys()}
    if fair:
        values["fairness"] = replace(settings.fairness, **fair)
    return replace(settings, **values)


class EngineCluster(Calls):
    """An engine with its store, executors and jobs.

    With `EngineCluster(...)` the test delivers every message. With `EngineCluster.settled(...)`
    executors answer at once, and are not lost when they stay silent.
    """

    def __init__(
        self,
        *executors: FakeExecutor,
        jobs: Iterable[str] = (JOB,),
        settings: EngineSettings | None = None,
        auto_settle: bool = False,
        **values: Any,
    ) -> None:
        """Starts a resource manager with an empty store; registers executors, then jobs.

        Args:
            executors: the first executors, in this order.
            jobs: the first jobs, without a lease, in the default group.
            settings: the settings to which `values` are applied; default: `EngineSettings()`.
            auto_settle: whether `settle` runs after each call and each time step.
            values: settings by name, including those of `Fairness`.
        """
        settings = changed(settings or EngineSettings(), **values)
        super().__init__(settings, auto_settle=auto_settle)
        self.register_all(executors)
        for job in jobs:
            self.job(job)

    @classmethod
    def settled(cls, *executors: FakeExecutor, **values: Any) -> Self:
        """Starts a cluster whose executors answer at once. Checks the invariants after each
        call.

        Executors and jobs that are silent are not lost, unless `values` says so.
        """
        values = {"lost_timeout_ms": FOREVER_MS, "lease_default_ms": FOREVER_MS} | values
        return cls(*executors, auto_settle=True, **values)

    def host(self, name: str = "host-a", cpu_milli: int = 4_000, **more: Any) -> FakeExecutor:
        """Registers a host that reports amounts only (`hosts.host`)."""
        executor = host(name, cpu_milli, **more)
        self.register(executor)
        return executor

    def restart(self) -> None:
        """Restarts the resource manager; all executors register again."""
        self.restart_rm()
        self.register_all()
        self.settle()

    def report_cpus(self, executor_id: str, **state: Any) -> None:
        """Reports the cpu state of an executor: fields of `CpuState`, with cpu sets as text."""
        executor = self.executors[executor_id]
        values: dict[str, Any] = {
            name: CpuSet.parse(value) if isinstance(value, str) and name.endswith("cpus") else value
            for name, value in state.items()
        }
        number = executor.cpu_state.host_policy_number
        executor.cpu_state = CpuState(host_policy_number=number, **values)
        self.report(executor)
        self.check()

    # States of requests.

    def state_of(self, name: str) -> RequestState:
        request = self.state.requests.named(name)
        assert request is not None
        return request.state

    def is_granted(self, name: str) -> bool:
        return self.state_of(name) is RequestState.GRANTED

    def slot(self, name: str) -> Slot:
        request = self.state.requests[name]
        return self.state.slots[name, request.generation]

    def where(self, name: str) -> str:
        """Returns the host of a request's slot; empty if it has none."""
        request = self.state.requests.get(name)
        slot = self.state.slots.of(request) if request is not None else None
        return slot.executor_id if slot is not None else ""

    def hosts_of(self, *names: str) -> list[str]:
        """Returns the host of each request; each must have a slot."""
        return [self.slot(name).executor_id for name in names]

    def running(self, executor_id: str = "") -> list[str]:
        """Returns the allocation ids of slots in order of placement, on one host or on all."""
        return [
            slot.allocation_id
            for slot in self.state.slots.values()
            if executor_id in ("", slot.executor_id)
        ]

    def waiting(self) -> set[str]:
        """Returns the allocation ids of pending requests."""
        requests = self.state.requests.items()
        return {name for name, each in requests if each.state is RequestState.PENDING}

    def waiting_reason(self, name: str) -> str:
        """Returns the reason why a request waits. The request must be pending."""
        request = self.state.requests[name]
        assert request.state is RequestState.PENDING
        return pending_reason(self.state, request)

    def assignment(self, name: str) -> CpuAssignment:
        """Returns the cpu assignment of a slot that its executor has carved."""
        slot = self.slot(name)
        carved = self.executors[slot.executor_id].slots[name, slot.generation]
        assert carved.assignment == slot.assignment
        assert slot.assignment is not None
        return slot.assignment

    def cpus(self, name: str) -> str:
        """Returns the dedicated cpus of a slot, as a cpu list."""
        return str(self.assignment(name).cpus)

    def free_cpu(self, executor_id: str = "host-a") -> int:
        """Returns the free cpu of a host, in thousandths."""
        return self.state.hosts[executor_id].free().get("cpu_milli", 0)

    def cpu_ledger(self, executor_id: str = "host-a") -> CpuLedger:
        """Returns the cpu ledger of a host that has reported its cpus."""
        ledger = self.state.hosts[executor_id].cpus
        assert ledger is not None
        return ledger

    # Pending executors.

    def asked_for(self) -> list[str]:
        """Returns the ids of executors that were asked for and have not registered."""
        provisions = self.state.provisions.values()
        return [each.executor_id for each in provisions if each.state in PENDING]

    # Recorded events.

    def history(self, kind: str) -> list[str]:
        """Returns the messages of the cluster's events of one kind."""
        return [each.message for each in self.store.cluster_events if each.kind == kind]
