"""Tests of jobs with priorities: the order within a group, and the shares of groups."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resource_manager.engine.fairness.choice import SharesSince, order_key_of
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.job_heaps import JobHeaps
from resource_manager.engine.model.settings import Fairness
from tests.support.properties import examples

SLOTS = Fairness(usage_measure="slots", half_life_ms=None)


def tree_of(jobs: dict[str, tuple[str, int]]) -> FlowTree:
    """Returns a tree with the groups `top`, `top.a` and `other`, and jobs (group, priority)."""
    tree = FlowTree(SLOTS, 0)
    tree.put_group("top")
    tree.put_group("a", "top")
    tree.put_group("other")
    for number, (job_id, (group, priority)) in enumerate(jobs.items()):
        tree.add_job(job_id, group, priority=priority)
        tree.wait(job_id, number, 1_000)
        tree.activate(job_id)
    return tree


def serve(tree: FlowTree, count: int) -> Counter[str]:
    served: Counter[str] = Counter()
    for _ in range(count):
        job = tree.first_job()
        assert job is not None
        tree.place(job.name, {"cpu_milli": 100}, 1, 1.0)
        served[job.name] += 1
    return served


def test_a_job_is_served_only_when_no_job_with_a_higher_priority_waits() -> None:
    tree = tree_of({"low": ("other", -1), "usual": ("other", 0), "high": ("other", 7)})
    assert serve(tree, 5) == {"high": 5}
    tree.deactivate("high")
    assert serve(tree, 5) == {"usual": 5}
    tree.activate("high")
    tree.deactivate("usual")
    assert serve(tree, 5) == {"high": 5}
    tree.deactivate("high")
    assert serve(tree, 5) == {"low": 5}


def test_groups_get_the_same_share_with_and_without_priorities() -> None:
    def shares(priority: int) -> Counter[str]:
        tree = tree_of({"t": ("top", priority), "s": ("top", 0), "i": ("a", 0), "o": ("other", 0)})
        return serve(tree, 120)

    high, none = shares(50), shares(0)
    assert none == {"t": 20, "s": 20, "i": 20, "o": 60}
    assert high == {"t": 30, "i": 30, "o": 60}


def test_jobs_with_equal_priorities_share_by_usage() -> None:
    tree = tree_of({"one": ("other", 5), "two": ("other", 5), "three": ("other", 4)})
    assert serve(tree, 10) == {"one": 5, "two": 5}


def test_a_reservation_does_not_turn_priorities_round() -> None:
    tree = tree_of({"low": ("other", 0), "high": ("other", 1)})
    tree.advance(1_000)
    serve(tree, 3)
    assert not SharesSince(tree).is_owed("low", 0)
    tree.deactivate("high")
    tree.advance(2_000)
    serve(tree, 1)
    assert SharesSince(tree).is_owed("high", 1_500)
    assert SharesSince(tree).is_owed("low", 1_500)  # no other job was served


def naive_first(tree: FlowTree) -> Flow | None:
    """Chooses the next job without tournaments and without `sort_key`."""
    flow = tree.root
    while flow.children is not None:
        active = [child for child in flow.children.by_id.values() if child.active]
        highest = max((each.priority for each in active if each.children is None), default=0)
        active = [e for e in active if e.children is not None or e.priority == highest]
        if not active:
            return None
        flow = min(active, key=lambda each: (tree.key(each), each.tie))
    return flow


JOBS = {
    f"{group}{number}": (group, priority)
    for group in ("top", "a", "other")
    for number, priority in enumerate((-100, 0, 0, 100, 100))
}
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("switch"), st.sampled_from(sorted(JOBS))),
        st.tuples(st.just("serve"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 50_000)),
    ),
    max_size=30,
)


@settings(max_examples=examples(60))
@given(MOVES)
def test_the_first_job_is_the_job_that_a_plain_comparison_finds(
    moves: list[tuple[str, object]],
) -> None:
    tree, now_ms = tree_of(JOBS), 0
    for what, value in moves:
        if what == "switch":
            active = tree.jobs[str(value)].active
            (tree.deactivate if active else tree.activate)(str(value))
        elif what == "wait":
            now_ms += int(str(value))
            tree.advance(now_ms)
        elif tree.first_job() is not None:
            serve(tree, int(str(value)))
        first = tree.first_job()
        assert first is naive_first(tree)
        assert JobHeaps(tree).first() is first
        if first is not None:
            waiting = [job for job in tree.jobs.values() if job.active]
            assert min(waiting, key=lambda job: order_key_of(tree, job)) is first


@pytest.mark.parametrize("served", [1, 4])
def test_heaps_go_on_with_the_next_priority(served: int) -> None:
    tree = tree_of({"high": ("top", 9), "low": ("top", 0), "inner": ("a", 0)})
    heaps = JobHeaps(tree)
    order = []
    for _ in range(served + 6):
        job = heaps.first()
        assert job is not None
        order.append(job.name)
        tree.place(job.name, {"cpu_milli": 100}, 1, 1.0)
        if order.count("high") == served and job.name == "high":
            tree.deactivate("high")
        heaps.served(job)
        assert heaps.first() is naive_first(tree)
    assert order.count("high") == served
    assert "low" in order
