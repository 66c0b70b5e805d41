"""Tests, without a cluster, what a runner stores and repeats, and which plans it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import finegrain_client as fg
from finegrain.v1 import task_executor_pb2 as te
from finegrain_client.graph.schedule import (
    CancelOrdered,
    CancelTask,
    DelayOver,
    DeployTask,
    Event,
    HostLost,
    JobEnded,
    JobStarted,
    RegionState,
    RequestRejected,
    RequestSlots,
    SlotLost,
    SlotsGranted,
    StartDelay,
    TaskEnded,
    TaskFailed,
    TaskId,
    region_statuses,
)
from finegrain_client.graph_run.event_json import event_from_json, event_to_json
from finegrain_client.graph_run.job_state import JobState
from finegrain_client.graph_run.state_file import GraphStateFile
from finegrain_client.graph_run.task_start import EDGES_MAX, edges_json, graph_place
from tests.support.properties import examples


def two_regions(**more: Any) -> fg.JobGraph:
    """Two operators behind each other, in two regions."""
    graph = fg.JobGraph("two", "batch", options=fg.JobOptions(program=["./work"]))
    first = graph.operator("first", parallelism=2, **more)
    second = graph.operator("second")
    graph.connect(first, second, exchange="blocking", pattern="all-to-all")
    return graph


@pytest.mark.parametrize(
    "event",
    [
        JobStarted(),
        SlotsGranted(1, 1, ("a", "b")),
        RequestRejected(1, "too large"),
        TaskEnded(TaskId("first", 0, 1)),
        TaskFailed(TaskId("first", 0, 1), "why", "first -> second"),
        HostLost("a"),
        SlotLost(3),
        DelayOver(1, 2),
        CancelOrdered(),
    ],
)
def test_every_event_is_read_back(event: Event) -> None:
    assert event_from_json(event_to_json(event)) == event


def answers(state: JobState) -> list[Event]:
    """Returns the events that may happen next."""
    found: list[Event] = [CancelOrdered()]
    for effect in state.outstanding():
        match effect:
            case RequestSlots(number, _, places, first_slot):
                found.append(SlotsGranted(number, first_slot, ("a",) * len(places)))
            case DeployTask(task):
                found += [TaskEnded(task), TaskFailed(task, "it failed")]
            case CancelTask(task):
                found.append(TaskFailed(task, "it was cancelled"))
            case StartDelay(region, attempt):
                found.append(DelayOver(region, attempt))
            case _:
                pass
    found += [SlotLost(each) for each in sorted(state.granted_slots())]
    return [*found[1:], found[0]]


@settings(max_examples=examples(60))
@given(data=st.data())
def test_what_is_outstanding_leads_every_history_to_its_end(data: st.DataObject) -> None:
    """A new runner knows only the stored events, and repeats the outstanding effects. It never
    waits for work that no process does, and has the same state as the runner before it.
    """
    plan = two_regions().compile()
    events: list[Event] = [JobStarted()]
    state = JobState(plan, events)
    for _ in range(data.draw(st.integers(0, 25))):
        if state.ended is not None:
            break
        event = data.draw(st.sampled_from(answers(state)))
        events.append(event)
        state.step(event)
    again = JobState(plan, [event_from_json(event_to_json(each)) for each in events])
    assert again.outstanding() == state.outstanding()
    assert region_statuses(again.schedule) == region_statuses(state.schedule)
    while again.ended is None:
        again.step(answers(again)[0])
    assert not again.granted_slots()


def test_a_region_says_what_it_waits_for() -> None:
    state = JobState(two_regions().compile(), [JobStarted()])
    first, second = region_statuses(state.schedule)
    assert (first.state, first.reason) == (RegionState.REQUESTING, "2 slots")
    assert (second.waits_for_regions, second.reason) == ((1,), "input from region 1")
    state.step(SlotsGranted(1, 1, ("a", "b")))
    state.step(TaskFailed(TaskId("first", 0, 1), "exit code 3"))
    first, _ = region_statuses(state.schedule)
    assert (first.state, first.reason) == (RegionState.CANCELLING, "the end of 1 task")
    assert first.message == "exit code 3"
    state.step(TaskFailed(TaskId("first", 1, 1), "cancelled"))
    assert region_statuses(state.schedule)[0].reason == "the delay before its restart"


def test_a_task_finds_the_hosts_of_its_input() -> None:
    """For a later attempt, they are the hosts of that attempt."""
    plan = two_regions().compile()
    state = JobState(plan, [JobStarted(), SlotsGranted(1, 1, ("a", "b"))])
    state.step(SlotLost(1))
    state.step(TaskFailed(TaskId("first", 1, 1), "cancelled"))
    (request,) = state.outstanding()
    assert isinstance(request, RequestSlots)
    state.step(SlotsGranted(request.request, request.first_slot, ("c",) * len(request.places)))
    edges = edges_json(plan, state, TaskId("second", 0, 1), {"c": "10.0.0.3:7070"})
    (entry,) = edges["inputs"]
    assert (entry["edge"], entry["exchange"]) == ("first -> second", "blocking")
    assert entry["tasks"] == [
        {"subtask": each, "attempt": 2, "executor_id": "c", "host": "10.0.0.3"} for each in (0, 1)
    ]


def test_a_job_ends_once_and_remembers_who_ended_it() -> None:
    state = JobState(two_regions().compile(), [JobStarted(), CancelOrdered()])
    assert isinstance(state.ended, JobEnded)
    assert state.outcome == "CANCELLED"


def test_plans_that_cannot_run_are_refused() -> None:
    """Some plans can be made but not run."""
    graph = fg.JobGraph("empty")
    graph.operator("source")
    with pytest.raises(fg.GraphError, match="operator source has no program to run; set program"):
        fg.GraphRunSpec(graph.compile())
    with pytest.raises(fg.GraphError, match="operator first needs ports"):
        fg.GraphRunSpec(two_regions(ports=1).compile())
    wide = fg.JobGraph("wide", options=fg.JobOptions(program=["./work"]))
    wide.operator("source", parallelism=1001)
    with pytest.raises(fg.GraphError, match="needs 1001 slots at the same time; at most 1000"):
        fg.GraphRunSpec(wide.compile())


def test_a_state_file_keeps_spec_and_events(tmp_path: Path) -> None:
    spec = fg.GraphRunSpec(two_regions().compile(), env={"A": "1"}, cwd="/tmp")
    path = tmp_path / "jobs" / "state"
    file = GraphStateFile.create(path, spec)
    file.append([JobStarted(), SlotLost(1)], {"a": "10.0.0.1:7070"})
    with pytest.raises(fg.AlreadyExists, match="another runner is working on"):
        GraphStateFile.open(path)
    file.close()
    again = GraphStateFile.open(path)
    assert (again.spec, again.events()) == (spec, [JobStarted(), SlotLost(1)])
    assert (again.run_id, again.addresses()) == (file.run_id, {"a": "10.0.0.1:7070"})
    again.close()
    with pytest.raises(fg.ConfigurationError, match="is not the state file of a batch"):
        fg.batch.read_status(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_place_of_a_chain_has_its_edges_in_both_directions() -> None:
    plan = two_regions().compile()
    first, second = (graph_place(plan, plan.chain_named[each]) for each in ("first", "second"))
    assert first == te.GraphPlace(
        chain="first",
        slot_sharing_group="region-1",
        region=1,
        edges=[te.ChainEdge(chain="second", parallelism=1, is_blocking=True)],
    )
    assert second == te.GraphPlace(
        chain="second",
        slot_sharing_group="region-2",
        region=2,
        edges=[te.ChainEdge(chain="first", parallelism=2, is_input=True, is_blocking=True)],
    )


def test_a_place_in_a_large_graph_stays_short() -> None:
    graph = fg.JobGraph("wide", "streaming", options=fg.JobOptions(program=["./work"]))
    last = graph.operator("last")
    before = None
    for number in range(EDGES_MAX + 50):
        graph.connect(graph.operator(f"source-{number}"), last)
    for number in range(100):
        operator = graph.operator(f"link-{number}")
        if before is not None:
            graph.connect(before, operator)
        before = operator
    plan = graph.compile()
    place = graph_place(plan, plan.chain_named["last"])
    assert (place.chain, len(place.edges)) == ("last", EDGES_MAX)
    (chain,) = [each for each in plan.chains if each.operators[0].name == "link-0"]
    assert graph_place(plan, chain).chain == "link-0 and 99 more"
