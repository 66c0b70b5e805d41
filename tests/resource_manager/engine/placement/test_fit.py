"""Random histories of clusters with several kinds of hosts: the scheduler does what `explain` says.

The scheduling cycle finds hosts by the index, and `explain` by looking at each host. A request is
placed only on a host where it fits according to `explain`, and waits only if there is no such host.
It is infeasible only if every host is too small for it even when empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostPolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.entities import Request, RequestSpec
from resource_manager.engine.model.events import (
    DrainRequested,
    JobRegistered,
    UndrainRequested,
)
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.placement.constraint import HostView
from resource_manager.engine.placement.feasibility import Feasibility, feasibility
from resource_manager.engine.placement.fit import Fit
from tests.support.engine_cluster import BE, LSE, LSR, EngineCluster, FakeExecutor, numa_host

STEPS = 60

SSD = (("disk", "ssd"),)

MEMORY_ENFORCED = (("memory", "kernel"),)
BOTH_ENFORCED = (("cpu", "kernel"), *MEMORY_ENFORCED)

POLICIES = [
    PLAIN,
    PLAIN,
    BE,
    LSE,
    LSR,
    CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS, bind_required=True),
    CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True),
    CpuPolicy(QosClass.LSE, exclusive=ExclusivePolicy.PCPU_LEVEL, exclusive_required=True),
    CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True),
    CpuPolicy(QosClass.LSR, numa=NumaPolicy.RESTRICTED, numa_required=True),
    CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True),
    CpuPolicy(QosClass.BE, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True),
    CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True),
    CpuPolicy(bind=BindPolicy.FULL_PCPUS),
]


class Life:
    def __init__(self, seed: int, **settings: Any) -> None:
        self.random, self.levels = Random(seed), Random(f"levels {seed}")
        self.number = 0
        self.blockers: set[str] = set()  # that explanations have named
        self.cluster = EngineCluster(
            numa_host("host-a", labels=SSD, isolation=Isolation(cpu="quota", memory="hard")),
            numa_host("host-b", policy={"alignment": "SingleNUMANode"}, slots_max=5),
            numa_host(
                "host-c",
                nodes=1,
                cores=4,
                threads=1,
                labels=SSD,
                policy={"bind": "SpreadByPCPUs"} if seed % 2 else None,
            ),
            numa_host(
                "host-d",
                policy={"bind": "FullPCPUsOnly"},
                isolation=Isolation(cpu="none", memory="hard"),
            ),
            numa_host("host-e", nodes=4, cores=2, policy={"alignment": "Restricted"}, labels=SSD),
            FakeExecutor(
                "host-f",
                {"cpu_milli": 8_000, "best_effort_cpu_milli": 4_000, "memory_bytes": 8_192 * MIB},
                ResourceProfile(1_000, 256 * MIB),
            ),
            **settings,
        )
        for name in ("unknown", "other"):
            job = JobRegistered(self.at, name, name, "default", None, "s", name)
            self.cluster.batch(job)
        self.acts = [self.ask] * 5 + [self.release] * 4 + [self.cancel, self.set_policy, self.see]
        self.acts += [self.drain, self.restart, self.break_, self.wait, self.wait]

    @property
    def at(self) -> Any:
        return self.cluster.at

    def step(self) -> None:
        self.random.choice(self.acts)()
        self.cluster.settle()
        self.verdicts_hold()

    def verdicts_hold(self) -> None:
        state = self.cluster.state
        while state.unfinished:
            self.cluster.batch()
        for shape in state.queue.classes():
            fit = Fit(shape)
            owned = {
                name
                for each in state.reservations.by_number.values()
                if not isinstance(each.owner.waiter, int) and each.owner.waiter[0] is shape
                for name in each.hosts
            }
            found = [name for name, host in state.hosts.items() if fit.fits(HostView.now(host))]
            assert owned.issuperset(found), f"{shape.profile} {shape.cpus} waits, but fits {found}"
            could = [
                host
                for host in state.hosts.values()
                if host.online and fit.size_obstacle(HostView.empty(host)) is None
            ]
            possible = feasibility(state.hosts, state.elastic, shape) is Feasibility.POSSIBLE
            assert possible == bool(could), f"{shape.profile} {shape.cpus} could go to {could}"
        waiting = [r for r in state.requests.values() if r.state is RequestState.PENDING]
        for request in self.random.sample(waiting, min(2, len(waiting))):
            explained = explain(state, request.spec.allocation_id)
            assert explained.executors_fitting == 0
            assert not any(verdict.fits for verdict in explained.executors)
            assert all(verdict.message for verdict in explained.executors)
            for verdict in explained.executors:
                self.blockers.update(verdict.blockers)

    def ask(self) -> None:
        random, policy = self.random, self.random.choice(POLICIES)
        cpus = random.choice([1, 2, 2, 3, 4, 6, 8])
        profile = None
        if random.random() > 0.1 or policy.qos.is_pinned:
            milli = 1_000 * cpus if policy.qos.is_pinned else random.choice([300, 1_000 * cpus])
            isolation = self.levels.choice([*[()] * 8, MEMORY_ENFORCED, BOTH_ENFORCED])
            memory = random.choice([64, 512, 4_096]) * MIB
            profile = ResourceProfile(milli, memory, isolation=isolation)
        limit = 0
        if policy.bind is BindPolicy.CONSTRAINED_BURST:
            limit = random.choice([0, 4_000, 8_000])
        job = "unknown" if profile is None else random.choice(["job", "other"])
        specs = []
        for _ in range(random.choice([1, 1, 2, 5])):
            self.number += 1
            specs.append(
                RequestSpec(
                    f"r{self.number}",
                    profile,
                    cpu_limit_milli=max(limit, profile.cpu_milli) if profile and limit else 0,
                    required_labels=random.choice([(), (), SSD]),
                    allow_pending=True,
                    restart_on_loss=random.random() < 0.3,
                    cpu_policy=policy,
                )
            )
        self.cluster.submit(*specs, job=job)

    def _some(self, state: RequestState) -> list[str]:
        names = [name for name, each in self.cluster.state.requests.items() if each.state is state]
        return self.random.sample(names, min(len(names), self.random.choice([1, 2, 5])))

    def release(self) -> None:
        for name in self._some(RequestState.GRANTED):
            job = self.cluster.state.requests[name].job_id
            self.cluster.release(name, job=job)

    def cancel(self) -> None:
        for name in self._some(RequestState.PENDING):
            job = self.cluster.state.requests[name].job_id
            self.cluster.cancel(name, job=job)

    def set_policy(self) -> None:
        name = self.random.choice(["host-a", "host-b", "host-c", "host-e"])
        alignment = self.random.choice([NumaPolicy.NONE, *list(NumaPolicy)[2:]])
        reserved = self.random.choice([CpuSet(), CpuSet.of(0), CpuSet.of(1, 2)])
        policy = HostPolicy(alignment=alignment, reserved_cpus=reserved)
        self.cluster.set_host_policy(name, policy=policy)

    def see(self) -> None:
        executor = self.cluster.executors[self.random.choice(["host-a", "host-b"])]
        offline = self.random.choice([CpuSet(), CpuSet(), CpuSet.of(1), CpuSet.of(4, 5)])
        executor.cpu_state = replace(executor.cpu_state, offline_cpus=offline)
        self.cluster.report(executor)

    def drain(self) -> None:
        name = self.random.choice(["host-a", "host-c"])
        draining = self.cluster.state.hosts[name].executor.draining
        event = UndrainRequested(self.at, name) if draining else DrainRequested(self.at, name)
        self.cluster.batch(event)

    def wait(self) -> None:
        self.cluster.wait(1_500)
        self.cluster.report_all()

    def restart(self) -> None:
        self.cluster.restart_rm()
        self.cluster.register_all()

    def break_(self) -> None:
        """Makes some executors fail to carve the next slot."""
        for executor in self.cluster.executors.values():
            executor.broken = set()
            if self.random.random() < 0.2:
                executor.broken.add(f"r{self.number + 1}")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": "spread"},
        {"pack_candidates": 1, "label_indexes_max": 0},
        {"fairness": Fairness(starvation_timeout_ms=1_000, reserved_part_max=1.0)},
        {"hosts_asked_max": 1},
        {"hosts_asked_max": 1, "strategy": "spread"},
    ],
    ids=["pack", "spread", "first fit", "held", "step by step", "step by step, spread"],
)
def test_requests_are_placed_where_they_fit_and_nowhere_else(
    seed: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, placed = RequestMoves.place, Counter[str]()

    def place_checked(moves: RequestMoves, requests: Sequence[Request], host: Host) -> None:
        shape = moves.queue.class_of(requests[0].spec)
        reserved = host.reserved is not None
        verdict = Fit(shape).verdict(HostView.now(host, owns_reservation=reserved))
        assert verdict.fits, f"placed on {host.host_id} in spite of {verdict.blockers}"
        placed[host.host_id] += len(requests)
        place(moves, requests, host)

    monkeypatch.setattr(RequestMoves, "place", place_checked)
    life = Life(seed, **settings)
    for _ in range(STEPS):
        life.step()
    assert len(placed) > 1
    assert placed.total() > 15
