"""Checks dependencies between jobs, limits of users, and the rules that choose a group.

It evaluates conditions, limits and rules itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any
from weakref import WeakKeyDictionary

from finegrain.errors import Reason
from finegrain.values.dependencies import JobDependency
from finegrain.values.states import JobCondition, JobOutcome, SlotState
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Job, JobState
from resource_manager.engine.model.events import JobRegistered, RequestsSubmitted
from resource_manager.engine.state import State
from resource_manager.storage import tables
from resource_manager.storage.rows import USER_LIMITS
from tests.simulation.database import Database

ALL_USERS = "*"
OUTCOMES = {
    JobCondition.OK: {JobOutcome.SUCCEEDED},
    JobCondition.FAILED: {JobOutcome.FAILED},
    JobCondition.ANY: set(JobOutcome),
}


@dataclass(frozen=True)
class Used:
    """The state before a call: the owner's numbers of jobs and requests, and whether the job
    exists.
    """

    owner: str
    jobs: int
    requests: int
    known: bool


@dataclass
class JobChecks:
    """Counts what happened."""

    did: Counter[str] = field(default_factory=Counter)
    # jobs that wait for others, after the last batch
    _waiting: WeakKeyDictionary[State, set[str]] = field(default_factory=WeakKeyDictionary)

    def restored(self, state: State, database: Database) -> Iterator[str]:
        """Compares the limits of users that a manager has read with the database."""
        rows = database.rows.keyed(tables.user_limits)
        durable = {name: USER_LIMITS.decode(row).maximum for (name,), row in rows.items()}
        if durable != state.flows.users.limits:
            yield f"the limits of users are {state.flows.users.limits}, not {durable}"

    def decided(self, state: State, changes: Changes) -> Iterator[str]:
        """Checks a batch; yields problems."""
        for slot in changes.slots:
            job = state.jobs.get(slot.job_id)
            if job is None or slot.state is not SlotState.PENDING:
                continue
            for each in (
                job.depends_on if (slot.allocation_id, slot.generation) in state.slots else ()
            ):
                if not is_met(state, each):
                    yield f"{slot.allocation_id} is placed, but {job.job_id} waits for {each}"
        waiting = {
            job.job_id
            for job in state.jobs.values()
            if job.state is JobState.ACTIVE and waits(state, job)
        }
        before = self._waiting.get(state, set())
        self.did["dependencies met"] += sum(
            state.jobs[name].state is JobState.ACTIVE for name in before - waiting
        )
        self._waiting[state] = waiting
        for job in changes.jobs:
            if job.end_reason == Reason.DEPENDENCY_FAILED and job.state is JobState.ENDED:
                self.did["dependencies failed"] += 1
                if not any(_has_failed(state, each) for each in job.depends_on):
                    yield f"{job.job_id} is ended, but none of its dependencies has failed"

    def healed(self, state: State) -> Iterator[str]:
        """Yields jobs that should not wait any more, or should have been ended."""
        for job in state.jobs.values():
            if job.state is not JobState.ACTIVE or not job.depends_on:
                continue
            if any(_has_failed(state, each) for each in job.depends_on):
                yield f"{job.job_id} waits for {job.depends_on}, which cannot be met"
            if not waits(state, job) and state.dependencies.awaited(job.job_id):
                yield f"{job.job_id} still waits, although all its dependencies are met"

    # -- calls -----------------------------------------------------------------------------

    def used(self, state: State, event: JobRegistered | RequestsSubmitted) -> Used:
        """Returns the owner's numbers of jobs and requests before a call."""
        job = state.jobs.get(event.job_id)
        if isinstance(event, JobRegistered):
            owner = event.owner
        else:
            owner = job.owner if job is not None else ""
        jobs = [each for each in state.jobs.values() if each.owner == owner]
        return Used(
            owner,
            sum(each.state is JobState.ACTIVE for each in jobs),
            sum(each.live_requests for each in jobs),
            job is not None,
        )

    def answers(
        self, state: State, event: JobRegistered | RequestsSubmitted, before: Used, answer: Any
    ) -> Iterator[str]:
        """Checks the answer to a call; yields problems."""
        limits = limits_of(state, before.owner)
        after = self.used(state, event)
        for name, had, has in (
            ("jobs", before.jobs, after.jobs),
            ("requests", before.requests, after.requests),
        ):
            if has > had and has > limits.get(name, has):
                yield f"{before.owner} has {has} {name}; its limit is {limits[name]}"
        if not isinstance(answer, Job) or not isinstance(event, JobRegistered):
            return
        if not event.group and not before.known:
            self.did["groups chosen"] += 1
            group = _chosen(state, event)
            if answer.group != group:
                yield f"{answer.job_id} is in group {answer.group}; the rules say {group}"


def limits_of(state: State, owner: str) -> dict[str, int]:
    """Returns the limits of an owner of jobs."""
    limits = state.flows.users.limits
    found = limits.get(owner)
    if found is None and owner.startswith("user/"):
        found = limits.get(ALL_USERS)
    return dict(found or {})


def is_met(state: State, each: JobDependency) -> bool:
    """Returns whether a dependency is met. A deleted job counts as met."""
    other = state.jobs.get(each.job_id)
    if other is None:
        return True
    return _has_ended(state, other) and other.outcome in OUTCOMES[each.condition]


def waits(state: State, job: Job) -> bool:
    """Returns whether a job waits for another job."""
    return any(not is_met(state, each) for each in job.depends_on)


def _has_ended(state: State, job: Job) -> bool:
    return job.state is JobState.ENDED and job.job_id not in state.endings


def _has_failed(state: State, each: JobDependency) -> bool:
    other = state.jobs.get(each.job_id)
    return other is not None and _has_ended(state, other) and not is_met(state, each)


def _chosen(state: State, event: JobRegistered) -> str:
    """Returns the group that the rules choose."""
    labels, found = dict(event.labels), {}
    for name, group in state.groups.items():
        for rule in group.rules:
            patterns: list[tuple[str, str | None]]
            patterns = [(rule.job, event.name), (rule.user, event.owner)]
            patterns += [(text, labels.get(key)) for key, text in rule.labels]
            if all(
                not text or (value is not None and re.match(translate(text), value))
                for text, value in patterns
            ):
                found[rule.order] = name
    return found[min(found)] if found else "default"
