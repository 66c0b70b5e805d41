"""Tests the check whether a gang with many kinds of members could ever be placed. The check has the
same result as a search for all kinds, although it first examines members that are as large as the
largest member.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from resource_manager.engine.planning import gang_feasibility as module
from resource_manager.engine.planning.gang_feasibility import as_the_largest, gang_feasibility
from resource_manager.engine.queue.gangs import MemberRequest, Where
from tests.support.engine_cluster import EngineCluster, host

profiles = st.builds(
    ResourceProfile,
    cpu_milli=st.sampled_from([500, 1_000, 1_500, 3_000]),
    task_heap_memory_bytes=st.sampled_from([64 * MIB, 512 * MIB, 1_024 * MIB]),
    extended=st.sampled_from([(), (("disk", 1),)]),
)
kinds = st.dictionaries(profiles, st.integers(1, 2), min_size=2, max_size=4)


def members_of(counts: dict[ResourceProfile, int]) -> tuple[MemberRequest, ...]:
    return tuple(MemberRequest(profile, (), count) for profile, count in counts.items())


def verdict(cluster: EngineCluster, where: Where, members: tuple[MemberRequest, ...]) -> str:
    state = cluster.state
    return gang_feasibility(state.hosts, state.elastic, state.provisions, where, members)


@given(
    st.lists(st.sampled_from([1_000, 2_000, 4_000]), min_size=1, max_size=4),
    st.sampled_from([GangPlacement.ANYWHERE, GangPlacement.SPREAD, GangPlacement.SAME_EXECUTOR]),
    kinds,
)
def test_the_first_look_changes_no_verdict(
    cores: list[int], placement: GangPlacement, counts: dict[ResourceProfile, int]
) -> None:
    cluster = EngineCluster.settled(*(host(f"host-{n}", cpu) for n, cpu in enumerate(cores)))
    where, members = Where(placement), members_of(counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KINDS_MIN", 100)
        expected = verdict(cluster, where, members)
        patch.setattr(module, "KINDS_MIN", 2)
        assert verdict(cluster, where, members) == expected


def test_the_largest_is_the_largest_of_each_resource() -> None:
    each = [
        ResourceProfile(cpu, memory * MIB, extended=extended)
        for cpu, memory, extended in [
            *[(100 + n, 64, ()) for n in range(6)],
            (50, 128, (("disk", 2),)),
            (60, 64, (("disk", 1), ("net", 3))),
        ]
    ]
    largest = as_the_largest([MemberRequest(profile, (), 2) for profile in each])
    assert largest is not None
    assert largest.profile == ResourceProfile(105, 128 * MIB, extended=(("disk", 2), ("net", 3)))
    assert largest.count == 16


def test_equal_members_are_looked_at_first_only_if_amounts_decide() -> None:
    alike = [MemberRequest(ResourceProfile(100 + n, MIB), (), 1) for n in range(8)]
    assert as_the_largest(alike) is not None
    labelled = MemberRequest(ResourceProfile(100, MIB), (("disk", "ssd"),), 1)
    assert as_the_largest([*alike, labelled]) is None
    assert as_the_largest([*alike, MemberRequest(None, (), 1)]) is None
