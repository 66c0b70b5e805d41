"""Large requests while small ones flood: without reservations they would wait for ever, with them
they are placed when what ran on their host at that moment has ended.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import GangPlacement
from resource_manager.engine.model.events import (
    CommandRefused,
    DrainRequested,
    GroupSet,
    RequestsCancelled,
    ResizeRequested,
    SlotsReleased,
    UndrainRequested,
)
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from resource_manager.engine.scheduling.reservation_owners import GangOwner
from resource_manager.engine.scheduling.reservations import PATIENCE
from tests.support.jobs_and_hosts import Story

STARVING_S = 60
ENDS_EVERY_S = 2


class Flood:
    """Small slots without end: whenever one ends, another one waits already. One ends at a time,
    the oldest first, so that no host is ever empty by itself.
    """

    def __init__(self, story: Story, hosts: int = 2, *, job: str = "small") -> None:
        self.story = story
        self.job = job
        self._names = (f"s{number:05d}" for number in count())
        for number in range(hosts):
            story.host(f"host-{number}")
        story.job(job, "large")
        self.ask(4 * hosts + 8)

    def ask(self, number: int) -> None:
        self.story.ask(self.job, [next(self._names) for _ in range(number)])

    def oldest(self, host: str = "") -> str:
        return min(name for name in self.story.running(host) if name.startswith("s"))

    def go_on(self, until: Any, *, most: int = 120) -> int:
        """Time passes until something is so; answers with how many ended meanwhile."""
        for ended in range(most):
            if until():
                return ended
            self.story.wait(ENDS_EVERY_S)
            self.story.end(self.job, self.oldest())
            self.ask(1)
        return most


def reserved(story: Story) -> dict[str, dict[str, Any]]:
    """By holder: what is held for it on which host, in cores."""
    return {
        each.holder.title: {
            name: kept.amounts["cpu_milli"] for name, kept in each.place.held.items()
        }
        for each in story.state.reservations.all()
    }


def test_without_reservations_a_large_request_waits_for_ever_behind_small_ones() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S, reservations_max=0)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    assert flood.go_on(lambda: story.where("big")) == 120
    assert explain(story.state, "big").primary_reason == "WAITING_CAPACITY"


def test_with_one_it_is_placed_when_what_ran_on_its_host_has_ended() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    waited_s = (story.cluster.now_ms - 1_000) // 1_000
    assert STARVING_S <= waited_s <= STARVING_S + 2 * ENDS_EVERY_S
    ((host, held),) = reserved(story)["big"].items()
    assert held == 4_000
    there = set(story.running(host))
    assert len(there) in (3, 4)
    flood.go_on(lambda: story.where("big"))
    assert story.where("big") == host
    # Nobody came there meanwhile, and not one had to end more than those that were there.
    assert set(story.running(host)) == {"big"}
    assert there <= story.ended
    assert not story.state.reservations
    assert story.history("reservation_ended") == ["big: placed there"]


def test_others_go_on_with_what_is_beyond_the_need() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["wide"], cpu=3_000)
    flood.go_on(lambda: reserved(story))
    ((host, _),) = reserved(story)["wide"].items()
    placed: set[str] = set()

    def watch() -> bool:
        placed.update(set(story.running(host)) - {"wide"})
        return bool(story.where("wide"))

    before = set(story.running(host))
    flood.go_on(watch)
    assert story.where("wide") == host
    assert len(story.running(host)) == 2  # its three cores, and one beyond
    assert placed - before  # somebody came there while it was held


def test_as_many_as_may_be_hold_something_the_longest_waiting_first() -> None:
    story = Story(
        starvation_timeout_ms=1_000 * STARVING_S, reservations_max=2, reserved_part_max=1.0
    )
    flood = Flood(story, hosts=4)
    for number in range(4):
        story.job(f"large-{number}")
        story.ask(f"large-{number}", [f"big-{number}"], cpu=4_000 - number)
    flood.go_on(lambda: len(reserved(story)) == 2)
    assert list(reserved(story)) == ["big-0", "big-1"]
    assert len({host for held in reserved(story).values() for host in held}) == 2
    flood.go_on(lambda: story.where("big-0") and story.where("big-1"))
    flood.go_on(
        lambda: all(story.where(f"big-{n}") or f"big-{n}" in reserved(story) for n in (2, 3))
    )


def test_all_but_the_longest_waiting_hold_no_more_than_their_part() -> None:
    """Of 16 cores a quarter: one of those who take 3 or 4 beside the first, whatever that takes."""
    story = Story(starvation_timeout_ms=1_000 * STARVING_S, reserved_part_max=0.25)
    flood = Flood(story, hosts=4)
    story.gang("large", "g", [4_000, 4_000], GangPlacement.SPREAD)
    for number in range(3):
        story.job(f"large-{number}")
        story.ask(f"large-{number}", [f"big-{number}"], cpu=4_000 - number)
    flood.go_on(lambda: len(reserved(story)) == 2)
    assert list(reserved(story)) == ["gang g", "big-0"]

    done: set[str] = set()

    def watch() -> bool:
        _, *others = reserved(story).values() or [{}]
        assert sum(sum(each.values()) for each in others) <= 4_000
        for job, names in {
            "large": ["g-0", "g-1"],
            **{f"large-{n}": [f"big-{n}"] for n in range(3)},
        }.items():
            if story.where(names[0]):
                done.add(job)
                story.end(job, *names)
        return len(done) == 4

    flood.go_on(watch)
    assert len(done) == 4


def test_nothing_new_is_held_while_the_longest_waiting_needs_what_is_held_for_others() -> None:
    """Else those who need one host each would have one held, one after another, for ever."""
    story = Story(
        starvation_timeout_ms=1_000 * STARVING_S, reservations_max=3, reserved_part_max=1.0
    )
    flood = Flood(story, hosts=3)
    for number in range(8):
        story.job(f"one-{number}")
    story.ask("one-0", ["one-0"], cpu=4_000)
    story.wait(1)
    story.gang("large", "all", [4_000, 4_000, 4_000], GangPlacement.SPREAD)
    story.wait(1)
    for number in range(1, 8):
        story.ask(f"one-{number}", [f"one-{number}"], cpu=4_000 - number)
    flood.go_on(lambda: reserved(story))
    assert list(reserved(story)) == ["one-0"]
    flood.go_on(lambda: story.where("one-0"))
    story.end("one-0", "one-0")
    flood.go_on(lambda: story.where("all-0"), most=40)
    assert all(story.where(f"all-{number}") for number in range(3))
    assert not any(story.where(f"one-{number}") for number in range(1, 8))


def test_who_needs_other_hosts_is_not_kept_from_them_by_who_waits_for_hosts_of_others() -> None:
    story = Story(
        starvation_timeout_ms=1_000 * STARVING_S, reservations_max=3, reserved_part_max=1.0
    )
    for number in range(2):
        story.host(f"disk-{number}", labels=(("disk", "ssd"),))
    flood = Flood(story, hosts=1)
    flood.ask(12)
    ssd = {"required_labels": (("disk", "ssd"),)}
    for number in range(3):
        story.job(f"job-{number}")
        story.ask(f"job-{number}", [f"ssd-{number}"], cpu=4_000 - number, **ssd)
        story.wait(1)
    story.job("later")
    story.ask("later", ["anywhere"], cpu=3_900)
    flood.go_on(lambda: len(reserved(story)) == 3)
    assert list(reserved(story)) == ["ssd-0", "ssd-1", "anywhere"]
    assert list(reserved(story)["anywhere"]) == ["host-0"]


def test_a_search_in_vain_is_not_made_again_before_something_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[str] = []
    choose = GangOwner.choose

    def counted(self: GangOwner, *args: Any) -> Any:
        searches.append(self.gang_id)
        return choose(self, *args)

    monkeypatch.setattr(GangOwner, "choose", counted)
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.job("three")
    story.act(DrainRequested(story.cluster.at, "host-1", "for a test"))
    for number in range(3):  # of two hosts one is drained
        story.gang("three", f"g{number}", [4_000 - number, 4_000], GangPlacement.SPREAD)
    flood.go_on(lambda: len(searches) == 3, most=45)
    assert sorted(searches) == ["g0", "g1", "g2"]
    flood.go_on(lambda: False, most=10)
    assert len(searches) == 3
    story.act(UndrainRequested(story.cluster.at, "host-1"))
    story.wait(2)
    assert list(reserved(story)) == ["gang g0"]


def beside_a_service(hosts: int) -> tuple[Story, Flood]:
    """On host-0 a slot of 3 cores runs that never ends; else there are small ones everywhere."""
    story = Story(starvation_timeout_ms=5_000)
    story.host("host-0")
    story.job("services")
    story.ask("services", ["web"], cpu=3_000)
    for number in range(1, hosts):
        story.host(f"host-{number}")
    flood = Flood(story, hosts=0)
    flood.ask(4 * hosts)
    return story, flood


def test_what_is_held_where_a_slot_never_ends_moves_to_another_host() -> None:
    story, flood = beside_a_service(hosts=2)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    assert list(reserved(story)["big"]) == ["host-0"]
    ended = flood.go_on(lambda: story.where("big"), most=400)
    assert story.where("big") == "host-1"
    assert ended * ENDS_EVERY_S * 1_000 < (PATIENCE + 12) * 5_000
    assert story.history("reservation_ended") == [
        "big: slot web on executor host-0 did not end for too long",
        "big: placed there",
    ]


def test_where_no_other_host_would_do_nothing_stays_idle_for_ever() -> None:
    story, flood = beside_a_service(hosts=1)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    assert story.running() == ["web"]  # the fourth core is idle for the sake of the large one
    story.wait(PATIENCE * 5 + 10)
    assert not reserved(story)
    assert len(story.running()) == 2
    flood.go_on(lambda: reserved(story), most=30)
    assert not reserved(story)
    story.end("services", "web")  # after all
    story.wait(60)
    flood.go_on(lambda: reserved(story), most=30)
    assert list(reserved(story)["big"]) == ["host-0"]
    flood.go_on(lambda: story.where("big"))
    assert story.where("big") == "host-0"


def test_others_do_not_wait_for_a_slot_that_did_not_end_for_somebody_either() -> None:
    story, flood = beside_a_service(hosts=1)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    story.wait(PATIENCE * 5 + 10)
    assert not reserved(story)
    story.act(RequestsCancelled(story.cluster.at, "large", ("big",)))
    story.host("host-1")
    flood.ask(4)
    story.ask("large", ["wide"], cpu=2_000)
    flood.go_on(lambda: reserved(story))
    assert list(reserved(story)["wide"]) == ["host-1"]  # on host-0 is a core beside the service


def test_a_job_is_held_for_once_at_a_time() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story, hosts=3)
    story.ask("large", ["big-0"], cpu=4_000)
    story.ask("large", ["big-1"], cpu=3_999)
    flood.go_on(lambda: reserved(story))
    assert list(reserved(story)) == ["big-0"]
    flood.go_on(lambda: story.where("big-0"))
    flood.go_on(lambda: story.where("big-1"))
    assert story.where("big-1")


def test_nothing_is_held_for_a_request_that_is_gone() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    ((host, _),) = reserved(story)["big"].items()
    story.end("small", flood.oldest(host))
    free = 4 - len(story.running(host))
    assert free
    story.act(RequestsCancelled(story.cluster.at, "large", ("big",)))
    assert not story.state.reservations
    assert len(story.running(host)) == 4  # others have it at once
    assert story.history("reservation_ended") == ["big: it waits no more"]


def test_a_host_that_drains_holds_nothing_and_the_reservation_moves() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    ((first, _),) = reserved(story)["big"].items()
    story.act(DrainRequested(story.cluster.at, first, "for a test"))
    assert not story.state.hosts[first].held
    ((second, _),) = reserved(story)["big"].items()
    assert second != first
    story.act(DrainRequested(story.cluster.at, second, "for a test"))
    assert not reserved(story)  # there is no other one
    story.act(UndrainRequested(story.cluster.at, second))
    story.wait(2)
    assert list(reserved(story)) == ["big"]


def test_a_lost_host_holds_nothing() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    ((first, _),) = reserved(story)["big"].items()
    other = next(name for name in story.state.hosts if name != first)
    story.cluster.now_ms += 10**9
    story.cluster.report(story.cluster.executors[other])
    story.wait(0)
    assert story.state.hosts[first].executor.lost
    assert list(reserved(story)["big"]) == [other]


def test_a_host_that_is_not_believed_until_it_registers_again_holds_nothing() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    ((first, _),) = reserved(story)["big"].items()
    cluster = story.cluster
    cluster.batch(SlotsReleased(cluster.at, "small", ((flood.oldest(first), 0),)))
    (sent,) = cluster.wire
    number = sent.command.registration_number, sent.command.command_number
    cluster.batch(CommandRefused(cluster.at, first, *number, "COMMAND_OUT_OF_ORDER"))
    assert list(reserved(story)["big"]) != [first]
    assert check_invariants(story.state) == []


def test_a_host_that_comes_back_smaller_holds_nothing() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    ((first, _),) = reserved(story)["big"].items()
    executor = story.cluster.executors[first]
    executor.total = {**executor.total, "cpu_milli": 3_000}
    for key in list(executor.slots)[:2]:
        executor.end(key, "SLOT_BROKEN")
    story.cluster.register(executor)
    story.settle()
    assert list(reserved(story)["big"]) != [first]


def test_a_maximum_of_the_group_ends_what_is_held_until_it_stops_nobody() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    story.act(GroupSet(story.cluster.at, "apart"))
    flood = Flood(story)
    story.job("limited", group="apart")
    story.ask("limited", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    story.act(GroupSet(story.cluster.at, "apart", maximum={"cpu_milli": 3_000}))
    assert not reserved(story)
    assert story.history("reservation_ended") == ["big: a maximum of group apart stops it"]
    found = explain(story.state, "big")
    assert found.primary_reason == "WAITING_GROUP_LIMIT"
    assert found.summary.startswith(
        "group apart has cpu_milli 0 of at most 3000, and it needs 4000"
    )
    story.act(GroupSet(story.cluster.at, "apart", maximum={"cpu_milli": None}))
    story.wait(2)
    assert list(reserved(story)) == ["big"]


def test_placed_elsewhere_first_it_holds_nothing_any_more() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    story.host("host-9")
    assert story.where("big") == "host-9" or not story.where("big")
    flood.go_on(lambda: story.where("big"))
    assert not story.state.reservations
    assert not any(host.held for host in story.state.hosts.values())


@pytest.mark.parametrize(
    ("placement", "sizes", "hosts"),
    [
        (GangPlacement.SPREAD, [4_000, 4_000, 4_000], 3),
        (GangPlacement.ANYWHERE, [4_000, 4_000, 2_000], 3),
        (GangPlacement.SAME_EXECUTOR, [1_000, 3_000], 1),
        (GangPlacement.SAME_LABEL, [4_000, 4_000], 2),
    ],
)
def test_a_gang_gets_hosts_for_all_of_it(
    placement: GangPlacement, sizes: list[int], hosts: int
) -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    for number in range(4):
        story.host(f"rack-{number}", labels=(("rack", "ab"[number // 2]),))
    flood = Flood(story, hosts=0)
    flood.ask(16)
    label = "rack" if placement is GangPlacement.SAME_LABEL else ""
    story.gang("large", "g", sizes, placement, label)
    flood.go_on(lambda: reserved(story))
    held = reserved(story)["gang g"]
    assert (len(held), sum(held.values())) == (hosts, sum(sizes))
    if label:
        assert len(set(held) & {"rack-0", "rack-1"}) in (0, 2)
    flood.go_on(lambda: story.where("g-0"))
    assert {story.where(f"g-{n}") for n in range(len(sizes))} <= held.keys()
    assert all(story.where(f"g-{n}") for n in range(len(sizes)))
    assert not story.state.reservations


def test_a_slot_that_is_to_grow_gets_room_on_its_own_host() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story, hosts=1)
    grown = flood.oldest()
    story.ended.add(grown)
    size = ResourceProfile(3_000, 64 * MIB)
    story.act(ResizeRequested(story.cluster.at, "small", grown, 1, 1, size))

    def others() -> list[str]:
        return sorted(name for name in story.running() if name != grown)

    for _ in range(120):
        if story.state.slots[grown, 1].profile.cpu_milli == 3_000:
            break
        story.wait(ENDS_EVERY_S)
        story.end("small", others()[0])
        flood.ask(1)
    assert story.state.slots[grown, 1].profile.cpu_milli == 3_000
    assert story.history("reservation_made")[0].startswith(f"the growth of {grown} was passed over")
    assert not story.state.reservations


def test_members_of_a_range_are_held_for_one_by_one() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask_range("large", "wide", 3, cpu=4_000)
    flood.go_on(lambda: reserved(story))
    assert list(reserved(story)) == ["wide.0"]
    flood.go_on(lambda: story.where("wide.0"))
    assert story.state.requests["wide.0"].generation == 1
    # Its job is still to be served first: the next one does not wait anew.
    assert flood.go_on(lambda: "wide.1" in reserved(story)) <= 2
    flood.go_on(lambda: story.where("wide.1"))
    assert {story.where("wide.0"), story.where("wide.1")} == {"host-0", "host-1"}


def test_nothing_is_held_for_whoever_has_his_share() -> None:
    story = Story(starvation_placements=1, half_life_ms=None)
    story.host("host-0")
    story.job("small")
    story.job("large", group="medium")
    story.job("other", group="medium")
    story.ask("other", ["o0", "o1", "o2"])
    story.wait(600)  # they are more than the share of their group, for now
    story.ask("small", [f"s{n}" for n in range(20)])
    story.ask("large", ["big"], cpu=4_000)
    story.end("small", "s0")
    assert not reserved(story)
    for _ in range(3):
        story.end("other", next(n for n in ("o0", "o1", "o2") if story.where(n)))
    story.wait(200)
    assert list(reserved(story)) == ["big"]


def test_whoever_asks_for_the_same_earlier_and_has_his_share_is_in_nobodys_way() -> None:
    story = Story(starvation_placements=1, half_life_ms=None)
    story.host("host-0")
    story.job("small", "greedy", "modest")
    story.ask("greedy", ["g0", "g1", "g2"])
    story.wait(600)
    story.ask("small", [f"s{n}" for n in range(20)])
    story.ask("greedy", ["earlier"], cpu=4_000)
    story.ask("modest", ["later"], cpu=4_000)
    for number in range(3):
        story.end("small", f"s{number}")
        story.wait(2)
    assert list(reserved(story)) == ["later"]


def test_who_has_all_that_he_asked_for_makes_nobody_look_well_served() -> None:
    story = Story(starvation_placements=2)
    story.host("host-0")
    story.job("small", "large")
    story.job("content", group="critical")
    story.ask("small", [f"s{n}" for n in range(20)])
    story.wait(100)
    story.ask("large", ["big"], cpu=4_000)
    story.ask("content", ["c0"])
    story.end("small", "s0")  # c0 comes first, and that is all that it wants
    assert story.where("c0")
    assert not reserved(story)
    story.end("small", "s1")
    assert list(reserved(story)) == ["big"]


def test_an_empty_host_that_is_held_is_not_given_back_as_idle() -> None:
    """Of a gang that is to be spread one host is empty long before the other one."""
    shape = ExecutorShape(
        "four", "test", {"cpu_milli": 4_000, "memory_bytes": 64 * GIB}, ResourceProfile(1_000, GIB)
    )
    limits = {"cpu_milli": 8_000}
    story = Story(Provisioning((shape,), total_max=limits, idle_timeout_ms=5_000))
    story.host("host-0", provided_as="four")
    story.host("host-1", provided_as="four")
    story.job("small", "large")
    story.ask("small", [f"s{n}" for n in range(9)])
    story.gang("large", "g", [4_000, 4_000], GangPlacement.SPREAD)
    story.wait(400)
    story.end("small", story.running("host-1")[0])
    story.wait(3)
    assert list(reserved(story)) == ["gang g"]
    story.end("small", *story.running("host-0"))
    for _ in range(10):
        story.wait(2)
    assert story.state.hosts.keys() == {"host-0", "host-1"}
    assert not story.state.hosts["host-0"].executor.draining
    story.end("small", *story.running("host-1"))
    assert {story.where("g-0"), story.where("g-1")} == {"host-0", "host-1"}


def test_so_many_placements_of_others_are_enough_where_that_is_set() -> None:
    story = Story(starvation_placements=5)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    assert flood.go_on(lambda: reserved(story)) == 5


def test_nobody_starves_while_nobody_is_placed() -> None:
    """Everything is full of long work: whoever waits is passed over by nobody."""
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    story.host("host-0")
    story.job("small", "large")
    story.ask("small", ["s0", "s1", "s2", "s3"])
    story.ask("large", ["big"], cpu=4_000)
    for _ in range(4):
        story.wait(STARVING_S)
    assert not reserved(story)


def test_waiting_before_a_restart_counts() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    assert flood.go_on(lambda: False, most=STARVING_S // ENDS_EVERY_S - 10) == 20
    story.restart()
    ended = flood.go_on(lambda: reserved(story))
    assert ended <= 12
    story.restart()  # nothing of it is durable: it is made anew at once
    assert flood.go_on(lambda: reserved(story)) <= 2


def test_a_clock_that_was_set_back_makes_nobody_wait_for_less_than_nothing() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    story.state.requests["big"].create_time_ms += 10**9  # as of a clock that was ahead
    story.restart()
    ended = flood.go_on(lambda: reserved(story))
    assert STARVING_S // ENDS_EVERY_S - 2 <= ended <= STARVING_S // ENDS_EVERY_S + 2


def test_the_same_life_has_the_same_reservations() -> None:
    def life() -> list[str]:
        story = Story(starvation_placements=3)
        flood = Flood(story, hosts=3)
        for number in range(3):
            story.job(f"large-{number}")
            story.ask(f"large-{number}", [f"big-{number}"], cpu=3_000 + number)
        flood.go_on(lambda: False, most=60)
        return story.history("reservation_made")

    assert life() == life() != []


def test_what_is_held_is_explained_to_its_holder_and_to_others() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    ((host, _),) = reserved(story)["big"].items()
    own = explain(story.state, "big").reservation
    assert own is not None
    missing = 1_000 * len(story.running(host))
    assert own.executors[0].missing == {"cpu_milli": missing}
    assert own.summary.startswith("big of job large has cpu_milli 4000, memory_bytes 67108864 held")
    assert own.summary.endswith(f"cpu_milli {missing} of that not free yet")
    story.ask("small", ["latest"])
    while not 4 - len(story.running(host)):
        story.end("small", flood.oldest(host))
    found = explain(story.state, "latest")
    assert found.primary_reason == "WAITING_RESERVATION"
    assert [each.allocation_id for each in found.held_for_others] == ["big"]
    assert "held for big, passed over for too long" in found.summary
    verdict = next(each for each in found.executors if each.executor_id == host)
    assert verdict.blockers == ("HELD",)


def test_no_smaller_amount_is_named_that_is_held_for_somebody_else() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story, hosts=1)
    story.ask("large", ["big"], cpu=4_000)
    flood.go_on(lambda: reserved(story))
    story.end("small", *story.running()[:2])
    story.ask("small", ["other"], cpu=3_500)
    found = explain(story.state, "other")
    assert found.executors[0].dimensions[0].free == 3_000
    assert not found.would_fit_if
    assert not found.blocked_by  # when they end, the large one comes
    own = explain(story.state, "big")
    assert [each.message for each in own.would_fit_if] == [
        "fits now on host-0 if cpu_milli <= 3000"
    ]
    assert [each.allocation_id for each in own.blocked_by] == story.running()


def test_what_is_held_for_a_gang_counts_as_room_for_it() -> None:
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    flood = Flood(story)
    story.gang("large", "g", [4_000, 4_000], GangPlacement.SPREAD)
    flood.go_on(lambda: reserved(story))
    story.end("small", *story.running("host-0"))
    found = explain(story.state, "g-0").gang
    assert found is not None
    assert (found.placeable, found.members) == (1, 2)
    assert found.summary == (
        "1 of 2 members fit now, each on an executor of its own; fits if 1 more executor has room"
        " for one"
    )
    story.gang("large", "h", [4_000, 4_000], GangPlacement.SPREAD)
    found = explain(story.state, "h-0").gang
    assert found is not None
    assert found.placeable == 0
