"""Tests of the layout that the engine derives from a reported topology."""

import json
from typing import Any

import pytest

from resource_manager.engine.cpus.layout import CpuLayout, layout_of, layout_of_rows
from tests.support.cpu_layouts import RECORDED, as_reported, cpus, recorded


def laid_out(topology: dict[str, Any], host_cpus: dict[str, Any] | None = None) -> CpuLayout:
    layout = layout_of(json.dumps(topology), json.dumps(host_cpus or {}))
    assert layout is not None
    return layout


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_machine_has_a_layout(name: str) -> None:
    topology = recorded(name)
    layout = layout_of(as_reported(topology))
    assert layout is not None
    assert layout.cpus == layout.pinnable == topology.allowed.bits
    assert sum(core.mask.bit_count() for core in layout.cores) == len(topology.allowed)
    assert sum(node.mask.bit_count() for node in layout.nodes) == len(topology.allowed)
    assert sum(package.mask.bit_count() for package in layout.packages) == len(topology.allowed)
    for core in layout.cores:
        assert core.mask & ~layout.nodes[core.node].mask == 0
        assert core.mask & ~layout.packages[core.package].mask == 0
    allowed_cores = [core.cpus & topology.allowed for core in topology.cores]
    assert {core.mask for core in layout.cores} == {core.bits for core in allowed_cores if core}
    memory = [node for node in layout.nodes if node.memory_bytes]
    for at, node in enumerate(layout.nodes):
        assert layout.nodes[node.memory_node] in memory or not memory
        assert node.memory_node == at or not node.memory_bytes


def test_equal_hosts_share_one_layout() -> None:
    text = as_reported(recorded("qemu-dies-numa"))
    assert layout_of(text) is layout_of(str(text))


@pytest.mark.parametrize(
    "topology",
    ["", "{}", '{"nodes": [{"cpus": "0-7"}], "smt": true}', '{"cores": [{"cpus": "0-1"}]}'],
    ids=["nothing", "empty", "another form", "no cpu that is ours"],
)
def test_a_host_that_tells_no_cores_has_no_layout(topology: str) -> None:
    assert layout_of(topology) is None


TWO_NODES: dict[str, Any] = {
    "allowed_cpus": "0-7",
    "cores": [
        {"cpus": "0,4"},  # a message leaves out zeros
        {"cpus": "1,5"},
        {"cpus": "2,6", "numa_node_id": 3, "package_index": 1, "l3_index": 1},
        {"cpus": "3,7", "numa_node_id": 3, "package_index": 1, "l3_index": 1},
    ],
    "numa_nodes": [
        {"cpus": "0-1,4-5", "memory_bytes": "4096", "distances": [10, 20]},
        {"cpus": "2-3,6-7", "memory_bytes": "8192", "distances": [20, 10], "numa_node_id": 3},
    ],
}


def test_an_executor_that_tells_nothing_of_its_cpus_offers_all() -> None:
    layout = laid_out(TWO_NODES)
    assert layout.pinnable == cpus("0-7")
    assert [(node.id, node.mask, node.memory_bytes) for node in layout.nodes] == [
        (0, cpus("0-1,4-5"), 4096),
        (3, cpus("2-3,6-7"), 8192),
    ]
    assert layout.smt
    assert (layout.per_core, layout.per_node, layout.per_package) == (2, 4, 4)
    assert layout.cores_of_node == ((cpus("0,4"), cpus("1,5")), (cpus("2,6"), cpus("3,7")))
    assert layout.nodes_touched(cpus("5,7")) == layout.cpus
    assert layout.position_of_node == {0: 0, 3: 1}


def test_a_core_keeps_the_threads_that_slots_may_not_have() -> None:
    layout = laid_out(
        TWO_NODES,
        {
            "slot_cpus": "1-7",
            "numa": [
                {
                    "memory_bytes": "1024",
                    "default_memory": True,
                    "extended": {"hugepages-2Mi": "7"},
                },
                {"numa_node_id": 3},
            ],
        },
    )
    assert layout.pinnable == cpus("1-7")
    assert layout.cores[0].mask == cpus("0,4")
    assert layout.whole(layout.pinnable) == cpus("1-3,5-7")  # the sibling of 4 is reserved
    assert layout.first_threads(layout.pinnable) == cpus("1-4")
    assert [node.memory_bytes for node in layout.nodes] == [1024, 0]
    assert layout.nodes[0].extended == (("hugepages-2Mi", 7),)
    assert layout.nodes[1].memory_node == 0  # it offers no memory itself


def test_a_core_that_goes_offline_in_part_is_narrower_and_then_gone() -> None:
    layout = laid_out(TWO_NODES)
    assert layout.without(0) is layout
    assert layout.without(cpus("8-9")) is layout
    narrower = layout.without(cpus("4"))
    assert narrower.without(0) is narrower
    assert layout.without(cpus("4")) is narrower
    assert [core.mask for core in narrower.cores] == [
        cpus(each) for each in ("0", "1,5", "2,6", "3,7")
    ]
    assert narrower.whole(cpus("0-1")) == cpus("0")
    smaller = layout.without(cpus("0-1,4-5"))
    assert [node.mask for node in smaller.nodes] == [0, cpus("2-3,6-7")]
    assert smaller.cpu_nodes == (1,)
    assert smaller.nodes[0].memory_bytes == 4096
    assert len(smaller.packages) == 1


def test_memory_of_a_node_without_any_is_that_of_the_nearest_node_that_has_some() -> None:
    layout = laid_out(
        {
            "allowed_cpus": "0-2",
            "cores": [{"cpus": str(at), "numa_node_id": node} for at, node in enumerate((0, 1, 3))],
            "numa_nodes": [
                {"cpus": "0", "distances": [10, 40, 20, 20]},
                {"cpus": "1", "numa_node_id": 1, "memory_bytes": "1", "distances": [40, 10, 9, 9]},
                {"numa_node_id": 2, "memory_bytes": "1", "distances": [20, 9, 10, 9]},
                {"cpus": "2", "numa_node_id": 3, "memory_bytes": "1", "distances": [20, 9, 9, 10]},
            ],
        }
    )
    # Node 2 is as near as node 3, but has no cpus: such memory is special.
    assert [node.memory_node for node in layout.nodes] == [3, 1, 2, 3]
    assert layout.cpu_nodes == (0, 1, 3)


def test_kinds_of_cores_are_numbered_by_their_lowest_cpu() -> None:
    layout = layout_of(as_reported(recorded("20em64t-hybrid-1p6c2t_2ca4co1t")))
    assert layout is not None
    assert layout.kinds == 2
    assert layout.cores_of_kind == (cpus("0-11"), cpus("12-19"))
    assert not layout.uniform_cores
    assert layout.per_core == 2
    large = [{"cpus": each, "kind": "performance"} for each in ("0,4", "1,5")]
    small = [{"cpus": each, "kind": "efficiency"} for each in ("2", "3")]
    layout = laid_out({"allowed_cpus": "0-5", "cores": [*small, *large]})  # second threads last
    assert layout.cores_of_kind == (cpus("0-1,4-5"), cpus("2-3"))


def test_a_core_whose_node_is_not_told_belongs_to_the_first() -> None:
    layout = laid_out({"allowed_cpus": "0", "cores": [{"cpus": "0", "numa_node_id": -1}]})
    assert [(node.id, node.mask) for node in layout.nodes] == [(0, 1)]


def test_rows_describe_a_layout_too() -> None:
    layout = layout_of_rows([(0, 5, 1, 0, 2), (1, 5, 1, 0, 2), (2, 4, 0, 0, 2)])
    assert [core.mask for core in layout.cores] == [0b100, 0b011]  # in order of core numbers
    assert [node.id for node in layout.nodes] == [0, 1]
    assert {core.cache for core in layout.cores} == {2}
    with pytest.raises(ValueError, match="at least one"):
        layout_of_rows([])
