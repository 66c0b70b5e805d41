"""Tests the order of service between callers: fair by items, bounded, and without starvation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.errors import ResourceExhausted
from resource_manager.service.engine_driver import Item
from resource_manager.service.lanes import LaneLimits, Lanes


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


class Queue:
    """Lanes with names instead of calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: LaneLimits) -> None:
        self.lanes = Lanes(limits)
        self._loop = loop
        self._names: dict[Item, str] = {}

    def put(self, owner: str, items: int = 1, *, urgent: bool = False) -> Item:
        item = Item(self._loop.create_future(), items=items)
        self._names[item] = owner
        if urgent:
            self.lanes.put_urgent(item)
        else:
            self.lanes.put(item, owner)
        return item

    def batch(self) -> list[str]:
        return [self._names[item] for item in self.lanes.gather()]

    def batches(self) -> list[list[str]]:
        found = []
        while self.lanes:
            found.append(self.batch())
        return found


def test_a_flood_delays_another_by_one_batch_at_most(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(loop, LaneLimits(batch_items_max=2_000))
    for _ in range(40):
        queue.put("flood", 1_000)
    assert queue.batch() == ["flood", "flood"]  # in progress when the others come
    queue.put("small")
    queue.put("other")
    assert queue.batch() == ["flood", "small", "other"]
    assert queue.batch() == ["flood", "flood"]


def test_turns_are_weighted_by_items(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(loop, LaneLimits(batch_items_max=100))
    for _ in range(100):
        queue.put("large calls", 50)
    for _ in range(5_000):
        queue.put("small calls", 1)
    served = {"large calls": 0, "small calls": 0}
    for _ in range(50):
        for name in queue.batch():
            served[name] += 50 if name == "large calls" else 1
    assert sum(served.values()) > 4_500
    assert abs(served["large calls"] - served["small calls"]) <= 100


def test_everybody_has_a_turn_before_anybody_has_two(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(loop, LaneLimits(batch_items_max=10))
    for _ in range(3):
        for number in range(40):
            queue.put(f"job-{number}", 5)
    order = [name for batch in queue.batches() for name in batch]
    assert [len(set(order[start : start + 40])) for start in (0, 40, 80)] == [40, 40, 40]


def test_a_call_larger_than_a_batch_goes_alone_whatever_is_urgent(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = Queue(loop, LaneLimits(batch_items_max=10))
    queue.put("large", 50)
    queue.put("small")
    queue.put("sign of life", urgent=True)
    assert queue.batch() == ["sign of life", "large"]
    queue.put("sign of life", urgent=True)
    assert queue.batch() == ["sign of life", "small"]


def test_what_is_urgent_goes_first_up_to_a_bound(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(loop, LaneLimits(batch_items_max=10, urgent_items_max=20))
    for _ in range(5):
        queue.put("registration", 11, urgent=True)
    queue.put("job")
    assert queue.batch() == ["registration", "registration", "job"]
    assert queue.batches() == [["registration", "registration"], ["registration"]]


def test_who_has_gone_meanwhile_costs_nothing(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(loop, LaneLimits(batch_items_max=10, owner_items_max=20))
    for _ in range(2):
        queue.put("flood", 10).future.cancel()
    queue.put("flood", 10)
    queue.put("small")
    assert queue.batch() == ["flood"]
    assert queue.batch() == ["small"]
    assert queue.lanes.waiting_items == 0


def test_one_owner_may_not_fill_the_queue(loop: asyncio.AbstractEventLoop) -> None:
    limits = LaneLimits(queue_items_max=100, owner_items_max=40, retry_s=0.7)
    queue = Queue(loop, limits)
    queue.lanes.check("flood", 1_000)  # a single call is never too large
    queue.put("flood", 40)
    with pytest.raises(ResourceExhausted, match="wait for answers") as caught:
        queue.lanes.check("flood", 1)
    assert caught.value.retry_after_s == 0.7
    queue.lanes.check("small", 1)


def test_a_full_queue_refuses_first_those_who_filled_it(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(loop, LaneLimits(queue_items_max=100, owner_items_max=60))
    queue.put("one", 50)
    queue.put("two", 50)
    with pytest.raises(ResourceExhausted, match="which is the limit"):
        queue.lanes.check("one", 1)
    queue.lanes.check("small", 50)
    queue.put("three", 50)
    queue.put("four", 50)
    with pytest.raises(ResourceExhausted, match="which is the limit"):
        queue.lanes.check("small", 1)


def test_what_is_let_in_counts_before_it_comes(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(loop, LaneLimits(queue_items_max=100, owner_items_max=40))
    with queue.lanes.promised("flood", 30), queue.lanes.promised("flood", 10):
        with pytest.raises(ResourceExhausted, match="wait for answers"):
            queue.lanes.check("flood", 1)
        with queue.lanes.promised("other", 160), pytest.raises(ResourceExhausted):
            queue.lanes.check("small", 1)
    queue.lanes.check("flood", 40)


def test_calls_of_one_part_side_by_side_promise_nothing(loop: asyncio.AbstractEventLoop) -> None:
    lanes = Queue(loop, LaneLimits()).lanes
    one, other = lanes.promised("job", 0), lanes.promised("job", 0)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40), st.booleans()), max_size=60),
    st.integers(1, 30),
)
def test_everything_is_served_once_in_its_owners_order(
    calls: list[tuple[str, int, bool]], batch_items_max: int
) -> None:
    loop = asyncio.new_event_loop()
    lanes = Lanes(LaneLimits(batch_items_max=batch_items_max))
    put: dict[str, list[Item]] = {}
    for owner, items, gone in calls:
        item = Item(loop.create_future(), items=items)
        lanes.put(item, owner)
        if gone:
            item.future.cancel()
        else:
            put.setdefault(owner, []).append(item)
    served: list[Item] = []
    for _ in range(len(calls) + 1):
        batch = lanes.gather()
        assert len(batch) <= 1 or sum(item.items for item in batch) <= batch_items_max
        served += batch
    assert not lanes
    assert lanes.waiting_items == 0
    for mine in put.values():
        assert [item for item in served if item in mine] == mine
    assert len(served) == sum(map(len, put.values()))
    loop.close()
