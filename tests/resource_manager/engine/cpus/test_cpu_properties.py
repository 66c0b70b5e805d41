"""Properties of every choice of cpus, on irregular hosts."""

import json
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaStrategy
from finegrain.cpuset import CpuSet
from resource_manager.engine.cpus.layout import CpuLayout, layout_of
from resource_manager.engine.cpus.packed import even_shares
from resource_manager.engine.cpus.resize_cpus import grow, shrink
from resource_manager.engine.cpus.take import (
    CpuDemand,
    ExclusiveClaims,
    Short,
    ShortOf,
    Taken,
    holds,
    reached,
    take,
)
from tests.support.cpu_layouts import machine
from tests.support.properties import examples

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
EVENLY = NumaStrategy.DISTRIBUTE_EVENLY
EXAMPLES = examples(100)


@st.composite
def layouts(draw: st.DrawFn) -> CpuLayout:
    """Draws regular and irregular layouts.

    Cores have 1 to 8 threads, some of them offline or not available, and two kinds. There are nodes
    without cpus, packages across nodes and nodes across packages.
    """
    regular = draw(st.booleans())
    count = draw(st.integers(1, 12))
    width = draw(st.sampled_from([1, 2, 2, 4, 8]))
    nodes = draw(st.integers(1, 5))
    packages = draw(st.integers(1, 3))
    numbers = iter(draw(st.permutations(range(count * 8))) if not regular else range(count * 8))
    cores = []
    for at in range(count):
        threads = width if regular else draw(st.integers(1, width))
        cores.append(
            {
                "cpus": str(CpuSet(next(numbers) for _ in range(threads))),
                "numa_node_id": at * nodes // count if regular else draw(st.integers(0, nodes - 1)),
                "package_index": 0 if regular else draw(st.integers(0, packages - 1)),
                "kind": "" if regular else draw(st.sampled_from(["core", "core", "atom"])),
            }
        )
    online = CpuSet.from_bits(sum(CpuSet.parse(str(core["cpus"])).bits for core in cores))
    not_ours = CpuSet() if regular else draw(st.sets(st.sampled_from(sorted(online)), max_size=2))
    allowed = online - CpuSet(not_ours) or online
    topology = {
        "allowed_cpus": str(allowed),
        "cores": cores,
        "numa_nodes": [{"numa_node_id": node, "memory_bytes": 1} for node in range(nodes + 1)],
    }
    layout = layout_of(json.dumps(topology))
    assert layout is not None
    return layout


def some_of(draw: st.DrawFn, cpus: int) -> int:
    return draw(st.integers(0, cpus)) & cpus if draw(st.booleans()) else cpus


@st.composite
def situations(draw: st.DrawFn) -> tuple[CpuLayout, int, ExclusiveClaims, CpuDemand]:
    """Draws a host, its free cpus, other slots' claims, and a demand for at most the free cpus."""
    layout = draw(layouts())
    free = some_of(draw, layout.cpus)
    held = layout.cpus & ~free
    wish = CpuDemand(
        need=draw(st.integers(0, free.bit_count())),
        bind=draw(st.sampled_from([FULL, SPREAD, BindPolicy.NONE])),
        bind_required=draw(st.booleans()),
        exclusive=draw(
            st.sampled_from(
                [ExclusivePolicy.NONE, ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL]
            )
        ),
        exclusive_required=draw(st.booleans()),
        strategy=draw(st.sampled_from(list(NumaStrategy))),
        preferred=draw(st.sampled_from([0, 0, free & 0x55555555, free & ~0xFF])),
    )
    return layout, free, ExclusiveClaims(held & 0x33333333, held & 0xCCCCCCCC), wish


def unsuitable(layout: CpuLayout, free: int, claims: ExclusiveClaims, wish: CpuDemand) -> bool:
    """Returns whether a required policy rules out the demand, computed independently."""
    if wish.exclusive_required:
        cores = [core.mask for core in layout.cores]
        nodes = [node.mask for node in layout.nodes]
        if wish.exclusive is ExclusivePolicy.PCPU_LEVEL:
            free = sum(core & free for core in cores if not core & claims.core_level)
        if wish.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
            free = sum(node & free for node in nodes if not node & claims.node_level)
    if wish.bind_required and wish.bind is FULL:
        sums = {0}
        for core in layout.cores:
            if core.mask & free == core.mask:
                sums |= {each + core.mask.bit_count() for each in sums}
        return wish.need not in sums
    if wish.bind_required and wish.bind is SPREAD:
        return wish.need > sum(1 for core in layout.cores if core.mask & free)
    return wish.need > free.bit_count()


@settings(max_examples=EXAMPLES)
@given(situations())
def test_a_wish_is_met_exactly_unless_what_is_required_rules_it_out(
    situation: tuple[CpuLayout, int, ExclusiveClaims, CpuDemand],
) -> None:
    layout, free, claims, wish = situation
    taken = take(layout, free, claims, wish)
    assert taken == take(layout, free, claims, wish)
    assert isinstance(taken, Short) == (wish.need > 0 and unsuitable(*situation))
    if isinstance(taken, Taken):
        assert taken.cpus.bit_count() == wish.need
        assert not taken.cpus & ~free
        assert taken.exclusive is reached(layout, taken.cpus, claims, wish.exclusive)
        assert not wish.bind_required or holds(layout, taken.cpus, wish.bind)
        assert not wish.exclusive_required or taken.exclusive is wish.exclusive


@settings(max_examples=EXAMPLES)
@given(situations(), st.integers(0, 2**96))
def test_what_fits_fits_with_more_free_cpus_too(
    situation: tuple[CpuLayout, int, ExclusiveClaims, CpuDemand], more: int
) -> None:
    layout, free, claims, wish = situation
    if isinstance(take(layout, free, claims, wish), Taken):
        held = claims.core_level | claims.node_level
        wider = free | (layout.cpus & more & ~held)
        assert isinstance(take(layout, wider, claims, wish), Taken)


@settings(max_examples=EXAMPLES)
@given(situations())
def test_a_preference_never_refuses(
    situation: tuple[CpuLayout, int, ExclusiveClaims, CpuDemand],
) -> None:
    layout, free, claims, wish = situation
    soft = replace(wish, bind_required=False, exclusive_required=False)
    assert isinstance(take(layout, free, claims, soft), Taken)


@settings(max_examples=EXAMPLES)
@given(*(st.integers(1, 3) for _ in range(3)), st.sampled_from([1, 2, 4, 8]), st.data())
def test_an_empty_regular_host_is_shared_evenly_by_as_few_nodes_as_can_hold_it(
    packages: int, nodes: int, cores: int, threads: int, data: st.DataObject
) -> None:
    layout = machine(packages, nodes, cores, threads)
    need = data.draw(st.integers(1, len(layout.cores))) * threads
    taken = take(
        layout, layout.cpus, ExclusiveClaims(), CpuDemand(need, FULL, True, strategy=EVENLY)
    )
    assert isinstance(taken, Taken)
    counts = [count for node in layout.nodes if (count := (taken.cpus & node.mask).bit_count())]
    assert max(counts) - min(counts) <= threads
    assert len(counts) == -(-need // layout.per_node)


@settings(max_examples=EXAMPLES)
@given(situations(), st.sampled_from([1, 2, 4]))
def test_even_shares_differ_by_at_most_one_group(
    situation: tuple[CpuLayout, int, ExclusiveClaims, CpuDemand], group: int
) -> None:
    layout, free, _holders, wish = situation
    shares = even_shares(layout, free, wish.need, group)
    if shares is None:
        assert not has_even_shares(layout, free, wish.need, group)
    else:
        counts = [share.even + share.more for share in shares]
        assert sum(counts) == wish.need
        assert max(counts) - min(counts) <= group
        for share, count in zip(shares, counts, strict=True):
            assert count % group == 0
            assert count <= (share.node & free).bit_count()


def has_even_shares(layout: CpuLayout, free: int, need: int, group: int) -> bool:
    """Returns whether some nodes could each give an equal number of groups, or one more.

    The groups consist of free cpus. Tries every number of nodes that an empty regular host would
    need, or more.
    """
    groups, left = divmod(need, group)
    if left or not groups:
        return False
    has = [(free & node.mask).bit_count() // group for node in layout.nodes]
    fewest = -(-groups // max(layout.per_node // group, 1))
    return any(
        all(count >= share for count, share in zip(sorted(nodes), shares, strict=True))
        for size in range(fewest, min(groups, len(has)) + 1)
        for nodes in combinations(has, size)
        for shares in [sorted(groups // size + (at < groups % size) for at in range(size))]
    )


@settings(max_examples=EXAMPLES)
@given(situations(), st.data())
def test_a_slot_that_grows_keeps_its_cpus_and_what_is_required(
    situation: tuple[CpuLayout, int, ExclusiveClaims, CpuDemand], data: st.DataObject
) -> None:
    layout, free, claims, wish = situation
    taken = take(layout, free, claims, wish)
    if isinstance(taken, Short):
        return
    left = free & ~taken.cpus
    more = data.draw(st.integers(0, left.bit_count()))
    larger = replace(wish, need=wish.need + more)
    same_nodes = data.draw(st.booleans())
    grown = grow(layout, taken.cpus, left, claims, larger, same_nodes=same_nodes)
    assert grown == grow(layout, taken.cpus, left, claims, larger, same_nodes=same_nodes)
    if isinstance(grown, Taken):
        assert grown.cpus.bit_count() == larger.need
        assert grown.cpus & taken.cpus == taken.cpus
        assert not grown.cpus & ~free
        assert not wish.bind_required or holds(layout, grown.cpus, wish.bind)
        assert not wish.exclusive_required or grown.exclusive is wish.exclusive
        if same_nodes and taken.cpus:
            assert layout.nodes_touched(grown.cpus) == layout.nodes_touched(taken.cpus)
    elif not same_nodes:
        # In all other cases, claims of other slots do not matter: the remaining cpus alone do not
        # suit either.
        assert wish.bind_required or wish.exclusive_required
        if wish.bind is not SPREAD:
            assert isinstance(take(layout, left, claims, replace(wish, need=more)), Short)


@settings(max_examples=EXAMPLES)
@given(situations(), st.data())
def test_a_slot_that_shrinks_keeps_some_of_its_cpus_and_what_is_required(
    situation: tuple[CpuLayout, int, ExclusiveClaims, CpuDemand], data: st.DataObject
) -> None:
    layout, free, claims, wish = situation
    taken = take(layout, free, claims, wish)
    if isinstance(taken, Short):
        return
    smaller = replace(wish, need=data.draw(st.integers(0, wish.need)))
    shrunk = shrink(layout, taken.cpus, claims, smaller)
    assert shrunk == shrink(layout, taken.cpus, claims, smaller)
    if isinstance(shrunk, Short):
        assert shrunk.of is ShortOf.ALIGNMENT
        assert wish.bind_required
        assert wish.bind is FULL
        assert unsuitable(layout, taken.cpus, ExclusiveClaims(), smaller)
    else:
        assert shrunk.cpus.bit_count() == smaller.need
        assert not shrunk.cpus & ~taken.cpus
        assert not wish.bind_required or holds(layout, shrunk.cpus, wish.bind)
        assert not wish.exclusive_required or shrunk.exclusive is wish.exclusive
