"""Tests which executors are asked for, and what is planned where."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from finegrain.values.states import GangPlacement
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS
from resource_manager.engine.placement.elastic import Capacity
from resource_manager.engine.planning.draft import Supply
from resource_manager.engine.planning.gangs import GangDemand
from resource_manager.engine.planning.packing import Counts, Demand, Space
from resource_manager.engine.planning.planning import Backlog, Plan, make_plan
from tests.support.properties import examples


def wish(cpu: int, mem: int = 0, **labels: str) -> Demand:
    amounts = {"cpu_milli": cpu, SLOTS: 1}
    if mem:
        amounts["memory_bytes"] = mem
    return Demand(amounts, amounts, tuple(sorted(labels.items())))


DEFAULT = Demand({DEFAULT_SLOTS: 1}, {DEFAULT_SLOTS: 1})


def capacity(cpu: int, mem: int = 1_000, slots: int = 1 << 53, **labels: str) -> Capacity:
    amounts = {"cpu_milli": cpu, "memory_bytes": mem, SLOTS: slots}
    return Capacity(amounts, {"cpu_milli": 2, "memory_bytes": 2}, labels)


def supply(
    cpu: int,
    cost: float,
    mem: int = 1_000,
    most: int = 1 << 53,
    slots: int = 1 << 53,
    **labels: str,
) -> Supply:
    total = {"cpu_milli": cpu, "memory_bytes": mem}
    return Supply(capacity(cpu, mem, slots, **labels), total, cost, most)


def asked(plan: Plan) -> list[tuple[int, Counts]]:
    return [(new.supply, new.content) for new in plan.new]


# The choice of shapes.


def test_one_large_executor_is_cheaper_than_four_small_ones() -> None:
    """Measured by served cpus per cost, the small executor would be better: 2 cpus for 1, compared
    with 7 cpus for 3.
    """
    shapes = [supply(2, cost=1), supply(8, cost=3)]
    assert asked(make_plan(Backlog([wish(1)], [(0, 7)], shapes))) == [(1, {0: 7})]


def test_a_small_one_serves_what_a_large_one_leaves() -> None:
    shapes = [supply(2, cost=1), supply(8, cost=3)]
    plan = make_plan(Backlog([wish(1)], [(0, 10)], shapes))
    assert sorted(new.supply for new in plan.new) == [0, 1]


def test_of_equally_cheap_sets_the_one_with_fewer_executors_is_chosen() -> None:
    shapes = [supply(2, cost=1), supply(4, cost=2)]
    assert asked(make_plan(Backlog([wish(1)], [(0, 4)], shapes))) == [(1, {0: 4})]


def test_different_requests_share_an_executor() -> None:
    shapes = [supply(4, cost=2), supply(8, cost=3)]
    plan = make_plan(Backlog([wish(3), wish(5), wish(2)], [(0, 1), (1, 1), (2, 1)], shapes))
    assert sum(shapes[new.supply].cost for new in plan.new) == 5


def test_labels_and_default_slots_are_heeded() -> None:
    shapes = [supply(8, cost=1), supply(4, cost=5, zone="a")]
    plan = make_plan(Backlog([wish(1, zone="a"), DEFAULT], [(0, 1), (1, 4)], shapes))
    assert asked(plan) == [(0, {1: 4}), (1, {0: 1})] or asked(plan) == [
        (1, {0: 1, 1: 1}),
        (0, {1: 3}),
    ]


def test_slots_of_an_executor_are_counted() -> None:
    plan = make_plan(Backlog([wish(1)], [(0, 5)], [supply(100, cost=1, slots=2)]))
    assert [sum(new.content.values()) for new in plan.new] == [2, 2, 1]


def test_what_fits_no_shape_is_left_and_hinders_nobody() -> None:
    plan = make_plan(Backlog([wish(9), wish(1)], [(0, 1), (1, 1)], [supply(4, cost=1)]))
    assert asked(plan) == [(0, {1: 1})]
    assert plan.left == {0: 1}


# Pending executors.


def test_pending_executors_are_filled_before_new_ones_are_asked_for() -> None:
    backlog = Backlog(
        [wish(1)], [(0, 5)], [supply(4, cost=1)], pending={"old": capacity(2), "new": capacity(2)}
    )
    plan = make_plan(backlog)
    assert plan.pending == {"old": {0: 2}, "new": {0: 2}}
    assert asked(plan) == [(0, {0: 1})]


def test_a_plan_is_kept_as_long_as_everybody_is_served() -> None:
    backlog = Backlog(
        [wish(3), wish(1)],
        [(1, 1), (0, 1)],
        [supply(4, cost=1)],
        pending={"a": capacity(3), "b": capacity(1)},
        kept={"a": {0: 1}},
    )
    assert make_plan(backlog).pending == {"a": {0: 1}, "b": {1: 1}}


def test_where_limits_bind_whoever_waits_longest_is_planned() -> None:
    backlog = Backlog(
        [wish(3), wish(1)],
        [(1, 2), (0, 1)],
        [supply(4, cost=1, most=0)],
        pending={"a": capacity(3)},
        kept={"a": {0: 1}},
    )
    plan = make_plan(backlog)
    assert plan.pending == {"a": {1: 2}}
    assert plan.left == {0: 1}


def test_executors_that_are_alike_share_what_is_needed_there() -> None:
    """Otherwise each of a thousand executors would have a separate list as long as the backlog."""
    alike = [capacity(4, zone="b"), capacity(8, zone="b")]
    other = capacity(4, zone="a")
    space = Space([wish(1, zone="a"), DEFAULT], [*alike, other])
    needs = [space.needs(each) for each in (*alike, other)]
    assert needs[0] is needs[1]
    assert needs[0][0] is None
    assert needs[2][0] is not None


# Limits.


def test_totals_stay_within_limits_and_the_first_in_line_are_served() -> None:
    backlog = Backlog(
        [wish(4), wish(1)], [(0, 1), (1, 8)], [supply(4, cost=1)], limits={"cpu_milli": 8}
    )
    plan = make_plan(backlog)
    assert sorted(sum(new.content.values()) for new in plan.new) == [1, 4]
    assert plan.left == {1: 4}


def test_whoever_does_not_fit_within_limits_lets_others_pass() -> None:
    backlog = Backlog(
        [wish(8), wish(1)],
        [(0, 1), (1, 2)],
        [supply(8, cost=1), supply(2, cost=1)],
        limits={"cpu_milli": 4},
    )
    plan = make_plan(backlog)
    assert asked(plan) == [(1, {1: 2})]
    assert plan.left == {0: 1}


def test_no_more_of_a_shape_than_may_be() -> None:
    shapes = [supply(4, cost=1, most=1), supply(4, cost=9)]
    plan = make_plan(Backlog([wish(4)], [(0, 2)], shapes))
    assert [new.supply for new in plan.new] == [0, 1]


def test_shapes_that_may_not_be_asked_for_do_not_confuse_the_others() -> None:
    backlog = Backlog(
        [wish(1)],
        [(0, 4)],
        [supply(1, cost=1, mem=1, most=0), supply(2, cost=1), supply(1, cost=1)],
        limits={"cpu_milli": 3},
    )
    plan = make_plan(backlog)
    assert sorted(asked(plan), key=str) == [(1, {0: 2}), (2, {0: 1})]
    assert plan.left == {0: 1}


# Gangs.


def gang(placement: GangPlacement, label: str = "", **members: int) -> GangDemand:
    counts = {int(name.removeprefix("k")): count for name, count in members.items()}
    return GangDemand(counts, placement, label)


def test_a_gang_uses_free_room_of_hosts_and_only_asks_for_the_rest() -> None:
    backlog = Backlog(
        [wish(2)],
        [],
        [supply(4, cost=1)],
        gangs=[gang(GangPlacement.ANYWHERE, k0=3)],
        hosts={"host": capacity(2)},
    )
    plan = make_plan(backlog)
    assert asked(plan) == [(0, {0: 2})]
    assert plan.gangs == [0]
    assert plan.counted_on == {"host"}


def test_a_gang_that_cannot_be_whole_takes_nothing() -> None:
    backlog = Backlog(
        [wish(2), wish(1)],
        [(1, 1)],
        [supply(2, cost=1, most=1)],
        gangs=[gang(GangPlacement.ANYWHERE, k0=3)],
        pending={"p": capacity(2)},
        hosts={"host": capacity(1)},
    )
    plan = make_plan(backlog)
    assert plan.gangs == []
    assert plan.pending == {"p": {1: 1}}
    assert plan.new == []
    assert plan.counted_on == set()


def test_members_that_belong_on_one_executor_get_one() -> None:
    backlog = Backlog(
        [wish(2)],
        [],
        [supply(4, cost=1), supply(8, cost=9)],
        gangs=[gang(GangPlacement.SAME_EXECUTOR, k0=3)],
        hosts={"host": capacity(4)},
    )
    assert asked(make_plan(backlog)) == [(1, {0: 3})]


def test_members_that_belong_apart_get_one_executor_each() -> None:
    backlog = Backlog(
        [wish(1)],
        [],
        [supply(4, cost=1)],
        gangs=[gang(GangPlacement.SPREAD, k0=3)],
        pending={"p": capacity(4)},
        hosts={"host": capacity(4)},
    )
    plan = make_plan(backlog)
    assert plan.pending == {"p": {0: 1}}
    assert asked(plan) == [(0, {0: 1})]


def test_members_of_one_label_go_where_least_has_to_be_bought() -> None:
    backlog = Backlog(
        [wish(2)],
        [],
        [supply(2, cost=1, rack="a"), supply(2, cost=1, rack="b")],
        gangs=[gang(GangPlacement.SAME_LABEL, "rack", k0=3)],
        hosts={"host": capacity(4, rack="b")},
    )
    assert asked(make_plan(backlog)) == [(1, {0: 1})]


def test_others_use_what_a_gang_leaves_of_its_executors() -> None:
    backlog = Backlog(
        [wish(3), wish(1)],
        [(1, 2)],
        [supply(4, cost=1)],
        gangs=[gang(GangPlacement.SPREAD, k0=2)],
    )
    assert asked(make_plan(backlog)) == [(0, {0: 1, 1: 1}), (0, {0: 1, 1: 1})]


# Any backlog.

SIZES = st.tuples(st.integers(1, 8), st.integers(1, 8))
SHAPES = st.lists(st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 9)), min_size=1)


def of(sizes: list[tuple[int, int]], shapes: Any, **more: Any) -> Backlog:
    kinds = sorted(set(sizes))
    return Backlog(
        [wish(cpu, mem) for cpu, mem in kinds],
        [(kinds.index(size), 1) for size in sizes],
        [supply(cpu, cost, mem) for cpu, mem, cost in shapes],
        **more,
    )


def cheapest(sizes: list[tuple[int, int]], shapes: list[tuple[int, int, int]]) -> int | None:
    """Returns the least cost to serve all, by trying every partition; None: some fit nowhere."""

    def price(group: list[tuple[int, int]]) -> int | None:
        cpu, mem = sum(size[0] for size in group), sum(size[1] for size in group)
        return min((cost for c, m, cost in shapes if c >= cpu and m >= mem), default=None)

    def best(left: list[tuple[int, int]]) -> int | None:
        if not left:
            return 0
        first, *others = left
        found = None
        for chosen in product((False, True), repeat=len(others)):
            inside = [size for size, take in zip(others, chosen, strict=True) if take]
            here = price([first, *inside])
            if here is None:
                continue
            rest = best([size for size, take in zip(others, chosen, strict=True) if not take])
            if rest is not None and (found is None or here + rest < found):
                found = here + rest
        return found

    return best(sizes)


@given(
    st.lists(SIZES, min_size=1, max_size=6),
    st.lists(SHAPES.flatmap(st.sampled_from), min_size=1, max_size=4),
)
@example(  # the first executor is full only with the request of the last kind
    sizes=[(6, 4), (1, 1), (1, 5), (1, 7)], shapes=[(10, 9, 6), (1, 1, 1), (4, 9, 5)]
)
@settings(max_examples=examples(150))
def test_few_requests_are_served_at_the_least_cost(
    sizes: list[tuple[int, int]], shapes: list[tuple[int, int, int]]
) -> None:
    fitting = [size for size in sizes if any(size[0] <= c and size[1] <= m for c, m, _ in shapes)]
    plan = make_plan(of(sizes, shapes))
    cost = sum(shapes[new.supply][2] for new in plan.new)
    assert cost == cheapest(fitting, shapes)
    assert sum(plan.left.values()) == len(sizes) - len(fitting)


@given(
    st.integers(1, 60),
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 9), st.sampled_from([1, 2, 3, 1 << 53])),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=examples(200))
def test_equal_requests_are_served_at_the_least_cost(
    count: int, size: int, shapes: list[tuple[int, int, int]]
) -> None:
    backlog = Backlog(
        [wish(size)],
        [(0, count)],
        [supply(cpu, cost, most=most) for cpu, cost, most in shapes],
    )
    plan = make_plan(backlog)
    least: list[float] = [0.0] + [float("inf")] * count
    for cpu, cost, most in shapes:  # every number of each shape
        before = least
        least = [
            min(
                before[max(0, n - cpu // size * number)] + cost * number
                for number in range(min(most, count) + 1 if cpu >= size else 1)
            )
            for n in range(count + 1)
        ]
    if least[count] < float("inf"):
        assert sum(shapes[new.supply][1] for new in plan.new) == least[count]
        assert not plan.left
    else:
        assert plan.left


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=150),
    shapes=st.lists(SHAPES.flatmap(st.sampled_from), min_size=1, max_size=5),
    pending=st.lists(SIZES, max_size=4),
    limit=st.one_of(st.none(), st.integers(0, 40)),
    most=st.sampled_from([0, 1, 3, 1 << 53]),
)
@settings(max_examples=examples(150))
def test_a_plan_promises_nothing_that_is_not_there(
    sizes: list[tuple[int, int]],
    shapes: list[tuple[int, int, int]],
    pending: list[tuple[int, int]],
    limit: int | None,
    most: int,
) -> None:
    kinds = sorted(set(sizes))
    backlog = Backlog(
        [wish(cpu, mem) for cpu, mem in kinds],
        [(kinds.index(size), 1) for size in sizes],
        [
            supply(cpu, cost, mem, most if at == 0 else 1 << 53)
            for at, (cpu, mem, cost) in enumerate(shapes)
        ],
        pending={f"p{at}": capacity(*size) for at, size in enumerate(pending)},
        limits={} if limit is None else {"cpu_milli": limit},
    )
    plan = make_plan(backlog)
    planned: Counts = dict(plan.left)
    rooms = [(pending[int(name[1:])], content) for name, content in plan.pending.items()]
    rooms += [(shapes[new.supply][:2], new.content) for new in plan.new]
    for (cpu, mem), content in rooms:
        assert content
        assert sum(kinds[kind][0] * count for kind, count in content.items()) <= cpu
        assert sum(kinds[kind][1] * count for kind, count in content.items()) <= mem
        for kind, count in content.items():
            planned[kind] = planned.get(kind, 0) + count
    assert planned == {at: sizes.count(size) for at, size in enumerate(kinds)}
    assert sum(new.supply == 0 for new in plan.new) <= most
    if limit is not None:
        assert sum(shapes[new.supply][0] for new in plan.new) <= limit
    else:
        for kind in plan.left:
            size = kinds[kind]
            assert not any(
                size[0] <= c and size[1] <= m for c, m, _ in (shapes if most > 3 else shapes[1:])
            )
    assert make_plan(backlog) == plan


@given(
    st.lists(SIZES, min_size=1, max_size=30), st.lists(SHAPES.flatmap(st.sampled_from), min_size=1)
)
@settings(max_examples=examples(100))
def test_what_was_asked_for_is_enough_the_next_time(
    sizes: list[tuple[int, int]], shapes: list[tuple[int, int, int]]
) -> None:
    """A second plan for the same backlog asks for nothing more."""
    backlog = of(sizes, shapes)
    plan = make_plan(backlog)
    names = {f"e{number}": new for number, new in enumerate(plan.new)}
    again = of(
        sizes,
        shapes,
        pending={n: capacity(*shapes[new.supply][:2]) for n, new in names.items()},
        kept={n: new.content for n, new in names.items()},
    )
    second = make_plan(again)
    assert second.new == []
    assert second.pending == {n: new.content for n, new in names.items()}
    assert second.left == plan.left
