"""Tests of the order of queues.

Within a queue arrival numbers decide, also for requests that return. Between the queues of a job
the oldest request decides, and between jobs the tree of flows.
"""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.entities import Request, RequestSpec
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import INACTIVE, JobQueue, SchedulingClass

SMALL, LARGE = ResourceProfile(100, 64 * MIB), ResourceProfile(900, 64 * MIB)


def request(number: int, job_id: str = "job", profile: ResourceProfile | None = None) -> Request:
    return Request(RequestSpec(f"r{number}", profile), job_id, number, 0)


def tree(*job_ids: str) -> FlowTree:
    flows = FlowTree(Fairness(usage_measure="slots"), 0)
    flows.put_group("default")
    for job_id in job_ids:
        flows.add_job(job_id, "default")
    return flows


def turns(queue: WaitingQueue, count: int = 100) -> list[int]:
    """Returns the order of service if there is capacity for all."""
    queue.begin_pass()
    while (shape := queue.next_class()) is not None:
        queue.has_room(shape, 1_000)
    served: list[int] = []
    while len(served) < count and (line := queue.order.next_queue()) is not None:
        served += queue.order.next_of(line, 1)
        queue.taken(line, 1)
    return served


def test_a_request_that_comes_back_stands_at_its_old_place() -> None:
    queue = WaitingQueue()
    requests = [request(number) for number in range(1, 6)]
    for one in requests:
        queue.add(one)
    (shape,) = queue.classes()
    queue.served(shape, requests[:3])
    queue.add(requests[1])
    assert list(shape.numbers()) == [2, 4, 5]
    assert shape.head() == 2
    assert shape.count_before(5) == 2
    assert turns(queue) == [2, 4, 5]
    assert len(queue) == 0
    assert queue.classes() == []


def test_a_job_is_served_in_order_of_arrival_whatever_it_asks_for() -> None:
    queue = WaitingQueue(tree("job"))
    for number in range(1, 9):
        queue.add(request(number, profile=LARGE if number % 3 == 0 else SMALL))
    assert turns(queue, 5) == [1, 2, 3, 4, 5]
    queue.add(request(2, profile=SMALL))
    assert turns(queue) == [2, 6, 7, 8]


def test_what_is_served_together_ends_where_another_line_stands() -> None:
    queue = WaitingQueue(tree("job"))
    for number in (1, 2, 3, 5, 6):
        queue.add(request(number, profile=SMALL))
    queue.add(request(4, profile=LARGE))
    line = queue.order.next_queue()
    assert line is not None
    assert queue.order.next_of(line, 100) == [1, 2, 3]
    assert queue.order.next_of(line, 2) == [1, 2]


def test_a_line_that_is_parked_leaves_the_turn_to_others_until_there_is_room() -> None:
    flows = tree("first", "second")
    queue = WaitingQueue(flows)
    queue.add(request(1, "first", LARGE))
    queue.add(request(2, "second", SMALL))
    queue.begin_pass()
    large, small = queue.next_class(), queue.next_class()
    assert large is not None
    assert small is not None
    queue.block(large)
    queue.has_room(small, 10)
    line = queue.order.next_queue()
    assert line is not None
    assert line.scheduling_class is large
    queue.deactivate(line)
    assert flows.jobs["first"].active == 0
    line = queue.order.next_queue()
    assert line is not None
    assert line.job_id == "second"
    queue.block_fitting()
    assert not queue.unblocked
    queue.unblock(())
    queue.begin_pass()
    assert queue.next_class() is large
    assert queue.has_room(large, 10) == 1
    line = queue.order.next_queue()
    assert line is not None
    assert line.job_id == "first"


def test_very_many_parked_lines_stand_again_a_part_at_a_time() -> None:
    names = [f"j{number}" for number in range(10)]
    queue = WaitingQueue(tree(*names))
    for number, name in enumerate(names):
        queue.add(request(number, name))
    queue.begin_pass()
    shape = queue.next_class()
    assert shape is not None
    queue.block(shape)
    for line in queue.job_queues():
        queue.deactivate(line)
    queue.unblock(())
    queue.begin_pass()
    assert queue.next_class() is shape
    assert queue.has_room(shape, 6) == 6
    assert queue.in_pass
    assert shape not in queue.fitting
    assert queue.next_class() is shape
    assert queue.has_room(shape, 6) == 4
    assert shape in queue.fitting


def test_a_line_stopped_by_a_limit_is_tried_again_when_that_is_eased() -> None:
    queue = WaitingQueue(tree("job"))
    queue.add(request(1))
    queue.begin_pass()
    shape = queue.next_class()
    assert shape is not None
    queue.has_room(shape, 10)
    line = queue.order.next_queue()
    assert line is not None
    queue.block_by_quota(line, "group/default")
    assert queue.order.next_queue() is None
    queue.block_fitting()
    assert not queue.current_pass
    assert not queue.for_next_pass
    assert queue.unblock_by_quota("group/default", lambda _: True, 10) == 1
    assert queue.unblocked
    assert turns(queue) == [1]


def test_of_very_many_who_were_stopped_some_are_eased_at_a_time_whom_the_maximum_admits() -> None:
    names = [f"j{number}" for number in range(6)]
    queue = WaitingQueue(tree(*names))
    for number, name in enumerate(names):
        queue.add(request(number, name, LARGE if number < 2 else SMALL))
    queue.begin_pass()
    for line in queue.job_queues():
        queue.next_class()
        queue.block_by_quota(line, "group/default")
    small = queue.class_of(request(0, profile=SMALL).spec)
    assert queue.unblock_by_quota("group/another", lambda _: True, 10) == 0
    assert queue.unblock_by_quota("group/default", lambda shape: shape is small, 3) == 3
    assert [line.job_id for line in queue.quota_blocked] == ["j0", "j1", "j5"]
    assert queue.unblock_by_quota("group/default", lambda shape: shape is small, 3) == 1
    assert queue.unblock_by_quota("group/default", lambda shape: shape is small, 3) == 0
    assert [line.job_id for line in queue.quota_blocked] == ["j0", "j1"]
    assert [line.job_id for line in queue.job_queues() if line.position != INACTIVE] == names[2:]


def test_those_who_come_and_go_leave_nothing_behind_with_one_who_stays() -> None:
    """The first item is not looked up again while it stays the first."""
    for fair in (True, False):
        queue = WaitingQueue(tree("old", "new"), fair=fair)
        queue.add(request(1, "old", SMALL))
        queue.add(request(2, "new", LARGE))
        for number in range(3, 1_003):
            queue.add(one := request(number, "new", SMALL))
            queue.remove(one)
        gc.collect()
        assert sum(isinstance(each, JobQueue) for each in gc.get_objects()) < 200
        queue.add(request(1_003, "new", SMALL))
        queue.add(request(1_004, "old", LARGE))
        assert list(queue.class_of(request(0, profile=SMALL).spec).numbers()) == [1, 1_003]
        assert sorted(turns(queue)) == [1, 2, 1_003, 1_004]


def test_a_line_that_is_emptied_wherever_it_is_leaves_nothing_behind() -> None:
    for how in ("stands", "parked", "stopped"):
        queue = WaitingQueue(tree("job"))
        queue.add(one := request(1))
        queue.begin_pass()
        shape = queue.next_class()
        assert shape is not None
        queue.has_room(shape, 10)
        line = queue.order.next_queue()
        assert line is not None
        if how == "parked":
            queue.deactivate(line)
        elif how == "stopped":
            queue.block_by_quota(line, "group/default")
        queue.remove(one)
        assert line.position == INACTIVE
        assert not queue.unblocked
        assert queue.by_job == {}
        assert not queue.quota_blocked
        queue.add(one)
        assert turns(queue) == [1]


def test_a_million_that_came_together_are_one_run() -> None:
    queue = WaitingQueue(tree("job"))
    queue.add_run(RequestSpec("r", SMALL), "job", 10, 1_000_000)
    (line,) = queue.job_queues()
    assert (len(queue), line.numbers.run_count) == (1_000_000, 1)
    queue.remove_run(RequestSpec("r", SMALL), "job", 500, 1_000)
    assert (len(queue), line.numbers.run_count) == (999_000, 2)
    assert request(499, profile=SMALL) in queue
    assert request(500, profile=SMALL) not in queue


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.sampled_from("abc"))))
def test_the_line_is_who_waits_in_order(moves: list[tuple[bool, int, str]]) -> None:
    """Of a scheduling class over all jobs, and of each job."""
    queue = WaitingQueue(tree("a", "b", "c", "keeper"))
    waiting: dict[int, Request] = {}
    queue.add(keeper := request(100, "keeper"))
    (shape,) = queue.classes()
    for comes, number, job_id in moves:
        if comes and number not in waiting:
            queue.add(waiting.setdefault(number, request(number, job_id)))
        elif not comes and number in waiting:
            queue.remove(waiting.pop(number))
        assert shape.head() == min([*waiting, 100])
        assert list(shape.numbers()) == [*sorted(waiting), keeper.arrival_number]
        by_job = {line.job_id: list(line.numbers) for line in _lines(shape)}
        assert by_job == {
            name: found
            for name in ("a", "b", "c", "keeper")
            if (
                found := sorted(n for n, r in [*waiting.items(), (100, keeper)] if r.job_id == name)
            )
        }


def _lines(shape: SchedulingClass) -> list[JobQueue]:
    return list(shape.job_queues.values())
