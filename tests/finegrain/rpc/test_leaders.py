"""Which server to call next: hints are followed, but outdated hints only once."""

from __future__ import annotations

import pytest

from finegrain.errors import Reason, Unavailable
from finegrain.rpc.leaders import Leaders

A, B, C = "10.0.0.1:7170", "10.0.0.2:7170", "10.0.0.3:7170"


def not_leader(hint: str = "") -> Unavailable:
    details = {"leader_address": hint} if hint else {}
    return Unavailable("stands by", reason=Reason.NOT_LEADER, details=details)


def test_who_does_not_answer_is_followed_by_the_next_in_turn() -> None:
    leaders = Leaders([A, B, C])
    for expected in (B, C, A):
        assert not leaders.failed(leaders.current)
        assert leaders.current == expected


def test_the_leader_that_a_standby_names_is_called_at_once() -> None:
    leaders = Leaders([A, B, C])
    assert leaders.failed(A, not_leader(C))
    assert leaders.current == C


def test_a_hint_that_leads_nowhere_is_followed_once() -> None:
    """The standby still names the leader that has just ended. The caller must pause, and not switch
    between the two without a pause.
    """
    leaders = Leaders([A, B])
    assert not leaders.failed(A)  # it died
    assert leaders.failed(B, not_leader(A))  # at once
    assert not leaders.failed(A)
    turns = [leaders.failed(leaders.current, not_leader(A)) for _ in range(6)]
    assert not any(turns)
    leaders.worked(leaders.current)
    other = A if leaders.current == B else B
    assert leaders.failed(leaders.current, not_leader(other))


def test_two_that_name_each_other_are_not_asked_in_a_circle() -> None:
    leaders = Leaders([A, B])
    at_once = 0
    for _ in range(20):
        other = B if leaders.current == A else A
        at_once += leaders.failed(leaders.current, not_leader(other))
    assert at_once <= 2


def test_one_that_takes_over_right_now_is_asked_again_with_a_pause() -> None:
    leaders = Leaders([A, B])
    assert not leaders.failed(A, not_leader(A))
    assert leaders.current == A


def test_calls_that_failed_together_turn_once() -> None:
    leaders = Leaders([A, B, C])
    assert leaders.failed(A, not_leader(C))
    assert leaders.failed(A, not_leader(C))  # the second finds it done
    assert leaders.current == C
    assert not leaders.failed(C)
    assert not leaders.failed(C)  # the server that the caller switched to has not answered yet
    assert leaders.current == A
    leaders.worked(A)
    assert leaders.failed(C)


@pytest.mark.parametrize(
    ("hint", "followed"),
    [
        pytest.param("10.9.9.9:7170", True, id="the certificate proves who answers"),
        pytest.param("127.0.0.1:7170", True, id="this host"),
        pytest.param("0.0.0.0:7170", False, id="a wildcard"),
        pytest.param("nonsense", False, id="no address"),
    ],
)
def test_an_address_that_nobody_listed(hint: str, followed: bool) -> None:
    leaders = Leaders([A, B])
    assert leaders.failed(A, not_leader(hint)) is followed
    assert leaders.current == (hint if followed else B)
    if followed:
        assert not leaders.failed(hint)
        assert leaders.current == B


def test_on_one_host_an_unlisted_address_of_it_is_followed() -> None:
    leaders = Leaders(["127.0.0.1:7170"])
    assert leaders.failed("127.0.0.1:7170", not_leader("127.0.0.1:7270"))
    assert leaders.current == "127.0.0.1:7270"
    assert not leaders.failed("127.0.0.1:7270")
    assert leaders.current == "127.0.0.1:7170"


def test_other_failures_name_nobody() -> None:
    leaders = Leaders([A, B, C])
    lying = Unavailable("no", reason=Reason.UNREACHABLE, details={"leader_address": C})
    assert not leaders.failed(A, lying)
    assert leaders.current == B
