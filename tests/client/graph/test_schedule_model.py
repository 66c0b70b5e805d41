"""A job never blocks itself: every graph finishes with as many slots as its largest region needs.

For small graphs, all behaviors of the cluster are tried: each order in which it grants requests,
and each order in which regions end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.schedule import RegionState, RequestSlots, TaskEnded, TaskId
from finegrain_client.graph.values import Exchange, GraphSpec, JobMode
from tests.client.graph.graphs import all_graphs, graph, random_graph
from tests.client.graph.schedule_world import World


def _valid(graphs: Iterable[GraphSpec]) -> Iterator[Plan]:
    for each in graphs:
        try:
            yield compile_graph(each)
        except GraphError:
            pass


def _slots_that_are_enough(plan: Plan) -> int:
    return max(each.slots for each in plan.regions)


def _largest_sum(plan: Plan) -> int:
    """The largest sum over a region's groups of the group's highest parallelism."""
    groups = [{plan.chain_named[name].group for name in region.chains} for region in plan.regions]
    return max(sum(plan.group_of[name].slots for name in names) for names in groups)


def _end_region(world: World, number: int) -> None:
    for task in list(world.schedule.regions[number].running):
        del world.tasks[task]
        world.step(TaskEnded(task))


def _explore(plan: Plan) -> None:
    """Tries every order in which requests are granted and regions end."""
    worlds = [World(plan, _slots_that_are_enough(plan))]
    seen = {worlds[0].position()}
    for world in worlds:
        requests = world.grantable()
        running = [
            number
            for number, each in world.schedule.regions.items()
            if each.state is RegionState.RUNNING
        ]
        if not requests and not running:
            assert world.ended is not None, f"the job waits for itself: {plan}"
            assert world.ended.ok
            continue
        following = []
        for number in running:
            following.append(after := world.copy())
            _end_region(after, number)
        for request in requests:
            following.append(after := world.copy())
            after.grant(request)
        for after in following:
            assert after.most_slots <= after.capacity
            if (position := after.position()) not in seen:
                seen.add(position)
                worlds.append(after)


def _walk(plan: Plan, rng: random.Random) -> World:
    """Lets a job run to its end; the cluster decides at random, task by task."""
    world = World(plan, _slots_that_are_enough(plan))
    while world.ended is None:
        choices: list[RequestSlots | TaskId] = [*world.grantable(), *world.tasks]
        assert choices, f"the job waits for itself: {plan}"
        choice = rng.choice(choices)
        if isinstance(choice, TaskId):
            del world.tasks[choice]
            world.step(TaskEnded(choice))
        else:
            world.grant(choice)
    assert world.ended.ok
    assert world.most_slots <= world.capacity
    return world


def _check_bound(plan: Plan, *, has_groups: bool) -> None:
    assert _slots_that_are_enough(plan) <= _largest_sum(plan)
    if not has_groups:
        assert _largest_sum(plan) == max(each.parallelism for each in plan.chains)


@pytest.mark.parametrize("operators", [1, 2, 3])
@pytest.mark.parametrize("mode", JobMode)
def test_every_graph_of_up_to_three_operators_finishes(mode: JobMode, operators: int) -> None:
    for plan in _valid(all_graphs(operators, mode)):
        _check_bound(plan, has_groups=False)
        _explore(plan)


@pytest.mark.full
@pytest.mark.parametrize("mode", JobMode)
def test_every_graph_of_four_operators_finishes(mode: JobMode) -> None:
    for plan in _valid(all_graphs(4, mode)):
        _check_bound(plan, has_groups=False)
        _explore(plan)


@pytest.mark.parametrize("operators", [1, 2])
@pytest.mark.parametrize("mode", JobMode)
def test_every_graph_of_up_to_two_operators_finishes_with_any_groups(
    mode: JobMode, operators: int
) -> None:
    for plan in _valid(all_graphs(operators, mode, with_groups=True)):
        _check_bound(plan, has_groups=True)
        _explore(plan)


@pytest.mark.full
@pytest.mark.parametrize("mode", JobMode)
def test_every_graph_of_three_operators_finishes_with_any_groups(mode: JobMode) -> None:
    for plan in _valid(all_graphs(3, mode, with_groups=True)):
        _check_bound(plan, has_groups=True)
        _explore(plan)


@pytest.mark.full
def test_every_graph_of_four_operators_without_parallelism_finishes_with_any_groups() -> None:
    for plan in _valid(all_graphs(4, JobMode.BATCH, with_groups=True, parallelism_max=1)):
        _check_bound(plan, has_groups=True)
        _explore(plan)


def _random_plans(count: int, seed: int) -> Iterator[Plan]:
    """Yields plans of random valid graphs of 5 to 8 operators, with groups in half of them."""
    rng = random.Random(seed)
    while count:
        for plan in _valid([random_graph(rng, rng.randint(5, 8))]):
            count -= 1
            yield plan


@pytest.mark.parametrize(
    "count", [150, pytest.param(10_000, marks=pytest.mark.full)], ids=["some", "ten thousand"]
)
def test_random_larger_graphs_finish(count: int) -> None:
    rng = random.Random(count)
    passed = 0
    for plan in _random_plans(count, seed=count):
        assert _slots_that_are_enough(plan) <= _largest_sum(plan)
        passed += _walk(plan, rng).passed
    # Otherwise the walks would not show that slots pass from region to region.
    assert passed > count // 10


def test_with_one_slot_less_the_largest_region_never_starts() -> None:
    """With one slot less, no job finishes. So the simulated cluster notices a job that waits
    forever.
    """
    (plan,) = _valid([graph(JobMode.BATCH, (2, 3), (Exchange.BLOCKING,))])
    world = World(plan, capacity=2)
    world.grant(world.grantable()[0])
    _end_region(world, 1)

    assert world.schedule.regions[2].state is RegionState.REQUESTING
    assert world.grantable() == []
