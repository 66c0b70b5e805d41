"""Tests that a slot is reused by its job only if its release would have the same result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from resource_manager.engine.model.entities import RangeSpec
from resource_manager.engine.scheduling import next_in_order, slot_reuse
from tests.support.engine_cluster import EngineCluster


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def alone(waiting: int = 3) -> EngineCluster:
    """Returns one job with four slots on one host, and some requests that wait."""
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.submit(*names("r", 4 + waiting))
    return cluster


def outcome(cluster: EngineCluster, slot: str, waiting: str, job: str = "job") -> str:
    (found,) = cluster.reuse((slot, waiting), job=job)
    return found.reason


def test_a_job_alone_keeps_its_slots() -> None:
    cluster = alone()
    assert outcome(cluster, "r0", "r4") == ""
    assert cluster.where("r0") == "host-0"
    ended = cluster.state.requests["r4"]
    assert (ended.state, ended.reason, ended.message) == (
        "RELEASED",
        "REUSED",
        slot_reuse.WORK_TAKEN_OVER,
    )
    event = cluster.store.job_events["job"][-1]
    assert (event.allocation_id, event.state, event.reason) == ("r4", "RELEASED", "REUSED")
    assert cluster.history("slot_reused") == ["for request r4"]
    assert sorted(cluster.running()) == ["r0", "r1", "r2", "r3"]
    assert outcome(cluster, "r0", "r5") == ""  # repeated
    durations = cluster.state.jobs["job"].durations
    assert durations is not None
    assert durations.handed_on == 2


def new_member(cluster: EngineCluster, index: int) -> RangeSpec:
    """Returns member `index` of a range whose members need the same as request r0."""
    spec = replace(cluster.state.requests["r0"].spec, allocation_id="m")
    return RangeSpec(spec, index, 1)


def test_a_slot_is_reused_for_a_request_of_the_same_call() -> None:
    """Another slot would fit, but the request never gets one."""
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.submit("r0")
    accepted, reused = cluster.reuse(("r0", "m.0"), ranges=(new_member(cluster, 0),))
    assert (accepted.id, accepted.reason, reused.id, reused.reason) == ("m", "", "r0", "")
    assert cluster.running() == ["r0"]
    again = cluster.reuse(("r0", "m.0"), ranges=(new_member(cluster, 0),))
    assert again == [accepted, reused]
    cluster.check()


def test_a_request_of_the_same_call_waits_if_other_jobs_come_first() -> None:
    cluster = alone(waiting=0)
    cluster.job("newcomer")
    cluster.submit("n0", job="newcomer")
    cluster.wait(60_000)
    accepted, reused = cluster.reuse(("r0", "m.0"), ranges=(new_member(cluster, 0),))
    assert (accepted.reason, reused.reason) == ("", "FAIR_SHARE")
    assert cluster.where("n0") == "host-0"
    assert cluster.state_of("m.0") == "PENDING"


def test_requests_that_are_not_accepted_reuse_nothing() -> None:
    cluster = alone(waiting=0)
    cluster.submit("m")  # takes the id of the range
    accepted, reused = cluster.reuse(("r0", "m.0"), ranges=(new_member(cluster, 0),))
    assert (accepted.reason, reused.reason) == ("ALREADY_EXISTS", "NOT_REUSABLE")
    assert cluster.state_of("r0") == "RELEASED"


def test_two_jobs_of_one_group_take_turns() -> None:
    """Each job may keep slots up to its share, and not one more."""
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.job("first", "second")
    cluster.submit(*names("a", 40), job="first")
    cluster.submit(*names("b", 40), job="second")
    assert len(cluster.running()) == 4
    for _ in range(12):
        cluster.wait(30_000)
        for job, prefix in (("first", "a"), ("second", "b")):
            waiting = (f"{prefix}{n}" for n in range(40))
            free = (n for n in waiting if cluster.state_of(n) == "PENDING")
            for slot in [each for each in cluster.running() if each.startswith(prefix)]:
                cluster.reuse((slot, next(free)), job=job)
        counts = [sum(each.startswith(prefix) for each in cluster.running()) for prefix in "ab"]
    assert counts == [2, 2]


def test_whoever_comes_first_gets_what_a_slot_frees() -> None:
    cluster = alone(waiting=8)
    cluster.job("newcomer")
    cluster.submit("n0", job="newcomer")
    cluster.wait(60_000)
    assert not cluster.where("n0")
    assert outcome(cluster, "r0", "r4") == "FAIR_SHARE"
    assert cluster.where("n0") == "host-0"  # in place of the released slot
    assert (cluster.state.requests["r0"].state, cluster.state.requests["r0"].reason) == (
        "RELEASED",
        "FAIR_SHARE",
    )
    assert cluster.state_of("r4") == "PENDING"
    assert outcome(cluster, "r1", "r4") == ""  # the newcomer has what it requested


def test_whoever_comes_first_and_does_not_fit_there_stands_in_nobodys_way() -> None:
    cluster = alone()
    cluster.host("host-1", cpu_milli=8_000)
    cluster.submit(*names("x", 8))
    cluster.job("large")
    cluster.submit("big", job="large", cpu_milli=8_000)
    cluster.wait(60_000)
    on_small = cluster.running("host-0")[0]
    waiting = next(n for n in names("x", 8) if not cluster.where(n))
    assert outcome(cluster, on_small, waiting) == ""


def test_groups_come_before_jobs() -> None:
    """The first level of the choice decides, also between jobs of different groups."""
    cluster = EngineCluster.settled()
    cluster.host("host-0", cpu_milli=10_000)
    cluster.job("default-job")
    cluster.job("medium-job", group="medium")
    cluster.submit(*names("d", 60), job="default-job")
    cluster.submit(*names("m", 60), job="medium-job")
    for _ in range(25):
        cluster.wait(60_000)
        for job, prefix in (("default-job", "d"), ("medium-job", "m")):
            waiting = (f"{prefix}{n}" for n in range(60))
            free = (n for n in waiting if cluster.state_of(n) == "PENDING")
            slot = next((each for each in cluster.running() if each.startswith(prefix)), None)
            if slot is not None and (to := next(free, None)) is not None:
                cluster.reuse((slot, to), job=job)
    counts = [sum(each.startswith(prefix) for each in cluster.running()) for prefix in "dm"]
    assert sum(counts) == 10
    assert counts[0] in (1, 2, 3)  # weights 1 and 4


def test_the_same_call_gets_the_same_answer_also_after_a_restart() -> None:
    cluster = alone(waiting=6)
    cluster.job("newcomer")
    wishes = ("r0", 1, "r4"), ("r1", 1, "r5")
    agreed = cluster.reuse(*wishes)
    cluster.submit("n0", job="newcomer")
    refused = cluster.reuse(("r2", 1, "r6"))
    assert [each.reason for each in (*agreed, *refused)] == ["", "", "FAIR_SHARE"]
    for _ in range(2):
        assert cluster.reuse(*wishes) == agreed
        assert cluster.reuse(("r2", 1, "r6")) == refused
        cluster.restart()
    # Later events do not change the answer.
    cluster.release("r0")
    assert cluster.reuse(*wishes) == agreed
    assert cluster.state.requests["r6"].state in ("PENDING", "GRANTED")


def test_a_slot_is_agreed_to_once_it_is_asked_for_something_else() -> None:
    """If an older call arrives late, the slot still serves its present request."""
    cluster = alone()
    assert outcome(cluster, "r0", "r4") == ""
    assert outcome(cluster, "r0", "r5") == ""
    assert outcome(cluster, "r0", "r4") == ""
    assert cluster.where("r0") == "host-0"


def test_what_was_agreed_to_stays_so_when_the_host_is_lost() -> None:
    cluster = alone()
    assert outcome(cluster, "r0", "r4") == ""
    cluster.now_ms += 10**9 - 1
    cluster.keep_alive("job")
    cluster.wait(1_000)
    assert cluster.state_of("r0") == "LOST"
    assert cluster.state.slots  # which may exist
    (found,) = cluster.reuse(("r0", 1, "r4"))
    assert found.reason == ""


def test_no_two_slots_are_to_do_the_work_of_one_request() -> None:
    cluster = alone()
    assert outcome(cluster, "r0", "r4") == ""
    (second,) = cluster.reuse(("r1", 1, "r4"))
    assert (second.reason, second.message) == ("NOT_REUSABLE", slot_reuse.NOT_WAITING)
    assert cluster.reuse(("r1", 1, "r4")) == [second]
    assert outcome(cluster, "r0", "r4") == ""


def test_no_two_slots_are_to_do_the_work_of_one_member_of_a_range() -> None:
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.submit_range("r", 8)
    assert outcome(cluster, "r.0", "r.7") == ""
    assert outcome(cluster, "r.1", "r.7") == "NOT_REUSABLE"
    assert outcome(cluster, "r.0", "r.6") == ""
    assert "r.1" not in cluster.running()


def test_what_was_not_agreed_to_stays_so_when_another_slot_does_the_work() -> None:
    cluster = alone(waiting=8)
    cluster.job("newcomer")
    cluster.submit("n0", job="newcomer")
    cluster.wait(60_000)
    refused = cluster.reuse(("r0", 1, "r4"))
    assert refused[0].reason == "FAIR_SHARE"
    cluster.wait(1_000)
    assert outcome(cluster, "r1", "r4") == ""
    assert cluster.reuse(("r0", 1, "r4")) == refused
    cluster.restart()
    assert cluster.reuse(("r0", 1, "r4")) == refused
    assert cluster.reuse(("r1", 1, "r4"))[0].reason == ""


def test_a_request_that_was_cancelled_meanwhile_has_no_work_to_do() -> None:
    cluster = alone()
    cluster.cancel("r4")
    (found,) = cluster.reuse(("r0", 1, "r4"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.NOT_WAITING)


def test_a_slot_that_was_lost_meanwhile_is_not_agreed_to() -> None:
    cluster = alone()
    executor = cluster.executors["host-0"]
    executor.end(("r0", 1), "SLOT_BROKEN")
    cluster.report(executor)
    cluster.settle()
    assert cluster.state_of("r0") == "LOST"
    (found,) = cluster.reuse(("r0", 1, "r5"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.ENDED)
    assert cluster.state_of("r5") == "PENDING"  # its thread is not lost with it


def test_a_slot_that_was_lost_and_stands_in_line_again_is_taken_back() -> None:
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.submit(*names("r", 8), restart_on_loss=True)
    executor = cluster.executors["host-0"]
    executor.hidden = {"cpu_milli": 4_000}
    executor.end(("r0", 1), "SLOT_BROKEN")
    cluster.report(executor)
    cluster.settle()
    assert cluster.state_of("r0") == "PENDING"
    (found,) = cluster.reuse(("r0", 1, "r5"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.NOT_GRANTED)
    assert cluster.state_of("r0") == "CANCELLED"
    assert cluster.reuse(("r0", 1, "r5")) == [found]


@pytest.mark.parametrize(
    ("slot", "waiting", "why"),
    [
        ("r0", "r1", slot_reuse.NOT_WAITING),  # it has a separate slot
        ("r0", "nobody", slot_reuse.NOT_WAITING),
        ("r0", "theirs", slot_reuse.NOT_WAITING),  # of another job
        ("r0", "larger", slot_reuse.NEEDS_OTHER_SLOT),
        ("r0", "labelled", slot_reuse.NEEDS_OTHER_SLOT),
        ("r0", "g-0", slot_reuse.OF_A_GANG),
    ],
)
def test_what_cannot_be_reused_is_given_back(slot: str, waiting: str, why: str) -> None:
    cluster = alone()
    cluster.job("another")
    cluster.submit("theirs", job="another")
    cluster.submit("larger", cpu_milli=2_000)
    cluster.submit("labelled", required_labels=(("disk", "ssd"),), allow_pending=True)
    cluster.submit_gang("g", [1_000, 1_000], GangPlacement.ANYWHERE)
    (found,) = cluster.reuse((slot, waiting))
    assert (found.reason, found.message) == ("NOT_REUSABLE", why)
    assert cluster.state_of(slot) == "RELEASED"
    assert cluster.reuse((slot, 1, waiting)) == [found]


def test_a_slot_on_a_host_that_drains_is_not_reused() -> None:
    cluster = alone()
    cluster.drain("host-0")
    (found,) = cluster.reuse(("r0", "r4"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.NO_NEW_SLOTS)
    assert not cluster.where("r0")


def test_a_slot_of_another_size_than_it_was_asked_for_is_not_reused() -> None:
    cluster = alone()
    size = ResourceProfile(500, 64 * MIB)
    cluster.resize("r0", size, generation=1, number=1)
    (found,) = cluster.reuse(("r0", "r4"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.RESIZED)


def test_a_maximum_that_was_lowered_lets_no_slot_be_reused() -> None:
    cluster = alone()
    cluster.set_group("default", maximum={"cpu_milli": 3_000})
    assert outcome(cluster, "r0", "r4") == "FAIR_SHARE"
    assert outcome(cluster, "r1", "r4") == ""  # now the number is within the limit
    assert len(cluster.running()) == 3


def test_what_is_held_for_somebody_is_not_kept_from_him_by_reusing_it() -> None:
    cluster = EngineCluster.settled(starvation_placements=1)
    cluster.host("host-0")
    cluster.job("large")
    cluster.submit(*names("r", 5))
    cluster.submit("big", job="large", cpu_milli=4_000)
    cluster.release("r0")  # r4 is placed: big was skipped
    assert cluster.state.reservations
    cluster.submit("r5")
    assert outcome(cluster, "r1", "r5") == "FAIR_SHARE"
    for name in ("r2", "r3", "r4"):
        cluster.release(name)
    assert cluster.where("big") == "host-0"


def test_calls_about_nobodys_slots_and_about_old_ones_change_nothing() -> None:
    cluster = alone()
    (unknown,) = cluster.reuse(("nobody", 1, "r4"))
    assert unknown.reason == "ALLOCATION_UNKNOWN"
    cluster.job("thief")
    (stolen,) = cluster.reuse(("r0", 1, "r4"), job="thief")
    assert stolen.reason == "ALLOCATION_UNKNOWN"
    (stale,) = cluster.reuse(("r0", 7, "r4"))
    assert stale.reason == "STALE_GENERATION"
    assert cluster.where("r0") == "host-0"


def test_in_order_of_arrival_whoever_came_first_comes_first() -> None:
    cluster = EngineCluster.settled(order="arrival")
    cluster.host("host-0")
    cluster.job("later")
    cluster.submit(*names("r", 6))
    cluster.submit("n0", job="later")
    cluster.submit("r6")
    assert outcome(cluster, "r0", "r4") == ""
    assert outcome(cluster, "r0", "r5") == ""
    assert outcome(cluster, "r0", "r6") == "FAIR_SHARE"
    assert cluster.where("n0") == "host-0"


def test_releasing_as_it_was_told_before_is_a_reuse_that_was_refused() -> None:
    cluster = alone()
    cluster.release("r0", generation=1)
    (found,) = cluster.reuse(("r0", 1, "r5"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.ENDED)


def test_a_slot_that_is_to_grow_comes_first_if_its_job_does() -> None:
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.job("patient", "job")
    cluster.submit("p0", job="patient")
    cluster.submit(*names("r", 6))
    cluster.wait(60_000)
    size = ResourceProfile(2_000, 64 * MIB)
    cluster.resize("p0", size, generation=1, number=1, job="patient")
    assert outcome(cluster, "r0", "r4") == "FAIR_SHARE"
    assert cluster.state.slots["p0", 1].profile.cpu_milli == 2_000
    assert outcome(cluster, "r1", "r4") == ""


def test_a_gang_that_comes_first_and_might_be_whole_then_is_not_kept_waiting() -> None:
    cluster = alone(waiting=6)
    cluster.job("gangs")
    cluster.wait(60_000)
    cluster.submit_gang("g", [1_000], GangPlacement.ANYWHERE, job="gangs")
    assert outcome(cluster, "r0", "r4") == "FAIR_SHARE"
    assert cluster.where("g-0") == "host-0"
    assert outcome(cluster, "r1", "r4") == ""


def test_where_too_many_wait_to_look_at_the_slot_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(next_in_order, "COMPARED_MAX", 5)
    cluster = alone()
    for number in range(10):
        cluster.job(f"other-{number}")
        cluster.submit(f"x{number}", job=f"other-{number}", cpu_milli=3_000 + number)
    assert outcome(cluster, "r0", "r4") == "FAIR_SHARE"
    assert cluster.where("r4")  # the choice itself decides, and no other request fits
    assert outcome(cluster, "r1", "r5") == "FAIR_SHARE"


def test_members_of_a_range_go_on_one_after_the_other() -> None:
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.job("newcomer")
    cluster.submit_range("r", 12)
    for number in (6, 4, 5, 11):
        assert outcome(cluster, "r.0", f"r.{number}") == ""
    (part,) = cluster.state.ranges.parts()
    (handed_on,) = [part.row.ended[how] for how in part.row.ended if how[1] == "REUSED"]
    assert list(handed_on.runs()) == [(4, 7), (11, 12)]
    cluster.submit("n0", job="newcomer")
    assert outcome(cluster, "r.0", "r.7") == "FAIR_SHARE"
    cluster.restart()
    assert cluster.reuse(("r.0", 1, "r.5"))[0].reason == ""
    assert cluster.reuse(("r.0", 1, "r.7"))[0].reason == "FAIR_SHARE"
    assert cluster.reuse(("r.4", 1, "r.8"))[0].message == slot_reuse.ENDED
