"""Tests that the oldest requests of a scheduling class are found without a full search."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from resource_manager.engine.model.entities import Request, RequestSpec
from resource_manager.engine.queue.queue import WaitingQueue

JOBS = "abcde"


@given(
    st.lists(
        st.tuples(st.sampled_from(["comes", "leaves", "asked"]), st.integers(1, 30)), max_size=60
    ),
    st.integers(1, 6),
)
@example([("comes", 11), ("comes", 1), ("comes", 2)], 3)  # a queue is in two places
def test_the_first_lines_are_those_of_who_waits_longest(
    moves: list[tuple[str, int]], most: int
) -> None:
    """Requests are added and removed between queries, and queries change nothing."""
    queue = WaitingQueue(fair=False)
    queue.add(keeper := _request(100, "keeper"))
    (shape,) = queue.classes()
    waiting = {keeper.arrival_number: keeper}
    for what, number in moves:
        if what == "comes" and number not in waiting:
            queue.add(waiting.setdefault(number, _request(number, JOBS[number % len(JOBS)])))
        elif what == "leaves" and number in waiting:
            queue.remove(waiting.pop(number))
        elif what == "asked":
            shape.first_queues(most)
    heads: dict[str, int] = {}
    for number in sorted(waiting):
        heads.setdefault(waiting[number].job_id, number)
    for _ in range(2):
        found = [(line.job_id, line.numbers.first) for line in shape.first_queues(most)]
        assert found == list(heads.items())[:most]
    assert shape.head() == min(waiting)
    assert list(shape.numbers()) == sorted(waiting)


def _request(number: int, job_id: str) -> Request:
    return Request(RequestSpec(f"r{number}", None), job_id, number, 0)
