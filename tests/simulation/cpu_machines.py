"""Hosts with known cpu topology, and requests with cpu policies."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random

from finegrain.cpu_assignment import PoolName
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpu_pools import places_of
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.devices.device import HostDevices
from finegrain.mapping.stored import STORED
from finegrain.neighbors import Level, NeighborRule
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import RequestSpec
from task_executor.engine.cpu_ledger import HostCpus
from task_executor.host.kubelet import KubeletContainer, KubeletState
from tests.support.devices import announced
from tests.support.machines import Machine, machine

WORDS = ("1s1n2c2t", "1s1n4c1t", "1s1n4c2t", "1s2n2c2t", "2s1n2c2t", "2s1n4c1t", "2s2n1c2t")
NODE_MEMORY_MIB = (512, 1_024, 2_048)
WITHOUT_MACHINE = 0.15

CPUS_AND_MIB = ((1_000, 256), (2_000, 256), (2_000, 700), (3_000, 64), (4_000, 128))
"""Cpu and memory of requests with dedicated cpus."""


@dataclass(frozen=True)
class HostMachine:
    """A machine, and the host policy of its configuration."""

    machine: Machine
    policy: HostPolicy

    @property
    def kept_back(self) -> CpuSet:
        """Returns the cpus that the configuration reserves."""
        return self.policy.reserved_cpus or EMPTY

    @property
    def total(self) -> dict[str, int]:
        """Returns the total amounts of the host."""
        strict = self.policy.reserved_strict is True
        return dict(self.machine.total(kept_back=self.kept_back, strict=strict))

    def texts(self, devices: HostDevices) -> tuple[str, str]:
        """Returns topology and cpus as the executor announces them, as JSON."""
        told = self.machine.announced(kept_back=self.kept_back, policy=STORED.to_json(self.policy))
        topology = self.machine.topology | announced(devices)[0]
        return json.dumps(topology), json.dumps(told)

    def host_cpus(self) -> HostCpus:
        """Returns the cpus of the host, as the executor detects them."""
        cores = [
            (PoolName(core["package_index"], core["numa_node_id"]), CpuSet.parse(core["cpus"]))
            for core in self.machine.topology["cores"]
        ]
        return HostCpus(
            slot_cpus=self.machine.cpus - self.kept_back,
            reserved=self.kept_back,
            pools=places_of(cores, self.machine.cpus),
            memory_nodes=CpuSet(self.machine.node_memory),
            policy=self.policy,
        )


def some_machine(rng: Random) -> HostMachine | None:
    """Draws a machine, or None: some hosts report no topology."""
    if rng.random() < WITHOUT_MACHINE:
        return None
    made = machine(rng.choice(WORDS), rng.choice(NODE_MEMORY_MIB) * MIB)
    policy = some_policy(rng, EMPTY) if rng.random() < 0.3 else HostPolicy()
    if rng.random() < 0.15:
        policy = replace(policy, reserved_cpus=CpuSet([0]), reserved_strict=rng.random() < 0.5)
    return HostMachine(made, policy)


def some_policy(rng: Random, reservable: CpuSet) -> HostPolicy:
    """Draws a policy with one or two settings."""
    reserved = CpuSet(rng.sample(list(reservable), 1)) if reservable else None
    one = rng.choice(
        (
            HostPolicy(bind=rng.choice(tuple(HostBindPolicy))),
            HostPolicy(numa_strategy=rng.choice(tuple(NumaStrategy))),
            HostPolicy(alignment=rng.choice([p for p in NumaPolicy if p != NumaPolicy.DEFAULT])),
            HostPolicy(default_exclusive=ExclusivePolicy.PCPU_LEVEL),
            HostPolicy(reserved_cpus=reserved, reserved_strict=rng.choice((None, True))),
        )
    )
    if rng.random() < 0.3:
        one = replace(one, numa_strategy=rng.choice(tuple(NumaStrategy)))
    return one


def some_kubelet(cpus: CpuSet) -> KubeletState:
    """Returns a kubelet that gave these cpus to a container, if there are any."""
    containers = (KubeletContainer("pod", "container", cpus),) if cpus else ()
    return KubeletState(cpu_manager_policy="static", containers=containers)


def with_cpus(rng: Random, spec: RequestSpec) -> RequestSpec:
    """Returns the request, with or without a random cpu policy and rules about neighbors."""
    found = _with_policy(rng, spec)
    # A separate source of numbers, so that the other requests of a seed stay as they were.
    own = Random(spec.allocation_id)
    if own.random() < 0.6:
        return found
    return replace(found, cpu_policy=with_neighbors(own, found.cpu_policy))


def with_neighbors(rng: Random, policy: CpuPolicy) -> CpuPolicy:
    """Adds a label of the slot, and perhaps a rule. Rules `near` are preferred, so that no request
    waits for a neighbor that never starts.
    """
    labels = (("app", rng.choice("aab")),)
    rules: tuple[NeighborRule, ...] = ()
    if rng.random() < 0.7:
        apart = rng.random() < 0.7
        level = rng.choice(tuple(Level)) if policy.qos.is_pinned and apart else Level.HOST
        other = (("app", rng.choice("aab")),)
        rules = (NeighborRule(other, apart, level, apart and rng.random() < 0.7),)
    return replace(policy, slot_labels=labels, neighbors=rules)


def _with_policy(rng: Random, spec: RequestSpec) -> RequestSpec:
    what = rng.random()
    if spec.profile is None:
        policy = CpuPolicy(QosClass.BE) if what < 0.2 else spec.cpu_policy
        return replace(spec, cpu_policy=policy)
    if what < 0.3:
        return spec
    numa, required = _numa(rng)
    if what < 0.75:
        cpu, mib = rng.choice(CPUS_AND_MIB)
        policy = CpuPolicy(
            rng.choice((QosClass.LSE, QosClass.LSR, QosClass.LSR)),
            rng.choice((BindPolicy.DEFAULT, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)),
            rng.random() < 0.3,
            rng.choice((*(ExclusivePolicy.DEFAULT,) * 3, *ExclusivePolicy)),
            rng.random() < 0.3,
            numa,
            required,
        )
        return replace(spec, profile=ResourceProfile(cpu, mib * MIB), cpu_policy=policy)
    if what < 0.88:
        return replace(spec, cpu_policy=CpuPolicy(QosClass.BE, numa=numa, numa_required=required))
    if what < 0.95:
        return replace(spec, cpu_policy=CpuPolicy(numa=numa, numa_required=required))
    return replace(
        spec,
        cpu_limit_milli=spec.profile.cpu_milli + 1_500,
        cpu_policy=CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=rng.random() < 0.5),
    )


def _numa(rng: Random) -> tuple[NumaPolicy, bool]:
    policy = rng.choice((*(NumaPolicy.DEFAULT,) * 5, *NumaPolicy))
    return policy, policy.aligns and rng.random() < 0.5
