"""Tests how amounts are split over NUMA nodes, and which sets of nodes are tried."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import CpuPolicy, EffectivePolicy, NumaPolicy, NumaStrategy
from finegrain.resources import CPU_MILLI, GIB, MEMORY_BYTES
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.hints import hints, masks_by_size, quantities, remoteness
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.numa import positions, split
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.model.host_refusal import HostRefusal
from tests.support.cpu_layouts import machine

AMOUNTS = st.lists(st.integers(0, 20), min_size=1, max_size=5)


@given(st.integers(1, 60), AMOUNTS)
def test_a_split_is_whole_within_bounds_and_as_even_as_can_be(amount: int, has: list[int]) -> None:
    parts = split(amount, list(enumerate(has)))
    if amount > sum(has):
        assert parts is None
        return
    assert parts is not None
    assert sum(parts.values()) == amount
    assert all(0 < part <= has[node] for node, part in parts.items())
    unfilled = [parts.get(node, 0) for node in range(len(has)) if parts.get(node, 0) < has[node]]
    most = max(parts.values())
    assert all(most - part <= 1 for part in unfilled)


@given(st.integers(1, 30), AMOUNTS)
def test_parts_of_whole_cores_are_whole_cores(cores: int, has: list[int]) -> None:
    parts = split(cores * 2, [(node, 2 * each) for node, each in enumerate(has)], unit=2)
    assert (parts is None) is (cores > sum(has))
    assert all(part % 2 == 0 for part in (parts or {}).values())


def test_nodes_are_ordered_by_what_they_have_not_by_their_rank() -> None:
    # Upstream reads positions 0 and 1 of the host for a mask of nodes 1 and 2.
    assert split(10, [(1, 9), (2, 3)]) == {2: 3, 1: 7}


def test_up_to_eight_nodes_every_mask_is_looked_at_the_small_ones_first() -> None:
    layout = machine(2, 4, 1, 1)
    by_size = masks_by_size(layout, layout.cpu_nodes)
    assert [size for size, _ in by_size] == list(range(1, 9))
    assert sum(len(masks) for _, masks in by_size) == 255
    members = [positions(mask) for mask in by_size[1][1]]
    assert all(one < other for one, other in pairwise(members))


def test_of_more_nodes_only_those_that_lie_together_are() -> None:
    layout = machine(4, 4, 1, 1)
    by_size = dict(masks_by_size(layout, layout.cpu_nodes))
    assert {size: len(masks) for size, masks in by_size.items()} == {1: 16, 2: 24, 4: 4, 16: 1}
    assert by_size[4][1] == 0b11110000


def test_closer_nodes_are_less_remote() -> None:
    layout = machine(1, 3, 1, 1)
    rows = ((10, 12, 20), (12, 10, 11), (20, 11, 10))
    amount_text = replace(
        layout,
        nodes=tuple(
            replace(node, distances=row) for node, row in zip(layout.nodes, rows, strict=True)
        ),
    )
    assert (
        remoteness(amount_text, 0b110)
        < remoteness(amount_text, 0b011)
        < remoteness(amount_text, 0b101)
    )
    assert remoteness(layout, 0b101) == 0
    books = CpuLedger(amount_text)
    wish = CpuRequest.of(
        CpuPolicy(numa=NumaPolicy.RESTRICTED, numa_required=True), {CPU_MILLI: 2000}
    )
    found = assign(books, wish)
    assert isinstance(found, CpuAssignment)
    assert found.nodes == (1, 2)


def test_a_node_with_nothing_left_is_in_no_mask() -> None:
    books = CpuLedger(machine(1, 3, 2, 1, 4 * GIB))
    full = NodeShare(1, ((MEMORY_BYTES, 4 * GIB),))
    books.add(("full", 1), CpuAssignment(numa=(full,)))
    asked = quantities(books, {CPU_MILLI: 3000, MEMORY_BYTES: GIB}, NumaStrategy.LEAST_ALLOCATED)
    masks = [mask for _, masks in masks_by_size(books.layout, asked.nodes) for mask in masks]
    found = hints(asked, masks, preferred_size=2)
    assert [hint.mask for hint in found[MEMORY_BYTES]] == [0b101]
    assert [hint.mask for hint in found[CPU_MILLI]] == [0b011, 0b101, 0b110, 0b111]
    assert [hint.preferred for hint in found[CPU_MILLI]] == [True, True, True, False]


def test_sixteen_nodes_are_still_served_and_refused() -> None:
    books = CpuLedger(machine(4, 4, 2, 2, GIB), EffectivePolicy(alignment=NumaPolicy.RESTRICTED))
    found = assign(books, CpuRequest.of(CpuPolicy(), {CPU_MILLI: 13_000, MEMORY_BYTES: 2 * GIB}))
    assert isinstance(found, CpuAssignment)
    assert found.nodes == (0, 1, 2, 3)  # a whole package
    assert isinstance(assign(books, CpuRequest.of(CpuPolicy(), {CPU_MILLI: 65_000})), HostRefusal)
