"""The order of gangs and resizes in a pass, against a comparison of all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from resource_manager.engine.fairness.choice import order_key_of
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.queue.non_batchable import ItemOrder, Rank
from tests.support.properties import examples

GROUPS = {"g0": "", "g1": "", "g2": "g1"}
JOBS = {f"j{number}": f"g{number % 3}" for number in range(6)}

Steps = st.lists(
    st.tuples(st.sampled_from(["add", "take", "drop", "refresh"]), st.integers(0, 30)),
    max_size=80,
)


def a_tree() -> FlowTree:
    tree = FlowTree(Fairness(usage_measure="slots", half_life_ms=None), 0)
    for name, parent in GROUPS.items():
        minimum = {"cpu_milli": 300} if parent else {}
        tree.put_group(name, parent, weight=2 + len(parent), limits=({}, minimum))
    for at, (job_id, group) in enumerate(JOBS.items()):
        tree.add_job(job_id, group)
        tree.wait(job_id, at, 1_000)
    return tree


@given(Steps)
@settings(max_examples=examples(200))
def test_the_first_item_is_that_of_the_job_that_is_served_next(
    steps: list[tuple[str, int]],
) -> None:
    tree = a_tree()
    order = ItemOrder(tree)
    jobs: dict[int, str] = {}
    for what, number in steps:
        if what == "add":
            order.add(number, job_id := f"j{number % 6}")
            jobs[number] = job_id
            order.refresh()
        elif what == "drop":
            order.discard(number)
            jobs.pop(number, None)
        elif what == "refresh":
            tree.advance(tree.clock.now_ms + 1_000 * number)
            order.refresh()
        elif (first := order.first()) is not None:
            # A placement moves the job back in the order, as in a cycle.
            tree.place(jobs[first[1]], {"cpu_milli": 100}, 1 + number, 1.0)
            order.discard(first[1])
            del jobs[first[1]]
        assert order.first() == least(tree, jobs)
        assert len(order) == len(jobs)


def test_without_a_tree_items_go_in_order_of_arrival() -> None:
    order = ItemOrder(None)
    for number in (7, 3, 5):
        order.add(number, f"j{number}")
    order.refresh()
    assert order.first() == ((), 3)
    order.discard(3)
    assert order.first() == ((), 5)
    assert 5 in order
    assert 3 not in order


def least(tree: FlowTree, jobs: dict[int, str]) -> Rank | None:
    return min(
        ((order_key_of(tree, tree.jobs[job_id]), number) for number, job_id in jobs.items()),
        default=None,
    )
