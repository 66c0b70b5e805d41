"""Random histories of a cluster with dedicated cpus, gangs and resizes.

Administrators set host policies, cpus go offline, a kubelet takes some. Invariants must hold, and
no executor is ever ordered to give a cpu to two slots.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.errors import FinegrainError, Reason
from finegrain.mapping.stored import STORED
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.explain.waiting_reasons import pending_reason
from resource_manager.engine.model.entities import CpuState, GangSpec, RequestSpec
from resource_manager.engine.model.events import (
    ExecutorProbed,
    HostPolicySet,
    RequestsSubmitted,
    ResizeRequested,
    SlotsReleased,
)
from resource_manager.engine.model.settings import Fairness
from tests.support.engine_cluster import BE, EngineCluster, numa_host

STEPS = 150

POLICIES = [
    PLAIN,
    BE,
    *(
        CpuPolicy(
            qos, bind, required, exclusive, required, numa, numa is not NumaPolicy.BEST_EFFORT
        )
        for qos in (QosClass.LSE, QosClass.LSR)
        for bind, exclusive, numa in (
            (BindPolicy.DEFAULT, ExclusivePolicy.DEFAULT, NumaPolicy.DEFAULT),
            (BindPolicy.FULL_PCPUS, ExclusivePolicy.NUMA_NODE_LEVEL, NumaPolicy.SINGLE_NUMA_NODE),
            (BindPolicy.SPREAD_BY_PCPUS, ExclusivePolicy.PCPU_LEVEL, NumaPolicy.RESTRICTED),
        )
        for required in (False, True)
    ),
    CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True),
    CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True),
    CpuPolicy(QosClass.BE, numa=NumaPolicy.BEST_EFFORT),
]


class Life:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        strategy = self.random.choice(["pack", "spread"])
        self.cluster = EngineCluster(
            numa_host("host-a", nodes=2, cores=4, threads=2),
            numa_host("host-b", nodes=4, cores=2, threads=2),
            numa_host("host-c", nodes=1, cores=6, threads=1),
            strategy=strategy,
            fairness=Fairness(starvation_timeout_ms=2_000, starvation_placements=1),
        )
        self.made = 0
        self.steps = [
            (self.submit, 6),
            (self.gang, 3),
            (self.release, 6),
            (self.resize, 6),
            (self.deliver, 8),
            (self.set_policy, 1),
            (self.see, 1),
            (self.report, 3),
            (self.restart, 0.3),
            (self.register_again, 0.5),
            (self.wait, 2),
        ]

    def step(self) -> None:
        calls, weights = zip(*self.steps, strict=True)
        (call,) = self.random.choices(calls, weights)
        call()
        self.cluster.check()
        self.nothing_is_given_twice()

    def name(self) -> str:
        self.made += 1
        return f"r{self.made}"

    def size(self, policy: CpuPolicy) -> ResourceProfile:
        milli = self.random.choice([1_000, 2_000, 3_000, 4_000, 6_000])
        if not policy.qos.is_pinned and self.random.random() < 0.5:
            milli += 500
        return ResourceProfile(milli, self.random.choice([64, 1_024, 6_000]) * MIB)

    def spec(self, **more: Any) -> RequestSpec:
        policy = self.random.choice(POLICIES)
        profile = self.size(policy)
        limit = 0
        if policy.qos is QosClass.LS:
            limit = self.random.choice([0, profile.cpu_milli + 1_000])
        return RequestSpec(
            self.name(),
            profile,
            limit,
            cpu_policy=policy,
            restart_on_loss=self.random.random() < 0.5,
            allow_pending=self.random.random() < 0.5,
            **more,
        )

    def submit(self) -> None:
        specs = tuple(self.spec() for _ in range(self.random.randint(1, 4)))
        self.act(RequestsSubmitted(self.at, "job", specs))

    def gang(self) -> None:
        gang_id = f"gang-{self.name()}"
        one = self.spec(gang_id=gang_id)
        count = self.random.randint(2, 4)
        alike = self.random.random() < 0.5
        specs = [
            replace(one, allocation_id=self.name()) if alike else self.spec(gang_id=gang_id)
            for _ in range(count)
        ]
        placement = self.random.choice(
            [GangPlacement.ANYWHERE, GangPlacement.SPREAD, GangPlacement.SAME_EXECUTOR]
        )
        gangs = (GangSpec(gang_id, placement),)
        self.act(RequestsSubmitted(self.at, "job", tuple(specs), gangs=gangs))

    def granted(self) -> list[str]:
        requests = self.cluster.state.requests.items()
        return sorted(name for name, each in requests if each.state is RequestState.GRANTED)

    def release(self) -> None:
        for name in self.random.sample(names := self.granted(), min(len(names), 2)):
            self.act(SlotsReleased(self.at, "job", ((name, 0),)))

    def resize(self) -> None:
        if not (names := self.granted()):
            return
        name = self.random.choice(names)
        policy = self.cluster.state.requests[name].spec.cpu_policy
        self.act(ResizeRequested(self.at, "job", name, 0, 0, self.size(policy)))
        explain(self.cluster.state, name)

    def deliver(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            if self.cluster.wire:
                sent = self.random.choice(self.cluster.wire)
                lost = self.random.random()
                if lost < 0.1:
                    self.cluster.fail(sent)
                else:
                    self.cluster.deliver(sent, lose_answer=lost < 0.2)

    def set_policy(self) -> None:
        random = self.random
        name = random.choice(["host-a", "host-b", "host-c", ""])
        policy = HostPolicy(
            bind=random.choice([None, *HostBindPolicy]),
            numa_strategy=random.choice([None, *NumaStrategy]),
            alignment=random.choice([None, NumaPolicy.NONE, *list(NumaPolicy)[1:]]),
            reserved_cpus=random.choice([None, CpuSet.of(0), CpuSet.of(2, 3)]) if name else None,
            reserved_strict=random.choice([None, True, False]) if name else None,
        )
        names = STORED.to_json(policy)
        clear = tuple(each for each in ("bind", "alignment", "reserved_cpus") if each not in names)
        self.act(HostPolicySet(self.at, name, policy, clear))

    def see(self) -> None:
        executor = self.random.choice(list(self.cluster.executors.values()))
        executor.cpu_state = replace(
            executor.cpu_state,
            offline_cpus=self.random.choice([CpuSet(), CpuSet.of(1), CpuSet.of(4, 5)]),
            kubelet_cpus=self.random.choice([CpuSet(), CpuSet.of(3)]),
        )
        self.report_of(executor)

    def report(self) -> None:
        self.report_of(self.random.choice(list(self.cluster.executors.values())))

    def report_of(self, executor: Any) -> None:
        answer = self.cluster.report(executor)
        if answer.register_again:
            self.cluster.register(executor)

    def restart(self) -> None:
        self.cluster.restart_rm()

    def register_again(self) -> None:
        executor = self.random.choice(list(self.cluster.executors.values()))
        self.cluster.register(executor)

    def wait(self) -> None:
        self.cluster.wait(self.random.choice([500, 3_000]))
        for executor in self.cluster.executors.values():
            self.report_of(executor)

    def come_to_rest(self) -> None:
        """Ends all settings and faults, delivers all messages, and ends the slots."""
        settings = ("bind", "numa_strategy", "alignment", "reserved_cpus", "reserved_strict")
        for name in ("host-a", "host-b", "host-c", ""):
            self.act(HostPolicySet(self.at, name, HostPolicy(), settings))
        for executor in self.cluster.executors.values():
            number = executor.cpu_state.host_policy_number
            executor.cpu_state = CpuState(host_policy_number=number)
        for _ in range(40):
            self.cluster.settle()
            self.cluster.wait(3_000)
            for executor in list(self.cluster.executors.values()):
                address = executor.registration().address
                self.act(ExecutorProbed(self.at, executor.executor_id, address))
                self.report_of(executor)
            for name in self.granted():
                self.act(SlotsReleased(self.at, "job", ((name, 0),)))
            self.nothing_is_given_twice()

    @property
    def at(self) -> Any:
        return self.cluster.at

    def act(self, event: Any) -> None:
        try:
            self.cluster.batch(event)
        except FinegrainError as refused:
            assert refused.details.get("field") or refused.reason  # noqa: PT017

    def nothing_is_given_twice(self) -> None:
        """The same holds at the executors, in whatever order messages arrived."""
        for executor in self.cluster.executors.values():
            taken = CpuSet()
            for key, slot in executor.slots.items():
                if slot.assignment is not None:
                    assert slot.assignment.cpus.isdisjoint(taken), key
                    taken |= slot.assignment.cpus


@pytest.mark.parametrize("seed", range(4))
def test_the_books_of_cpus_stay_sound(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    for name in life.granted():
        life.act(SlotsReleased(life.at, "job", ((name, 0),)))
    life.cluster.settle()


@pytest.mark.parametrize("seed", range(4, 7))
def test_whoever_could_be_served_is_in_the_end(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.come_to_rest()
    waiting = [each for each in life.cluster.state.requests.values() if each.state == "PENDING"]
    reasons = {pending_reason(life.cluster.state, each) for each in waiting}
    assert reasons <= {Reason.INFEASIBLE_NEVER}
