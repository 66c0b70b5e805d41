"""Tests which cpus a pinned slot gets on one host, and when it gets none."""

import pytest

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaStrategy
from resource_manager.engine.cpus.layout import CpuLayout, layout_of, layout_of_rows
from resource_manager.engine.cpus.take import (
    CpuDemand,
    ExclusiveClaims,
    Short,
    ShortOf,
    Taken,
    holds,
    take,
)
from resource_manager.engine.cpus.whole_cores import aligned
from tests.support.cpu_layouts import RECORDED, as_reported, cpus, listed, machine, recorded

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
EVENLY = NumaStrategy.DISTRIBUTE_EVENLY
NO_CLAIMS = ExclusiveClaims()

# Two packages of four cores with two threads each: 0,8 1,9 2,10 3,11 and 4,12 5,13 6,14 7,15.
TWO_PACKAGES = machine(packages=2, nodes=1, cores=4, threads=2)


def given(
    layout: CpuLayout, free: str, wish: CpuDemand, claims: ExclusiveClaims = NO_CLAIMS
) -> str:
    """Returns the cpus that are taken, or what is missing."""
    taken = take(layout, cpus(free), claims, wish)
    return listed(taken.cpus) if isinstance(taken, Taken) else str(taken.of)


class TestPreferredBinding:
    def test_whole_cores_are_preferred(self) -> None:
        assert given(TWO_PACKAGES, "0-15", CpuDemand(4)) == "0-1,8-9"

    def test_single_threads_do_where_whole_cores_are_too_few(self) -> None:
        assert given(TWO_PACKAGES, "0-4,12", CpuDemand(4)) == "0-1,4,12"

    def test_an_odd_number_splits_a_core(self) -> None:
        assert given(TWO_PACKAGES, "0-15", CpuDemand(3)) == "0-1,8"

    def test_spread_takes_one_thread_of_each_core(self) -> None:
        assert given(TWO_PACKAGES, "0-15", CpuDemand(4, SPREAD)) == "0-3"

    def test_spread_doubles_up_where_there_are_too_few_cores(self) -> None:
        assert given(TWO_PACKAGES, "0-2,8-10", CpuDemand(4, SPREAD)) == "0-2,8"

    def test_more_than_a_package_has_takes_whole_packages_first(self) -> None:
        assert given(TWO_PACKAGES, "0-15", CpuDemand(10)) == "0-4,8-12"

    def test_the_rest_comes_from_the_package_that_has_least_to_lose(self) -> None:
        layout = machine(packages=3, nodes=1, cores=4, threads=2)  # 8, 6 and 4 cpus are free
        assert given(layout, "0-6,8-9,12-18,20-21", CpuDemand(10)) == "0-3,8,12-15,20"

    def test_the_last_odd_thread_is_near_the_others(self) -> None:
        assert given(TWO_PACKAGES, "0-1,4-6,8", CpuDemand(3)) == "0-1,8"

    def test_nothing_is_given_for_nothing(self) -> None:
        assert take(TWO_PACKAGES, cpus("0-15"), NO_CLAIMS, CpuDemand(0)) == Taken(0)

    def test_cpus_that_slots_may_not_have_are_never_given(self) -> None:
        layout = layout_of(
            '{"allowed_cpus": "0-3", "cores": [{"cpus": "0-1"}, {"cpus": "2-3"}]}',
            '{"slot_cpus": "1-3"}',
        )
        assert layout is not None
        assert given(layout, "0-3", CpuDemand(2)) == "2-3"
        assert given(layout, "0-3", CpuDemand(4)) == ShortOf.CPUS


class TestRequiredBinding:
    def test_whole_cores_that_are_required_are_not_made_up_of_threads(self) -> None:
        wish = CpuDemand(4, FULL, bind_required=True)
        assert given(TWO_PACKAGES, "0-3,8,12", wish) == ShortOf.WHOLE_CORES
        assert given(TWO_PACKAGES, "0-3,8,11-12", wish) == "0,3,8,11"

    def test_the_numbers_of_a_shortage_count_what_is_suitable(self) -> None:
        wish = CpuDemand(4, FULL, bind_required=True)
        assert take(TWO_PACKAGES, cpus("0-3,8,12"), NO_CLAIMS, wish) == Short(
            ShortOf.WHOLE_CORES, 4, 2
        )

    def test_an_odd_number_of_cpus_never_makes_whole_cores(self) -> None:
        wish = CpuDemand(3, FULL, bind_required=True)
        assert given(TWO_PACKAGES, "0-15", wish) == ShortOf.ALIGNMENT

    def test_spread_that_is_required_never_doubles_up(self) -> None:
        assert given(TWO_PACKAGES, "0-2,8-10", CpuDemand(4, SPREAD, True)) == ShortOf.CORES
        assert given(TWO_PACKAGES, "0-2,8-10", CpuDemand(3, SPREAD, True)) == "0-2"

    def test_too_few_cpus_are_named_as_such(self) -> None:
        assert given(TWO_PACKAGES, "0-2", CpuDemand(4, FULL, True)) == ShortOf.CPUS


class TestExclusive:
    """The existing slot has cpu 0, and wants to be apart from similar slots."""

    def exclusive(
        self, level: ExclusivePolicy, need: int, bind: BindPolicy, required: bool = False
    ) -> tuple[str, ExclusivePolicy] | ShortOf:
        wish = CpuDemand(need, bind, exclusive=level, exclusive_required=required)
        claims = (
            ExclusiveClaims(core_level=1)
            if level is ExclusivePolicy.PCPU_LEVEL
            else ExclusiveClaims(node_level=1)
        )
        taken = take(TWO_PACKAGES, cpus("1-15"), claims, wish)
        return (listed(taken.cpus), taken.exclusive) if isinstance(taken, Taken) else taken.of

    def test_another_core_is_taken(self) -> None:
        level = ExclusivePolicy.PCPU_LEVEL
        claims = ExclusiveClaims(core_level=cpus("8"))
        assert given(TWO_PACKAGES, "0-7", CpuDemand(3, SPREAD), claims) == "0-2"
        taken = take(TWO_PACKAGES, cpus("0-3"), claims, CpuDemand(3, SPREAD, exclusive=level))
        assert taken == Taken(cpus("1-3"), level)

    def test_the_same_core_is_shared_if_there_is_no_other_way(self) -> None:
        assert self.exclusive(ExclusivePolicy.PCPU_LEVEL, 15, SPREAD) == (
            "1-15",
            ExclusivePolicy.NONE,
        )

    def test_unless_cores_of_its_own_are_required(self) -> None:
        level = ExclusivePolicy.PCPU_LEVEL
        assert self.exclusive(level, 15, SPREAD, required=True) == ShortOf.UNSHARED_CORES
        assert self.exclusive(level, 14, SPREAD, required=True) == ("1-7,9-15", level)

    def test_another_node_is_taken(self) -> None:
        level = ExclusivePolicy.NUMA_NODE_LEVEL
        assert self.exclusive(level, 4, FULL) == ("4-5,12-13", level)
        assert self.exclusive(level, 4, SPREAD) == ("4-7", level)

    def test_where_no_node_is_left_cores_are_kept_apart(self) -> None:
        level = ExclusivePolicy.NUMA_NODE_LEVEL
        wish = CpuDemand(3, SPREAD, exclusive=level)
        taken = take(TWO_PACKAGES, cpus("1-3,8-11"), ExclusiveClaims(node_level=1), wish)
        assert taken == Taken(cpus("1-3"), ExclusivePolicy.PCPU_LEVEL)

    def test_where_no_core_is_left_either_one_is_shared(self) -> None:
        wish = CpuDemand(2, SPREAD, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL)
        taken = take(TWO_PACKAGES, cpus("1,8"), ExclusiveClaims(node_level=1), wish)
        assert taken == Taken(cpus("1,8"), ExclusivePolicy.NONE)

    def test_the_node_of_what_was_taken_counts_too_for_the_rest(self) -> None:
        layout = machine(packages=1, nodes=2, cores=2, threads=2)
        wish = CpuDemand(3, FULL, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL)
        assert given(layout, "0-2,4", CpuDemand(3, FULL)) == "0-1,4"
        assert given(layout, "0-2,4", wish) == "0,2,4"

    def test_unless_a_node_of_its_own_is_required(self) -> None:
        level = ExclusivePolicy.NUMA_NODE_LEVEL
        assert self.exclusive(level, 9, FULL, required=True) == ShortOf.UNSHARED_NODES
        assert self.exclusive(level, 8, FULL, required=True) == ("4-7,12-15", level)

    def test_even_shares_avoid_cores_of_others_where_no_node_is_left(self) -> None:
        level = ExclusivePolicy.NUMA_NODE_LEVEL
        wish = CpuDemand(4, SPREAD, exclusive=level, strategy=EVENLY)
        taken = take(
            TWO_PACKAGES, cpus("0-1,4-5,10,14"), ExclusiveClaims(node_level=cpus("8,12")), wish
        )
        assert taken == Taken(cpus("1,5,10,14"), ExclusivePolicy.PCPU_LEVEL)
        few = CpuDemand(2, SPREAD, exclusive=level, strategy=EVENLY)
        taken = take(
            TWO_PACKAGES, cpus("0-2,5-6"), ExclusiveClaims(node_level=cpus("8-10,12")), few
        )
        assert taken == Taken(cpus("5-6"), ExclusivePolicy.PCPU_LEVEL)

    def test_even_shares_avoid_others_too(self) -> None:
        layout = machine(packages=2, nodes=2, cores=4, threads=2)
        wish = CpuDemand(16, FULL, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL, strategy=EVENLY)
        taken = take(layout, layout.cpus & ~1, ExclusiveClaims(node_level=1), wish)
        assert isinstance(taken, Taken)
        assert taken.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL
        assert not taken.cpus & layout.nodes[0].mask


class TestStrategies:
    def test_most_allocated_fills_up_and_least_allocated_does_not(self) -> None:
        free = "1-7,9-15"
        most = CpuDemand(2, strategy=NumaStrategy.MOST_ALLOCATED)
        assert given(TWO_PACKAGES, free, most) == "1,9"
        assert given(TWO_PACKAGES, free, CpuDemand(2)) == "4,12"

    def test_even_shares_take_whole_cores_of_each_node(self) -> None:
        assert (
            given(TWO_PACKAGES, "0-15", CpuDemand(12, FULL, strategy=EVENLY))
            == "0-2,4-6,8-10,12-14"
        )

    def test_even_shares_of_spread_threads(self) -> None:
        wish = CpuDemand(6, SPREAD, True, strategy=EVENLY)
        assert given(TWO_PACKAGES, "0-15", wish) == "0-2,4-6"

    def test_spread_threads_are_shared_out_by_cores(self) -> None:
        assert given(TWO_PACKAGES, "0-1,5-6,8-9", CpuDemand(2, SPREAD, strategy=EVENLY)) == "0-1"
        assert given(TWO_PACKAGES, "0,5-6,8", CpuDemand(2, SPREAD, strategy=EVENLY)) == "5-6"

    def test_the_freest_nodes_share(self) -> None:
        layout = machine(packages=4, nodes=1, cores=4, threads=1)
        wish = CpuDemand(5, BindPolicy.NONE, strategy=EVENLY)
        assert given(layout, "0-1,4-6,8-9,12-15", wish) == "4-5,12-14"

    def test_one_node_does_if_it_can_hold_all(self) -> None:
        wish = CpuDemand(8, FULL, strategy=EVENLY)
        assert given(TWO_PACKAGES, "0-15", wish) == "0-3,8-11"

    def test_without_even_shares_cpus_are_packed(self) -> None:
        wish = CpuDemand(9, FULL, strategy=EVENLY)
        assert given(TWO_PACKAGES, "0-7,8,12-15", wish) == "0,4-7,12-15"

    def test_even_shares_come_out_of_whole_cores_if_they_can(self) -> None:
        wish = CpuDemand(4, FULL, True, strategy=EVENLY)
        assert given(TWO_PACKAGES, "0-2,4,5,8,12", wish) == "0,4,8,12"


class TestPreferredCpus:
    def test_they_are_tried_first(self) -> None:
        assert given(TWO_PACKAGES, "0-15", CpuDemand(4, preferred=cpus("6,14"))) == "0,6,8,14"

    def test_required_whole_cores_are_not_broken_for_them(self) -> None:
        wish = CpuDemand(4, FULL, True, preferred=cpus("6,7,14"))
        assert given(TWO_PACKAGES, "0-15", wish) == "0,6,8,14"

    def test_cpus_that_are_taken_do_not_matter(self) -> None:
        assert given(TWO_PACKAGES, "0-3,8-11", CpuDemand(2, preferred=cpus("6,14"))) == "0,8"


class TestIrregularHosts:
    # Cores of 2, 2, 1, 1 threads, of two kinds.
    hybrid = layout_of(
        '{"allowed_cpus": "0-5", "cores": [{"cpus": "0-1", "kind": "core"},'
        ' {"cpus": "2-3", "kind": "core"}, {"cpus": "4", "kind": "atom"},'
        ' {"cpus": "5", "kind": "atom"}]}'
    )
    # A core with one thread offline, beside whole ones: 0,4 1 2,6 3,7.
    offline = layout_of_rows([(cpu, cpu % 4, 0, 0) for cpu in range(8) if cpu != 5])

    def test_cores_of_one_kind_go_before_a_mixture(self) -> None:
        assert self.hybrid is not None
        assert given(self.hybrid, "0-5", CpuDemand(2, SPREAD)) == "0,2"
        assert given(self.hybrid, "0,4-5", CpuDemand(2, SPREAD)) == "4-5"
        assert given(self.hybrid, "0-1,4-5", CpuDemand(2, SPREAD)) == "4-5"  # spread over cores
        assert given(self.hybrid, "0-5", CpuDemand(2)) == "0-1"
        assert given(self.hybrid, "0-5", CpuDemand(5)) == "0-4"

    def test_required_whole_cores_may_be_of_several_widths(self) -> None:
        assert self.hybrid is not None
        assert given(self.hybrid, "0-5", CpuDemand(3, FULL, True)) == "0-1,4"
        assert given(self.hybrid, "0,2-5", CpuDemand(3, FULL, True)) == "2-4"
        assert given(self.hybrid, "0-3,5", CpuDemand(3, FULL, True)) == "0-1,5"

    def test_few_wide_cores_go_before_many_narrow_ones(self) -> None:
        layout = layout_of_rows([(0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 0, 0), (3, 2, 0, 0)])
        assert given(layout, "0-3", CpuDemand(2)) == "2-3"
        assert given(layout, "0-3", CpuDemand(2, FULL, True)) == "2-3"

    def test_whole_cores_of_several_packages_add_up(self) -> None:
        layout = layout_of_rows(
            [(0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 1, 1), (3, 2, 1, 1), (4, 3, 1, 1), (5, 3, 1, 1)]
        )
        assert given(layout, "0-5", CpuDemand(5, FULL, True)) == "0,2-5"
        assert given(layout, "0-3,5", CpuDemand(3, FULL, True)) == "0,2-3"

    def test_a_core_is_whole_without_its_offline_thread(self) -> None:
        assert given(self.offline, "0-4,6-7", CpuDemand(1, FULL, True)) == "1"
        assert given(self.offline, "0-4,6-7", CpuDemand(3, FULL, True)) == "0-1,4"
        assert given(self.offline, "0-4,6-7", CpuDemand(7, FULL, True)) == "0-4,6-7"
        assert given(self.offline, "0,2-4,6-7", CpuDemand(3, FULL, True)) == ShortOf.ALIGNMENT

    def test_wide_cores_only_serve_multiples_of_their_width(self) -> None:
        layout = machine(packages=1, nodes=1, cores=4, threads=8)
        assert [need for need in range(1, 33) if aligned(layout, need)] == [8, 16, 24, 32]
        assert given(layout, "0-31", CpuDemand(8, FULL, True)) == "0,4,8,12,16,20,24,28"
        assert [need for need in range(1, 8) if aligned(self.offline, need)] == list(range(1, 8))

    def test_a_reserved_thread_breaks_its_core(self) -> None:
        layout = layout_of(
            '{"allowed_cpus": "0-3", "cores": [{"cpus": "0-1"}, {"cpus": "2-3"}]}',
            '{"slot_cpus": "1-3"}',
        )
        assert layout is not None
        assert given(layout, "1-3", CpuDemand(2, FULL, True)) == "2-3"
        assert given(layout, "1-3", CpuDemand(3, FULL)) == "1-3"
        assert given(layout, "1-3", CpuDemand(1, FULL, True)) == ShortOf.ALIGNMENT


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_machine_gives_its_cpus_soundly(name: str) -> None:
    layout = layout_of(as_reported(recorded(name)))
    assert layout is not None
    total = layout.cpus.bit_count()
    for need in {1, 2, 3, total // 3, total // 2 + 1, total - 1, total} & set(range(1, total + 1)):
        for bind in (FULL, SPREAD):
            for strategy in NumaStrategy:
                for required in (False, True):
                    wish = CpuDemand(need, bind, required, strategy=strategy)
                    taken = take(layout, layout.cpus, NO_CLAIMS, wish)
                    if isinstance(taken, Short):
                        assert required
                        most = total if bind is FULL else len(layout.cores)
                        assert need > most or (bind is FULL and not aligned(layout, need))
                    else:
                        assert taken.cpus.bit_count() == need
                        assert not taken.cpus & ~layout.cpus
                        assert not required or holds(layout, taken.cpus, bind)
