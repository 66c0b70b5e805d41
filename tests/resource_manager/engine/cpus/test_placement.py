"""Slots with cpus of their own, aligned ones, best-effort ones and all others, placed by the real
engine on hosts of two packages with a NUMA node of four cores with two threads each.
"""

from __future__ import annotations

from typing import Any

import pytest

from finegrain.cpu_assignment import NodeShare, PoolName
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.errors import Reason
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine import cpu_giver
from resource_manager.engine.cpus.assign import Wish
from resource_manager.engine.cpus.books import CpuBooks
from resource_manager.engine.cpus.refusals import CpuBlocker
from resource_manager.engine.entities import RequestSpec, RequestState
from resource_manager.engine.events import (
    DrainRequested,
    RequestsSubmitted,
    SlotsReleased,
    SlotsReuseAsked,
)
from resource_manager.engine.placement.feasibility import Blocker, judge
from resource_manager.engine.waiting_reasons import pending_by_reason, pending_reason
from tests.resource_manager.engine.model import ModelExecutor
from tests.support.cpu_hosts import BE, LSE, LSR, PLAIN, CpuStory, host

ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LSR_ON_ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE_CORES = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS, bind_required=True)
ALIGNED = {"alignment": "SingleNUMANode"}


def where(story: CpuStory, *names: str) -> list[str]:
    return [story.slot(name).executor_id for name in names]


def waits(story: CpuStory, name: str) -> str:
    """Why it does."""
    request = story.state.requests[name]
    assert request.state is RequestState.PENDING
    return pending_reason(story.state, request)


def release(story: CpuStory, *names: str) -> None:
    slots = tuple((name, 0) for name in names)
    story.cluster.batch(SlotsReleased(story.cluster.at, "job", slots))
    story.settle()


def plain_host(name: str, cpus: int = 16) -> ModelExecutor:
    """One that tells nothing of its cpus."""
    total = {"cpu_milli": 1_000 * cpus, "memory_bytes": 32_768 * MIB}
    return ModelExecutor(name, total, ResourceProfile(1_000, 256 * MIB))


def test_a_pinned_slot_gets_whole_cores_of_its_own_and_books_them() -> None:
    story = CpuStory(host())
    story.ask("pinned", 4_000)
    given = story.has("pinned")
    assert (given.qos, str(given.cpus), given.bind) == (QosClass.LSR, "0-1,8-9", "FullPCPUs")
    assert story.free_cpu() == 12_000
    books = story.state.hosts["host-a"].cpus
    assert CpuSet.from_bits(books.pinned) == given.cpus
    release(story, "pinned")
    assert books.pinned == 0
    assert not books.holdings


def test_no_two_pinned_slots_ever_share_a_cpu_and_the_others_have_what_is_left() -> None:
    story = CpuStory(host())
    names = [f"lse-{n}" for n in range(3)]
    for name in names:
        story.ask(name, 4_000, LSE)
    taken = [story.has(name).cpus for name in names]
    assert len(set().union(*taken)) == 12
    story.ask("beside", 4_000, PLAIN)
    assert story.slot("beside").assignment is None
    story.ask("one-more", 1_000, PLAIN, allow_pending=True)
    assert waits(story, "one-more") == Reason.WAITING_CAPACITY
    release(story, "lse-1")
    assert where(story, "one-more") == ["host-a"]


def test_whoever_wants_the_cpus_that_a_slot_leaves_gets_them() -> None:
    story = CpuStory(host())
    for n in range(4):
        story.ask(f"p{n}", 4_000)
    story.ask("next", 4_000, allow_pending=True)
    left = story.has("p2").cpus
    release(story, "p2")
    assert story.has("next").cpus == left


def test_amounts_that_suffice_are_not_enough_where_threads_are_scattered() -> None:
    story = CpuStory(host())
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    story.ask("one-of-each-core", 8_000, spread)
    assert story.free_cpu() == 8_000
    story.ask("whole", 2_000, WHOLE_CORES)
    assert waits(story, "whole") == Reason.WAITING_TOPOLOGY
    assert pending_by_reason(story.state) == {Reason.WAITING_TOPOLOGY: 1}
    judged = judge(story.state.hosts["host-a"], story.state.queue.shapes()[0])
    assert judged.blockers == (Blocker.TOPOLOGY,)
    assert judged.cpu_refusal is not None
    assert judged.cpu_refusal.blocker is CpuBlocker.WHOLE_CORES_NOT_ENOUGH
    release(story, "one-of-each-core")
    assert story.cpus("whole") == "0,8"


def test_a_host_that_aligns_everybody_gives_everybody_one_node() -> None:
    story = CpuStory(host(policy=ALIGNED))
    story.ask("a", 5_000, PLAIN)
    story.ask("b", 5_000, PLAIN)
    story.ask("c", 4_000, PLAIN)  # six thousand are left, three on each node
    given = story.has("a")
    assert given.numa == (NodeShare(0, (("cpu_milli", 5_000), ("memory_bytes", 64 * MIB))),)
    assert given.pools == (PoolName(0, 0),)
    assert given.memory_nodes == CpuSet.of(0)
    assert story.has("b").nodes == (1,)
    assert waits(story, "c") == Reason.WAITING_TOPOLOGY
    story.ask("d", 3_000, LSR)
    assert story.has("d").nodes in ((0,), (1,))
    release(story, "b")
    assert story.has("c").nodes == (1,)


def test_who_needs_no_alignment_leaves_hosts_that_give_it_to_those_who_do() -> None:
    story = CpuStory(host("host-a", policy=ALIGNED), host("host-b"))
    for n in range(4):
        story.ask(f"plain-{n}", 4_000, PLAIN)
    assert where(story, *(f"plain-{n}" for n in range(4))) == ["host-b"] * 4
    assert all(story.slot(f"plain-{n}").assignment is None for n in range(4))
    story.ask("more", 4_000, PLAIN)
    assert where(story, "more") == ["host-a"]
    assert story.has("more").nodes == (0,)


def test_many_at_once_fill_both_kinds_of_hosts() -> None:
    story = CpuStory(host("host-a", policy=ALIGNED), host("host-b"))
    specs = tuple(RequestSpec(f"s{n}", ResourceProfile(3_000, 64 * MIB)) for n in range(12))
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs))
    story.settle()
    placed = [name for name, request in story.state.requests.items() if request.state == "GRANTED"]
    on = where(story, *placed)
    assert (on.count("host-b"), on.count("host-a")) == (5, 4)  # two on each node
    left = [name for name in story.state.requests if name not in placed]
    assert {waits(story, name) for name in left} == {Reason.WAITING_TOPOLOGY}


def test_a_request_may_ask_for_one_node_anywhere() -> None:
    story = CpuStory(plain_host("host-a"), host("host-b"))
    story.ask("aligned", 3_000, ONE_NODE)
    assert where(story, "aligned") == ["host-b"]
    assert story.has("aligned").nodes == (0,)
    story.ask("pinned", 6_000, LSR_ON_ONE_NODE)
    assert story.has("pinned").nodes == (1,)
    story.ask("plain", 3_000, PLAIN)
    assert where(story, "plain") == ["host-a"]


def test_nothing_of_it_is_forgotten_over_a_restart() -> None:
    story = CpuStory(host())
    story.ask("lse", 4_000, LSE)
    story.ask("aligned", 3_000, ONE_NODE)
    story.ask("be", 6_000, BE)
    story.ask("plain", 1_000, PLAIN)
    before = {name: story.slot(name).assignment for name in ("lse", "aligned", "be", "plain")}
    free = story.free_cpu()
    story.cluster.restart_rm()
    story.sound()
    books = story.state.hosts["host-a"]
    assert {key[0]: held for key, held in books.cpus.holdings.items()} == before
    assert books.booked["best_effort_cpu_milli"] == 6_000
    story.cluster.register(story.cluster.executors["host-a"])
    story.settle()
    assert story.free_cpu() == free
    story.ask("after", 4_000, LSE)
    assert story.has("after").cpus.isdisjoint(story.has("lse").cpus)


def test_what_a_host_refuses_goes_elsewhere_and_comes_back_when_it_changes() -> None:
    story = CpuStory(host("host-a"), host("host-b"))
    story.cluster.executors["host-a"].broken.add("pinned")
    story.ask("pinned", 4_000)
    assert where(story, "pinned") == ["host-b"]
    assert story.state.hosts["host-a"].cpus.pinned == 0
    story.ask("another", 4_000)  # the same wish: the host is not asked for it so soon
    assert where(story, "another") == ["host-b"]
    story.ask("other", 2_000)
    assert where(story, "other") == ["host-a"]


def test_cpus_that_an_executor_has_given_away_are_refused_and_tried_again() -> None:
    story = CpuStory(host())
    story.ask("first", 4_000)
    executor = story.cluster.executors["host-a"]
    foreign = executor.slots["first", 1]
    release(story, "first")
    executor.slots["foreign", 7] = foreign  # nobody's, by these books
    story.ask("second", 4_000, allow_pending=True)
    story.cluster.wait(2_000)
    story.cluster.report(executor)  # it is told that nobody owns that slot, and drops it
    executor.slots.pop(("foreign", 7), None)
    story.cluster.report(executor)
    story.settle()
    assert story.cpus("second") == "0-1,8-9"


def test_of_the_hosts_with_room_the_one_that_gives_all_that_is_preferred_is_best() -> None:
    story = CpuStory(host("host-a"), host("host-b"))
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    story.ask("one-of-each-core", 8_000, spread)
    assert where(story, "one-of-each-core") == ["host-a"]
    story.ask("whole", 2_000, CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS))
    assert where(story, "whole") == ["host-b"]
    assert story.has("whole").notes == ()


def test_who_compares_one_host_takes_the_first() -> None:
    story = CpuStory(host("host-a"), host("host-b"), pack_candidates=1)
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    story.ask("one-of-each-core", 8_000, spread)
    story.ask("whole", 2_000, CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS))
    assert where(story, "whole") == ["host-a"]
    assert "FullPCPUs was preferred" in story.has("whole").notes[0]


def test_spread_gives_one_to_each_host() -> None:
    story = CpuStory(host("host-a"), host("host-b"), host("host-c"), strategy="spread")
    for n in range(6):
        story.ask(f"p{n}", 4_000)
    on = where(story, *(f"p{n}" for n in range(6)))
    assert sorted(on) == ["host-a", "host-a", "host-b", "host-b", "host-c", "host-c"]
    assert len(set(on[:3])) == 3


def test_many_pinned_ones_at_once_fill_host_by_host() -> None:
    story = CpuStory(host("host-a"), host("host-b"))
    profile = ResourceProfile(3_000, 64 * MIB)
    specs = tuple(RequestSpec(f"p{n}", profile, cpu_policy=LSR) for n in range(11))
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs))
    story.settle()
    states = [request.state for request in story.state.requests.values()]
    assert states.count(RequestState.GRANTED) == 10
    for name in ("host-a", "host-b"):
        assert story.free_cpu(name) == 1_000
    assert waits(story, "p10") == Reason.WAITING_CAPACITY


class TestBestEffort:
    def test_it_displaces_nobody_and_is_displaced_by_nobody(self) -> None:
        story = CpuStory(host())
        story.ask("all", 16_000, PLAIN)
        story.ask("be", 16_000, BE)
        assert story.slot("be").best_effort
        assert story.free_cpu() == 0
        assert story.state.hosts["host-a"].free().get("best_effort_cpu_milli", 0) == 0
        story.ask("more", 1_000, BE, allow_pending=True)
        assert waits(story, "more") == Reason.WAITING_CAPACITY
        release(story, "be")
        assert where(story, "more") == ["host-a"]

    def test_it_needs_a_pool_to_run_in(self) -> None:
        story = CpuStory(host())
        story.ask("lse", 16_000, LSE)
        story.ask("be", 1_000, BE, allow_pending=True)
        assert story.state.requests["be"].state is RequestState.PENDING
        release(story, "lse")
        assert where(story, "be") == ["host-a"]

    def test_nobody_takes_the_last_cpu_of_its_pool(self) -> None:
        story = CpuStory(host())
        story.ask("be", 1_000, BE)
        story.ask("lse", 16_000, LSE)
        assert waits(story, "lse") == Reason.WAITING_TOPOLOGY
        story.ask("lsr", 16_000, LSR)  # whose cpus best-effort slots may use
        assert where(story, "lsr") == ["host-a"]
        release(story, "be", "lsr")
        assert where(story, "lse") == ["host-a"]

    def test_a_default_slot_may_be_best_effort(self) -> None:
        story = CpuStory(plain_host("host-a"), host("host-b"))
        specs = tuple(RequestSpec(f"d{n}", None, cpu_policy=BE) for n in range(18))
        story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs))
        story.settle()
        states = [request.state for request in story.state.requests.values()]
        assert states.count(RequestState.GRANTED) == 16
        assert story.state.hosts["host-b"].booked["best_effort_cpu_milli"] == 16_000
        assert story.free_cpu("host-b") == 16_000
        assert "host-a" not in where(story, "d0", "d15")

    def test_where_nothing_is_known_of_cpus_amounts_decide(self) -> None:
        executor = plain_host("host-a")
        executor.total = {**executor.total, "best_effort_cpu_milli": 2_000}
        story = CpuStory(executor)
        story.ask("be", 2_000, BE)
        assert story.has("be").qos is QosClass.BE
        assert story.free_cpu() == 16_000


class TestBurst:
    policy = CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)

    def test_requests_that_differ_in_their_limit_are_not_alike(self) -> None:
        story = CpuStory(host())
        story.ask("fits", 2_000, self.policy, cpu_limit_milli=8_000)
        assert story.has("fits").pools == (PoolName(0, 0),)
        story.ask("too-large", 2_000, self.policy, cpu_limit_milli=9_000, allow_pending=True)
        assert waits(story, "too-large") == Reason.INFEASIBLE_NEVER
        story.ask("again", 2_000, self.policy, cpu_limit_milli=8_000)
        assert story.has("again").bind is BindPolicy.CONSTRAINED_BURST

    def test_the_limit_tells_nobody_else_apart(self) -> None:
        story = CpuStory(host())
        shape_of = story.state.queue.shape_of
        profile = ResourceProfile(2_000, 64 * MIB)
        assert shape_of(RequestSpec("a", profile, cpu_limit_milli=3_000)) is shape_of(
            RequestSpec("b", profile)
        )
        assert shape_of(RequestSpec("a", profile, cpu_policy=LSR)) is not shape_of(
            RequestSpec("b", profile)
        )


class TestWhatCannotBe:
    def test_nobody_is_pinned_where_nothing_is_known_of_cpus(self) -> None:
        story = CpuStory(plain_host("host-a"))
        [answer] = story.ask("pinned", 4_000)
        assert answer.reason == Reason.INFEASIBLE_NEVER
        story.cluster.register(host("host-b"))
        assert not story.ask("later", 4_000)[0].reason
        assert where(story, "later") == ["host-b"]

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
        assert waits(story, "waits") == Reason.INFEASIBLE_NEVER
        story.cluster.register(host("host-d", cores=12))
        story.settle()
        if policy is not WHOLE_CORES:
            assert where(story, "waits") == ["host-d"]

    def test_what_only_a_drained_host_suits_waits_for_it(self) -> None:
        story = CpuStory(host("host-a", cores=2), host("host-b"))
        story.cluster.batch(DrainRequested(story.cluster.at, "host-b"))
        story.ask("large", 8_000, ONE_NODE)
        assert waits(story, "large") == Reason.INFEASIBLE_NOW_OFFLINE

    def test_what_only_a_host_without_the_labels_suits_waits_for_labels(self) -> None:
        story = CpuStory(host("host-a", cores=2, labels=(("disk", "ssd"),)), host("host-b"))
        wish: dict[str, Any] = {"required_labels": (("disk", "ssd"),), "allow_pending": True}
        story.ask("large", 8_000, ONE_NODE, **wish)
        assert waits(story, "large") == Reason.WAITING_LABELS
        story.ask("small", 4_000, ONE_NODE, **wish)
        assert where(story, "small") == ["host-a"]

    def test_hosts_that_are_alike_are_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        story = CpuStory(*(host(f"host-{n:02d}") for n in range(40)))
        asked = counted(monkeypatch, story, "fits_empty")
        story.ask("never", 9_000, ONE_NODE, allow_pending=True)
        assert waits(story, "never") == Reason.INFEASIBLE_NEVER
        assert len(asked) <= 4  # for what is online, what is known, and without labels


def counted(monkeypatch: pytest.MonkeyPatch, story: CpuStory, function: str) -> list[str]:
    """Hosts for which something was reckoned, each time."""
    calls: list[str] = []
    real = getattr(cpu_giver, function)

    def counting(books: CpuBooks, wish: Wish) -> Any:
        calls.extend(name for name, each in story.state.hosts.items() if each.cpus is books)
        return real(books, wish)

    monkeypatch.setattr(cpu_giver, function, counting)
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
    assert waits(story, "whole") == Reason.WAITING_TOPOLOGY
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
    release(story, "plain")
    story.ask("also-apart", 1_000, APART)
    assert len(asked) <= 1  # the one where something grew
    asked.clear()
    [key] = (key for key in story.state.hosts["host-3"].slots)
    release(story, key[0])
    assert where(story, "apart", "also-apart") == ["host-3"] * 2
    assert set(asked) == {"host-3"}


def test_a_slot_is_handed_on_only_to_who_wants_its_cpus_alike() -> None:
    story = CpuStory(host())
    story.ask("first", 16_000)
    story.ask("alike", 16_000, allow_pending=True)
    story.ask("otherwise", 16_000, LSE, allow_pending=True)
    at = story.cluster.at
    [answer] = story.cluster.batch(SlotsReuseAsked(at, "job", (("first", 1, "alike"),)))
    assert answer.reason == ""
    [answer] = story.cluster.batch(SlotsReuseAsked(at, "job", (("first", 1, "otherwise"),)))
    assert answer.reason == Reason.NOT_REUSABLE
    story.settle()
    assert story.has("otherwise").qos is QosClass.LSE


def test_older_slots_without_an_assignment_are_in_nobodys_way() -> None:
    story = CpuStory(host(policy=ALIGNED))
    story.ask("old", 6_000, PLAIN)
    key = ("old", 1)
    story.cluster.store.slots[key].assignment = None  # as a row of an older version has it
    executor = story.cluster.executors["host-a"]
    story.cluster.restart_rm()
    story.cluster.register(executor)
    story.settle()
    assert story.slot("old").assignment is None
    story.ask("new", 6_000, PLAIN)
    assert story.has("new").nodes == (0,)
    release(story, "old")
    assert story.free_cpu() == 10_000


def test_a_host_that_comes_back_as_another_machine_keeps_its_slots() -> None:
    story = CpuStory(host())
    story.ask("wide", 10_000)
    before = story.has("wide")
    executor = story.cluster.executors["host-a"]
    smaller = host(cores=2)
    executor.topology, executor.host_cpus = smaller.topology, smaller.host_cpus
    executor.total = smaller.total
    story.cluster.register(executor)
    story.sound()
    assert story.slot("wide").assignment == before
    assert story.state.hosts["host-a"].shrunk
    story.ask("more", 2_000, allow_pending=True)
    assert story.state.requests["more"].state is RequestState.PENDING
    release(story, "wide")
    assert story.cpus("more") == "0,4"
