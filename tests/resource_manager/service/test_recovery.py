"""Tests that the RM waits for an unavailable database, but not for repeated equal refusals."""

from __future__ import annotations

from finegrain.errors import Reason, StoreError
from resource_manager.service.recovery import Recovery, RecoveryLimits
from resource_manager.storage.store import StoreAway, StoreBroken

GONE = StoreAway("cannot be reached", details={"database": "books"})
REFUSED = StoreError("rejected a statement")


def test_a_database_that_is_away_for_an_hour_is_waited_for() -> None:
    recovery = Recovery(RecoveryLimits())
    pauses = set()
    for moment in range(3_600):
        assert recovery.failed(GONE, float(moment)) is None
        pauses.add(recovery.pause_s())
    assert pauses == {0.2, 0.4, 0.8, 1.6, 2.0}
    told = recovery.refusal()
    assert told is not None
    assert (told.message, told.reason, told.details) == (
        "cannot be reached",
        Reason.STORE_UNAVAILABLE,
        {"database": "books"},
    )
    recovery.recovered(3_600.0)
    assert recovery.refusal() is None


def test_a_disk_that_is_full_each_time_a_batch_comes_is_waited_for_with_growing_pauses() -> None:
    recovery = Recovery(RecoveryLimits())
    full = StoreAway("no space left", reason=Reason.DISK_FULL)
    for round_number in range(100):
        assert recovery.failed(full, float(round_number)) is None
        recovery.recovered(float(round_number))
    assert recovery.pause_s() == 2.0
    assert recovery.failed(full, 200.0) is None
    assert recovery.pause_s() == 0.2  # there was no failure for long enough


def test_a_batch_that_is_refused_again_and_again_ends_the_process() -> None:
    recovery = Recovery(RecoveryLimits())
    for moment in range(5):
        assert recovery.failed(REFUSED, float(moment)) is None
        assert recovery.refusal() is None
    final = recovery.failed(REFUSED, 5.0)
    assert final is not None
    assert (
        "the process ends after 5 failures in 60 s; the last one: rejected a statement"
        in final.message
    )


def test_refusals_far_apart_are_no_reason_to_give_up() -> None:
    recovery = Recovery(RecoveryLimits())
    assert all(recovery.failed(REFUSED, 13.0 * n) is None for n in range(100))


def test_while_the_database_is_away_earlier_refusals_do_not_add_up() -> None:
    recovery = Recovery(RecoveryLimits())
    for moment in range(5):
        recovery.failed(REFUSED, float(moment))
    assert recovery.failed(GONE, 6.0) is None
    assert recovery.failed(REFUSED, 7.0) is not None


def test_a_store_that_broke_for_this_process_ends_it_at_once() -> None:
    broken = StoreBroken("the disk failed")
    assert Recovery(RecoveryLimits()).failed(broken, 0.0) is broken
