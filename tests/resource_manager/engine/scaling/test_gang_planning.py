"""Tests of gangs in a plan: whole or not at all, and in permitted places."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from finegrain.values.states import GangPlacement
from resource_manager.engine.model.scheduling_key import SLOTS
from resource_manager.engine.placement.elastic import Capacity
from resource_manager.engine.planning.draft import Supply
from resource_manager.engine.planning.gangs import GangDemand
from resource_manager.engine.planning.packing import Counts, Demand
from resource_manager.engine.planning.planning import Backlog, Plan, make_plan
from tests.support.properties import examples

ROOMS = st.lists(st.tuples(st.integers(1, 8), st.sampled_from("ab")), max_size=4)
GANGS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3),
        st.sampled_from(list(GangPlacement)),
    ),
    min_size=1,
    max_size=4,
)


def capacity(cpu: int, rack: str) -> Capacity:
    return Capacity({"cpu": cpu, SLOTS: 1 << 53}, {"cpu": 1}, {"rack": rack})


def backlog_of(
    gangs: list[tuple[list[tuple[int, int]], GangPlacement]],
    non_batchables: list[int],
    rooms: tuple[list[tuple[int, str]], list[tuple[int, str]]],
    shapes: list[tuple[int, str, int]],
    limit: int | None,
) -> Backlog:
    wishes = [Demand({"cpu": cpu, SLOTS: 1}, {"cpu": cpu, SLOTS: 1}) for cpu in non_batchables]
    line = [(kind, 1) for kind in range(len(non_batchables))]
    wished = []
    for number, (members, placement) in enumerate(gangs):
        counts = {}
        for cpu, count in members:
            counts[len(wishes)] = count
            wishes.append(Demand({"cpu": cpu, SLOTS: 1}, {"cpu": cpu, SLOTS: 1}))
        wished.append(GangDemand(counts, placement, "rack", min(number, len(line))))
    pending, hosts = rooms
    return Backlog(
        wishes,
        line,
        [Supply(capacity(cpu, rack), {"cpu": cpu}, cost) for cpu, rack, cost in shapes],
        pending={f"p{at}": capacity(*each) for at, each in enumerate(pending)},
        gangs=wished,
        hosts={f"h{at}": capacity(*each) for at, each in enumerate(hosts)},
        limits={} if limit is None else {"cpu": limit},
    )


def places(backlog: Backlog, plan: Plan) -> list[tuple[Capacity, Counts]]:
    """Returns what is planned on pending executors, and on new ones."""
    found = [(backlog.pending[name], content) for name, content in plan.pending.items()]
    found += [(backlog.supplies[new.supply].capacity, new.content) for new in plan.new]
    return found


@given(
    gangs=GANGS,
    non_batchables=st.lists(st.integers(1, 6), max_size=5),
    pending=ROOMS,
    hosts=ROOMS,
    shapes=st.lists(
        st.tuples(st.integers(1, 10), st.sampled_from("ab"), st.integers(1, 5)), max_size=3
    ),
    limit=st.one_of(st.none(), st.integers(0, 20)),
)
@settings(max_examples=examples(200))
def test_a_gang_is_planned_whole_where_it_belongs_or_nowhere(
    gangs: list[tuple[list[tuple[int, int]], GangPlacement]],
    non_batchables: list[int],
    pending: list[tuple[int, str]],
    hosts: list[tuple[int, str]],
    shapes: list[tuple[int, str, int]],
    limit: int | None,
) -> None:
    backlog = backlog_of(gangs, non_batchables, (pending, hosts), shapes, limit)
    plan = make_plan(backlog)
    where = places(backlog, plan)
    for room, content in where:
        taken = sum(backlog.demands[kind].pooled["cpu"] * n for kind, n in content.items())
        assert taken <= room.amounts["cpu"]
    if limit is not None:
        assert sum(backlog.supplies[new.supply].total["cpu"] for new in plan.new) <= limit
    for number, wish in enumerate(backlog.gangs):
        mine = [
            (room, {k: content[k] for k in wish.members & content.keys()})
            for room, content in where
        ]
        mine = [(room, content) for room, content in mine if content]
        there = sum(sum(content.values()) for _, content in mine)
        if number not in plan.gangs:
            assert not mine
            continue
        whole = sum(wish.members.values())
        assert there <= whole
        if there < whole:  # the others are on registered executors
            assert plan.counted_on
        if wish.placement is GangPlacement.SAME_EXECUTOR:
            assert there in (0, whole)
            assert len(mine) <= 1
        elif wish.placement is GangPlacement.SPREAD:
            assert all(sum(content.values()) == 1 for _, content in mine)
        elif wish.placement is GangPlacement.SAME_LABEL:
            assert len({room.labels["rack"] for room, _ in mine}) <= 1
    planned = sum(
        count
        for _, content in where
        for kind, count in content.items()
        if kind < len(non_batchables)
    )
    assert planned + sum(plan.left.values()) == len(non_batchables)
    assert make_plan(backlog) == plan


@given(
    gangs=GANGS,
    hosts=ROOMS,
    shapes=st.lists(
        st.tuples(st.integers(4, 10), st.sampled_from("ab"), st.integers(1, 5)),
        min_size=1,
        max_size=3,
    ),
)
@example(  # the first could also use the executor that is planned for the other
    gangs=[([(2, 3)], GangPlacement.SAME_LABEL), ([(2, 3)], GangPlacement.SAME_LABEL)],
    hosts=[(4, "a"), (6, "b")],
    shapes=[(4, "a", 1)],
)
@settings(max_examples=examples(150))
def test_what_was_asked_for_a_gang_is_enough_the_next_time(
    gangs: list[tuple[list[tuple[int, int]], GangPlacement]],
    hosts: list[tuple[int, str]],
    shapes: list[tuple[int, str, int]],
) -> None:
    alike = gangs
    first = backlog_of(alike, [], ([], hosts), shapes, None)
    plan = make_plan(first)
    came = [(shapes[new.supply][0], shapes[new.supply][1]) for new in plan.new]
    again = backlog_of(alike, [], (came, hosts), shapes, None)
    kept = {f"p{at}": new.content for at, new in enumerate(plan.new)}
    second = make_plan(
        Backlog(**{name: getattr(again, name) for name in again.__slots__} | {"kept": kept})
    )
    assert second.gangs == plan.gangs
    assert second.new == []
