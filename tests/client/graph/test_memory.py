"""Managed memory fractions, slot profiles and network buffers, against tables computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import finegrain_client as fg
from finegrain_client.graph.connections import channels, producers_of, subpartitions
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.profiles import ManagedShare, managed_shares
from finegrain_client.graph.values import OperatorSpec, Pattern
from finegrain_client.graph_run.task_start import memory_limit

MIB = fg.MIB


def spec(cpu: int = 100, heap: int = 10, managed: int = 0, on_heap: int = 0) -> fg.ResourceSpec:
    """Returns resources; memory in MiB."""
    return fg.ResourceSpec(
        cpu_milli=cpu,
        task_heap_memory_bytes=heap * MIB,
        managed_memory_bytes=managed * MIB,
        managed_on_heap_memory_bytes=on_heap * MIB,
    )


def batch(**operators: fg.ResourceSpec | None) -> fg.JobGraph:
    graph = fg.JobGraph("job", "batch")
    for name, resources in operators.items():
        graph.operator(name, resources=resources)
    return graph


def shares(plan: Plan) -> Mapping[str, ManagedShare]:
    return {each.name: each.managed for chain in plan.chains for each in chain.operators}


# -- memory of tasks ---------------------------------------------------------------------------


def limits(plan: Plan, slot_bytes: int) -> dict[str, int]:
    return {
        each.name: memory_limit(each, plan.group_of[each.group].profile, slot_bytes)
        for each in plan.chains
    }


def test_a_task_with_a_program_of_its_own_is_limited_to_what_it_asks_for() -> None:
    """By hand: b has 10 MiB heap, 20 MiB managed memory, 2 x 1 + 8 + 1 = 11 buffers of 32 KiB."""
    graph = fg.JobGraph("job", "streaming", options=fg.JobOptions(program=["./job"]))
    graph.operator("a", resources=spec(heap=10, managed=10))
    graph.operator("b", resources=spec(heap=10, managed=20), program=["./own"])
    graph.operator("c", resources=spec(heap=10, managed=10))
    graph.connect("a", "b")
    graph.connect("b", "c")
    plan = graph.compile()
    (group,) = plan.groups
    slot_bytes = -(-group.profile.memory_bytes // (64 * fg.KIB)) * 64 * fg.KIB
    wanted = 30 * MIB + 11 * 32 * fg.KIB
    assert limits(plan, slot_bytes) == {
        "a": 0,
        "b": -(-wanted // (64 * fg.KIB)) * 64 * fg.KIB,
        "c": 0,
    }


def test_a_task_without_resources_is_limited_to_a_part_of_the_slot_by_weight() -> None:
    graph = fg.JobGraph("job", "streaming", options=fg.JobOptions(program=["./job"]))
    graph.operator("a", managed_memory_weight=2, uses_managed_memory=True)
    graph.operator("b", program=["./own"])
    graph.connect("a", "b")
    assert limits(graph.compile(), 90 * MIB) == {"a": 0, "b": 30 * MIB}


def test_the_only_task_of_a_slot_is_limited_to_the_slot() -> None:
    graph = fg.JobGraph("job", "batch")
    graph.operator("a", resources=spec(heap=10), program=["./own"])
    assert limits(graph.compile(), 10 * MIB) == {"a": 10 * MIB}


# -- fractions ---------------------------------------------------------------------------------


def test_a_specified_operator_gets_its_part_of_the_managed_memory_of_its_group() -> None:
    """By hand: on heap 10 + 30 + 0 = 40, off heap 20 + 10 + 10 = 40."""
    graph = batch(
        a=spec(managed=30, on_heap=10), b=spec(managed=40, on_heap=30), c=spec(managed=10)
    )
    graph.connect("a", "b")
    graph.connect("b", "c")

    assert shares(graph.compile()) == {
        "a": ManagedShare(on_heap=Fraction(10, 40), off_heap=Fraction(20, 40)),
        "b": ManagedShare(on_heap=Fraction(30, 40), off_heap=Fraction(10, 40)),
        "c": ManagedShare(on_heap=Fraction(0), off_heap=Fraction(10, 40)),
    }


def test_a_specified_operator_has_exactly_its_own_managed_memory_as_quota() -> None:
    graph = batch(a=spec(managed=7, on_heap=3), b=spec(managed=11), c=spec())
    for producer, consumer in ("a", "b"), ("b", "c"):
        graph.connect(producer, consumer)
    plan = graph.compile()

    quotas = {each.name: each.managed_memory_bytes for each in plan.chains[0].operators}
    assert quotas == {"a": 7 * MIB, "b": 11 * MIB, "c": 0}
    assert plan.groups[0].profile.managed_memory_bytes == 18 * MIB


def test_an_unknown_operator_gets_an_equal_part_among_those_that_use_managed_memory() -> None:
    """By hand: a, b and c use memory off the heap (1/3 each), c and d on the heap (1/2 each)."""
    graph = fg.JobGraph("job", "streaming")
    graph.operator("a", uses_managed_memory=True)
    graph.operator("b", uses_managed_memory=True)
    graph.operator("c", uses_managed_memory=True, uses_managed_on_heap_memory=True)
    graph.operator("d", uses_managed_on_heap_memory=True)
    graph.operator("e")

    third, half, none = Fraction(1, 3), Fraction(1, 2), Fraction(0)
    assert shares(graph.compile()) == {
        "a": ManagedShare(none, third),
        "b": ManagedShare(none, third),
        "c": ManagedShare(half, third),
        "d": ManagedShare(half, none),
        "e": ManagedShare(none, none),
    }


def test_weights_divide_the_managed_memory_of_unknown_operators() -> None:
    graph = fg.JobGraph("job", "streaming")
    graph.operator("sort", uses_managed_memory=True, managed_memory_weight=3)
    graph.operator("join", uses_managed_memory=True)

    found = shares(graph.compile())
    assert (found["sort"].off_heap, found["join"].off_heap) == (Fraction(3, 4), Fraction(1, 4))


def test_only_operators_of_the_same_group_count() -> None:
    """The reason for groups by region: operators that never run together do not share memory."""
    graph = fg.JobGraph("job", "batch")
    for name in ("sort", "join", "late"):
        graph.operator(name, uses_managed_memory=True)
    graph.connect("sort", "join")
    graph.connect("join", "late", exchange="blocking")

    assert {name: each.off_heap for name, each in shares(graph.compile()).items()} == {
        "sort": Fraction(1, 2),
        "join": Fraction(1, 2),
        "late": Fraction(1),
    }


def test_a_group_without_managed_memory_gives_fractions_of_zero() -> None:
    assert shares(batch(a=spec()).compile()) == {"a": ManagedShare(Fraction(0), Fraction(0))}


@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    managed=st.integers(0, 2**45),
    on_heap_part=st.floats(0, 1),
)
def test_quotas_never_add_up_to_more_than_the_slot_has(
    weights: list[int], managed: int, on_heap_part: float
) -> None:
    """Rounding down leaves less than a byte of each kind for each operator."""
    operators = [
        OperatorSpec(
            name=f"o{at}",
            uses_managed_memory=True,
            uses_managed_on_heap_memory=True,
            managed_memory_weight=weight,
        )
        for at, weight in enumerate(weights)
    ]
    on_heap = int(managed * on_heap_part)
    quotas = [each.quota_bytes(managed, on_heap) for each in managed_shares(operators).values()]

    assert managed - 2 * len(weights) < sum(quotas) <= managed


def test_quotas_are_exact_where_floating_point_is_not() -> None:
    """A seventh of 2^53 + 1 bytes, which no floating point number can hold."""
    share = ManagedShare(off_heap=Fraction(1, 7))

    assert share.quota_bytes(2**53 + 1) == 1286742750677284
    assert share.quota_bytes(7 * (2**53 + 1)) == 2**53 + 1


# -- profiles ----------------------------------------------------------------------------------


def test_a_slot_has_the_sum_of_its_tasks_and_a_task_the_sum_of_its_operators() -> None:
    """By hand, for read+map (4 subtasks) and reduce (2), connected all to all, in one region.

    read+map: 2 subpartitions, 2 buffers of 32 KiB = 64 KiB. reduce: 4 channels, 4 x 2 + 8 = 16
    buffers = 512 KiB.
    """
    graph = fg.JobGraph("job", "batch")
    graph.operator("read", parallelism=4, resources=spec(250, 10, 5), ports=1)
    graph.operator("map", parallelism=4, resources=spec(500, 20, 8, 2))
    graph.operator("reduce", parallelism=2, resources=spec(1000, 30, 0), ports=2)
    graph.connect("read", "map")
    graph.connect("map", "reduce", pattern="all-to-all")
    plan = graph.compile()

    chained, reduce = (each.profile for each in plan.chains)
    assert chained is not None
    assert reduce is not None
    assert (chained.cpu_milli, chained.task_heap_memory_bytes) == (750, 30 * MIB)
    assert chained.network_memory_bytes == 64 * fg.KIB
    assert (reduce.cpu_milli, reduce.network_memory_bytes) == (1000, 512 * fg.KIB)
    (group,) = plan.groups
    assert group.slots == 4
    assert group.profile.cpu_milli == 1750
    assert group.profile.task_heap_memory_bytes == 60 * MIB
    assert group.profile.managed_memory_bytes == 13 * MIB
    assert group.profile.managed_on_heap_memory_bytes == 2 * MIB
    assert group.profile.network_memory_bytes == 576 * fg.KIB
    assert group.profile.ports == 3
    assert group.profile.memory_bytes == 73 * MIB + 576 * fg.KIB


def test_countable_resources_and_devices_add_up() -> None:
    one = fg.ResourceSpec(
        cpu_milli=1, task_heap_memory_bytes=1, extended={"licence": 1}, devices={"gpu": 50}
    )
    two = fg.ResourceSpec(
        cpu_milli=1, task_heap_memory_bytes=1, extended={"licence": 2, "seat": 0}, devices={}
    )
    graph = batch(a=one, b=two)
    graph.connect("a", "b")
    profile = graph.compile().groups[0].profile

    assert (profile.extended, profile.devices) == ((("licence", 3),), (("gpu", 50),))


def test_unknown_operators_get_the_default_slot() -> None:
    (group,) = batch(a=None).compile().groups

    assert group.profile.is_default
    assert (group.profile.cpu_milli, group.profile.memory_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("uses", "options", "percent"),
    [
        pytest.param((False, False), {}, (0, 0), id="no managed memory is used"),
        pytest.param((True, False), {}, (40, 0), id="off the heap"),
        pytest.param((False, True), {}, (40, 100), id="on the heap"),
        pytest.param((True, True), {}, (40, 50), id="both"),
        pytest.param(
            (True, True),
            {
                "default_managed_memory_percent": 60,
                "default_managed_on_heap_memory_percent": 25,
            },
            (60, 25),
            id="configured",
        ),
        pytest.param(
            (False, False), {"default_managed_memory_percent": 60}, (0, 0), id="configured, unused"
        ),
    ],
)
def test_a_part_of_the_default_slot_is_managed_memory_if_an_operator_uses_it(
    uses: tuple[bool, bool], options: dict[str, int], percent: tuple[int, int]
) -> None:
    graph = fg.JobGraph("job", "batch", options=fg.JobOptions(**options))  # type: ignore[arg-type]
    graph.operator("a", uses_managed_memory=uses[0], uses_managed_on_heap_memory=uses[1])
    (group,) = graph.compile().groups

    profile = group.profile
    assert percent == (
        profile.default_managed_memory_percent,
        profile.default_managed_on_heap_memory_percent,
    )


def test_all_operators_have_resources_or_none() -> None:
    graph = batch(a=None, b=spec(), c=None, d=spec())

    with pytest.raises(GraphError) as caught:
        graph.compile()

    assert caught.value.message == (
        "operator b has resources, but operator a has none; give all operators of a job resources, "
        "or none of them"
    )
    assert caught.value.operators == ("b", "a")


def test_a_group_that_needs_more_than_any_slot_can_have_is_an_error() -> None:
    large = fg.ResourceSpec(cpu_milli=1, task_heap_memory_bytes=2**53)
    graph = batch(a=large, b=large)
    graph.connect("a", "b")

    with pytest.raises(GraphError, match="slot sharing group region-1 add up to"):
        graph.compile()


# -- network memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "producers", "consumers", "channel_count", "subpartition_count"),
    [
        (Pattern.ALL_TO_ALL, 4, 3, 4, 3),
        (Pattern.FORWARD, 3, 3, 1, 1),
        (Pattern.FORWARD, 5, 2, 3, 1),
        (Pattern.FORWARD, 2, 5, 1, 3),
        (Pattern.FORWARD, 1, 4, 1, 4),
    ],
)
def test_channels_and_subpartitions_of_an_edge(
    pattern: Pattern,
    producers: int,
    consumers: int,
    channel_count: int,
    subpartition_count: int,
) -> None:
    assert channels(pattern, producers, consumers) == channel_count
    assert subpartitions(pattern, producers, consumers) == subpartition_count


@given(pattern=st.sampled_from(Pattern), producers=st.integers(1, 30), consumers=st.integers(1, 30))
def test_every_producer_is_read_and_the_counts_are_those_of_the_busiest_subtask(
    pattern: Pattern, producers: int, consumers: int
) -> None:
    read = [producers_of(pattern, index, producers, consumers) for index in range(consumers)]
    written = [sum(one in each for each in read) for one in range(producers)]

    assert max(map(len, read)) == channels(pattern, producers, consumers)
    assert max(written) == subpartitions(pattern, producers, consumers)
    assert min(written) > 0
    assert min(map(len, read)) > 0


def test_network_buffers_of_a_graph_by_hand() -> None:
    """source x4 -> join x2 <= table x3, join -> sink x2 (forward, not chained: other program).

    source: 2 subpartitions = 2. table: 2 subpartitions = 2. join: 4 channels x 2 + 8 and 3 channels
    x 2 + 8, and one subpartition: 16 + 14 + 1 = 31. sink: 1 channel x 2 + 8 = 10.
    """
    graph = fg.JobGraph("job", "batch")
    graph.operator("source", parallelism=4)
    graph.operator("table", parallelism=3)
    graph.operator("join", parallelism=2)
    graph.operator("sink", parallelism=2, program=["./sink"])
    graph.connect("source", "join", pattern="all-to-all")
    graph.connect("table", "join", pattern="all-to-all", exchange="blocking")
    graph.connect("join", "sink")

    buffers = {each.name: each.network_buffers for each in graph.compile().chains}
    assert buffers == {"source": 2, "table": 2, "join": 31, "sink": 10}


def test_network_buffers_can_be_configured() -> None:
    options = fg.JobOptions(
        network_buffer_bytes=1000,
        network_buffers_per_channel=5,
        network_floating_buffers_per_gate=1,
    )
    graph = fg.JobGraph("job", "streaming", options=options)
    graph.operator("a", parallelism=3)
    graph.operator("b", parallelism=3)
    graph.connect("a", "b", pattern="all-to-all")

    first, second = graph.compile().chains
    assert (first.network_memory_bytes, second.network_memory_bytes) == (3_000, 16_000)


def test_within_a_task_no_network_memory_is_needed() -> None:
    graph = batch(a=spec(), b=spec())
    graph.connect("a", "b")

    assert graph.compile().groups[0].profile.network_memory_bytes == 0


# -- all of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("specified", [True, False], ids=["specified", "unknown"])
@pytest.mark.parametrize(("mode", "groups"), [("streaming", 1), ("batch", 2)])
def test_the_four_kinds_of_jobs_have_plans(mode: str, groups: int, specified: bool) -> None:
    graph = fg.JobGraph("job", mode)
    for name in ("a", "b"):
        graph.operator(
            name,
            parallelism=2,
            resources=spec(managed=8) if specified else None,
            uses_managed_memory=not specified,
        )
    exchange = "blocking" if mode == "batch" else "pipelined"
    graph.connect("a", "b", exchange=exchange, pattern="all-to-all")
    plan = graph.compile()

    share = Fraction(1, 3 - groups)
    assert [each.off_heap for each in shares(plan).values()] == [share, share]
    assert [each.slots for each in plan.groups] == [2] * groups
    assert {each.profile.is_default for each in plan.groups} == {not specified}
    assert plan.slots_needed == 2
