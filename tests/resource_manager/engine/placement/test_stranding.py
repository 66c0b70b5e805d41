"""Tests which host and which GPU a slot gets, so that little GPU capacity is stranded."""

from __future__ import annotations

from finegrain.devices.names import device_requests
from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.devices.part_values import DEFAULT_VALUES, loss
from resource_manager.simulator.nodes import Node, equal_gpus
from resource_manager.simulator.place import Placements


def node(name: str, cpus: int, gpus: int, model: str = "") -> Node:
    total = {"cpu_milli": cpus * 1_000, "memory_bytes": 1_024 * GIB}
    return Node(name, total, devices=equal_gpus(gpus, model))


def slot(cpus: int, gpu: int = 0) -> ResourceProfile:
    """Returns a slot with hundredths of GPUs."""
    return ResourceProfile(cpus * 1_000, GIB, devices=device_requests({"gpu": gpu}))


def test_the_rest_of_a_gpu_is_worth_less_than_its_size() -> None:
    assert (DEFAULT_VALUES[0], DEFAULT_VALUES[50], DEFAULT_VALUES[100]) == (0, 353, 1_000)
    assert all(DEFAULT_VALUES[size] <= 10 * size for size in range(101))
    assert loss(DEFAULT_VALUES, 50, 30) < loss(DEFAULT_VALUES, 100, 30)


def test_a_share_comes_from_the_gpu_with_least_left_of_all_hosts() -> None:
    cluster = Placements([node("a", 48, 4), node("b", 48, 4), node("c", 48, 4)])
    cluster.place("whole", slot(4, 100))
    assert cluster.place("first", slot(4, 60)) == ("a", [1])
    assert cluster.place("small", slot(4, 30)) == ("a", [1])
    # The request is too large for the free part of that GPU. The free part of another GPU serves
    # the next share.
    assert cluster.place("second", slot(4, 70)) == ("a", [2])
    assert cluster.place("last", slot(4, 30)) == ("a", [2])


def test_more_than_the_first_hosts_are_compared() -> None:
    """Node 29 is the only one with a GPU that is partly used."""
    cluster = Placements([node(f"n{number}", 16, 1) for number in range(30)])
    for number in range(30):
        cluster.place(f"w{number}", slot(1, 100))
    cluster.release("w29")
    cluster.place("part", slot(1, 40))
    for number in range(29):
        cluster.release(f"w{number}")

    assert cluster.place("other", slot(1, 40)) == ("n29", [0])


def test_a_slot_without_gpus_goes_where_the_gpus_keep_enough_cpu() -> None:
    cluster = Placements([node("short", 8, 2), node("rich", 64, 2)])
    assert cluster.place("cpu", slot(4)) == ("rich", [])


def test_a_slot_without_gpus_prefers_hosts_without_gpus() -> None:
    cluster = Placements([node("gpus", 64, 2), node("plain", 8, 0)])
    assert cluster.place("first", slot(4)) == ("plain", [])
    assert cluster.place("second", slot(4)) == ("plain", [])
    assert cluster.place("third", slot(4)) == ("gpus", [])


def test_much_cpu_for_a_gpu_comes_from_hosts_that_have_much() -> None:
    cluster = Placements([node("short", 16, 2), node("rich", 80, 2)])
    assert cluster.place("greedy", slot(12, 100)) == ("rich", [0])
    assert cluster.place("modest", slot(1, 100)) is not None


def test_the_rank_never_refuses_what_fits() -> None:
    """All compute is allocated, but a request for memory alone still fits."""
    cluster = Placements([node("a", 8, 1)])
    compute = ResourceProfile(1_000, GIB, devices=device_requests({"gpu-core": 100}))
    memory = ResourceProfile(1_000, GIB, devices=device_requests({"gpu-memory-ratio": 40}))
    assert cluster.place("compute", compute) == ("a", [0])
    assert cluster.place("memory", memory) == ("a", [0])
    assert cluster.place("more", memory) == ("a", [0])
    assert cluster.place("too much", memory) is None
