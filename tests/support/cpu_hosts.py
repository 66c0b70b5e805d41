"""Hosts with cores, NUMA nodes and packages, for a model cluster: in few words, as executors
report them."""

from __future__ import annotations

import json
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, CpuPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.explain.waiting_reasons import pending_reason
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import CpuState, RequestSpec, RequestState, Slot
from resource_manager.engine.model.events import JobRegistered, RequestsSubmitted, SlotsReleased
from resource_manager.engine.model.settings import EngineSettings
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor

__all__ = ["BE", "LSE", "LSR", "PLAIN", "CpuStory", "host", "plain_host", "topology"]

NODE_MEMORY = 16 * GIB

LSR = CpuPolicy(QosClass.LSR)
LSE = CpuPolicy(QosClass.LSE)
BE = CpuPolicy(QosClass.BE)


def topology(nodes: int = 2, cores: int = 4, threads: int = 2) -> dict[str, Any]:
    """One package per node; thread `t` of core `c` is cpu `c + t * nodes * cores`."""
    whole = nodes * cores
    cpus = [CpuSet(core + thread * whole for thread in range(threads)) for core in range(whole)]
    return {
        "online_cpus": f"0-{whole * threads - 1}",
        "allowed_cpus": f"0-{whole * threads - 1}",
        "cores": [
            {"cpus": str(each), "package_index": at // cores, "numa_node_id": at // cores}
            for at, each in enumerate(cpus)
        ],
        "numa_nodes": [
            {
                "numa_node_id": node,
                "cpus": str(
                    CpuSet(cpu for each in cpus[node * cores : (node + 1) * cores] for cpu in each)
                ),
                "memory_bytes": NODE_MEMORY,
                "distances": [10 if other == node else 20 for other in range(nodes)],
            }
            for node in range(nodes)
        ],
        "memory_bytes": nodes * NODE_MEMORY,
    }


def host(
    name: str = "host-a",
    nodes: int = 2,
    cores: int = 4,
    threads: int = 2,
    *,
    policy: dict[str, Any] | None = None,
    **more: Any,
) -> ModelExecutor:
    """An executor with all cpus of such a machine; `policy` as its configuration says it."""
    count = nodes * cores * threads
    announced: dict[str, Any] = {
        "slot_cpus": f"0-{count - 1}",
        "numa": [
            {"numa_node_id": node, "memory_bytes": NODE_MEMORY, "default_memory": True}
            for node in range(nodes)
        ],
    }
    if policy:
        announced["policy"] = policy
    return ModelExecutor(
        name,
        {
            "cpu_milli": 1_000 * count,
            "best_effort_cpu_milli": 1_000 * count,
            "memory_bytes": nodes * NODE_MEMORY,
        },
        ResourceProfile(1_000, 256 * MIB),
        topology=json.dumps(topology(nodes, cores, threads)),
        host_cpus=json.dumps(announced),
        **more,
    )


def plain_host(name: str, cpus: int = 16) -> ModelExecutor:
    """One that tells nothing of its cpus."""
    total = {"cpu_milli": 1_000 * cpus, "memory_bytes": 2 * NODE_MEMORY}
    return ModelExecutor(name, total, ResourceProfile(1_000, 256 * MIB))


class CpuStory:
    """A model cluster of such hosts, and one job. The books are checked after every step."""

    def __init__(self, *executors: ModelExecutor, **settings: Any) -> None:
        self.cluster = ModelCluster(EngineSettings(**settings))
        for each in executors:
            self.cluster.register(each)
        self.cluster.batch(JobRegistered(self.cluster.at, "job", "job", "default", None, "s", "r"))

    @property
    def state(self) -> Any:
        return self.cluster.state

    def ask(
        self,
        name: str,
        cpu_milli: int,
        policy: CpuPolicy = LSR,
        mib: int = 64,
        **more: Any,
    ) -> Any:
        profile = ResourceProfile(cpu_milli, mib * MIB)
        spec = RequestSpec(name, profile, cpu_policy=policy, **more)
        answer = self.cluster.batch(RequestsSubmitted(self.cluster.at, "job", (spec,)))
        self.settle()
        return answer

    def settle(self) -> None:
        self.cluster.settle()
        self.sound()

    def sound(self) -> None:
        assert check_invariants(self.state) == []

    def see(self, name: str, **state: Any) -> None:
        """The executor reports that its cpus are like this."""
        executor = self.cluster.executors[name]
        number = executor.cpu_state.host_policy_number
        values: dict[str, Any] = {
            key: CpuSet.parse(value) if isinstance(value, str) and key.endswith("cpus") else value
            for key, value in state.items()
        }
        executor.cpu_state = CpuState(host_policy_number=number, **values)
        self.cluster.report(executor)
        self.sound()

    def slot(self, name: str) -> Slot:
        request = self.state.requests[name]
        found: Slot = self.state.slots[name, request.generation]
        return found

    def has(self, name: str) -> CpuAssignment:
        """What a slot was given; at its executor as well."""
        slot = self.slot(name)
        key = (name, slot.generation)
        carved = self.cluster.executors[slot.executor_id].slots[key]
        assert carved.assignment == slot.assignment
        assert slot.assignment is not None
        return slot.assignment

    def cpus(self, name: str) -> str:
        return str(self.has(name).cpus)

    def where(self, name: str) -> str:
        """The host of a request; empty: it has none."""
        request = self.state.requests.get(name)
        slot = self.state.slots.of(request) if request is not None else None
        return slot.executor_id if slot is not None else ""

    def free_cpu(self, name: str = "host-a") -> int:
        free: int = self.state.hosts[name].free().get("cpu_milli", 0)
        return free

    def told(self, kind: str) -> list[str]:
        """Messages of the cluster's history of one kind."""
        return [each.message for each in self.cluster.store.cluster_events if each.kind == kind]

    def hosts_of(self, *names: str) -> list[str]:
        """Those of these slots."""
        return [self.slot(name).executor_id for name in names]

    def waits(self, name: str) -> str:
        """Why a request does."""
        request = self.state.requests[name]
        assert request.state is RequestState.PENDING
        return pending_reason(self.state, request)

    def release(self, *names: str) -> None:
        """Gives these slots back."""
        slots = tuple((name, 0) for name in names)
        self.cluster.batch(SlotsReleased(self.cluster.at, "job", slots))
        self.settle()
