"""Executors on one host get disjoint parts of it, and one reserve is kept for all."""

from __future__ import annotations

import pytest

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.resources import GIB
from finegrain.topology import Core, HostTopology, Limits, NumaNode, Package
from finegrain_cli.local.shares import divide, divide_host
from task_executor.host.capacity import plan_capacity


def host(cores: int, threads: int = 2, *, quota: int | None = None) -> HostTopology:
    """Returns a host with this number of cores. The threads of a core have adjacent numbers."""
    online = CpuSet(range(cores * threads))
    sets = [CpuSet(range(core * threads, (core + 1) * threads)) for core in range(cores)]
    return HostTopology(
        online=online,
        allowed=online,
        cores=tuple(Core(cpus, numa_node=0) for cpus in sets),
        numa_nodes=(NumaNode(0, online, 16 * GIB),),
        packages=(Package(online, 0),),
        memory_total_bytes=16 * GIB,
        limits=Limits(cpu_quota_milli=quota),
    )


@pytest.mark.parametrize(
    ("cores", "threads", "executors", "cpus"),
    [
        (4, 2, 2, ["0-3", "4-7"]),
        (3, 2, 2, ["0-1", "2-5"]),
        (1, 2, 2, ["0", "1"]),
        (4, 1, 3, ["0", "1", "2-3"]),
    ],
)
def test_whole_cores_while_there_are_enough(
    cores: int, threads: int, executors: int, cpus: list[str]
) -> None:
    topology = host(cores, threads)

    shares = divide([f"e{n}" for n in range(executors)], topology, plan_capacity(topology))

    assert [each.cpus for each in shares] == cpus
    assert [each.cpu_milli for each in shares] == [None] * executors


def test_amounts_of_time_where_there_are_fewer_cpus() -> None:
    topology = host(1, 2)

    shares = divide(["a", "b", "c"], topology, plan_capacity(topology))

    assert [(each.cpus, each.cpu_milli) for each in shares] == [("0-1", 666)] * 3


def test_a_quota_of_the_host_is_divided_too() -> None:
    topology = host(4, 1, quota=1000)

    shares = divide(["a", "b"], topology, plan_capacity(topology))

    assert [(each.cpus, each.cpu_milli) for each in shares] == [("0-1", 500), ("2-3", 500)]


@pytest.mark.parametrize("executors", [1, 2, 3, 7])
def test_memory_is_what_one_reserve_leaves(executors: int) -> None:
    topology = host(4)
    capacity = plan_capacity(topology)

    shares = divide([f"e{n}" for n in range(executors)], topology, capacity)

    total = sum(each.memory_bytes or 0 for each in shares)
    assert total <= capacity.memory_bytes_total < total + executors * 65536


def test_too_many_executors_are_refused() -> None:
    topology = host(1, 1)

    with pytest.raises(InvalidArgument, match="executors is 200; expected fewer"):
        divide([f"e{n}" for n in range(200)], topology, plan_capacity(topology))


def test_one_alone_has_the_host_as_it_is() -> None:
    assert divide_host(["only"])[0].cpus == ""
