"""The memory and huge pages of each NUMA node that are offered, without the kubelet's part."""

from __future__ import annotations

from finegrain.capacity import Capacity, NodeCapacity
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB, MIB
from finegrain.topology import HugePages
from task_executor.host.kubelet import KubeletState
from task_executor.host.numa_capacity import hugepages_of, numa_capacity


def capacity() -> Capacity:
    nodes = (
        NodeCapacity(
            0, CpuSet.parse("0-3"), 16 * GIB, True, (HugePages(2 * MIB, 512), HugePages(GIB, 2))
        ),
        NodeCapacity(1, CpuSet.parse("4-7"), 16 * GIB, True, (HugePages(2 * MIB, 100),)),
        NodeCapacity(2, CpuSet(), 64 * GIB, False),
    )
    return Capacity(CpuSet.parse("0-7"), CpuSet(), 8, 8000, 32 * GIB, nodes)


def test_every_size_is_offered_by_its_name() -> None:
    nodes = numa_capacity(capacity())
    assert [node.extended for node in nodes] == [
        (("hugepages-1Gi", 2), ("hugepages-2Mi", 512)),
        (("hugepages-2Mi", 100),),
        (),
    ]
    assert hugepages_of(nodes) == {"hugepages-1Gi": 2, "hugepages-2Mi": 612}
    assert [node.default_memory for node in nodes] == [True, True, False]


def test_what_a_kubelet_has_of_them_is_left_to_it() -> None:
    kubelet = KubeletState(
        given=(
            (0, "hugepages-2Mi", 3 * MIB),  # half a page counts as a page
            (0, "memory", GIB + 1),
            (1, "hugepages-2Mi", 300 * MIB),  # more than there is
        ),
        kept=((0, "hugepages-1Gi", GIB), (1, "memory", 2 * GIB)),
    )
    first, second, third = numa_capacity(capacity(), kubelet)
    assert first.extended == (("hugepages-1Gi", 1), ("hugepages-2Mi", 510))
    assert second.extended == third.extended == ()


def test_memory_that_it_gave_away_is_reported_as_it_changes_and_not_taken_off_here() -> None:
    kubelet = KubeletState(given=((0, "memory", GIB),), kept=((1, "memory", 2 * GIB),))
    assert [each.memory_bytes for each in numa_capacity(capacity(), kubelet)] == [
        16 * GIB,
        16 * GIB,
        64 * GIB,
    ]
