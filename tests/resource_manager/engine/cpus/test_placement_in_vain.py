"""What is refused or waits because no host suits it, and which hosts are asked to find that out."""

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
from tests.support.cpu_hosts import PLAIN, CpuStory, host, plain_host

ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LSR_ON_ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE_CORES = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS, bind_required=True)
ALIGNED = {"alignment": "SingleNUMANode"}


class TestWhatCannotBe:
    def test_nobody_is_pinned_where_nothing_is_known_of_cpus(self) -> None:
        story = CpuStory(plain_host("host-a"))
        [answer] = story.ask("pinned", 4_000)
        assert answer.reason == Reason.INFEASIBLE_NEVER
        story.cluster.register(host("host-b"))
        assert not story.ask("later", 4_000)[0].reason
        assert story.hosts_of("later") == ["host-b"]

    @pytest.mark.parametrize(
        ("cpu_milli", "policy", "why"),
        [
            (3_000, WHOLE_CORES, "ask for a multiple of 2000 cpu_milli"),
            (9_000, LSR_ON_ONE_NODE, "SingleNUMANode does not put"),
            (9_000, ONE_NODE, "SingleNUMANode does not put"),
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
        story = CpuStory(plain_host("a-plain-one", 64), host("host-a"), host("host-b"))
        [answer] = story.ask("never", cpu_milli, policy)
        assert answer.reason == Reason.INFEASIBLE_NEVER
        assert "host-a has that much, but" in answer.message
        assert why in answer.message
        story.ask("waits", cpu_milli, policy, allow_pending=True)
        assert story.waits("waits") == Reason.INFEASIBLE_NEVER
        story.cluster.register(host("host-d", cores=12))
        story.settle()
        if policy is not WHOLE_CORES:
            assert story.hosts_of("waits") == ["host-d"]

    def test_what_only_a_drained_host_suits_waits_for_it(self) -> None:
        story = CpuStory(host("host-a", cores=2), host("host-b"))
        story.cluster.batch(DrainRequested(story.cluster.at, "host-b"))
        story.ask("large", 8_000, ONE_NODE)
        assert story.waits("large") == Reason.INFEASIBLE_NOW_OFFLINE

    def test_what_only_a_host_without_the_labels_suits_waits_for_labels(self) -> None:
        story = CpuStory(host("host-a", cores=2, labels=(("disk", "ssd"),)), host("host-b"))
        wish: dict[str, Any] = {"required_labels": (("disk", "ssd"),), "allow_pending": True}
        story.ask("large", 8_000, ONE_NODE, **wish)
        assert story.waits("large") == Reason.WAITING_LABELS
        story.ask("small", 4_000, ONE_NODE, **wish)
        assert story.hosts_of("small") == ["host-a"]

    def test_hosts_that_are_alike_are_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        story = CpuStory(*(host(f"host-{n:02d}") for n in range(40)))
        asked = counted(monkeypatch, story, "fits_empty")
        story.ask("never", 9_000, ONE_NODE, allow_pending=True)
        assert story.waits("never") == Reason.INFEASIBLE_NEVER
        assert len(asked) <= 4  # for what is online, what is known, and without labels


def counted(monkeypatch: pytest.MonkeyPatch, story: CpuStory, function: str) -> list[str]:
    """Hosts for which something was reckoned, each time."""
    calls: list[str] = []
    real = getattr(cpu_allocator, function)

    def counting(books: CpuLedger, wish: CpuRequest) -> Any:
        calls.extend(name for name, each in story.state.hosts.items() if each.cpus is books)
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
    story = CpuStory(*(host(f"host-{n}") for n in range(6)))
    for n in range(6):
        story.ask(f"one-of-each-core-{n}", 8_000, APART)
    asked = counted(monkeypatch, story, "assign")
    story.ask("whole", 2_000, WHOLE_CORES)
    assert story.waits("whole") == Reason.WAITING_TOPOLOGY
    assert asked == []


def test_a_host_that_did_not_suit_is_asked_again_when_it_grew_and_no_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = CpuStory(*(host(f"host-{n}") for n in range(6)))
    for n in range(6):
        story.ask(f"one-of-each-core-{n}", 8_000, APART)
    asked = counted(monkeypatch, story, "assign")
    story.ask("apart", 1_000, APART)
    assert sorted(asked) == sorted(story.state.hosts)  # each has free cpus, none an unclaimed core
    asked.clear()
    story.ask("plain", 1_000, PLAIN)
    story.release("plain")
    story.ask("also-apart", 1_000, APART)
    assert len(asked) <= 1  # the one where something grew
    asked.clear()
    [key] = (key for key in story.state.hosts["host-3"].slots)
    story.release(key[0])
    assert story.hosts_of("apart", "also-apart") == ["host-3"] * 2
    assert set(asked) == {"host-3"}


class TestMoreHostsThanOneDecisionAsks:
    """Twelve hosts with free cpus, of which one decision asks three."""

    def story(self, *others: Any) -> CpuStory:
        names = [f"host-{n:02d}" for n in range(12)]
        story = CpuStory(*map(host, names), *others, hosts_asked_max=3)
        for n in range(12):
            story.ask(f"one-of-each-core-{n}", 8_000, APART)
        return story

    def test_the_next_decisions_go_on_where_it_stopped(self) -> None:
        story = self.story()
        story.ask("apart", 1_000, APART)
        [shape] = story.state.queue.classes()
        passed = [shape.cursor.frontier]
        while story.state.unfinished:
            story.cluster.batch()
            passed.append(shape.cursor.frontier)
        assert passed == [3, 6, 9, 12, 12]
        assert story.waits("apart") == Reason.WAITING_TOPOLOGY

    def test_whoever_fits_the_last_of_them_gets_there(self) -> None:
        story = self.story(host("z-last"))
        story.ask("apart", 1_000, APART)
        assert story.state.requests["apart"].state == "PENDING"
        while story.state.unfinished:
            story.cluster.batch()
        story.settle()
        assert story.hosts_of("apart") == ["z-last"]

    def test_others_are_served_meanwhile(self) -> None:
        story = self.story()
        story.ask("apart", 1_000, APART)
        assert story.state.unfinished
        story.ask("plain", 1_000, PLAIN)
        assert story.hosts_of("plain") == ["host-00"]
        assert story.state.unfinished

    def test_hosts_that_grow_meanwhile_do_not_begin_it_anew(self) -> None:
        story = self.story()
        story.ask("plain", 1_000, PLAIN)
        story.ask("apart", 1_000, APART)
        for _ in range(10):  # every time something grows on the first host
            story.release("plain")
            story.ask("plain", 1_000, PLAIN)
        assert not story.state.unfinished
        [shape] = story.state.queue.classes()
        assert shape.cursor.frontier == 12
