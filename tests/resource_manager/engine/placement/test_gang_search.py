"""Compares the placement of gangs with a full search, on small clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from resource_manager.engine.placement.gangs import GangSearch, count_of, seek
from resource_manager.engine.queue.gangs import MemberRequest, Where
from tests.resource_manager.engine.placement.test_placing import POOL_PER_PART, cluster_of
from tests.support.engine_cluster import EngineCluster, FakeExecutor, host
from tests.support.properties import examples

ANYWHERE, SAME_EXECUTOR, SAME_LABEL, SPREAD = GangPlacement

SMALL = ResourceProfile(1000, 512 * MIB)
LARGE = ResourceProfile(2000, 1024 * MIB, managed_memory_bytes=64 * MIB)
WIDE = ResourceProfile(500, 2048 * MIB)

hosts = st.lists(
    st.tuples(
        st.integers(0, 5),  # cpus
        st.integers(0, 6),  # half GiBs
        st.sampled_from([0, 0, 1, 2]),  # slots_max
        st.sampled_from(["", "r1", "r2"]),  # rack
        st.booleans(),  # ssd
        st.booleans(),  # separate memory pools
    ),
    min_size=1,
    max_size=4,
)
wishes = st.lists(
    st.tuples(
        st.sampled_from([SMALL, LARGE, WIDE]),
        st.sampled_from([(), (("disk", "ssd"),)]),
        st.integers(1, 3),
        st.sets(st.sampled_from(["host-0", "host-1"]), max_size=1),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda wish: wish[:2],
).filter(lambda many: sum(wish[2] for wish in many) <= 5)


def cluster_with(described: Any, strategy: Any = "pack") -> EngineCluster:
    cluster = EngineCluster(strategy=strategy, pack_candidates=2)
    for number, (cpus, memory, slots_max, rack, ssd, parts) in enumerate(described):
        labels = {"rack": rack} if rack else {}
        labels |= {"disk": "ssd"} if ssd else {}
        total = {"cpu_milli": 1000 * cpus, "memory_bytes": 512 * MIB * memory}
        if parts:
            total = {
                "cpu_milli": 1000 * cpus,
                "task_heap_memory_bytes": 512 * MIB * memory,
                "managed_memory_bytes": 64 * MIB,
            }
        cluster.register(
            FakeExecutor(
                f"host-{number}",
                {name: amount for name, amount in total.items() if amount},
                ResourceProfile(800, 300 * MIB),
                labels=tuple(sorted(labels.items())),
                slots_max=slots_max,
            )
        )
    return cluster


class Everything:
    """Tries all ways to place the members, one after the other."""

    def __init__(self, cluster: EngineCluster, asked: list[MemberRequest]) -> None:
        self.hosts = dict(sorted(cluster.state.hosts.items()))
        self.members = [wish for wish in asked for _ in range(wish.count)]

    def exists(self, placement: GangPlacement, names: list[str] | None = None) -> bool:
        match placement:
            case GangPlacement.ANYWHERE:
                return self._anywhere(list(self.hosts) if names is None else names)
            case GangPlacement.SAME_EXECUTOR:
                return any(self._anywhere([name]) for name in self.hosts)
            case GangPlacement.SAME_LABEL:
                racks: dict[str, list[str]] = {}
                for name, host in self.hosts.items():
                    racks.setdefault(host.labels.get("rack", ""), []).append(name)
                racks.pop("", None)
                return any(self._anywhere(some) for some in racks.values())
            case GangPlacement.SPREAD:
                return any(
                    all(self.fits([m], n) for m, n in zip(self.members, order, strict=True))
                    for order in permutations(self.hosts, len(self.members))
                )

    def _anywhere(self, names: list[str]) -> bool:
        return any(True for _ in self._assignments(names, 0, {name: [] for name in names}))

    def _assignments(
        self, names: list[str], at: int, on: dict[str, list[MemberRequest]]
    ) -> Iterator[dict[str, list[MemberRequest]]]:
        if at == len(self.members):
            yield on
            return
        for name in names:
            on[name].append(self.members[at])
            if self.fits(on[name], name):
                yield from self._assignments(names, at + 1, on)
            on[name].pop()

    def fits(self, some: list[MemberRequest], name: str) -> bool:
        host = self.hosts[name]
        if any(name in wish.elsewhere for wish in some):
            return False
        if any(host.labels.get(k) != v for wish in some for k, v in wish.labels):
            return False
        needs: Counter[str] = Counter()
        for wish in some:
            needs.update(host.booking_of(wish.profile) if wish.profile else host.default_booking)
            if not wish.profile and not host.default_booking:
                return False
        free = host.free()
        return len(some) <= host.slots_left() and all(
            free.get(dimension, 0) >= amount for dimension, amount in needs.items()
        )


def asked_for(wished: Any) -> list[MemberRequest]:
    return [
        MemberRequest(profile, labels, n, frozenset(barred))
        for profile, labels, n, barred in wished
    ]


def index_by_label(cluster: EngineCluster) -> None:
    """Makes indexes of hosts with labels, as for classes that require these."""
    for labels in ((("disk", "ssd"),), (("rack", "r1"),)):
        cluster.state.hosts.indexes.get_or_build(labels, cluster.state.hosts.values())


def index_of(cluster: EngineCluster) -> Any:
    main = cluster.state.hosts.indexes.main
    return {name: [list(level) for level in column] for name, column in main.columns.items()}, dict(
        main.sums
    )


def check_sound(
    cluster: EngineCluster, asked: list[MemberRequest], found: Any, placement: Any
) -> None:
    """Requires that a found placement is valid."""
    everything = Everything(cluster, asked)
    on: dict[str, list[MemberRequest]] = {}
    placed: Counter[int] = Counter()
    for share in found:
        on.setdefault(share.host_id, []).extend([asked[share.request_index]] * share.count)
        placed[share.request_index] += share.count
    assert placed == {number: wish.count for number, wish in enumerate(asked)}
    assert all(everything.fits(some, name) for name, some in on.items())
    if placement is SAME_EXECUTOR:
        assert len(on) == 1
    if placement is SPREAD:
        assert all(len(some) == 1 for some in on.values())
    if placement is SAME_LABEL:
        racks = {cluster.state.hosts[name].labels.get("rack") for name in on}
        assert len(racks) == 1
        assert None not in racks


@pytest.mark.parametrize("strategy", ["pack", "spread"])
@pytest.mark.parametrize("placement", [SAME_EXECUTOR, SPREAD])
@settings(max_examples=examples(150))
@given(described=hosts, wished=wishes, own_index=st.booleans())
def test_one_host_and_hosts_apart_are_found_whenever_they_exist(
    placement: GangPlacement, strategy: str, described: Any, wished: Any, own_index: bool
) -> None:
    cluster = cluster_with(described, strategy)
    asked = asked_for(wished)
    if own_index:
        index_by_label(cluster)
    before = index_of(cluster)
    found = seek(cluster.state.hosts, Where(placement), asked)
    assert (found is not None) == Everything(cluster, asked).exists(placement)
    assert index_of(cluster) == before
    if found is not None:
        check_sound(cluster, asked, found, placement)


@pytest.mark.parametrize("strategy", ["pack", "spread"])
@pytest.mark.parametrize("placement", [ANYWHERE, SAME_LABEL])
@settings(max_examples=examples(150))
@given(
    described=hosts,
    wished=wishes,
    profile=st.sampled_from([SMALL, LARGE, None]),
    own_index=st.booleans(),
)
def test_equal_members_are_placed_whenever_they_fit(
    placement: GangPlacement,
    strategy: str,
    described: Any,
    wished: Any,
    profile: Any,
    own_index: bool,
) -> None:
    """Also if they differ in labels or excluded hosts."""
    cluster = cluster_with(described, strategy)
    merged: dict[Any, MemberRequest] = {}
    for _, labels, count, barred in wished:
        merged[labels] = MemberRequest(profile, labels, count, frozenset(barred))
    asked = list(merged.values())
    if own_index:
        index_by_label(cluster)
    before = index_of(cluster)
    found = seek(cluster.state.hosts, Where(placement, "rack"), asked)
    assert (found is not None) == Everything(cluster, asked).exists(placement)
    assert index_of(cluster) == before
    if found is not None:
        check_sound(cluster, asked, found, placement)


@pytest.mark.parametrize("placement", [ANYWHERE, SAME_LABEL])
@settings(max_examples=examples(150))
@given(described=hosts, wished=wishes)
def test_unequal_members_are_placed_soundly_or_not_at_all(
    placement: GangPlacement, described: Any, wished: Any
) -> None:
    cluster = cluster_with(described)
    asked = asked_for(wished)
    before = index_of(cluster)
    found = seek(cluster.state.hosts, Where(placement, "rack"), asked)
    assert index_of(cluster) == before
    if found is not None:
        check_sound(cluster, asked, found, placement)
        assert Everything(cluster, asked).exists(placement)


@pytest.mark.parametrize("strategy", ["pack", "spread", "balanced"])
@pytest.mark.parametrize("placement", [ANYWHERE, SAME_LABEL])
@settings(max_examples=examples(150))
@given(described=hosts, wished=wishes)
def test_unequal_members_are_placed_whenever_they_fit(
    placement: GangPlacement, strategy: str, described: Any, wished: Any
) -> None:
    cluster = cluster_with(described, strategy)
    asked = asked_for(wished)
    before = index_of(cluster)
    search = GangSearch(cluster.state.hosts, Where(placement, "rack"), asked)
    found = search.find()
    assert index_of(cluster) == before
    if found is not None:
        check_sound(cluster, asked, found, placement)
    elif not search.cut_off:
        assert not Everything(cluster, asked).exists(placement)


def test_members_that_do_not_fit_largest_first_are_placed() -> None:
    """Two hosts of 10 cpus. Largest first puts 4 and 4 on one host, and 3 and 3 on the other, so
    that 3 and 3 are left with 2 and 4 cpus. The only solution is 4 + 3 + 3 on each host.
    """
    cluster = cluster_with([(10, 40, 0, "", False, False)] * 2)
    four, three = (ResourceProfile(cpus * 1_000, 512 * MIB) for cpus in (4, 3))
    asked = [MemberRequest(four, (), 2), MemberRequest(three, (), 4)]
    found = seek(cluster.state.hosts, Where(ANYWHERE), asked)
    assert found is not None
    check_sound(cluster, asked, found, ANYWHERE)


def test_a_search_that_takes_too_many_steps_is_given_up() -> None:
    """Each host takes two of the members, and no sum of amounts tells."""
    cluster = cluster_with([(10, 40, 0, "", False, False)] * 8)
    asked = [MemberRequest(ResourceProfile(3_400 + 10 * n, 512 * MIB), (), 1) for n in range(20)]
    before = index_of(cluster)
    search = GangSearch(cluster.state.hosts, Where(ANYWHERE), asked)
    assert search.find() is None
    assert search.cut_off
    assert index_of(cluster) == before
    found = seek(cluster.state.hosts, Where(ANYWHERE), asked[:16])
    assert found is not None
    assert count_of(found) == 16


def test_largest_members_go_first() -> None:
    """In order of arrival the small ones would take the capacity of the large one."""
    cluster = cluster_with([(2, 4, 0, "", False, False), (1, 2, 0, "", False, False)])
    small, large = (
        MemberRequest(SMALL, (), 1),
        MemberRequest(ResourceProfile(2000, 1024 * MIB), (), 1),
    )
    found = seek(cluster.state.hosts, Where(ANYWHERE), [small, large])
    assert found is not None
    assert {share.request_index: share.host_id for share in found} == {0: "host-1", 1: "host-0"}


def test_smaller_members_join_the_largest_instead_of_another_empty_host() -> None:
    """Memory parts, which no host of these has, do not make all members equally large."""
    cluster = EngineCluster.settled(host("a-small", 2_000), host("b-large", 8_000))
    cluster.submit_gang("g", [1_000, 1_000, 3_000], memory_bytes=256 * MIB)
    assert cluster.hosts_of(*(f"g-{number}" for number in range(3))) == ["b-large"] * 3


def test_the_value_that_fits_best_is_taken() -> None:
    """A rack with more capacity is left for gangs that need it."""
    racks = ["r1", "r1", "r2", "r2", "r3"]
    cpus = [4, 4, 1, 2, 2]
    cluster = cluster_with(
        [(c, 6, 0, rack, False, False) for c, rack in zip(cpus, racks, strict=True)]
    )
    found = seek(cluster.state.hosts, Where(SAME_LABEL, "rack"), [MemberRequest(SMALL, (), 3)])
    assert found is not None
    assert {share.host_id for share in found} == {"host-2", "host-3"}
    cluster = cluster_with(
        [(c, 6, 0, rack, False, False) for c, rack in zip(cpus, racks, strict=True)], "spread"
    )
    found = seek(cluster.state.hosts, Where(SAME_LABEL, "rack"), [MemberRequest(SMALL, (), 3)])
    assert found is not None
    assert {share.host_id for share in found} == {"host-0", "host-1"}


def test_whoever_has_a_choice_moves_on_for_whoever_has_none() -> None:
    """Members move along a chain of hosts, each with a little less memory and more cpus.

    Each member asks for as much cpu as one host has, and for less memory.
    """
    hosts = [(n + 1, 8 - n, 0, "", False, False) for n in range(5)]
    cluster = cluster_with(hosts)
    members = [MemberRequest(ResourceProfile(1, 512 * MIB * (8 - n)), (), 1) for n in range(5)]
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        asked = [members[n] for n in order]
        found = seek(cluster.state.hosts, Where(SPREAD), asked)
        assert found is not None
        assert {order[share.request_index]: share.host_id for share in found} == {
            n: f"host-{n}" for n in range(5)
        }


def test_equal_members_move_on_for_those_that_must_not_go_there() -> None:
    """Two hosts with three places each, and two members that may use only one of the hosts."""
    cluster = cluster_with([(3, 6, 0, "", False, False)] * 2)
    free = MemberRequest(SMALL, (), 3)
    bound = MemberRequest(SMALL, (), 3, frozenset({"host-0"}))
    for asked in ([free, bound], [bound, free]):
        found = seek(cluster.state.hosts, Where(ANYWHERE), asked)
        assert found is not None
        check_sound(cluster, asked, found, ANYWHERE)


def test_a_value_is_found_after_many_that_only_seem_to_suit() -> None:
    """The first values have room for three of the smallest, but for none of the largest."""
    racks = [(1, 8, 0, f"r{n // 3:02}", False, False) for n in range(33)]
    cluster = cluster_with([*racks, (4, 8, 0, "r11", False, False)])
    large = MemberRequest(ResourceProfile(2_000, 512 * MIB), (), 1)
    asked = [MemberRequest(SMALL, (), 2), large]
    found = seek(cluster.state.hosts, Where(SAME_LABEL, "rack"), asked)
    assert found is not None
    assert {share.host_id for share in found} == {"host-33"}


@st.composite
def crossed(draw: st.DrawFn) -> tuple[list[Any], list[MemberRequest]]:
    """Draws hosts and members that are each large in one dimension and small in the other."""
    sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))
    hosts = [
        (cpus, memory, 0, "", False, False)
        for cpus, memory in draw(st.lists(sizes, min_size=2, max_size=6))
    ]
    asked = draw(st.lists(sizes, min_size=2, max_size=5, unique=True))
    return hosts, [MemberRequest(ResourceProfile(1000 * c, 512 * MIB * m), (), 1) for c, m in asked]


@pytest.mark.parametrize("strategy", ["pack", "spread"])
@settings(max_examples=examples(300))
@given(case=crossed())
def test_a_host_each_is_found_whenever_there_is_one(strategy: str, case: Any) -> None:
    described, asked = case
    cluster = cluster_with(described, strategy)
    before = index_of(cluster)
    found = seek(cluster.state.hosts, Where(SPREAD), asked)
    assert index_of(cluster) == before
    exists = len(asked) <= len(described) and Everything(cluster, asked).exists(SPREAD)
    assert (found is not None) == exists
    if found is not None:
        check_sound(cluster, asked, found, SPREAD)


def test_a_large_spread_needs_few_searches() -> None:
    """A member that fits on one host only is placed in time."""
    cluster = cluster_of([(POOL_PER_PART, 0, number == 0) for number in range(36)])
    ssd = MemberRequest(ResourceProfile(100, 128 * MIB), (("disk", "ssd"),), 1)
    others = [MemberRequest(ResourceProfile(100 + n, 128 * MIB), (), 1) for n in range(35)]
    found = seek(cluster.state.hosts, Where(SPREAD), [*others, ssd])
    assert found is not None
    assert len({share.host_id for share in found}) == 36
    assert {share.host_id for share in found if share.request_index == 35} == {"host-00"}


def test_large_values_of_a_label_are_searched_like_the_whole() -> None:
    """Zones with more hosts than are tried one by one."""
    described = [
        (1 if n < 320 else 4, 8, 0, "r1" if n < 320 else "r2", False, False) for n in range(640)
    ]
    cluster = cluster_with(described)
    where = Where(SAME_LABEL, "rack")
    found = seek(cluster.state.hosts, where, [MemberRequest(SMALL, (), 321)])
    assert found is not None
    assert {cluster.state.hosts[share.host_id].labels["rack"] for share in found} == {"r2"}
    found = seek(cluster.state.hosts, where, [MemberRequest(SMALL, (), 320)])
    assert found is not None
    assert sum(share.count for share in found) == 320
    assert (
        seek(
            cluster.state.hosts,
            where,
            [MemberRequest(SMALL, (), 641), MemberRequest(LARGE, (), 320)],
        )
        is None
    )
    found = seek(
        cluster.state.hosts, where, [MemberRequest(SMALL, (), 640), MemberRequest(LARGE, (), 320)]
    )
    assert found is not None
    assert seek(cluster.state.hosts, where, [MemberRequest(SMALL, (), 1281)]) is None


def test_members_of_one_executor_are_tried_only_where_their_sum_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = EngineCluster.settled(*(host(f"host-{n:02}", 3_000) for n in range(20)))
    cluster.host("large", 8_000)
    tried: list[str] = []
    fill = GangSearch._fill_host

    def noting(search: GangSearch, host_id: str, order: Any) -> Any:
        tried.append(host_id)
        return fill(search, host_id, order)

    monkeypatch.setattr(GangSearch, "_fill_host", noting)
    cluster.submit_gang("gang", [2_000, 2_000, 2_000], SAME_EXECUTOR)
    assert cluster.is_granted("gang-0")
    assert set(tried) == {"large"}
