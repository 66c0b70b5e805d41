"""Tests of requests that suit no host, and of which hosts are tried to find that out."""

from __future__ import annotations

from typing import Any

import pytest

from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.errors import Reason
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.hosts import cpu_allocator
from resource_manager.engine.model.events import DrainRequested
from resource_manager.engine.placement.policies import Tier
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from tests.support.engine_cluster import LSR, EngineCluster, host, numa_host

ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LSR_ON_ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE_CORES = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS, bind_required=True)
ALIGNED = {"alignment": "SingleNUMANode"}


class TestWhatCannotBe:
    def test_nobody_is_pinned_where_nothing_is_known_of_cpus(self) -> None:
        cluster = EngineCluster.settled(host("host-a", cpu_milli=16_000))
        [answer] = cluster.submit("pinned", cpu_milli=4_000, policy=LSR)
        assert answer.reason == Reason.INFEASIBLE_NEVER
        cluster.register(numa_host("host-b"))
        assert not cluster.submit("later", cpu_milli=4_000, policy=LSR)[0].reason
        assert cluster.hosts_of("later") == ["host-b"]

    @pytest.mark.parametrize(
        ("cpu_milli", "policy", "why"),
        [
            (3_000, WHOLE_CORES, "request a multiple of 2 cpus"),
            (9_000, LSR_ON_ONE_NODE, "SingleNUMANode cannot place"),
            (9_000, ONE_NODE, "SingleNUMANode cannot place"),
            (
                10_000,
                CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True),
                "cores",
            ),
        ],
    )
    def test_what_no_empty_host_suits_is_refused_at_once(
        self, cpu_milli: int, policy: CpuPolicy, why: str
    ) -> None:
        cluster = EngineCluster.settled(
            host("a-plain-one", cpu_milli=64_000),
            numa_host("host-a"),
            numa_host("host-b"),
        )
        [answer] = cluster.submit("never", cpu_milli=cpu_milli, policy=policy)
        assert answer.reason == Reason.INFEASIBLE_NEVER
        assert "host-a has enough capacity, but" in answer.message
        assert why in answer.message
        cluster.submit("waits", cpu_milli=cpu_milli, policy=policy, allow_pending=True)
        assert cluster.waiting_reason("waits") == Reason.INFEASIBLE_NEVER
        cluster.register(numa_host("host-d", cores=12))
        cluster.settle()
        if policy is not WHOLE_CORES:
            assert cluster.hosts_of("waits") == ["host-d"]

    def test_what_only_a_drained_host_suits_waits_for_it(self) -> None:
        cluster = EngineCluster.settled(numa_host("host-a", cores=2), numa_host("host-b"))
        cluster.batch(DrainRequested(cluster.at, "host-b"))
        cluster.submit("large", cpu_milli=8_000, policy=ONE_NODE)
        assert cluster.waiting_reason("large") == Reason.INFEASIBLE_NOW_OFFLINE

    def test_what_only_a_host_without_the_labels_suits_waits_for_labels(self) -> None:
        cluster = EngineCluster.settled(
            numa_host("host-a", cores=2, labels=(("disk", "ssd"),)), numa_host("host-b")
        )
        wish: dict[str, Any] = {"required_labels": (("disk", "ssd"),), "allow_pending": True}
        cluster.submit("large", cpu_milli=8_000, policy=ONE_NODE, **wish)
        assert cluster.waiting_reason("large") == Reason.WAITING_LABELS
        cluster.submit("small", cpu_milli=4_000, policy=ONE_NODE, **wish)
        assert cluster.hosts_of("small") == ["host-a"]

    def test_hosts_that_are_alike_are_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = EngineCluster.settled(*(numa_host(f"host-{n:02d}") for n in range(40)))
        asked = counted(monkeypatch, cluster, "fits_empty")
        cluster.submit("never", cpu_milli=9_000, policy=ONE_NODE, allow_pending=True)
        assert cluster.waiting_reason("never") == Reason.INFEASIBLE_NEVER
        # once for online hosts, once for known ones, and once without labels
        assert len(asked) <= 4


def counted(monkeypatch: pytest.MonkeyPatch, cluster: EngineCluster, function: str) -> list[str]:
    """Records the hosts for which a function was computed, each time."""
    calls: list[str] = []
    real = getattr(cpu_allocator, function)

    def counting(books: CpuLedger, wish: CpuRequest) -> Any:
        calls.extend(name for name, each in cluster.state.hosts.items() if each.cpus is books)
        return real(books, wish)

    monkeypatch.setattr(cpu_allocator, function, counting)
    return calls


APART = CpuPolicy(
    QosClass.LSR,
    BindPolicy.SPREAD_BY_PCPUS,
    bind_required=True,
    exclusive=ExclusivePolicy.PCPU_LEVEL,
    exclusive_required=True,
)


def test_hosts_that_lack_what_the_index_counts_are_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = EngineCluster.settled(*(numa_host(f"host-{n}") for n in range(6)))
    for n in range(6):
        cluster.submit(f"one-of-each-core-{n}", cpu_milli=8_000, policy=APART)
    asked = counted(monkeypatch, cluster, "assign")
    cluster.submit("whole", cpu_milli=2_000, policy=WHOLE_CORES)
    assert cluster.waiting_reason("whole") == Reason.WAITING_TOPOLOGY
    assert asked == []


def test_a_host_that_did_not_suit_is_asked_again_when_it_grew_and_no_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = EngineCluster.settled(*(numa_host(f"host-{n}") for n in range(6)))
    for n in range(6):
        cluster.submit(f"one-of-each-core-{n}", cpu_milli=8_000, policy=APART)
    asked = counted(monkeypatch, cluster, "assign")
    cluster.submit("apart", cpu_milli=1_000, policy=APART)
    assert sorted(asked) == sorted(cluster.state.hosts)  # each has free cpus, but no unclaimed core
    asked.clear()
    cluster.submit("plain", cpu_milli=1_000)
    cluster.release("plain")
    cluster.submit("also-apart", cpu_milli=1_000, policy=APART)
    assert len(asked) <= 1  # the one with new capacity
    asked.clear()
    [key] = (key for key in cluster.state.hosts["host-3"].slots)
    cluster.release(key[0])
    assert cluster.hosts_of("apart", "also-apart") == ["host-3"] * 2
    assert set(asked) == {"host-3"}


def frontier(scheduling_class: SchedulingClass) -> int:
    """Returns the first host, in order of name, that may still be asked; a host before it is asked
    again only after it has grown.
    """
    return next(
        cursor.frontier
        for tier, cursor in scheduling_class.cursors.items()
        if isinstance(tier, Tier) and tier.in_use
    )


class TestMoreHostsThanOneDecisionAsks:
    """Twelve hosts with free cpus; one decision asks three of them."""

    def cluster(self, *others: Any) -> EngineCluster:
        names = [f"host-{n:02d}" for n in range(12)]
        cluster = EngineCluster.settled(*map(numa_host, names), *others, hosts_asked_max=3)
        for n in range(12):
            cluster.submit(f"one-of-each-core-{n}", cpu_milli=8_000, policy=APART)
        cluster.auto_settle = False  # so that each call is one decision
        return cluster

    def test_the_next_decisions_go_on_where_it_stopped(self) -> None:
        cluster = self.cluster()
        cluster.submit("apart", cpu_milli=1_000, policy=APART)
        [shape] = cluster.state.queue.classes()
        passed = [frontier(shape)]
        while cluster.state.unfinished:
            cluster.batch()
            passed.append(frontier(shape))
        assert passed == [3, 6, 9, 12, 12]
        assert cluster.waiting_reason("apart") == Reason.WAITING_TOPOLOGY

    def test_whoever_fits_the_last_of_them_gets_there(self) -> None:
        cluster = self.cluster(numa_host("z-last"))
        cluster.submit("apart", cpu_milli=1_000, policy=APART)
        assert cluster.state_of("apart") == "PENDING"
        while cluster.state.unfinished:
            cluster.batch()
        cluster.settle()
        assert cluster.hosts_of("apart") == ["z-last"]

    def test_others_are_served_meanwhile(self) -> None:
        cluster = self.cluster()
        cluster.submit("apart", cpu_milli=1_000, policy=APART)
        assert cluster.state.unfinished
        cluster.submit("plain", cpu_milli=1_000)
        assert cluster.hosts_of("plain") == ["host-00"]
        assert cluster.state.unfinished

    def test_hosts_that_grow_meanwhile_do_not_begin_it_anew(self) -> None:
        cluster = self.cluster()
        cluster.submit("plain", cpu_milli=1_000)
        cluster.submit("apart", cpu_milli=1_000, policy=APART)
        for _ in range(10):  # whenever capacity becomes free on the first host
            cluster.release("plain")
            cluster.submit("plain", cpu_milli=1_000)
            cluster.deliver_all()
        assert not cluster.state.unfinished
        [shape] = cluster.state.queue.classes()
        assert frontier(shape) == 12
