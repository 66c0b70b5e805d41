"""Tests of revocation: which slots are taken back for a request that fits nowhere."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.cpu_policy import CpuPolicy, NumaPolicy
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.model.entities import RequestSpec, Slot
from tests.support.engine_cluster import EngineCluster
from tests.support.engine_cluster.hosts import numa_host
from tests.support.properties import examples

CPUS = 8_000
SIZES = st.sampled_from((1_000, 2_000, 3_000))
SLOTS = st.lists(st.tuples(SIZES, st.booleans(), st.integers(0, 2)), min_size=1, max_size=7)


def spec(name: str, cpu_milli: int, *, revocable: bool = False) -> RequestSpec:
    return RequestSpec(name, ResourceProfile(cpu_milli, 64 * MIB), revocable=revocable)


def cluster_with(slots: list[tuple[int, bool, int]], *, revocation: bool = False) -> EngineCluster:
    """Two hosts with these slots: cpus, whether revocable, and seconds before the next slot."""
    cluster = EngineCluster(revocation=revocation)
    cluster.host("host-a", cpu_milli=CPUS)
    cluster.host("host-b", cpu_milli=CPUS)
    for number, (cpu_milli, revocable, pause_s) in enumerate(slots):
        cluster.submit(spec(f"slot-{number}", cpu_milli, revocable=revocable))
        cluster.settle()
        cluster.wait(pause_s * 1_000)
    return cluster


def cost(cluster: EngineCluster, slots: tuple[Slot, ...]) -> tuple[int, float]:
    """Returns number and service of the slots that end if these slots are revoked. A gang with
    `restart_on_loss` ends as a whole.
    """
    state = cluster.state
    gangs = {
        spec.gang_id
        for each in slots
        if (spec := state.requests[each.allocation_id].spec).restart_on_loss
    }
    ending = [
        each
        for each in state.slots.values()
        if each in slots or state.requests[each.allocation_id].spec.gang_id in gangs - {""}
    ]
    now_ms = state.journal.at.time_ms
    return len(ending), sum(e.cost * (now_ms - (e.allocated_time_ms or now_ms)) for e in ending)


def least(cluster: EngineCluster, cpu_milli: int) -> tuple[int, float] | None:
    """Returns number and service of the least costly set, by trying all sets; None: no set."""
    sets = (
        (host, some)
        for host in cluster.state.hosts.values()
        for count in range(len(host.slots) + 1)
        for some in combinations([s for s in host.slots.values() if s.revocable], count)
    )
    return min(
        (
            cost(cluster, some)
            for host, some in sets
            if host.free().get("cpu_milli", 0) + sum(each.booked["cpu_milli"] for each in some)
            >= cpu_milli
        ),
        default=None,
    )


@settings(max_examples=examples(40), deadline=None)
@given(SLOTS, st.lists(SIZES, max_size=4), st.booleans(), st.sampled_from((2_000, 4_000, 8_000)))
def test_the_least_costly_set_is_revoked(
    slots: list[tuple[int, bool, int]], gang: list[int], restart: bool, need: int
) -> None:
    cluster = cluster_with(slots, revocation=True)
    if gang:
        cluster.submit_gang("gang", gang, revocable=True, restart_on_loss=restart)
        cluster.settle()
        cluster.wait(1_000)
    cluster.submit(spec("filler", 8_000, revocable=True))
    cluster.settle()
    state = cluster.state
    granted = {key: slot for key, slot in state.slots.items() if slot.state is SlotState.ALLOCATED}
    expected = least(cluster, need)
    cluster.submit(spec("new", need))
    revoked = [slot for key, slot in granted.items() if slot.revoked_for]
    placed = state.requests["new"].state is RequestState.ALLOCATING
    assert placed == (expected is not None)
    assert all(slot.revocable and slot.revoked_for == "new" for slot in revoked)
    assert len({slot.executor_id for slot in revoked}) <= 1
    if expected is not None:
        ended = [slot for slot in granted.values() if slot.state is SlotState.FREEING]
        assert len(ended) == expected[0]
    # Slots that are being revoked book nothing, and the host is not overbooked.
    for host in state.hosts.values():
        assert sum(s.booked.get("cpu_milli", 0) for s in host.slots.values()) <= CPUS
        assert host.booked.get("cpu_milli", 0) <= CPUS
    cluster.settle()
    assert (state.requests["new"].state is RequestState.GRANTED) == placed
    of_gang = set()
    for slot in granted.values():
        request = state.requests[slot.allocation_id]
        if request.spec.gang_id and restart:
            of_gang.add(request.state)
        elif slot.revoked_for and request.spec.gang_id:
            assert (request.state, request.reason) == (RequestState.LOST, "REVOKED")
        else:
            assert request.state in (RequestState.PENDING, RequestState.GRANTED)
    assert len(of_gang) <= 1  # the gang waits or is granted as a whole


def test_of_equal_slots_the_one_with_the_least_service_is_revoked() -> None:
    slots = [(4_000, True, 3), (4_000, True, 3), (4_000, True, 3), (4_000, True, 3)]
    cluster = cluster_with(slots, revocation=True)
    cluster.submit(spec("new", 4_000))
    revoked = [slot.allocation_id for slot in cluster.state.slots.values() if slot.revoked_for]
    assert revoked == ["slot-3"]


def test_a_revocable_request_revokes_nothing() -> None:
    cluster = cluster_with([(8_000, True, 0), (8_000, True, 0)], revocation=True)
    cluster.submit(spec("new", 4_000, revocable=True))
    assert cluster.state.requests["new"].state is RequestState.PENDING


def test_nothing_is_revoked_while_a_slot_ends_that_suffices() -> None:
    cluster = cluster_with([(8_000, True, 0), (8_000, False, 0)], revocation=True)
    cluster.release("slot-1")
    cluster.submit(spec("new", 4_000))
    assert cluster.state.requests["slot-0"].state is RequestState.GRANTED
    cluster.settle()
    assert cluster.state.requests["new"].state is RequestState.GRANTED
    assert cluster.state.requests["slot-0"].state is RequestState.GRANTED


def test_without_revocation_nothing_is_taken_back() -> None:
    cluster = cluster_with([(8_000, True, 0), (8_000, True, 0)])
    cluster.submit(spec("new", 4_000))
    cluster.wait(5_000)
    assert cluster.state.requests["new"].state is RequestState.PENDING


def test_a_search_in_vain_leaves_slots_what_their_host_has_lost() -> None:
    """Cpus of a NUMA node have gone offline, so its slots have more than the node has. This is
    still accepted after a slot was considered for revocation.
    """
    cluster = EngineCluster(numa_host(nodes=1, cores=4, threads=1), revocation=True)
    one_node = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
    cluster.submit("old", cpu_milli=3_000, policy=one_node, revocable=True)
    cluster.submit("kept", policy=one_node)
    cluster.settle()
    cluster.report_cpus("host-a", offline_cpus="0-1")
    cluster.submit_gang("new", [2_000])
    cluster.settle()
    cluster.check()
    assert cluster.is_granted("old")
