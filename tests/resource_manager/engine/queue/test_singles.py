"""Tests of non-batchable items, which are queued with requests and tried in the same passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable, NonBatchables
from resource_manager.engine.scheduling.cycle import ATTEMPTS
from resource_manager.engine.state import State
from tests.support.engine_cluster import EngineCluster, host

SMALL = ResourceProfile(100, 64 * MIB)
ZONE_A = (("zone", "a"),)


def single(number: int, **more: object) -> NonBatchable:
    return NonBatchable(number, Kind.GANG, f"gang{number}", **more)  # type: ignore[arg-type]


def turns(non_batchables: NonBatchables) -> list[int]:
    """Returns the items of the next pass, in order; all become inactive."""
    non_batchables.begin_pass()
    found = []
    while (one := non_batchables.next_before(None)) is not None:
        found.append(one.arrival_number)
        non_batchables.block(one)
    return found


def test_they_have_their_turns_in_order_of_arrival() -> None:
    non_batchables = NonBatchables()
    for number in (5, 2, 9):
        non_batchables.add(single(number))
    assert turns(non_batchables) == [2, 5, 9]
    assert not non_batchables.unblocked
    assert non_batchables.problems() == []


def test_nobody_takes_a_turn_before_those_who_came_earlier() -> None:
    non_batchables = NonBatchables()
    non_batchables.add(single(5))
    non_batchables.begin_pass()
    assert non_batchables.until() == 5
    assert non_batchables.next_before(((), 4)) is None
    assert non_batchables.next_before(((), 6)) == single(5)


def test_one_that_sleeps_wakes_when_an_executor_that_concerns_it_has_grown() -> None:
    non_batchables = NonBatchables()
    anywhere, labelled, on_a = single(1), single(2, labels=ZONE_A), single(3, host_id="host-a")
    for one in (anywhere, labelled, on_a):
        non_batchables.add(one)
    assert turns(non_batchables) == [1, 2, 3]
    non_batchables.grew("host-b", {})
    assert turns(non_batchables) == [1]
    non_batchables.grew("host-b", {"zone": "a", "rack": "7"})
    assert turns(non_batchables) == [1, 2]
    non_batchables.grew("host-a", {"zone": "b"})
    assert turns(non_batchables) == [1, 3]
    assert non_batchables.problems() == []


def test_what_wakes_or_comes_during_a_round_is_tried_in_the_next_one() -> None:
    non_batchables = NonBatchables()
    for number in (1, 2):
        non_batchables.add(single(number))
    non_batchables.begin_pass()
    first = non_batchables.next_before(None)
    assert first is not None
    non_batchables.block(first)
    non_batchables.grew("host-a", {})
    non_batchables.add(single(0))
    assert non_batchables.until() == 2
    assert non_batchables.next_before(None) == single(2)
    assert non_batchables.next_before(None) is None
    assert non_batchables.unblocked
    non_batchables.block(single(2))
    assert turns(non_batchables) == [0, 1]


def test_one_that_was_woken_while_it_was_tried_stays_awake() -> None:
    non_batchables = NonBatchables()
    non_batchables.add(single(1))
    non_batchables.begin_pass()
    one = non_batchables.next_before(None)
    assert one is not None
    non_batchables.unblock(1)
    non_batchables.block(one)
    assert turns(non_batchables) == [1]


def test_one_that_leaves_is_nowhere_any_more() -> None:
    non_batchables = NonBatchables()
    for number in (1, 2, 3, 4):
        non_batchables.add(single(number, host_id="host-a" if number % 2 else ""))
    non_batchables.begin_pass()
    for one in (non_batchables.next_before(None), non_batchables.next_before(None)):
        assert one is not None
        non_batchables.block(one)
    for number in (1, 2, 3, 4):
        non_batchables.remove(number)
        assert number not in non_batchables
        assert non_batchables.problems() == []
    assert non_batchables.remove(1) is None
    non_batchables.grew("host-a", {})
    assert not non_batchables.unblocked
    assert len(non_batchables) == 0


def test_those_whom_a_maximum_stops_are_tried_again_when_it_is_eased() -> None:
    non_batchables = NonBatchables()
    for number in range(5):
        non_batchables.add(single(number))
    non_batchables.begin_pass()
    while (one := non_batchables.next_before(None)) is not None:
        non_batchables.block_by_quota(one, "group/one" if one.arrival_number else "group/other")
    assert sorted(non_batchables.blocked_by) == ["group/one", "group/other"]
    non_batchables.remove(0)
    assert non_batchables.blocked_by == ["group/one"]  # nothing of it is left
    non_batchables.unblock_by_quota("group/one")
    assert non_batchables.blocked_by == []
    assert turns(non_batchables) == [1, 2, 3, 4]
    assert non_batchables.problems() == []


def test_one_can_be_woken_though_nothing_grew() -> None:
    non_batchables = NonBatchables()
    for one in (single(1), single(2, labels=ZONE_A), single(3, host_id="host-a")):
        non_batchables.add(one)
    assert turns(non_batchables) == [1, 2, 3]
    non_batchables.unblock(2)
    non_batchables.unblock(3)
    assert turns(non_batchables) == [2, 3]


# Queued with requests.


Attempt = Callable[[State, Placer, NonBatchable], bool]


class Line:
    """A host, a job, and non-batchable items whose behavior a test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.cluster = EngineCluster(host(cpu_milli=1_000, memory_bytes=GIB), **settings)
        self.cluster.sweeps = False  # its items are no gangs
        self.tried: list[str] = []
        self.attempt: Attempt = lambda state, placing, one: False
        monkeypatch.setitem(ATTEMPTS, Kind.GANG, self._try)

    def _try(self, state: State, placing: Placer, one: NonBatchable) -> bool:
        self.tried.append(one.name)
        return self.attempt(state, placing, one)

    def wait_with(self, name: str) -> int:
        """Queues an item; returns its number."""
        state = self.cluster.state
        number = state.numbers.next_arrival()
        state.queue.non_batchables.add(NonBatchable(number, Kind.GANG, name, "job"))
        return number

    def request(self, *names: str, cpu: int = 100) -> None:
        self.cluster.submit(*names, cpu_milli=cpu, allow_pending=True)

    def release(self, *names: str) -> None:
        self.cluster.release(*names)
        self.cluster.deliver_all()

    def carved(self) -> list[str]:
        return [name for name, _ in self.cluster.state.slots]


def unfinished(line: Line) -> bool:
    """Returns whether the last decision left items over."""
    return line.cluster.state.unfinished


def test_one_that_came_before_a_request_is_tried_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(monkeypatch)
    seen: list[list[str]] = []

    def look(state: State, placing: Placer, one: NonBatchable) -> bool:
        seen.append(line.carved())
        return True

    line.attempt = look
    line.request("full", cpu=1_000)
    line.cluster.deliver_all()
    line.request("a1", "a2")
    first = line.wait_with("first")
    line.request("a3", "a4", "b1")
    line.wait_with("second")
    line.request("a5")
    line.release("full")
    assert line.tried == ["first", "second"]
    assert seen == [["full"], ["full"]]  # in order of arrival
    assert line.carved() == ["a1", "a2", "a3", "a4", "b1", "a5"]
    assert first not in line.cluster.state.queue.non_batchables


def test_requests_that_are_placed_together_stop_where_a_single_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(monkeypatch)
    seen: list[list[str]] = []

    def look(state: State, placing: Placer, one: NonBatchable) -> bool:
        seen.append(line.carved())
        return len(seen) > 1

    line.attempt = look
    line.request("full", cpu=1_000)
    line.cluster.deliver_all()
    line.request("a1", "a2")
    line.wait_with("single")
    line.request("a3", "a4")
    assert seen == [["full"]]  # it is inactive now
    line.release("full")
    assert seen == [["full"], ["a1", "a2"]]
    assert line.carved() == ["a1", "a2", "a3", "a4"]


def test_what_a_single_takes_is_not_given_to_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for strategy in ("pack", "spread"):
        line = Line(monkeypatch, strategy=strategy)

        def take(state: State, placing: Placer, one: NonBatchable) -> bool:
            """Takes all but 200 of the cpus, for a request that was deferred for this."""
            host = state.hosts["host-a"]
            if host.free().get("cpu_milli", 0) < 800:
                return False
            request = state.requests["large"]
            state.queue.remove(request)
            state.moves.place([request], host)
            placing.follow([host])
            return True

        line.attempt = take
        line.request("full", cpu=1_000)
        line.cluster.deliver_all()
        line.wait_with("single")
        line.request("large", cpu=800)
        line.request("a1", "a2", "a3")
        line.release("full")
        assert line.carved() == ["large", "a1", "a2"]
        line.cluster.check()
        assert line.cluster.state_of("a3") is RequestState.PENDING


def test_tries_in_vain_are_counted_and_the_rest_is_left_for_the_next_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(monkeypatch, classes_tried_max=2)
    for name in ("s1", "s2", "s3"):
        line.wait_with(name)
    line.request("never", cpu=5_000)
    assert line.tried == ["s1", "s2"]
    assert unfinished(line)
    line.cluster.batch()
    assert line.tried == ["s1", "s2", "s3"]
    assert not unfinished(line)
    line.cluster.batch()
    assert line.tried == ["s1", "s2", "s3"]  # no capacity was added


def test_one_that_sleeps_is_tried_again_when_a_slot_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(monkeypatch)
    line.request("r")
    line.cluster.deliver_all()
    line.wait_with("single")
    line.cluster.batch()
    line.cluster.wait(1)
    assert line.tried == ["single"]
    line.release("r")
    assert line.tried == ["single", "single"]
    line.cluster.host("host-b", cpu_milli=1_000, memory_bytes=GIB)
    assert line.tried == ["single"] * 3


def test_a_gang_that_needs_several_labels_can_be_woken_and_can_leave() -> None:
    both = (("disk", "ssd"), ("zone", "a"))
    non_batchables = NonBatchables()
    for number in (1, 2):
        non_batchables.add(single(number, labels=both))
    assert turns(non_batchables) == [1, 2]
    non_batchables.unblock(2)
    non_batchables.remove(1)
    assert non_batchables.problems() == []
    assert turns(non_batchables) == [2]
    non_batchables.grew("host-a", dict(both))
    assert turns(non_batchables) == [2]
