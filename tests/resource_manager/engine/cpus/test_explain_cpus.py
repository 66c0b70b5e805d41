"""Why a request waits whose amounts are free: which cpus or NUMA nodes do not suit, in numbers, and
what would help; everything that is said to help is tried here, and does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.cpus.refusals import CpuBlocker
from resource_manager.engine.explain.requests import Explanation, explain
from resource_manager.engine.model.entities import GangPlacement, GangSpec, RequestSpec
from resource_manager.engine.model.events import HostPolicySet, RequestsSubmitted, SlotsReleased
from resource_manager.engine.placement import survey
from tests.support.cpu_hosts import BE, LSE, LSR, PLAIN, CpuStory, host
from tests.support.properties import examples

ONE_NODE = replace(LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE = replace(LSR, bind=BindPolicy.FULL_PCPUS, bind_required=True)
SPREAD = replace(LSR, bind=BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
ALIGNED = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


def why(story: CpuStory, name: str) -> Explanation:
    return explain(story.state, name)


def set_policy(story: CpuStory, name: str = "host-a", **policy: Any) -> None:
    event = HostPolicySet(story.cluster.at, name, HostPolicy(**policy))
    story.cluster.batch(event)
    story.settle()


def end(story: CpuStory, *names: str) -> None:
    event = SlotsReleased(story.cluster.at, "job", tuple((name, 0) for name in names))
    story.cluster.batch(event)
    story.settle()


cancel = end  # a request that waits is given up in the same way


def both_nodes_nearly_full(story: CpuStory) -> None:
    """Three cpus are left on each node of eight."""
    for number in range(2):
        story.ask(f"large-{number}", 5_000, ONE_NODE)


def test_the_nodes_and_their_numbers_are_named() -> None:
    story = CpuStory(host())
    both_nodes_nearly_full(story)
    story.ask("waits", 4_000, ONE_NODE)
    found = why(story, "waits")
    (verdict,) = found.executors
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert "1 executor has the amounts, but not on cpus and NUMA nodes that suit" in found.summary
    assert not verdict.fits
    assert "TOPOLOGY" in verdict.blockers
    assert verdict.cpu is not None
    assert verdict.cpu.blocker is CpuBlocker.NUMA_UNALIGNED
    assert verdict.message.startswith("NUMA_UNALIGNED: SingleNUMANode does not put 4 cpus")
    assert "0: 3 cpus" in verdict.message
    assert "1: 3 cpus" in verdict.message
    assert found.executors_fitting == 0


def test_a_policy_that_is_preferred_instead_would_do() -> None:
    story = CpuStory(host())
    both_nodes_nearly_full(story)
    story.ask("waits", 4_000, ONE_NODE)
    first, second = why(story, "waits").would_fit_if
    assert first.message == "fits now on host-a if numa were preferred instead of required"
    assert first.relaxed == ("numa",)
    assert second.message == "fits now on host-a if 1 cpu fewer: cpu_milli <= 3000"
    assert [(each.dimension, each.free) for each in second.at_most] == [("cpu_milli", 3_000)]
    story.ask("fewer", 3_000, ONE_NODE)
    assert story.where("fewer") == "host-a"
    end(story, "fewer")
    story.ask("loose", 4_000, replace(ONE_NODE, numa_required=False))
    assert story.where("loose") == "host-a"


def test_the_end_of_few_slots_would_do() -> None:
    story = CpuStory(host())
    story.ask("wide", 4_000, ONE_NODE)
    story.ask("narrow", 1_000, ONE_NODE)
    story.ask("other", 5_000, ONE_NODE)
    story.ask("plain", 500, PLAIN)
    story.ask("waits", 7_000, ONE_NODE, allow_pending=True)
    (blocking,) = why(story, "waits").blocked_by
    assert blocking.allocation_id in ("wide", "other")
    end(story, blocking.allocation_id)
    assert story.where("waits") == "host-a"


def test_only_slots_that_matter_are_named() -> None:
    """Six cpus of node 0 are free but for two slots of one cpu; node 1 is full of them."""
    story = CpuStory(host(threads=1))
    for number in range(6):
        story.ask(f"single-{number}", 1_000, ONE_NODE)
    story.ask("waits", 4_000, ONE_NODE)
    named = [slot.allocation_id for slot in why(story, "waits").blocked_by]
    nodes = {story.has(name).nodes for name in named}
    assert len(nodes) == 1
    assert len(named) == 3
    end(story, *named)
    assert story.where("waits") == "host-a"


def test_request_and_host_that_require_different_bind_policies_are_both_named() -> None:
    story = CpuStory(host())
    set_policy(story, bind=HostBindPolicy.FULL_PCPUS_ONLY)
    story.ask("waits", 2_000, SPREAD, allow_pending=True)
    found = why(story, "waits")
    message = found.executors[0].message
    assert message.startswith("BIND_POLICY_CONFLICT: ")
    assert "SpreadByPCPUs" in message
    assert "FullPCPUsOnly" in message
    assert [each.relaxed for each in found.would_fit_if] == [("bind",)]
    assert found.blocked_by == []  # nobody's end helps
    assert found.primary_reason == "INFEASIBLE_NEVER"


def test_an_odd_number_where_whole_cores_are_demanded() -> None:
    story = CpuStory(host())
    set_policy(story, bind=HostBindPolicy.FULL_PCPUS_ONLY)
    story.ask("waits", 3_000, LSR, allow_pending=True)
    found = why(story, "waits")
    assert found.executors[0].message.startswith("SMT_ALIGNMENT: the host demands whole cores")
    (fewer,) = found.would_fit_if
    assert fewer.message == "fits now on host-a if 1 cpu fewer: cpu_milli <= 2000"


def test_two_policies_that_have_to_give_way_together() -> None:
    story = CpuStory(host(nodes=2, cores=2))  # node 0: cpus 0-1, 4-5; node 1: 2-3, 6-7
    story.ask("a", 1_000, replace(ONE_NODE, qos=QosClass.LSE))
    story.ask("b", 1_000, replace(ONE_NODE, qos=QosClass.LSE))
    story.ask("waits", 4_000, replace(WHOLE, numa=ONE_NODE.numa, numa_required=True))
    found = why(story, "waits")
    relaxed = [each.relaxed for each in found.would_fit_if if each.relaxed]
    assert relaxed
    for each in relaxed:
        policy = replace(
            WHOLE,
            numa=ONE_NODE.numa,
            numa_required="numa" not in each,
            bind_required="bind" not in each,
        )
        story.ask("-".join(each), 4_000, policy)
        assert story.where("-".join(each)) == "host-a"
        end(story, "-".join(each))


def test_a_slot_that_wants_its_core_to_itself() -> None:
    policy = replace(
        LSR,
        bind=BindPolicy.SPREAD_BY_PCPUS,
        exclusive=ExclusivePolicy.PCPU_LEVEL,
        exclusive_required=True,
    )
    story = CpuStory(host(nodes=1, cores=4))
    story.ask("one", 3_000, policy)
    story.ask("waits", 3_000, policy)
    found = why(story, "waits")
    assert found.executors[0].message.startswith("EXCLUSIVE_UNMET: ")
    assert found.would_fit_if[0].relaxed == ("exclusive",)
    assert found.would_fit_if[1].message == ("fits now on host-a if 1 cpu fewer: cpu_milli <= 2000")
    assert [slot.allocation_id for slot in found.blocked_by] == ["one"]


def test_an_aligned_slot_in_a_shared_pool_could_be_smaller() -> None:
    story = CpuStory(host())
    story.ask("a", 6_000, ALIGNED)
    story.ask("b", 5_500, ALIGNED)
    story.ask("waits", 4_000, ALIGNED)
    found = why(story, "waits")
    messages = [each.message for each in found.would_fit_if]
    assert "fits now on host-a if numa were preferred instead of required" in messages
    assert "fits now on host-a if cpu_milli <= 2500" in messages
    assert [slot.allocation_id for slot in found.blocked_by] == ["a"]


def test_a_burst_that_no_pool_is_large_enough_for() -> None:
    burst = CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)
    story = CpuStory(host())
    story.ask("pinned", 8_000, replace(LSE, numa=ONE_NODE.numa, numa_required=True))
    story.ask("other", 2_000, replace(LSE, numa=ONE_NODE.numa, numa_required=True))
    story.ask("waits", 1_000, burst, cpu_limit_milli=8_000)
    found = why(story, "waits")
    assert found.executors[0].message.startswith("BURST_POOL_TOO_SMALL: ")
    messages = [each.message for each in found.would_fit_if]
    assert "fits now on host-a if bind were preferred instead of required" in messages
    assert "fits now on host-a if cpu_limit_milli <= 6000" in messages


def test_amounts_that_are_short_are_lowered_to_what_the_cpus_allow() -> None:
    """Five and a half cpus are free; whole cores make four of them."""
    story = CpuStory(host(nodes=1, cores=4))
    story.ask("plain", 2_500, PLAIN)
    story.ask("waits", 8_000, WHOLE)
    found = why(story, "waits")
    assert found.primary_reason == "WAITING_CAPACITY"
    (change,) = found.would_fit_if
    assert change.message == "fits now on host-a if cpu_milli <= 4000"
    story.ask("lower", 4_000, WHOLE)
    assert story.where("lower") == "host-a"


def test_best_effort_cpu_that_is_short_is_lowered_like_any_other() -> None:
    story = CpuStory(host(nodes=1))
    story.ask("one", 6_500, BE)
    story.ask("waits", 2_000, BE)
    (change,) = why(story, "waits").would_fit_if
    assert change.message == "fits now on host-a if best_effort_cpu_milli <= 1500"


def test_too_few_cpus_are_said_once() -> None:
    story = CpuStory(host(nodes=1))
    story.ask("one", 7_000, LSR)
    story.ask("waits", 2_000, LSR)
    (verdict,) = why(story, "waits").executors
    assert verdict.message == "cpu_milli short by 1000 (asked 2000, free 1000, total 8000)"
    assert verdict.cpu is not None


def test_the_host_that_is_nearest_comes_first_and_hosts_that_fit_are_counted() -> None:
    story = CpuStory(host("host-a"), host("host-b"), host("host-c"))
    for name in ("host-a", "host-b", "host-c"):
        set_policy(story, name, alignment=NumaPolicy.NONE)
    for number in range(6):
        story.ask(f"large-{number}", 5_000, ONE_NODE)
    story.ask("waits", 4_000, ONE_NODE)
    found = why(story, "waits")
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert found.summary.startswith("3 executors have the amounts")
    assert len(found.would_fit_if) == 5
    assert found.executors_considered == 3


def test_of_very_many_hosts_so_many_are_asked_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey, "ASKED_MAX", 2)
    story = CpuStory(*(host(f"host-{number}") for number in range(5)))
    for number in range(10):
        story.ask(f"large-{number}", 5_000, ONE_NODE)
    story.ask("waits", 4_000, ONE_NODE)
    found = why(story, "waits")
    assert found.summary.startswith("5 executors have the amounts, but not on cpus")
    assert found.executors_fitting == 0
    assert {each.executor_id for each in found.would_fit_if} <= {"host-0", "host-1"}


def test_the_shared_pool_would_do_where_nothing_else_helps() -> None:
    """The only cpu that is left is the last one on which best-effort slots live."""
    story = CpuStory(host(nodes=1, cores=2, threads=1))
    story.ask("best-effort", 500, BE)
    story.ask("one", 1_000, LSE)
    story.ask("waits", 1_000, LSE)
    found = why(story, "waits")
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert found.executors[0].message.startswith("BEST_EFFORT_POOL_EMPTY: ")
    (change,) = found.would_fit_if
    assert change.relaxed == ("qos",)
    assert change.message == "fits now on host-a if it ran in the shared pool (qos LS)"
    (blocking,) = found.blocked_by
    end(story, blocking.allocation_id)
    assert story.where("waits") == "host-a"


def test_a_best_effort_slot_is_told_who_has_its_pool() -> None:
    story = CpuStory(host(nodes=1, cores=2, threads=1))
    story.ask("all", 2_000, LSE)
    story.ask("waits", 500, BE)
    found = why(story, "waits")
    (verdict,) = found.executors
    assert verdict.message == (
        "best_effort_cpu_milli short by 500 (asked 500, free 0, total 2000);"
        " BEST_EFFORT_POOL_EMPTY: LSE slots have every cpu of the best-effort pool"
    )
    assert [slot.allocation_id for slot in found.blocked_by] == ["all"]
    end(story, "all")
    assert story.where("waits") == "host-a"


def test_a_best_effort_slot_that_others_of_its_class_are_in_the_way_of_as_well() -> None:
    story = CpuStory(host(nodes=1, cores=2, threads=1))
    story.ask("other", 1_800, BE)
    story.ask("one", 1_000, LSE)
    story.ask("waits", 500, BE)
    found = why(story, "waits")
    assert [slot.allocation_id for slot in found.blocked_by] == ["other"]
    assert "POOL_EMPTY" not in found.executors[0].message


def test_a_plain_request_on_a_host_that_aligns_everybody() -> None:
    story = CpuStory(host())
    set_policy(story, alignment=NumaPolicy.SINGLE_NUMA_NODE)
    story.ask("a", 6_000, PLAIN)
    story.ask("b", 6_000, PLAIN)
    story.ask("waits", 3_000, PLAIN)
    found = why(story, "waits")
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert found.executors[0].message.startswith("NUMA_UNALIGNED: ")
    (smaller,) = found.would_fit_if
    assert smaller.message == "fits now on host-a if cpu_milli <= 2000"


binds = st.sampled_from(
    [BindPolicy.DEFAULT, BindPolicy.NONE, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS]
)
exclusives = st.sampled_from([ExclusivePolicy.DEFAULT, *list(ExclusivePolicy)[2:]])
numas = st.sampled_from([NumaPolicy.DEFAULT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE])


@st.composite
def policies(draw: st.DrawFn) -> CpuPolicy:
    qos = draw(st.sampled_from(QosClass))
    bind, exclusive, numa = draw(binds), draw(exclusives), draw(numas)
    own = qos.is_pinned
    required = st.booleans()
    return CpuPolicy(
        qos,
        bind,
        bind not in (BindPolicy.DEFAULT, BindPolicy.NONE) and own and draw(required),
        exclusive,
        exclusive is not ExclusivePolicy.DEFAULT and own and draw(required),
        numa,
        numa is not NumaPolicy.DEFAULT and draw(required),
    )


sizes = st.integers(1, 7)


@settings(max_examples=examples(40))
@given(
    st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([2, 3]), st.sampled_from([1, 2])),
    st.sampled_from([{}, {"alignment": "Restricted"}, {"bind": "FullPCPUsOnly"}]),
    st.lists(st.tuples(policies(), sizes), max_size=8),
    st.tuples(policies(), sizes),
)
def test_whatever_is_said_to_help_does(
    machine: tuple[int, int, int],
    policy: dict[str, str],
    before: list[tuple[CpuPolicy, int]],
    asked: tuple[CpuPolicy, int],
) -> None:
    story = CpuStory(host("host-a", *machine, policy=policy))
    for number, (wish, cpus) in enumerate(before):
        story.ask(f"before-{number}", cpus * 1_000, wish)
        if story.where(f"before-{number}") == "":
            cancel(story, f"before-{number}")
    wanted, cpus = asked
    story.ask("waits", cpus * 1_000, wanted, allow_pending=True)
    found = why(story, "waits")
    if found.view.request.state != "PENDING":
        return
    assert found.executors_fitting == 0
    assert not found.executors[0].fits
    cancel(story, "waits")
    for number, change in enumerate(found.would_fit_if):
        amounts = {each.dimension: each.free for each in change.at_most}
        cpu = amounts.get("cpu_milli", amounts.get("best_effort_cpu_milli", cpus * 1_000))
        story.ask(f"try-{number}", cpu, gives_way(wanted, change.relaxed))
        assert story.where(f"try-{number}") == "host-a", change.message
        end(story, f"try-{number}")
    if found.blocked_by:
        end(story, *(slot.allocation_id for slot in found.blocked_by))
        story.ask("after", cpus * 1_000, wanted)
        assert story.where("after") == "host-a"


def gives_way(policy: CpuPolicy, names: tuple[str, ...]) -> CpuPolicy:
    if "qos" in names:
        return CpuPolicy(numa=policy.numa, numa_required=policy.numa_required)
    preferred: dict[str, Any] = {f"{name}_required": False for name in names}
    return replace(policy, **preferred)


def test_a_gang_whose_members_do_not_suit_one_executor_together() -> None:
    story = CpuStory(host())
    both_nodes_nearly_full(story)
    specs = tuple(
        RequestSpec(name, ResourceProfile(2_000, 64 * MIB), gang_id="gang", cpu_policy=ONE_NODE)
        for name in ("first", "second", "third")
    )
    gangs = (GangSpec("gang", GangPlacement.SAME_EXECUTOR),)
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs, gangs=gangs))
    story.settle()
    found = why(story, "first").gang
    assert found is not None
    assert found.placeable == 2
    assert found.summary == (
        "2 of 3 members fit now on host-a, the best executor; host-a has the amounts, but not on"
        " cpus and NUMA nodes that suit all; fits now if numa were preferred instead of required"
    )


def test_looking_changes_nothing() -> None:
    story = CpuStory(host())
    both_nodes_nearly_full(story)
    story.ask("waits", 4_000, ONE_NODE)
    books = story.state.hosts["host-a"].cpus
    before = (books.version, dict(books.holdings), books.problems())
    assert why(story, "waits") == why(story, "waits")
    assert (books.version, dict(books.holdings), books.problems()) == before
    assert ResourceProfile(4_000, 64 * MIB) == story.state.requests["waits"].spec.profile
    story.sound()
