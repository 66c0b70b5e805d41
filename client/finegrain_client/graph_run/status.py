"""Reads the status of a job from its state file, with or without a runner that works on the job.

Reading does not change the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from finegrain_client.batch.lock import runner_of
from finegrain_client.graph.schedule import RegionState, RegionStatus, region_statuses
from finegrain_client.graph_run.job_state import JobState
from finegrain_client.graph_run.spec import GraphRunSpec
from finegrain_client.graph_run.state_file import read_events, read_meta, reading
from finegrain_client.graph_run.task_start import slot_prefix, task_id_of
from finegrain_client.graph_run.values import GraphProgress, GraphState


@dataclass(frozen=True, slots=True)
class TaskPlacement:
    """Slot and executor of the latest attempt of a subtask. `running` is false after the end of
    this attempt.
    """

    task_id: str
    region: int
    chain: str
    subtask: int
    attempt: int
    running: bool
    slot: int
    executor_id: str


@dataclass(frozen=True, slots=True)
class SlotInUse:
    """A slot of the job, its place in the plan, and the operators that run in it."""

    slot: int
    allocation_id: str
    group: str
    position: int
    executor_id: str
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotsRequested:
    """Slots that a region has requested but not received. These slots are granted all together or
    not at all.
    """

    region: int
    allocation_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphJobStatus:
    """A job as its state file shows it.

    `runner_pid` and `runner_host` identify the runner. They are 0 and empty if there is no runner.
    """

    state_file: str
    job_id: str  # empty if the job is not registered yet
    spec: GraphRunSpec
    create_time: datetime
    runner_pid: int
    runner_host: str
    state: GraphState
    message: str
    progress: GraphProgress
    regions: tuple[RegionStatus, ...]
    tasks: tuple[TaskPlacement, ...]
    slots: tuple[SlotInUse, ...]
    requests: tuple[SlotsRequested, ...]

    @property
    def is_worked_on(self) -> bool:
        """True if a runner works on the job."""
        return bool(self.runner_host)


def read_job_status(state_file: str | os.PathLike[str]) -> GraphJobStatus:
    """Returns the status of a job.

    Raises:
        NotFound: there is no such file.
        ConfigurationError: the file is not the state file of a job, or has another version.
    """
    path = Path(state_file)
    # Read the runner before the file. If the runner ends between the two reads, the file has the
    # last events of the runner.
    runner = runner_of(path)
    with reading(path) as connection:
        meta, events = read_meta(connection), read_events(connection)
    spec = GraphRunSpec.from_json(meta["spec"])
    state = JobState(spec.plan, events)
    regions = state.schedule.regions
    prefix = slot_prefix(meta["run_id"], meta.get("job_number", ""))
    tasks = []
    operators: dict[int, list[str]] = {}
    for task in sorted(state.latest.values()):
        region = regions[spec.plan.chain_named[task.chain].region]
        slot = state.slot_of_task[task]
        running = task in region.running and region.state is not RegionState.FINISHED
        host = state.host_of_slot[slot]
        if running:
            chain = spec.plan.chain_named[task.chain]
            operators.setdefault(slot, []).extend(each.name for each in chain.operators)
        task_id = task_id_of(meta["run_id"], task)
        tasks.append(TaskPlacement(task_id, region.plan.number, *task, running, slot, host))
    return GraphJobStatus(
        state_file=str(path),
        job_id=meta.get("job_id", ""),
        spec=spec,
        create_time=datetime.fromtimestamp(float(meta["create_time"]), UTC),
        # Never return a negative pid, because `kill` with a negative pid ends a whole process
        # group, or every process.
        runner_pid=max(0, int(runner.get("pid", 0))) if runner is not None else 0,
        runner_host=str(runner.get("host", "?")) if runner is not None else "",
        state=state.outcome,
        message=state.ended.message if state.ended is not None else "",
        progress=state.progress(),
        regions=tuple(region_statuses(state.schedule)),
        tasks=tuple(tasks),
        slots=tuple(
            SlotInUse(
                slot.number,
                f"{prefix}-{slot.number}",
                place.group,
                place.position,
                slot.host,
                tuple(operators.get(slot.number, ())),
            )
            for place, slot in sorted(state.schedule.slots.at.items())
        ),
        requests=tuple(
            SlotsRequested(
                each.region,
                tuple(f"{prefix}-{each.first_slot + at}" for at in range(len(each.places))),
            )
            for each in sorted(state.requests.values(), key=lambda each: each.region)
        ),
    )
