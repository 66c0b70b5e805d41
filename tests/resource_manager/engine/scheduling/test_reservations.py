"""Tests of large requests among many small ones.

Without reservations, large requests would wait indefinitely. With a reservation, a large request is
placed when the slots that were on its host at the start of the reservation have ended.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import (
    CommandRefused,
    SlotsReleased,
)
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from resource_manager.engine.scheduling.reservation_search import ReservationSearch
from resource_manager.engine.scheduling.reservations import EXPIRES_AFTER
from tests.support.engine_cluster import EngineCluster

STARVING_S = 60
ENDS_EVERY_S = 2


class Flood:
    """An endless supply of small slots: whenever one ends, another one waits already.

    Only one slot ends at a time, the oldest first, so that no host ever becomes empty.
    """

    def __init__(
        self, cluster: EngineCluster, hosts: int = 2, *, job: str = "small", slots_max: int = 0
    ) -> None:
        self.cluster = cluster
        self.job = job
        self._names = (f"s{number:05d}" for number in count())
        for number in range(hosts):
            cluster.host(f"host-{number}", slots_max=slots_max)
        cluster.job(job, "large")
        self.ask(4 * hosts + 8)

    def ask(self, number: int) -> None:
        self.cluster.submit(*(next(self._names) for _ in range(number)), job=self.job)

    def oldest(self, host: str = "") -> str:
        return min(name for name in self.cluster.running(host) if name.startswith("s"))

    def go_on(self, until: Any, *, most: int = 120) -> int:
        """Lets time pass until a condition holds; returns how many slots ended."""
        for ended in range(most):
            if until():
                return ended
            self.cluster.wait(1_000 * ENDS_EVERY_S)
            self.cluster.release(self.oldest(), job=self.job)
            self.ask(1)
        return most


def reserved(cluster: EngineCluster) -> dict[str, dict[str, Any]]:
    """Returns reserved cores by owner and host."""
    return {
        each.owner.title: {name: kept.amounts["cpu_milli"] for name, kept in each.hosts.items()}
        for each in cluster.state.reservations.by_number.values()
    }


def test_without_reservations_small_requests_delay_a_large_request_indefinitely() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S, reservations_max=0)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    assert flood.go_on(lambda: cluster.where("big")) == 120
    assert explain(cluster.state, "big").primary_reason == "WAITING_CAPACITY"


def test_the_owner_is_placed_when_the_slots_on_its_reserved_host_have_ended() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    waited_s = (cluster.now_ms - 1_000) // 1_000
    assert STARVING_S <= waited_s <= STARVING_S + 2 * ENDS_EVERY_S
    ((host, held),) = reserved(cluster)["big"].items()
    assert held == 4_000
    there = set(cluster.running(host))
    assert len(there) in (3, 4)
    flood.go_on(lambda: cluster.where("big"))
    assert cluster.where("big") == host
    # No slot was placed there in the meantime, and only the slots that were already there had to
    # end.
    assert set(cluster.running(host)) == {"big"}
    assert {cluster.state_of(name) for name in there} == {"RELEASED"}
    assert not cluster.state.reservations
    assert cluster.history("reservation_ended") == ["big: placed there"]


def test_other_requests_use_the_capacity_that_the_owner_does_not_need() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("wide", job="large", cpu_milli=3_000)
    flood.go_on(lambda: reserved(cluster))
    ((host, _),) = reserved(cluster)["wide"].items()
    placed: set[str] = set()

    def watch() -> bool:
        placed.update(set(cluster.running(host)) - {"wide"})
        return bool(cluster.where("wide"))

    before = set(cluster.running(host))
    flood.go_on(watch)
    assert cluster.where("wide") == host
    assert len(cluster.running(host)) == 2  # its three cores, and one more
    assert placed - before  # slots were placed there while it was reserved


def test_the_longest_starved_requests_get_reservations_up_to_the_maximum() -> None:
    cluster = EngineCluster.settled(
        starvation_timeout_ms=1_000 * STARVING_S, reservations_max=2, reserved_part_max=1.0
    )
    flood = Flood(cluster, hosts=4)
    for number in range(4):
        cluster.job(f"large-{number}")
        cluster.submit(f"big-{number}", job=f"large-{number}", cpu_milli=4_000 - number)
    flood.go_on(lambda: len(reserved(cluster)) == 2)
    assert list(reserved(cluster)) == ["big-0", "big-1"]
    assert len({host for held in reserved(cluster).values() for host in held}) == 2
    flood.go_on(lambda: cluster.where("big-0") and cluster.where("big-1"))
    flood.go_on(
        lambda: all(cluster.where(f"big-{n}") or f"big-{n}" in reserved(cluster) for n in (2, 3))
    )


def test_all_owners_but_the_longest_starved_one_share_a_part_of_the_cluster() -> None:
    """The limit is a quarter of 16 cores. So one request for 3 or 4 cores gets a reservation beside
    the first request, which may have any size.
    """
    cluster = EngineCluster.settled(
        starvation_timeout_ms=1_000 * STARVING_S, reserved_part_max=0.25
    )
    flood = Flood(cluster, hosts=4)
    cluster.submit_gang("g", [4_000, 4_000], GangPlacement.SPREAD, job="large")
    for number in range(3):
        cluster.job(f"large-{number}")
        cluster.submit(f"big-{number}", job=f"large-{number}", cpu_milli=4_000 - number)
    flood.go_on(lambda: len(reserved(cluster)) == 2)
    assert list(reserved(cluster)) == ["gang g", "big-0"]

    done: set[str] = set()

    def watch() -> bool:
        _, *others = reserved(cluster).values() or [{}]
        assert sum(sum(each.values()) for each in others) <= 4_000
        for job, names in {
            "large": ["g-0", "g-1"],
            **{f"large-{n}": [f"big-{n}"] for n in range(3)},
        }.items():
            if cluster.where(names[0]):
                done.add(job)
                cluster.release(*names, job=job)
        return len(done) == 4

    flood.go_on(watch)
    assert len(done) == 4


def test_hosts_that_the_longest_starved_gang_needs_are_not_reserved_for_others() -> None:
    """Otherwise requests for one host each would get reservations one after another, forever."""
    cluster = EngineCluster.settled(
        starvation_timeout_ms=1_000 * STARVING_S, reservations_max=3, reserved_part_max=1.0
    )
    flood = Flood(cluster, hosts=3)
    for number in range(8):
        cluster.job(f"one-{number}")
    cluster.submit("one-0", job="one-0", cpu_milli=4_000)
    cluster.wait(1_000)
    cluster.submit_gang("all", [4_000, 4_000, 4_000], GangPlacement.SPREAD, job="large")
    cluster.wait(1_000)
    for number in range(1, 8):
        cluster.submit(f"one-{number}", job=f"one-{number}", cpu_milli=4_000 - number)
    flood.go_on(lambda: reserved(cluster))
    assert list(reserved(cluster)) == ["one-0"]
    flood.go_on(lambda: cluster.where("one-0"))
    cluster.release("one-0", job="one-0")
    flood.go_on(lambda: cluster.where("all-0"), most=40)
    assert all(cluster.where(f"all-{number}") for number in range(3))
    assert not any(cluster.where(f"one-{number}") for number in range(1, 8))


def test_an_owner_that_waits_for_reserved_hosts_does_not_block_other_hosts() -> None:
    cluster = EngineCluster.settled(
        starvation_timeout_ms=1_000 * STARVING_S, reservations_max=3, reserved_part_max=1.0
    )
    for number in range(2):
        cluster.host(f"disk-{number}", labels=(("disk", "ssd"),))
    flood = Flood(cluster, hosts=1)
    flood.ask(12)
    ssd = (("disk", "ssd"),)
    for number in range(3):
        cluster.job(f"job-{number}")
        cluster.submit(
            f"ssd-{number}", job=f"job-{number}", cpu_milli=4_000 - number, required_labels=ssd
        )
        cluster.wait(1_000)
    cluster.job("later")
    cluster.submit("anywhere", job="later", cpu_milli=3_900)
    flood.go_on(lambda: len(reserved(cluster)) == 3)
    assert list(reserved(cluster)) == ["ssd-0", "ssd-1", "anywhere"]
    assert list(reserved(cluster)["anywhere"]) == ["host-0"]


def test_a_failed_search_is_not_repeated_until_hosts_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[str] = []
    choose = ReservationSearch.choose

    def counted(search: ReservationSearch, taken: Collection[str]) -> Any:
        searches.append(search.owner.gang_id)
        return choose(search, taken)

    monkeypatch.setattr(ReservationSearch, "choose", counted)
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.job("three")
    cluster.drain("host-1")
    for number in range(3):  # one of two hosts is drained
        cluster.submit_gang(
            f"g{number}", [4_000 - number, 4_000], GangPlacement.SPREAD, job="three"
        )
    flood.go_on(lambda: len(searches) == 3, most=45)
    assert sorted(searches) == ["g0", "g1", "g2"]
    flood.go_on(lambda: False, most=10)
    assert len(searches) == 3
    cluster.undrain("host-1")
    cluster.wait(2_000)
    assert list(reserved(cluster)) == ["gang g0"]


def beside_a_service(hosts: int, cpu_milli: int = 3_000) -> tuple[EngineCluster, Flood]:
    """On host-0 a slot runs forever; small slots fill the rest."""
    cluster = EngineCluster.settled(starvation_timeout_ms=5_000)
    cluster.host("host-0")
    cluster.job("services")
    cluster.submit("web", job="services", cpu_milli=cpu_milli)
    for number in range(1, hosts):
        cluster.host(f"host-{number}")
    flood = Flood(cluster, hosts=0)
    flood.ask(4 * hosts)
    return cluster, flood


def test_a_reservation_that_waits_for_an_endless_slot_moves_to_another_host() -> None:
    cluster, flood = beside_a_service(hosts=2, cpu_milli=1_000)  # as many slots as on host-1
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    assert list(reserved(cluster)["big"]) == ["host-0"]
    ended = flood.go_on(lambda: cluster.where("big"), most=400)
    assert cluster.where("big") == "host-1"
    assert ended * ENDS_EVERY_S * 1_000 < (EXPIRES_AFTER + 12) * 5_000
    assert cluster.history("reservation_ended") == [
        "big: slot web on executor host-0 did not end for too long",
        "big: placed there",
    ]


def test_a_reservation_that_waits_for_an_endless_slot_ends_without_another_host() -> None:
    cluster, flood = beside_a_service(hosts=1)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    assert cluster.running() == ["web"]  # the fourth core is idle for the large request
    cluster.wait(1_000 * (EXPIRES_AFTER * 5 + 10))
    assert not reserved(cluster)
    assert len(cluster.running()) == 2
    flood.go_on(lambda: reserved(cluster), most=30)
    assert not reserved(cluster)
    cluster.release("web", job="services")  # it ends after all
    cluster.wait(60_000)
    flood.go_on(lambda: reserved(cluster), most=30)
    assert list(reserved(cluster)["big"]) == ["host-0"]
    flood.go_on(lambda: cluster.where("big"))
    assert cluster.where("big") == "host-0"


def test_no_later_reservation_waits_for_a_slot_that_outlasted_a_reservation() -> None:
    cluster, flood = beside_a_service(hosts=1)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    cluster.wait(1_000 * (EXPIRES_AFTER * 5 + 10))
    assert not reserved(cluster)
    cluster.cancel("big", job="large")
    cluster.host("host-1")
    flood.ask(4)
    cluster.submit("wide", job="large", cpu_milli=2_000)
    flood.go_on(lambda: reserved(cluster))
    # on host-0 one core is free beside the service
    assert list(reserved(cluster)["wide"]) == ["host-1"]


def test_a_job_has_one_reservation_at_a_time() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster, hosts=3)
    cluster.submit("big-0", job="large", cpu_milli=4_000)
    cluster.submit("big-1", job="large", cpu_milli=3_999)
    flood.go_on(lambda: reserved(cluster))
    assert list(reserved(cluster)) == ["big-0"]
    flood.go_on(lambda: cluster.where("big-0"))
    flood.go_on(lambda: cluster.where("big-1"))
    assert cluster.where("big-1")


def test_the_reservation_of_a_cancelled_request_ends_at_once() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    ((host, _),) = reserved(cluster)["big"].items()
    cluster.release(flood.oldest(host), job="small")
    free = 4 - len(cluster.running(host))
    assert free
    cluster.cancel("big", job="large")
    assert not cluster.state.reservations
    assert len(cluster.running(host)) == 4  # other requests use it at once
    assert cluster.history("reservation_ended") == ["big: it no longer waits"]


def test_a_reservation_moves_away_from_a_drained_host() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    ((first, _),) = reserved(cluster)["big"].items()
    cluster.drain(first)
    assert not cluster.state.hosts[first].reserved
    ((second, _),) = reserved(cluster)["big"].items()
    assert second != first
    cluster.drain(second)
    assert not reserved(cluster)  # there is no other host
    cluster.undrain(second)
    cluster.wait(2_000)
    assert list(reserved(cluster)) == ["big"]


def test_a_reservation_moves_away_from_a_lost_host() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    ((first, _),) = reserved(cluster)["big"].items()
    other = next(name for name in cluster.state.hosts if name != first)
    cluster.now_ms += 10**9
    cluster.report(cluster.executors[other])
    cluster.wait(0)
    assert cluster.state.hosts[first].executor.lost
    assert list(reserved(cluster)["big"]) == [other]


def test_a_reservation_moves_away_from_a_host_that_must_register_again() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    ((first, _),) = reserved(cluster)["big"].items()
    cluster.batch(SlotsReleased(cluster.at, "small", ((flood.oldest(first), 0),)))
    (sent,) = cluster.wire
    number = sent.command.registration_number, sent.command.command_number
    cluster.batch(CommandRefused(cluster.at, first, *number, "COMMAND_OUT_OF_ORDER"))
    assert list(reserved(cluster)["big"]) != [first]
    cluster.check()


def test_a_reservation_moves_away_from_a_host_that_has_become_too_small() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    ((first, _),) = reserved(cluster)["big"].items()
    executor = cluster.executors[first]
    executor.total = {**executor.total, "cpu_milli": 3_000}
    for key in list(executor.slots)[:2]:
        executor.end(key, "SLOT_BROKEN")
    cluster.register(executor)
    cluster.settle()
    assert list(reserved(cluster)["big"]) != [first]


def test_a_reservation_ends_while_a_maximum_of_the_group_blocks_its_owner() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    cluster.set_group("apart")
    flood = Flood(cluster)
    cluster.job("limited", group="apart")
    cluster.submit("big", job="limited", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    cluster.set_group("apart", maximum={"cpu_milli": 3_000})
    assert not reserved(cluster)
    assert cluster.history("reservation_ended") == ["big: a maximum of group apart blocks it"]
    found = explain(cluster.state, "big")
    assert found.primary_reason == "WAITING_GROUP_LIMIT"
    assert found.summary.startswith(
        "group apart has 0 of at most 3 cpu, but the request needs 4 cpu"
    )
    cluster.set_group("apart", maximum={"cpu_milli": None})
    cluster.wait(2_000)
    assert list(reserved(cluster)) == ["big"]


def test_a_reservation_ends_when_its_owner_is_placed_on_another_host() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    cluster.host("host-9")
    assert cluster.where("big") == "host-9" or not cluster.where("big")
    flood.go_on(lambda: cluster.where("big"))
    assert not cluster.state.reservations
    assert not any(host.reserved for host in cluster.state.hosts.values())


@pytest.mark.parametrize(
    ("placement", "sizes", "hosts"),
    [
        (GangPlacement.SPREAD, [4_000, 4_000, 4_000], 3),
        (GangPlacement.ANYWHERE, [4_000, 4_000, 2_000], 3),
        (GangPlacement.SAME_EXECUTOR, [1_000, 3_000], 1),
        (GangPlacement.SAME_LABEL, [4_000, 4_000], 2),
    ],
)
def test_a_gang_reserves_hosts_for_all_its_members(
    placement: GangPlacement, sizes: list[int], hosts: int
) -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    for number in range(4):
        cluster.host(f"rack-{number}", labels=(("rack", "ab"[number // 2]),))
    flood = Flood(cluster, hosts=0)
    flood.ask(16)
    label = "rack" if placement is GangPlacement.SAME_LABEL else ""
    cluster.submit_gang("g", sizes, placement, label, job="large")
    flood.go_on(lambda: reserved(cluster))
    held = reserved(cluster)["gang g"]
    assert (len(held), sum(held.values())) == (hosts, sum(sizes))
    if label:
        assert len(set(held) & {"rack-0", "rack-1"}) in (0, 2)
    flood.go_on(lambda: cluster.where("g-0"))
    assert {cluster.where(f"g-{n}") for n in range(len(sizes))} <= held.keys()
    assert all(cluster.where(f"g-{n}") for n in range(len(sizes)))
    assert not cluster.state.reservations


def test_a_slot_that_must_grow_gets_a_reservation_on_its_own_host() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster, hosts=1)
    grown = flood.oldest()
    size = ResourceProfile(3_000, 64 * MIB)
    cluster.resize(grown, size, generation=1, number=1, job="small")

    def others() -> list[str]:
        return sorted(name for name in cluster.running() if name != grown)

    for _ in range(120):
        if cluster.state.slots[grown, 1].profile.cpu_milli == 3_000:
            break
        cluster.wait(1_000 * ENDS_EVERY_S)
        cluster.release(others()[0], job="small")
        flood.ask(1)
    assert cluster.state.slots[grown, 1].profile.cpu_milli == 3_000
    assert cluster.history("reservation_made")[0].startswith(
        f"the growth of {grown} waited too long"
    )
    assert not cluster.state.reservations


def test_members_of_a_range_get_reservations_one_after_another() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit_range("wide", 3, cpu_milli=4_000, job="large")
    flood.go_on(lambda: reserved(cluster))
    assert list(reserved(cluster)) == ["wide.0"]
    flood.go_on(lambda: cluster.where("wide.0"))
    assert cluster.state.requests["wide.0"].generation == 1
    # Its job is still next in order: the next request does not wait from the start.
    assert flood.go_on(lambda: "wide.1" in reserved(cluster)) <= 2
    flood.go_on(lambda: cluster.where("wide.1"))
    assert {cluster.where("wide.0"), cluster.where("wide.1")} == {"host-0", "host-1"}


def test_a_job_above_its_share_gets_no_reservation() -> None:
    cluster = EngineCluster.settled(starvation_placements=1, half_life_ms=None)
    cluster.host("host-0")
    cluster.job("small")
    cluster.job("large", group="medium")
    cluster.job("other", group="medium")
    cluster.submit("o0", "o1", "o2", job="other")
    cluster.wait(600_000)  # more than the share of their group, for now
    cluster.submit(*(f"s{n}" for n in range(20)), job="small")
    cluster.submit("big", job="large", cpu_milli=4_000)
    cluster.release("s0", job="small")
    assert not reserved(cluster)
    for _ in range(3):
        cluster.release(next(n for n in ("o0", "o1", "o2") if cluster.where(n)), job="other")
    cluster.wait(200_000)
    assert list(reserved(cluster)) == ["big"]


def test_an_earlier_equal_request_of_a_job_above_its_share_blocks_no_reservation() -> None:
    cluster = EngineCluster.settled(starvation_placements=1, half_life_ms=None)
    cluster.host("host-0")
    cluster.job("small", "greedy", "modest")
    cluster.submit("g0", "g1", "g2", job="greedy")
    cluster.wait(600_000)
    cluster.submit(*(f"s{n}" for n in range(20)), job="small")
    cluster.submit("earlier", job="greedy", cpu_milli=4_000)
    cluster.submit("later", job="modest", cpu_milli=4_000)
    for number in range(3):
        cluster.release(f"s{number}", job="small")
        cluster.wait(2_000)
    assert list(reserved(cluster)) == ["later"]


def test_jobs_without_waiting_requests_do_not_count_in_the_share() -> None:
    cluster = EngineCluster.settled(starvation_placements=2)
    cluster.host("host-0")
    cluster.job("small", "large")
    cluster.job("content", group="critical")
    cluster.submit(*(f"s{n}" for n in range(20)), job="small")
    cluster.wait(100_000)
    cluster.submit("big", job="large", cpu_milli=4_000)
    cluster.submit("c0", job="content")
    cluster.release("s0", job="small")  # c0 is first, and wants nothing more
    assert cluster.where("c0")
    assert not reserved(cluster)
    cluster.release("s1", job="small")
    assert list(reserved(cluster)) == ["big"]


def test_an_empty_reserved_host_is_not_given_back_as_idle() -> None:
    """A gang with spread placement waits for two hosts, and one of them is empty long before the
    other.
    """
    shape = ExecutorShape(
        "four", "test", {"cpu_milli": 4_000, "memory_bytes": 64 * GIB}, ResourceProfile(1_000, GIB)
    )
    limits = {"cpu_milli": 8_000}
    cluster = EngineCluster.settled(
        provisioning=Provisioning((shape,), total_max=limits, idle_timeout_ms=5_000)
    )
    cluster.host("host-0", provided_as="four")
    cluster.host("host-1", provided_as="four")
    cluster.job("small", "large")
    cluster.submit(*(f"s{n}" for n in range(9)), job="small")
    cluster.submit_gang("g", [4_000, 4_000], GangPlacement.SPREAD, job="large")
    cluster.wait(400_000)
    cluster.release(cluster.running("host-1")[0], job="small")
    cluster.wait(3_000)
    assert list(reserved(cluster)) == ["gang g"]
    cluster.release(*cluster.running("host-0"), job="small")
    for _ in range(10):
        cluster.wait(2_000)
    assert cluster.state.hosts.keys() == {"host-0", "host-1"}
    assert not cluster.state.hosts["host-0"].executor.draining
    cluster.release(*cluster.running("host-1"), job="small")
    assert {cluster.where("g-0"), cluster.where("g-1")} == {"host-0", "host-1"}


def test_a_request_is_starved_after_the_set_number_of_placements_of_others() -> None:
    cluster = EngineCluster.settled(starvation_placements=5)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    assert flood.go_on(lambda: reserved(cluster)) == 5


def test_a_request_is_not_starved_while_no_other_request_is_placed() -> None:
    """The cluster is full of long work: no waiting request is skipped for another."""
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    cluster.host("host-0")
    cluster.job("small", "large")
    cluster.submit("s0", "s1", "s2", "s3", job="small")
    cluster.submit("big", job="large", cpu_milli=4_000)
    for _ in range(4):
        cluster.wait(1_000 * STARVING_S)
    assert not reserved(cluster)


def test_the_wait_before_a_restart_counts() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    assert flood.go_on(lambda: False, most=STARVING_S // ENDS_EVERY_S - 10) == 20
    cluster.restart()
    ended = flood.go_on(lambda: reserved(cluster))
    assert ended <= 12
    cluster.restart()  # reservations are not durable: it is made again at once
    assert flood.go_on(lambda: reserved(cluster)) <= 2


def test_a_wait_is_never_negative_after_the_wall_clock_was_set_back() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    cluster.state.requests["big"].create_time_ms += 10**9  # as written by a clock that was ahead
    cluster.restart()
    ended = flood.go_on(lambda: reserved(cluster))
    assert STARVING_S // ENDS_EVERY_S - 2 <= ended <= STARVING_S // ENDS_EVERY_S + 2


def test_the_same_events_lead_to_the_same_reservations() -> None:
    def made() -> list[str]:
        cluster = EngineCluster.settled(starvation_placements=3)
        flood = Flood(cluster, hosts=3)
        for number in range(3):
            cluster.job(f"large-{number}")
            cluster.submit(f"big-{number}", job=f"large-{number}", cpu_milli=3_000 + number)
        flood.go_on(lambda: False, most=60)
        return cluster.history("reservation_made")

    assert made() == made() != []


def test_explain_shows_a_reservation_to_its_owner_and_to_others() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    ((host, _),) = reserved(cluster)["big"].items()
    own = explain(cluster.state, "big").reservation
    assert own is not None
    missing = 1_000 * len(cluster.running(host))
    assert own.executors[0].missing == {"cpu_milli": missing}
    assert own.summary.startswith("big of job large has 4 cpu, 64Mi memory reserved")
    assert f"; not free yet: {missing / 1000:g} cpu" in own.summary
    cluster.submit("latest", job="small")
    while not 4 - len(cluster.running(host)):
        cluster.release(flood.oldest(host), job="small")
    found = explain(cluster.state, "latest")
    assert found.primary_reason == "WAITING_RESERVATION"
    assert [each.allocation_id for each in found.held_for_others] == ["big"]
    assert "reserved for big, which waited too long" in found.summary
    verdict = next(each for each in found.executors if each.executor_id == host)
    assert verdict.blockers == ("HELD",)


def test_explain_suggests_no_smaller_request_that_needs_reserved_capacity() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster, hosts=1)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    cluster.release(*cluster.running()[:2], job="small")
    cluster.submit("other", job="small", cpu_milli=3_500)
    found = explain(cluster.state, "other")
    assert found.executors[0].dimensions[0].free == 3_000
    assert not found.would_fit_if
    assert not found.blocked_by  # when they end, the large request is placed
    own = explain(cluster.state, "big")
    assert [each.message for each in own.would_fit_if] == ["fits now on host-0 with at most 3 cpu"]
    assert [each.allocation_id for each in own.blocked_by] == cluster.running()


def test_explain_counts_the_reserved_capacity_of_a_gang_as_room_for_it() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster)
    cluster.submit_gang("g", [4_000, 4_000], GangPlacement.SPREAD, job="large")
    flood.go_on(lambda: reserved(cluster))
    cluster.release(*cluster.running("host-0"), job="small")
    found = explain(cluster.state, "g-0").gang
    assert found is not None
    assert (found.placeable, found.members) == (1, 2)
    assert found.summary == (
        "1 of 2 members fit now, each on a separate executor; all would fit if 1 more executor had"
        " room for one member"
    )
    cluster.submit_gang("h", [4_000, 4_000], GangPlacement.SPREAD, job="large")
    found = explain(cluster.state, "h-0").gang
    assert found is not None
    assert found.placeable == 0


def test_events_name_the_reserved_executor_if_it_is_only_one() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S, reservations_max=1)
    flood = Flood(cluster)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    ((host, _),) = reserved(cluster)["big"].items()
    flood.go_on(lambda: cluster.where("big"))
    cluster.submit_gang("wide", [4_000, 4_000], GangPlacement.SPREAD, job="large")
    cluster.release("big", job="large")
    flood.ask(4)
    flood.go_on(lambda: reserved(cluster))
    events = [
        (each.kind, each.executor_id)
        for each in cluster.store.cluster_events
        if each.kind.startswith("reservation_")
    ]
    assert events == [
        ("reservation_made", host),
        ("reservation_ended", host),
        ("reservation_made", ""),
    ]


def test_explain_says_that_the_last_slot_of_an_executor_is_reserved() -> None:
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(cluster, hosts=1, slots_max=4)
    cluster.submit("big", job="large", cpu_milli=4_000)
    flood.go_on(lambda: reserved(cluster))
    while len(cluster.running()) > 3:
        cluster.release(flood.oldest(), job="small")
    cluster.submit("latest", job="small")
    found = explain(cluster.state, "latest")
    assert found.primary_reason == "WAITING_RESERVATION"
    assert [each.allocation_id for each in found.held_for_others] == ["big"]


def test_a_slot_of_the_owners_job_uses_only_capacity_that_the_job_gave_back() -> None:
    """The reservation of `big` keeps 5 of 8 cores, and the core that its job has given back. Other
    requests may use 2 cores, and still 2 when the job uses its core again.
    """
    cluster = EngineCluster.settled(starvation_placements=1, half_life_ms=None)
    cluster.host(cpu_milli=8_000)
    cluster.job("small", "large", "late")
    cluster.submit("own", job="large")
    cluster.submit(*(f"s{number}" for number in range(8)), job="small")
    cluster.submit("big", job="large", cpu_milli=5_000)
    cluster.release("s0", job="small")  # s7 is placed, so `big` gets a reservation
    assert reserved(cluster) == {"big": {"host-a": 5_000}}
    for name in ("s1", "s2", "s3"):
        cluster.release(name, job="small")
    cluster.release("own", job="large")
    assert cluster.free_cpu() == 4_000
    cluster.batch(
        cluster.submission(RequestSpec("own-again", ResourceProfile(1_000, 64 * MIB)), job="large"),
        cluster.submission(RequestSpec("two", ResourceProfile(2_000, 64 * MIB)), job="late"),
    )
    assert cluster.where("own-again")
    assert cluster.where("two")
    assert reserved(cluster) == {"big": {"host-a": 5_000}}
