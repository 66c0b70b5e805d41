"""How a job's regions start, pass on slots, fail, and run again."""

from __future__ import annotations

from itertools import pairwise

import pytest

import finegrain_client as fg
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.schedule import (
    CancelOrdered,
    CancelRequest,
    CancelTask,
    DelayOver,
    DeployTask,
    Effect,
    HostLost,
    JobEnded,
    JobStarted,
    PassSlot,
    RegionState,
    ReleaseSlot,
    RequestRejected,
    RequestSlots,
    Schedule,
    SlotLost,
    SlotPlace,
    SlotRevoked,
    SlotsGranted,
    StartDelay,
    TaskEnded,
    TaskFailed,
    TaskId,
)
from finegrain_client.graph.schedule.schedule import LOSSES_MAX
from finegrain_client.graph.values import Output


def chain_of_regions(
    *parallelism: int, output: Output = Output.HOST, restarts_max: int = 3
) -> Plan:
    """Returns a batch job a => b => c ..., one operator in each region."""
    options = fg.JobOptions(restarts_max=restarts_max)
    graph = fg.JobGraph("job", "batch", options=options)
    names = "abcdef"[: len(parallelism)]
    for name, count in zip(names, parallelism, strict=True):
        graph.operator(name, parallelism=count, output=output)
    for producer, consumer in pairwise(names):
        graph.connect(producer, consumer, exchange="blocking", pattern="all-to-all")
    return graph.compile()


def granted(effects: list[Effect], *hosts: str) -> SlotsGranted:
    """Returns the grant of the request among the effects; by default all slots on one host."""
    (request,) = [each for each in effects if isinstance(each, RequestSlots)]
    return SlotsGranted(
        request.request, request.first_slot, hosts or ("host-a",) * len(request.places)
    )


def started(plan: Plan, *hosts: str) -> Schedule:
    """Returns a schedule whose first region runs."""
    schedule = Schedule(plan)
    schedule.step(granted(schedule.step(JobStarted()), *hosts))
    return schedule


def end(schedule: Schedule, chain: str) -> list[Effect]:
    """Ends all tasks of a chain, and returns the effects of the last end."""
    effects: list[Effect] = []
    for task in [
        task
        for region in schedule.regions.values()
        for task in list(region.running)
        if task.chain == chain
    ]:
        effects = schedule.step(TaskEnded(task))
    return effects


def states(schedule: Schedule) -> str:
    return " ".join(each.state for each in schedule.regions.values())


# -- starting ----------------------------------------------------------------------------------


def test_a_region_without_input_requests_its_slots_together() -> None:
    schedule = Schedule(chain_of_regions(2, 1))

    assert schedule.step(JobStarted()) == [
        RequestSlots(1, 1, (SlotPlace("region-1", 0), SlotPlace("region-1", 1)), 1)
    ]
    assert states(schedule) == "REQUESTING WAITING"


def test_its_tasks_start_when_all_slots_are_there() -> None:
    schedule = Schedule(chain_of_regions(2, 1))
    request = schedule.step(JobStarted())

    assert schedule.step(granted(request)) == [
        DeployTask(TaskId("a", 0, 1), 1),
        DeployTask(TaskId("a", 1, 1), 2),
    ]


def test_the_next_region_gets_the_slots_and_the_rest_is_released() -> None:
    schedule = started(chain_of_regions(3, 2))

    assert end(schedule, "a") == [
        PassSlot(1, SlotPlace("region-2", 0)),
        PassSlot(2, SlotPlace("region-2", 1)),
        DeployTask(TaskId("b", 0, 1), 1),
        DeployTask(TaskId("b", 1, 1), 2),
        ReleaseSlot(3, finished=True),
    ]
    assert end(schedule, "b") == [
        ReleaseSlot(1, finished=True),
        ReleaseSlot(2, finished=True),
        JobEnded(ok=True),
    ]
    assert schedule.ended


def test_slots_that_are_not_enough_are_released_and_all_are_requested() -> None:
    """If a region waited with some of its slots, it could block a region that waits with the other
    slots.
    """
    schedule = started(chain_of_regions(1, 3))
    effects = end(schedule, "a")

    assert effects[0] == ReleaseSlot(1, finished=True)
    assert isinstance(effects[1], RequestSlots)
    assert len(effects[1].places) == 3


def test_slots_of_another_profile_are_released() -> None:
    graph = fg.JobGraph("job", "batch")
    for name, cpu in ("a", 100), ("b", 200):
        resources = fg.ResourceSpec(cpu_milli=cpu, task_heap_memory_bytes=fg.MIB)
        graph.operator(name, resources=resources)
    graph.connect("a", "b", exchange="blocking")
    schedule = started(graph.compile())

    release, request = end(schedule, "a")
    assert release == ReleaseSlot(1, finished=True)
    assert isinstance(request, RequestSlots)


def test_a_region_waits_for_all_its_inputs() -> None:
    graph = fg.JobGraph("job", "batch")
    for name in ("a", "b", "join"):
        graph.operator(name)
    graph.connect("a", "join", exchange="blocking")
    graph.connect("b", "join", exchange="blocking")
    schedule = Schedule(graph.compile())
    first, second = schedule.step(JobStarted())
    schedule.step(granted([first]))
    schedule.step(granted([second]))

    assert end(schedule, "a") == [ReleaseSlot(1, finished=True)]
    assert states(schedule) == "FINISHED RUNNING WAITING"
    end(schedule, "b")
    assert states(schedule) == "FINISHED FINISHED RUNNING"


def test_a_slot_can_pass_to_a_region_whose_request_is_outstanding() -> None:
    graph = fg.JobGraph("job", "batch")
    graph.operator("a")
    graph.operator("b")
    schedule = Schedule(graph.compile())
    first, second = schedule.step(JobStarted())
    assert isinstance(second, RequestSlots)
    schedule.step(granted([first]))

    effects = end(schedule, "a")
    assert PassSlot(1, SlotPlace("region-2", 0)) in effects
    assert CancelRequest(second.request) in effects
    # The grant crossed the cancellation.
    assert schedule.step(granted([second])) == [ReleaseSlot(second.first_slot)]


def test_regions_of_one_group_that_run_together_share_slots() -> None:
    """Two components of a streaming job: 3 slots are enough for 3 + 2 tasks."""
    graph = fg.JobGraph("job", "streaming")
    graph.operator("a", parallelism=3)
    graph.operator("b", parallelism=2)
    schedule = Schedule(graph.compile())
    (request,) = schedule.step(JobStarted())
    effects = schedule.step(granted([request]))

    assert len([each for each in effects if isinstance(each, DeployTask)]) == 5
    assert states(schedule) == "RUNNING RUNNING"


# -- failures ----------------------------------------------------------------------------------


def test_a_failed_region_runs_again_in_the_same_slots_after_a_delay() -> None:
    schedule = started(chain_of_regions(2, 1))

    assert schedule.step(TaskFailed(TaskId("a", 0, 1), "exit code 1")) == [
        CancelTask(TaskId("a", 1, 1))
    ]
    assert schedule.step(TaskFailed(TaskId("a", 1, 1), "cancelled")) == [StartDelay(1, 1, 1.0)]
    assert states(schedule) == "DELAYED WAITING"
    assert schedule.step(DelayOver(1, 1)) == [
        DeployTask(TaskId("a", 0, 2), 1),
        DeployTask(TaskId("a", 1, 2), 2),
    ]


def test_the_delay_doubles_up_to_a_minute_and_failures_are_limited() -> None:
    schedule = started(chain_of_regions(1, restarts_max=8))
    delays = []
    for attempt in range(1, 9):
        (delay,) = schedule.step(TaskFailed(TaskId("a", 0, attempt), "exit code 1"))
        assert isinstance(delay, StartDelay)
        delays.append(delay.delay_s)
        schedule.step(DelayOver(1, attempt))

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert schedule.step(TaskFailed(TaskId("a", 0, 9), "exit code 1")) == [
        ReleaseSlot(1),
        JobEnded(ok=False, message="task 0 of a failed: exit code 1"),
    ]


def test_a_job_that_fails_ends_the_tasks_of_all_regions_first() -> None:
    graph = fg.JobGraph("job", "batch", options=fg.JobOptions(restarts_max=0))
    graph.operator("a", parallelism=2)
    graph.operator("b")
    schedule = Schedule(graph.compile())
    for request in schedule.step(JobStarted()):
        schedule.step(granted([request]))

    assert schedule.step(TaskFailed(TaskId("a", 0, 1), "boom")) == [
        CancelTask(TaskId("a", 1, 1)),
        CancelTask(TaskId("b", 0, 1)),
    ]
    # A region that no longer runs needs no slots, even while another region is being ended.
    assert schedule.step(TaskFailed(TaskId("b", 0, 1))) == [ReleaseSlot(3)]
    assert schedule.step(TaskEnded(TaskId("a", 1, 1)))[-1] == JobEnded(
        ok=False, message="task 0 of a failed: boom"
    )


def test_cancelling_a_job_withdraws_its_requests() -> None:
    schedule = Schedule(chain_of_regions(2, 1))
    schedule.step(JobStarted())

    assert schedule.step(CancelOrdered()) == [
        CancelRequest(1),
        JobEnded(ok=False, message="the job was cancelled"),
    ]
    assert schedule.step(SlotsGranted(1, 1, ("host-a", "host-a"))) == [
        ReleaseSlot(1),
        ReleaseSlot(2),
    ]


def test_a_request_that_can_never_be_granted_fails_the_job() -> None:
    schedule = Schedule(chain_of_regions(1))
    schedule.step(JobStarted())

    effects = schedule.step(RequestRejected(1, "no executor is large enough"))
    assert effects[-1] == JobEnded(ok=False, message="no executor is large enough")
    assert schedule.ended
    assert schedule.step(CancelOrdered()) == []


# -- losses ------------------------------------------------------------------------------------


def test_a_region_that_lost_a_slot_gives_up_the_others_and_requests_all() -> None:
    schedule = started(chain_of_regions(2, 1), "host-a", "host-b")

    assert schedule.step(SlotLost(1)) == [CancelTask(TaskId("a", 1, 1))]
    effects = schedule.step(TaskFailed(TaskId("a", 1, 1)))
    assert effects[0] == ReleaseSlot(2)
    assert isinstance(effects[1], RequestSlots)
    assert schedule.regions[1].failures == 0


def test_output_on_a_lost_host_is_made_again_with_everything_after_it() -> None:
    """a and b have finished, c runs. The host of b's output is lost; a's output is elsewhere."""
    schedule = Schedule(chain_of_regions(1, 2, 1))
    schedule.step(granted(schedule.step(JobStarted()), "host-a"))
    schedule.step(granted(end(schedule, "a"), "host-b", "host-c"))
    end(schedule, "b")  # c runs in the first slot of b, on host-b
    assert states(schedule) == "FINISHED FINISHED RUNNING"

    effects = schedule.step(HostLost("host-c"))
    assert CancelTask(TaskId("c", 0, 1)) in effects
    assert states(schedule) == "FINISHED REQUESTING CANCELLING"
    schedule.step(TaskFailed(TaskId("c", 0, 1)))
    assert states(schedule) == "FINISHED REQUESTING WAITING"


def test_output_that_no_region_needs_any_more_is_not_made_again() -> None:
    """Only b read a's output, and b has finished."""
    schedule = _with_b_elsewhere()

    schedule.step(HostLost("host-a"))
    assert states(schedule) == "FINISHED FINISHED RUNNING"


def _with_b_elsewhere() -> Schedule:
    """Returns a job a => b => c in which c runs; a ran on host-a, b and c on host-b."""
    schedule = Schedule(chain_of_regions(1, 2, 2))
    schedule.step(granted(schedule.step(JobStarted()), "host-a"))
    schedule.step(granted(end(schedule, "a"), "host-b", "host-b"))
    end(schedule, "b")
    return schedule


def test_durable_output_survives_its_host() -> None:
    schedule = Schedule(chain_of_regions(1, 2, output=Output.DURABLE))
    schedule.step(granted(schedule.step(JobStarted()), "host-a"))
    schedule.step(granted(end(schedule, "a"), "host-b", "host-b"))

    assert schedule.step(HostLost("host-a")) == []
    assert states(schedule) == "FINISHED RUNNING"


def test_lost_output_of_a_region_before_is_made_again_when_it_is_needed_again() -> None:
    """First a's output is lost, which no region needs at this time. Then b must run again, and
    needs this output.
    """
    schedule = _with_b_elsewhere()
    schedule.step(HostLost("host-a"))

    schedule.step(HostLost("host-b"))
    assert states(schedule) == "REQUESTING WAITING WAITING"


@pytest.mark.parametrize("output", Output)
def test_a_task_can_report_that_its_input_is_missing(output: Output) -> None:
    schedule = started(chain_of_regions(1, 1, output=output))
    end(schedule, "a")

    schedule.step(TaskFailed(TaskId("b", 0, 1), "no file", input_missing="a -> b"))
    # a runs again, in the slot that b ran in.
    assert states(schedule) == "RUNNING WAITING"
    assert schedule.regions[1].attempt == 2
    assert schedule.regions[2].failures == 0
    end(schedule, "a")
    assert end(schedule, "b")[-1] == JobEnded(ok=True)


def test_missing_input_of_another_edge_is_a_failure_of_the_task() -> None:
    schedule = started(chain_of_regions(1, 1))
    end(schedule, "a")

    schedule.step(TaskFailed(TaskId("b", 0, 1), "no file", input_missing="b -> c"))
    assert states(schedule) == "FINISHED DELAYED"
    assert schedule.regions[2].failures == 1


def test_a_region_that_always_loses_its_slots_fails_in_the_end() -> None:
    schedule = started(chain_of_regions(1))
    slot = 1
    assert not schedule.ended
    for _ in range(LOSSES_MAX):
        effects = schedule.step(SlotLost(slot))
        slot += 1
        schedule.step(granted(effects))

    (ended,) = schedule.step(SlotLost(slot))
    assert ended == JobEnded(
        ok=False, message=f"region 1 was restarted {LOSSES_MAX} times: slot {slot} was lost"
    )


def test_a_region_whose_slots_are_revoked_runs_again_any_number_of_times() -> None:
    schedule = started(chain_of_regions(1))
    slot = 1
    for _ in range(LOSSES_MAX + 5):
        effects = schedule.step(SlotRevoked(slot))
        slot += 1
        schedule.step(granted(effects))

    assert states(schedule) == "RUNNING"
    region = schedule.regions[1]
    assert (region.losses, region.failures) == (0, 0)
    assert region.message == f"slot {slot - 1} was revoked"


def test_a_revocable_slot_does_not_pass_to_a_group_that_is_not_revocable() -> None:
    graph = fg.JobGraph("job", "batch")
    graph.operator("a", revocable=True)
    graph.operator("b")
    graph.connect("a", "b", exchange="blocking")
    schedule = started(graph.compile())

    release, request = end(schedule, "a")
    assert release == ReleaseSlot(1, finished=True)
    assert isinstance(request, RequestSlots)


def test_news_of_an_attempt_that_is_over_changes_nothing() -> None:
    schedule = started(chain_of_regions(1))
    schedule.step(TaskFailed(TaskId("a", 0, 1), "boom"))
    schedule.step(DelayOver(1, 1))

    for event in (TaskEnded(TaskId("a", 0, 1)), TaskFailed(TaskId("a", 0, 1)), DelayOver(1, 1)):
        assert schedule.step(event) == []
    assert schedule.step(SlotLost(99)) == []
    assert schedule.regions[1].state is RegionState.RUNNING
