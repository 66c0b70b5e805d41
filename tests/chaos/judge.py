"""Checks a run after its end, from journals, logs, events and the resource manager's state.

It allows only two failures: an executor that was silent for the whole lost timeout may be lost, and
a job master that could not renew its lease may lose its job.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import finegrain_client as fg
from tests.chaos import journal as j
from tests.chaos.excuses import Disturbance, excuses_job_end, excuses_loss
from tests.chaos.journal import read_journal

ENDS = frozenset({"CANCELLED", "REJECTED", "RELEASED", "LOST"})
TELLING_S = 120.0
"""The time within which a job master must learn of the loss of an executor."""

NEVER_LOGGED = ("invariants_broken", "batch_dropped", "writer_failed", "Traceback", "reload_failed")
"""Words that must not be in a daemon's log while its database is available."""

STARVED = "terminating connection due to idle-in-transaction timeout"
"""PostgreSQL ends a transaction whose process got no cpu for a part of the lease (decision 7).

This happens on machines that are as busy as in these runs. Then the batch is dropped, and no client
has got an answer.
"""


@dataclass
class Master:
    """The contents of one job master's journal."""

    name: str
    node: str
    killed: bool = False
    done: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    last_state: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)  # unfinished tasks: task to request
    lost: list[Mapping[str, Any]] = field(default_factory=list)
    lost_jobs: list[Mapping[str, Any]] = field(default_factory=list)
    jobs_of: dict[str, str] = field(default_factory=dict)  # request to job
    wrong: list[str] = field(default_factory=list)

    def take(self, path: Path) -> None:
        for line in read_journal(path):
            self.counts[line["what"]] += 1
            self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        match line["what"]:
            case j.ACKNOWLEDGED:
                self.acknowledged.update(line["ids"])
                self.jobs_of.update(dict.fromkeys(line["ids"], line["job_id"]))
            case j.REFUSED:
                self.refused.add(line["id"])
            case j.EVENT:
                self.last_state[line["id"]] = line["state"]
                self.reasons[line["id"]] = line["reason"]
            case j.TASK:
                self.tasks[line["task_id"]] = line["id"]
            case j.TASK_ENDED:
                self.tasks.pop(line["task_id"], None)
            case j.SLOT_LOST:
                self.lost.append(line)
            case j.JOB_LOST:
                self.lost_jobs.append(line)
            case j.WRONG:
                self.wrong.append(line["message"])
            case j.DONE:
                self.done = True


def judge_masters(
    masters: Sequence[Master],
    disturbances: Sequence[Disturbance],
    losses: Mapping[str, Sequence[float]],
    lease_s: float,
) -> list[str]:
    """Returns failures that job masters have seen and no fault excuses."""
    wrong = []
    for master in masters:
        wrong += [f"{master.name}: {each}" for each in master.wrong]
        if not (master.done or master.killed):
            wrong.append(f"{master.name} did not finish")
        over = {line["job_id"] for line in master.lost_jobs}
        for line in master.lost_jobs:
            if not excuses_job_end(disturbances, master.node, line["at"], lease_s):
                wrong.append(f"{master.name}: job {line['job_id']} ended: {line['reason']}")
        for line in master.lost:
            if not _was_lost(losses.get(line["executor"], ()), line["at"]):
                wrong.append(f"{master.name}: {line['executor']} lost a slot: {line}")
        gone = {line["id"] for line in master.lost}
        for task_id, request in master.tasks.items():
            if master.killed or request in gone or master.jobs_of.get(request) in over:
                continue
            wrong.append(f"{master.name}: task {task_id} in {request} never ended")
    return wrong


def _was_lost(moments: Iterable[float], at: float) -> bool:
    return any(at - TELLING_S <= moment <= at + 5.0 for moment in moments)


def judge_requests(
    masters: Sequence[Master], books: Mapping[str, fg.RequestStatus]
) -> tuple[list[str], Counter[str]]:
    """Checks that every acknowledged request is known and ended as its job master knows."""
    wrong: list[str] = []
    ends: Counter[str] = Counter()
    for master in masters:
        for allocation_id in sorted(master.acknowledged | master.refused):
            known = books.get(allocation_id)
            told = master.last_state.get(allocation_id, "")
            if known is None:
                if allocation_id in master.refused:
                    continue  # it was never accepted
                wrong.append(
                    f"request {allocation_id} of {master.name} is forgotten (told: {told})"
                )
                continue
            ends[known.state] += 1
            if known.state not in ENDS:
                wrong.append(f"request {allocation_id} of {master.name} is still {known.state}")
            elif told in ENDS and told != known.state:
                wrong.append(f"request {allocation_id}: told {told}, in the books {known.state}")
            elif known.state == "REJECTED" and not known.reason:
                wrong.append(f"request {allocation_id} is rejected without a reason")
    return wrong, ends


def judge_losses(
    events: Sequence[fg.ClusterEvent], disturbances: Sequence[Disturbance]
) -> tuple[list[str], dict[str, list[float]]]:
    """Returns losses that no fault excuses, and the moments of the excused ones by executor."""
    wrong, losses = [], defaultdict(list)
    for event in events:
        if event.kind != "executor_lost" or event.event_time is None:
            continue
        at = event.event_time.timestamp()
        if excuses_loss(disturbances, event.executor_id, at):
            losses[event.executor_id].append(at)
        else:
            wrong.append(f"{event.event_time} {event.executor_id} was lost: {event.message}")
    return wrong, dict(losses)


def judge_log(path: Path, forgiven: Sequence[str] = ()) -> list[str]:
    """Returns lines of a daemon's log that must not be there."""
    return [
        f"{path.name}: {_shortened(line)}"
        for line in path.read_text(errors="replace").splitlines()
        if any(word in line for word in NEVER_LOGGED if word not in forgiven)
        and not ("batch_dropped" in line and STARVED in line)
    ]


def grace_after_restart(
    events: Sequence[fg.ClusterEvent], served_at: Sequence[float], timeout_s: float
) -> list[str]:
    """Returns executors that were lost too early after a start of the resource manager."""
    lost = [
        (each.executor_id, each.event_time.timestamp())
        for each in events
        if each.kind == "executor_lost" and each.event_time is not None
    ]
    return [
        f"{name} was lost {at - moment:.1f} s after the resource manager came back, before the "
        f"grace of {timeout_s:g} s"
        for name, at in lost
        for moment in served_at
        if moment < at < moment + timeout_s
    ]


def served_moments(path: Path) -> list[float]:
    """Returns when a resource manager began to serve, according to its log."""
    from datetime import datetime

    moments = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("event") == "serving":
            moments.append(datetime.fromisoformat(entry["timestamp"]).timestamp())
    return moments


def _shortened(line: str) -> str:
    return line if len(line) < 600 else f"{line[:600]} ..."
