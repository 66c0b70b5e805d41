"""Sets of GPUs on real machines (tests/data/gpu_topologies), checked against all sets."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from finegrain.cpuset import CpuSet
from finegrain.devices.device import HostDevices
from finegrain.topology import HostTopology
from resource_manager.engine.devices.layout import DeviceLayout, bits_of, positions_in
from task_executor.host.devices import devices_of
from task_executor.host.nvml_fake import inventory_from_profile
from tests.support.devices import made_up

MACHINES = sorted((Path(__file__).parents[3] / "data" / "gpu_topologies").glob("*.json"))


def machine(path: Path) -> HostDevices:
    found = inventory_from_profile(json.loads(path.read_text()), 80 << 30)
    cpus = CpuSet.of(0)
    topology = HostTopology(cpus, cpus, (), (), gpus=found.gpus, gpu_links=found.links)
    return devices_of(topology)


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_no_set_is_better_connected(path: Path) -> None:
    layout = DeviceLayout(machine(path))
    gpus = layout.of_type.get("gpu", ())
    for size in range(1, len(gpus) + 1):
        best = max(layout.quality(bits_of(each)) for each in combinations(gpus, size))
        chosen = layout.best_set(bits_of(gpus), size)
        assert len(set(chosen)) == size
        assert layout.quality(bits_of(chosen)) == best


def test_the_widest_pairs_of_a_hybrid_mesh_come_first() -> None:
    path = next(each for each in MACHINES if each.stem == "dgx1-v100")
    layout = DeviceLayout(machine(path))
    expected = json.loads(path.read_text())["expected"]["widest_pairs"]
    pair = [layout.devices[at].minor for at in layout.best_set(bits_of(range(8)), 2)]
    assert pair in expected


def test_a_single_gpu_breaks_up_the_set_that_is_broken_already() -> None:
    layout = DeviceLayout(made_up(8, nodes=2, in_pairs=True))
    everything = bits_of(range(8))
    assert layout.best_set(everything & ~bits_of([5]), 1) == (4,)
    assert layout.best_set(everything & ~bits_of([5]), 2) == (6, 7)
    assert layout.best_set(everything & ~bits_of([5]), 4) == (0, 1, 2, 3)


def test_large_hosts_are_searched_within_a_bound() -> None:
    layout = DeviceLayout(made_up(16, nodes=2, in_pairs=True))
    chosen = layout.best_set(bits_of(range(16)), 8)
    assert chosen == tuple(range(8))


def test_positions_are_those_of_the_set() -> None:
    assert positions_in(bits_of([1, 5, 70])) == (1, 5, 70)
