"""A slot goes on with the next thread of its job, if that is what giving it back would come to."""

from __future__ import annotations

import pytest

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import GangPlacement
from resource_manager.engine.model.events import (
    DrainRequested,
    GroupSet,
    JobKeptAlive,
    RequestsCancelled,
    ResizeRequested,
    SlotsReleased,
)
from resource_manager.engine.scheduling import next_in_order, slot_reuse
from tests.support.jobs_and_hosts import Story


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def alone(waiting: int = 3) -> Story:
    """One job with four slots on one host, and some that wait."""
    story = Story()
    story.host("host-0")
    story.job("job")
    story.ask("job", names("r", 4 + waiting))
    return story


def outcome(story: Story, slot: str, waiting: str, job: str = "job") -> str:
    (found,) = story.reuse(job, (slot, waiting))
    return found.reason


def test_a_job_alone_keeps_its_slots() -> None:
    story = alone()
    assert outcome(story, "r0", "r4") == ""
    assert story.where("r0") == "host-0"
    ended = story.state.requests["r4"]
    assert (ended.state, ended.reason, ended.message) == (
        "RELEASED",
        "REUSED",
        slot_reuse.HANDED_ON,
    )
    event = story.cluster.store.job_events["job"][-1]
    assert (event.allocation_id, event.state, event.reason) == ("r4", "RELEASED", "REUSED")
    assert story.history("slot_reused") == ["by r4"]
    assert sorted(story.running()) == ["r0", "r1", "r2", "r3"]
    assert outcome(story, "r0", "r5") == ""  # and again
    assert story.state.jobs["job"].durations.handed_on == 2


def test_two_jobs_of_one_group_take_turns() -> None:
    """As many slots as are its share each may keep, and not one more."""
    story = Story()
    story.host("host-0")
    story.job("first", "second")
    story.ask("first", names("a", 40))
    story.ask("second", names("b", 40))
    assert len(story.running()) == 4
    for _ in range(12):
        story.wait(30)
        for job, prefix in (("first", "a"), ("second", "b")):
            waiting = (f"{prefix}{n}" for n in range(40))
            free = (n for n in waiting if story.state.requests[n].state == "PENDING")
            for slot in [each for each in story.running() if each.startswith(prefix)]:
                story.reuse(job, (slot, next(free)))
        counts = [sum(each.startswith(prefix) for each in story.running()) for prefix in "ab"]
    assert counts == [2, 2]


def test_whoever_comes_first_gets_what_a_slot_frees() -> None:
    story = alone(waiting=8)
    story.job("newcomer")
    story.ask("newcomer", ["n0"])
    story.wait(60)
    assert not story.where("n0")
    assert outcome(story, "r0", "r4") == "FAIR_SHARE"
    assert story.where("n0") == "host-0"  # in place of the slot that was given back
    assert (story.state.requests["r0"].state, story.state.requests["r0"].reason) == (
        "RELEASED",
        "FAIR_SHARE",
    )
    assert story.state.requests["r4"].state == "PENDING"
    assert outcome(story, "r1", "r4") == ""  # the newcomer has what it asked for


def test_whoever_comes_first_and_does_not_fit_there_stands_in_nobodys_way() -> None:
    story = alone()
    story.host("host-1", cpu=8_000)
    story.ask("job", names("x", 8))
    story.job("large")
    story.ask("large", ["big"], cpu=8_000)
    story.wait(60)
    on_small = story.running("host-0")[0]
    waiting = next(n for n in names("x", 8) if not story.where(n))
    assert outcome(story, on_small, waiting) == ""


def test_groups_come_before_jobs() -> None:
    """The first step of the choice decides, also between jobs of different groups."""
    story = Story()
    story.host("host-0", cpu=10_000)
    story.job("default-job")
    story.job("medium-job", group="medium")
    story.ask("default-job", names("d", 60))
    story.ask("medium-job", names("m", 60))
    for _ in range(25):
        story.wait(60)
        for job, prefix in (("default-job", "d"), ("medium-job", "m")):
            waiting = (f"{prefix}{n}" for n in range(60))
            free = (n for n in waiting if story.state.requests[n].state == "PENDING")
            slot = next((each for each in story.running() if each.startswith(prefix)), None)
            if slot is not None and (to := next(free, None)) is not None:
                story.reuse(job, (slot, to))
    counts = [sum(each.startswith(prefix) for each in story.running()) for prefix in "dm"]
    assert sum(counts) == 10
    assert counts[0] in (1, 2, 3)  # weights 1 and 4


def test_the_same_call_gets_the_same_answer_also_after_a_restart() -> None:
    story = alone(waiting=6)
    story.job("newcomer")
    wishes = ("r0", 1, "r4"), ("r1", 1, "r5")
    agreed = story.reuse_exactly("job", *wishes)
    story.ask("newcomer", ["n0"])
    refused = story.reuse_exactly("job", ("r2", 1, "r6"))
    assert [each.reason for each in (*agreed, *refused)] == ["", "", "FAIR_SHARE"]
    for _ in range(2):
        assert story.reuse_exactly("job", *wishes) == agreed
        assert story.reuse_exactly("job", ("r2", 1, "r6")) == refused
        story.restart()
    # What has happened since changes nothing of it.
    story.end("job", "r0")
    assert story.reuse_exactly("job", *wishes) == agreed
    assert story.state.requests["r6"].state in ("PENDING", "GRANTED")


def test_a_slot_is_agreed_to_once_it_is_asked_for_something_else() -> None:
    """An old call that comes late does not take the slot from what it serves by now."""
    story = alone()
    assert outcome(story, "r0", "r4") == ""
    assert outcome(story, "r0", "r5") == ""
    assert outcome(story, "r0", "r4") == ""
    assert story.where("r0") == "host-0"


def test_what_was_agreed_to_stays_so_when_the_host_is_lost() -> None:
    story = alone()
    assert outcome(story, "r0", "r4") == ""
    story.cluster.now_ms += 10**9 - 1
    story.act(JobKeptAlive(story.cluster.at, "job"))
    story.wait(1)
    assert story.state.requests["r0"].state == "LOST"
    assert story.state.slots  # which may exist, for all that is known
    (found,) = story.reuse_exactly("job", ("r0", 1, "r4"))
    assert found.reason == ""


def test_no_two_slots_are_to_do_the_work_of_one_request() -> None:
    story = alone()
    assert outcome(story, "r0", "r4") == ""
    (second,) = story.reuse_exactly("job", ("r1", 1, "r4"))
    assert (second.reason, second.message) == ("NOT_REUSABLE", slot_reuse.NOT_WAITING)
    assert story.reuse_exactly("job", ("r1", 1, "r4")) == [second]
    assert outcome(story, "r0", "r4") == ""


def test_no_two_slots_are_to_do_the_work_of_one_member_of_a_range() -> None:
    story = Story()
    story.host("host-0")
    story.job("job")
    story.ask_range("job", "r", 8)
    assert outcome(story, "r.0", "r.7") == ""
    assert outcome(story, "r.1", "r.7") == "NOT_REUSABLE"
    assert outcome(story, "r.0", "r.6") == ""
    assert "r.1" not in story.running()


def test_what_was_not_agreed_to_stays_so_when_another_slot_does_the_work() -> None:
    story = alone(waiting=8)
    story.job("newcomer")
    story.ask("newcomer", ["n0"])
    story.wait(60)
    refused = story.reuse_exactly("job", ("r0", 1, "r4"))
    assert refused[0].reason == "FAIR_SHARE"
    story.wait(1)
    assert outcome(story, "r1", "r4") == ""
    assert story.reuse_exactly("job", ("r0", 1, "r4")) == refused
    story.restart()
    assert story.reuse_exactly("job", ("r0", 1, "r4")) == refused
    assert story.reuse_exactly("job", ("r1", 1, "r4"))[0].reason == ""


def test_a_request_that_was_cancelled_meanwhile_has_no_work_to_do() -> None:
    story = alone()
    story.act(RequestsCancelled(story.cluster.at, "job", ("r4",)))
    (found,) = story.reuse_exactly("job", ("r0", 1, "r4"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.NOT_WAITING)


def test_a_slot_that_was_lost_meanwhile_is_not_agreed_to() -> None:
    story = alone()
    executor = story.cluster.executors["host-0"]
    executor.end(("r0", 1), "SLOT_BROKEN")
    story.cluster.report(executor)
    story.settle()
    assert story.state.requests["r0"].state == "LOST"
    (found,) = story.reuse_exactly("job", ("r0", 1, "r5"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.ENDED)
    assert story.state.requests["r5"].state == "PENDING"  # its thread is not lost with it


def test_a_slot_that_was_lost_and_stands_in_line_again_is_taken_back() -> None:
    story = Story()
    story.host("host-0")
    story.job("job")
    story.ask("job", names("r", 8), restart_on_loss=True)
    executor = story.cluster.executors["host-0"]
    executor.hidden = {"cpu_milli": 4_000}
    executor.end(("r0", 1), "SLOT_BROKEN")
    story.cluster.report(executor)
    story.settle()
    assert story.state.requests["r0"].state == "PENDING"
    (found,) = story.reuse_exactly("job", ("r0", 1, "r5"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.NOT_GRANTED)
    assert story.state.requests["r0"].state == "CANCELLED"
    assert story.reuse_exactly("job", ("r0", 1, "r5")) == [found]


@pytest.mark.parametrize(
    ("slot", "waiting", "why"),
    [
        ("r0", "r1", slot_reuse.NOT_WAITING),  # it has a slot of its own
        ("r0", "nobody", slot_reuse.NOT_WAITING),
        ("r0", "theirs", slot_reuse.NOT_WAITING),  # of another job
        ("r0", "larger", slot_reuse.NOT_THE_SAME),
        ("r0", "labelled", slot_reuse.NOT_THE_SAME),
        ("r0", "g-0", slot_reuse.OF_A_GANG),
    ],
)
def test_what_cannot_be_reused_is_given_back(slot: str, waiting: str, why: str) -> None:
    story = alone()
    story.job("another")
    story.ask("another", ["theirs"])
    story.ask("job", ["larger"], cpu=2_000)
    story.ask("job", ["labelled"], required_labels=(("disk", "ssd"),), allow_pending=True)
    story.gang("job", "g", [1_000, 1_000], GangPlacement.ANYWHERE)
    (found,) = story.reuse("job", (slot, waiting))
    assert (found.reason, found.message) == ("NOT_REUSABLE", why)
    assert story.state.requests[slot].state == "RELEASED"
    assert story.reuse_exactly("job", (slot, 1, waiting)) == [found]


def test_a_slot_on_a_host_that_drains_is_not_reused() -> None:
    story = alone()
    story.act(DrainRequested(story.cluster.at, "host-0", "for a test"))
    (found,) = story.reuse("job", ("r0", "r4"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.NOT_HERE)
    assert not story.where("r0")


def test_a_slot_of_another_size_than_it_was_asked_for_is_not_reused() -> None:
    story = alone()
    size = ResourceProfile(500, 64 * MIB)
    story.act(ResizeRequested(story.cluster.at, "job", "r0", 1, 1, size))
    (found,) = story.reuse("job", ("r0", "r4"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.RESIZED)


def test_a_maximum_that_was_lowered_lets_no_slot_be_reused() -> None:
    story = alone()
    story.act(GroupSet(story.cluster.at, "default", maximum={"cpu_milli": 3_000}))
    assert outcome(story, "r0", "r4") == "FAIR_SHARE"
    assert outcome(story, "r1", "r4") == ""  # now there are no more than may be
    assert len(story.running()) == 3


def test_what_is_held_for_somebody_is_not_kept_from_him_by_reusing_it() -> None:
    story = Story(starvation_placements=1)
    story.host("host-0")
    story.job("job", "large")
    story.ask("job", names("r", 5))
    story.ask("large", ["big"], cpu=4_000)
    story.end("job", "r0")  # r4 is placed: big was passed over
    assert story.state.reservations
    story.ask("job", ["r5"])
    assert outcome(story, "r1", "r5") == "FAIR_SHARE"
    for name in ("r2", "r3", "r4"):
        story.end("job", name)
    assert story.where("big") == "host-0"


def test_calls_about_nobodys_slots_and_about_old_ones_change_nothing() -> None:
    story = alone()
    (unknown,) = story.reuse_exactly("job", ("nobody", 1, "r4"))
    assert unknown.reason == "ALLOCATION_UNKNOWN"
    story.job("thief")
    (stolen,) = story.reuse_exactly("thief", ("r0", 1, "r4"))
    assert stolen.reason == "ALLOCATION_UNKNOWN"
    (stale,) = story.reuse_exactly("job", ("r0", 7, "r4"))
    assert stale.reason == "STALE_GENERATION"
    assert story.where("r0") == "host-0"


def test_in_order_of_arrival_whoever_came_first_comes_first() -> None:
    story = Story(order="arrival")
    story.host("host-0")
    story.job("job", "later")
    story.ask("job", names("r", 6))
    story.ask("later", ["n0"])
    story.ask("job", ["r6"])
    assert outcome(story, "r0", "r4") == ""
    assert outcome(story, "r0", "r5") == ""
    assert outcome(story, "r0", "r6") == "FAIR_SHARE"
    assert story.where("n0") == "host-0"


def test_releasing_as_it_was_told_before_is_a_reuse_that_was_refused() -> None:
    story = alone()
    story.act(SlotsReleased(story.cluster.at, "job", (("r0", 1),)))
    (found,) = story.reuse_exactly("job", ("r0", 1, "r5"))
    assert (found.reason, found.message) == ("NOT_REUSABLE", slot_reuse.ENDED)


def test_a_slot_that_is_to_grow_comes_first_if_its_job_does() -> None:
    story = Story()
    story.host("host-0")
    story.job("patient", "job")
    story.ask("patient", ["p0"])
    story.ask("job", names("r", 6))
    story.wait(60)
    size = ResourceProfile(2_000, 64 * MIB)
    story.act(ResizeRequested(story.cluster.at, "patient", "p0", 1, 1, size))
    assert outcome(story, "r0", "r4") == "FAIR_SHARE"
    assert story.state.slots["p0", 1].profile.cpu_milli == 2_000
    assert outcome(story, "r1", "r4") == ""


def test_a_gang_that_comes_first_and_might_be_whole_then_is_not_kept_waiting() -> None:
    story = alone(waiting=6)
    story.job("gangs")
    story.wait(60)
    story.gang("gangs", "g", [1_000], GangPlacement.ANYWHERE)
    assert outcome(story, "r0", "r4") == "FAIR_SHARE"
    assert story.where("g-0") == "host-0"
    assert outcome(story, "r1", "r4") == ""


def test_where_too_many_wait_to_look_at_the_slot_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(next_in_order, "LOOKED_AT_MAX", 5)
    story = alone()
    for number in range(10):
        story.job(f"other-{number}")
        story.ask(f"other-{number}", [f"x{number}"], cpu=3_000 + number)
    assert outcome(story, "r0", "r4") == "FAIR_SHARE"
    assert story.where("r4")  # the choice itself decides, and nobody else fits
    assert outcome(story, "r1", "r5") == "FAIR_SHARE"


def test_members_of_a_range_go_on_one_after_the_other() -> None:
    story = Story()
    story.host("host-0")
    story.job("job", "newcomer")
    story.ask_range("job", "r", 12)
    for number in (6, 4, 5, 11):
        assert outcome(story, "r.0", f"r.{number}") == ""
    (part,) = story.state.ranges.parts()
    (handed_on,) = [part.row.ended[how] for how in part.row.ended if how[1] == "REUSED"]
    assert list(handed_on.runs()) == [(4, 7), (11, 12)]
    story.ask("newcomer", ["n0"])
    assert outcome(story, "r.0", "r.7") == "FAIR_SHARE"
    story.restart()
    assert story.reuse_exactly("job", ("r.0", 1, "r.5"))[0].reason == ""
    assert story.reuse_exactly("job", ("r.0", 1, "r.7"))[0].reason == "FAIR_SHARE"
    assert story.reuse_exactly("job", ("r.4", 1, "r.8"))[0].message == slot_reuse.ENDED
