"""GPUs of the slots of a gang on one host: the best set for all, and the best way to divide it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.devices.device import DeviceLink, HostDevices, Partition
from finegrain.devices.names import device_requests
from finegrain.values.states import GangPlacement
from resource_manager.engine.devices.layout import DeviceLayout, bits_of, positions_in
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.together import best_groups, gpus_together
from resource_manager.engine.model.entities import GangSpec
from tests.resource_manager.engine.devices.test_best_sets import MACHINES, machine
from tests.resource_manager.engine.devices.test_device_clauses import given as given_to
from tests.resource_manager.engine.devices.test_device_clauses import request
from tests.support.devices import made_up, with_devices
from tests.support.engine_cluster import EngineCluster
from tests.support.engine_cluster.hosts import numa_host

Score = tuple[tuple[int, int], int, int]
"""Quality of the whole set; then the worst pair within a slot, and the sum of such pairs."""

SIZES = [(1, 1), (2, 1), (2, 2), (1, 1, 1, 1), (2, 2, 2), (4, 2, 1), (2, 2, 2, 2), (4, 4), (3, 2)]


def all_ways(gpus: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Yields every way to give disjoint sets to slots, plainly."""
    if not counts:
        yield []
        return
    for chosen in combinations(gpus, counts[0]):
        rest = tuple(at for at in gpus if at not in chosen)
        for others in all_ways(rest, counts[1:]):
            yield [chosen, *others]


def score(layout: DeviceLayout, groups: list[tuple[int, ...]]) -> Score:
    whole = layout.quality(bits_of(at for each in groups for at in each))
    single = [layout.quality(bits_of(each)) for each in groups if len(each) > 1]
    return whole, min((each[0] for each in single), default=0), sum(each[1] for each in single)


def check_best(layout: DeviceLayout, free: tuple[int, ...], counts: tuple[int, ...]) -> None:
    groups = [positions_in(each) for each in best_groups(layout, bits_of(free), counts)]
    assert tuple(map(len, groups)) == counts
    assert len({at for each in groups for at in each}) == sum(counts)
    assert score(layout, groups) == max(score(layout, each) for each in all_ways(free, counts))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_no_division_of_a_real_machine_is_better(path: Path) -> None:
    layout = DeviceLayout(machine(path))
    gpus = layout.of_type.get("gpu", ())
    rng = random.Random(path.stem)
    for counts in SIZES:
        for size in {len(gpus), max(len(gpus) - 2, sum(counts))}:
            if size <= len(gpus) and sum(counts) <= size <= 8:
                check_best(layout, tuple(sorted(rng.sample(gpus, size))), counts)


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.lists(st.sampled_from((0, 0, 1, 2, 4)), min_size=15, max_size=15),
    counts=st.lists(st.integers(1, 3), min_size=2, max_size=4).filter(lambda each: sum(each) <= 6),
)
def test_no_division_of_a_made_up_machine_is_better(lanes: list[int], counts: list[int]) -> None:
    pairs = combinations(range(6), 2)
    links = tuple(
        DeviceLink(f"GPU-{one}", f"GPU-{other}", lane)
        for (one, other), lane in zip(pairs, lanes, strict=True)
        if lane
    )
    layout = DeviceLayout(HostDevices(made_up(6, nodes=2).devices, links))
    check_best(layout, tuple(range(6)), tuple(counts))


def two_boards() -> HostDevices:
    """Two boards of four GPUs; the widest pair is on one, the second widest on the other."""
    lanes = {(0, 3): 4, (1, 2): 2, (4, 5): 3}
    links = [
        DeviceLink(f"GPU-{one}", f"GPU-{other}", lanes.get((one, other), 1))
        for board in (range(4), range(4, 8))
        for one, other in combinations(board, 2)
    ]
    return HostDevices(made_up(8, nodes=2).devices, tuple(links))


@pytest.mark.parametrize("placement", [GangPlacement.SAME_EXECUTOR, GangPlacement.ANYWHERE])
def test_a_gang_stays_on_one_board(placement: GangPlacement) -> None:
    """In turn, the second slot would get the widest pair that is left, on the other board."""
    cluster = EngineCluster.settled(with_devices(numa_host("host-a", 2), two_boards()))
    cluster.submit(
        request("m0", "gang", gpu=200), request("m1", "gang", gpu=200), GangSpec("gang", placement)
    )
    pairs = [tuple(minor for minor, _ in given_to(cluster, f"m{at}")) for at in range(2)]
    assert sorted(pairs) == [(0, 3), (1, 2)]
    cluster.restart()
    cluster.check()


def test_slots_of_one_job_that_are_no_gang_choose_for_themselves() -> None:
    cluster = EngineCluster.settled(with_devices(numa_host("host-a", 2), two_boards()))
    cluster.submit(request("r0", gpu=200), request("r1", gpu=200))
    assert [minor for at in range(2) for minor, _ in given_to(cluster, f"r{at}")] == [0, 3, 4, 5]


@pytest.mark.parametrize("order", list(permutations(("gpu", "memory", "shared"))))
def test_only_whole_gpus_of_a_gang_are_chosen_together(order: tuple[str, ...]) -> None:
    slots = {
        "gpu": device_requests({"gpu": 200}),
        "memory": (),
        "shared": device_requests({"gpu": 50}),
    }
    ledger = DeviceLedger(DeviceLayout(two_boards()))
    assert gpus_together(ledger, [slots[each] for each in order]) is None
    found = gpus_together(ledger, [slots[each] for each in (*order, "gpu")])
    assert found is not None
    sets = [each for each in found if each is not None]
    assert sum(sets) == bits_of(range(4))
    assert [each is None for each in found[:3]] == [each != "gpu" for each in order]


def test_a_gang_on_a_host_with_partitions_shares_one_of_them() -> None:
    pairs = [Partition((at, at + 1)) for at in range(0, 8, 2)]
    quads = [Partition((0, 1, 2, 3)), Partition((4, 5, 6, 7), score=2)]
    host = HostDevices(made_up(8).devices, (), (*pairs, *quads), partitions_only=True)
    cluster = EngineCluster.settled(with_devices(numa_host("host-a", 2), host))
    cluster.submit(
        *(request(f"m{at}", "gang", gpu=200) for at in range(2)),
        GangSpec("gang", GangPlacement.SAME_EXECUTOR),
    )
    chosen = [tuple(minor for minor, _ in given_to(cluster, f"m{at}")) for at in range(2)]
    assert sorted(chosen) == [(4, 5), (6, 7)]


def test_a_large_host_is_searched_within_a_bound() -> None:
    layout = DeviceLayout(made_up(16, nodes=2, in_pairs=True))
    groups = best_groups(layout, bits_of(range(16)), (2,) * 8)
    assert sorted(map(positions_in, groups)) == [(at, at + 1) for at in range(0, 16, 2)]
