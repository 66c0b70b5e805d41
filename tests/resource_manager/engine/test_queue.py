"""The line within a shape: arrival numbers decide, whoever left and came back included."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resource_manager.engine.entities import Request, RequestSpec
from resource_manager.engine.queue import Shape, WaitingQueue


def request(number: int) -> Request:
    return Request(RequestSpec(f"r{number}", None), "job", number, 0)


def line_of(shape: Shape, until: int | None = None, most: int = 100) -> list[int]:
    return [one.arrival_number for one in shape.before(until, most)]


def test_a_request_that_comes_back_stands_at_its_old_place() -> None:
    queue = WaitingQueue()
    requests = [request(number) for number in range(1, 6)]
    for one in requests:
        queue.add(one)
    (shape,) = queue.shapes()
    queue.served(shape, requests[:3])
    queue.add(requests[1])
    assert line_of(shape) == [2, 4, 5]
    assert line_of(shape, until=5) == [2, 4]
    assert line_of(shape, most=1) == [2]


def test_a_line_that_moves_on_does_not_grow() -> None:
    queue = WaitingQueue()
    queue.add(request(0))
    (shape,) = queue.shapes()
    for number in range(1, 10_000):
        queue.add(request(number))
        queue.served(shape, shape.before(None, 1))
        assert shape.head() is not None
    assert len(shape.line) < 5_000


def test_a_line_whose_head_waits_for_ever_does_not_grow() -> None:
    queue = WaitingQueue()
    queue.add(request(0))
    (shape,) = queue.shapes()
    for number in range(1, 10_000):
        queue.add(coming := request(number))
        queue.remove(coming)
    assert len(shape.line) < 5_000
    queue.add(request(10_000))
    assert line_of(shape) == [0, 10_000]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30))))
def test_the_line_is_who_waits_in_order(moves: list[tuple[bool, int]]) -> None:
    queue = WaitingQueue()
    waiting: dict[int, Request] = {}
    queue.add(keeper := request(100))
    (shape,) = queue.shapes()
    for comes, number in moves:
        if comes and number not in waiting:
            queue.add(waiting.setdefault(number, request(number)))
        elif not comes and number in waiting:
            queue.remove(waiting.pop(number))
        head = shape.head()
        assert head is not None
        assert head.arrival_number == min([*waiting, 100])
        assert line_of(shape) == [*sorted(waiting), keeper.arrival_number]
