"""A pinned slot that grows keeps its cpus; one that shrinks keeps some of them."""

import pytest

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaStrategy
from resource_manager.engine.cpus.layout import CpuLayout, layout_of_rows
from resource_manager.engine.cpus.resize_cpus import grow, shrink
from resource_manager.engine.cpus.take import CpuDemand, ExclusiveClaims, ShortOf, Taken
from tests.support.cpu_layouts import cpus, listed, machine

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
EVENLY = NumaStrategy.DISTRIBUTE_EVENLY

# Two packages of two nodes of two cores with two threads each: 0,8 1,9 | 2,10 3,11 || 4,12 ...
HOST = machine(packages=2, nodes=2, cores=2, threads=2)


def grown(
    held: str,
    free: str,
    wish: CpuDemand,
    *,
    layout: CpuLayout = HOST,
    claims: ExclusiveClaims = ExclusiveClaims(),  # noqa: B008 - a value
    same_nodes: bool = False,
) -> str:
    taken = grow(layout, cpus(held), cpus(free), claims, wish, same_nodes=same_nodes)
    return listed(taken.cpus) if isinstance(taken, Taken) else str(taken.of)


def shrunk(held: str, wish: CpuDemand, layout: CpuLayout = HOST) -> str:
    taken = shrink(layout, cpus(held), ExclusiveClaims(), wish)
    return listed(taken.cpus) if isinstance(taken, Taken) else str(taken.of)


class TestGrowing:
    def test_the_same_node_comes_first_then_the_package_then_any(self) -> None:
        assert grown("0,8", "1-7,9-15", CpuDemand(4)) == "0-1,8-9"
        assert grown("0,8", "2-7,10-15", CpuDemand(4)) == "0,2,8,10"
        assert grown("0,8", "4-7,12-15", CpuDemand(4)) == "0,4,8,12"

    def test_a_split_core_is_completed_first(self) -> None:
        assert grown("0-1,8", "2-7,9-15", CpuDemand(4)) == "0-1,8-9"
        assert grown("0-1,8", "2-7,9-15", CpuDemand(6)) == "0-2,8-10"

    def test_the_core_that_gets_complete_goes_first(self) -> None:
        wide = machine(packages=1, nodes=1, cores=2, threads=4)  # 0,2,4,6 and 1,3,5,7
        assert grown("0,1,3,5", "2,7", CpuDemand(5), layout=wide) == "0-1,3,5,7"

    def test_whole_cores_far_away_go_before_threads_nearby(self) -> None:
        assert grown("0,8", "1,2,5,13", CpuDemand(4)) == "0,5,8,13"
        assert grown("0,8", "1,2,5", CpuDemand(4)) == "0-2,8"

    def test_required_whole_cores_stay_whole(self) -> None:
        wish = CpuDemand(4, FULL, bind_required=True)
        assert grown("0,8", "1,2,5,13", wish) == "0,5,8,13"
        assert grown("0,8", "1,2,5", wish) == ShortOf.WHOLE_CORES
        assert grown("0,8", "1-7,9-15", CpuDemand(5, FULL, True)) == ShortOf.ALIGNMENT

    def test_spread_takes_cores_that_the_slot_is_not_on(self) -> None:
        assert grown("0", "1-15", CpuDemand(2, SPREAD)) == "0-1"
        assert grown("0-1", "2-15", CpuDemand(4, SPREAD)) == "0-3"
        assert grown("0-1", "8-9", CpuDemand(4, SPREAD)) == "0-1,8-9"

    def test_cores_that_the_slot_is_not_on_go_before_any_that_it_is_on(self) -> None:
        assert grown("0-1", "7-9", CpuDemand(4, SPREAD)) == "0-1,7-8"

    def test_spread_leaves_out_cores_that_a_required_exclusive_policy_rules_out(self) -> None:
        apart = CpuDemand(4, SPREAD, False, ExclusivePolicy.PCPU_LEVEL, exclusive_required=True)
        claims = ExclusiveClaims(core_level=cpus("9"))  # so cpu 1 shares its core with another slot
        assert grown("0", "1,2,8", apart, claims=claims) == ShortOf.UNSHARED_CORES
        assert grown("0", "1-3,8", apart, claims=claims) == "0,2-3,8"

    def test_required_spread_never_doubles_up(self) -> None:
        assert grown("0-1", "8-9", CpuDemand(3, SPREAD, True)) == ShortOf.CORES
        assert grown("0-1", "8-9,11", CpuDemand(3, SPREAD, True)) == "0-1,11"

    def test_a_slot_bound_to_its_nodes_stays_there(self) -> None:
        assert grown("0,8", "1-7,9-15", CpuDemand(4), same_nodes=True) == "0-1,8-9"
        assert grown("0,8", "2-7,10-15", CpuDemand(4), same_nodes=True) == ShortOf.CPUS

    def test_even_shares_stay_even(self) -> None:
        wish = CpuDemand(6, FULL, strategy=EVENLY)
        assert grown("0,2,8,10", "1,3-7,9,11-15", wish) == "0-2,8-10"
        wish = CpuDemand(8, FULL, strategy=EVENLY)
        assert grown("0,2,8,10", "1,3-7,9,11-15", wish) == "0-3,8-11"
        wish = CpuDemand(12, FULL, strategy=EVENLY)
        taken = grown("0-3,8-11", "4-7,12-15", wish)
        assert taken == "0-5,8-13"

    def test_others_are_avoided_and_the_level_is_told(self) -> None:
        level = ExclusivePolicy.PCPU_LEVEL
        wish = CpuDemand(2, SPREAD, exclusive=level)
        assert grown("0", "1,3,5", wish, claims=ExclusiveClaims(core_level=cpus("9"))) == "0,3"
        shared = grow(HOST, 1, cpus("1"), ExclusiveClaims(core_level=cpus("9")), wish)
        assert shared == Taken(cpus("0-1"), ExclusivePolicy.NONE)

    def test_what_is_held_already_is_enough(self) -> None:
        assert grown("0,8", "1-7", CpuDemand(2)) == "0,8"

    def test_a_cpu_that_runs_no_more_is_in_nobodys_way(self) -> None:
        layout = HOST.without(cpus("8"))
        assert grown("0,8", "1-7,9-15", CpuDemand(4, FULL, True), layout=layout) == "0-1,8-9"
        assert grown("0,8", "1-7,9-15", CpuDemand(4, SPREAD, True), layout=layout) == "0,2-3,8"

    def test_growing_to_less_is_a_mistake(self) -> None:
        with pytest.raises(ValueError, match="cannot grow to 1"):
            grown("0,8", "1-7", CpuDemand(1))


class TestShrinking:
    def test_whole_cores_are_given_back_first(self) -> None:
        assert shrunk("0-1,8-9", CpuDemand(2)) == "0,8"
        assert shrunk("0-1,8-9", CpuDemand(3)) == "0-1,8"
        assert shrunk("0-1,8-9", CpuDemand(1)) == "0"
        assert shrunk("0-1,8", CpuDemand(2)) == "0,8"  # the split core is worth least
        assert shrunk("0-1,9", CpuDemand(2)) == "1,9"
        assert shrunk("0-1,8-9", CpuDemand(0)) == ""

    def test_the_node_where_least_is_held_is_left(self) -> None:
        assert shrunk("0-1,4,8-9,12", CpuDemand(4)) == "0-1,8-9"
        assert shrunk("0,4-5,8,12-13", CpuDemand(4)) == "4-5,12-13"

    def test_even_shares_stay_even(self) -> None:
        wish = CpuDemand(4, FULL, strategy=EVENLY)
        assert shrunk("0-3,8-11", wish) == "0,2,8,10"

    def test_required_whole_cores_stay_whole(self) -> None:
        assert shrunk("0-1,8-9", CpuDemand(2, FULL, True)) == "0,8"
        assert shrunk("0-1,8-9", CpuDemand(3, FULL, True)) == ShortOf.ALIGNMENT

    def test_cores_of_several_widths_are_given_back_so_that_whole_ones_remain(self) -> None:
        layout = layout_of_rows([(0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 0), (3, 2, 0, 0)])
        assert shrunk("0-3", CpuDemand(3, FULL, True), layout) == "0-2"
        assert shrunk("0-1,3", CpuDemand(1, FULL, True), layout) == "3"
        assert shrunk("0-1", CpuDemand(1, FULL, True), layout) == ShortOf.ALIGNMENT

    def test_spread_gives_second_threads_back_first(self) -> None:
        assert shrunk("0-2,8-9", CpuDemand(4, SPREAD)) == "0-2,8"
        assert shrunk("0-2,8-9", CpuDemand(3, SPREAD)) == "0-2"
        assert shrunk("0-2,8-9", CpuDemand(2, SPREAD)) == "0-1"

    def test_spread_gives_a_thread_of_each_core_back_also_where_they_have_neighbouring_numbers(
        self,
    ) -> None:
        pairs = layout_of_rows([(cpu, cpu // 2, 0, 0) for cpu in range(4)])  # 0,1 and 2,3
        assert shrunk("0-3", CpuDemand(2, SPREAD), pairs) == "0,2"

    def test_shrinking_to_more_is_a_mistake(self) -> None:
        with pytest.raises(ValueError, match="cannot shrink to 3"):
            shrunk("0,8", CpuDemand(3))
