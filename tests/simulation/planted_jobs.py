"""Planted bugs in run times, timeouts, dependencies between jobs, users, rules of groups, backfill.

They have an effect only if job masters and administrators use these features (`WITH_TIMES`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from finegrain.values.group_rules import GroupRule
from finegrain.values.states import JobCondition
from resource_manager.engine import restoring
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.fairness.users import Users
from resource_manager.engine.jobs import group_rules
from resource_manager.engine.jobs import lifecycle as jobs
from resource_manager.engine.lifecycle.dependency_moves import DependencyMoves
from resource_manager.engine.lifecycle.request_timeouts import RequestTimeouts
from resource_manager.engine.model.effects import Snapshot
from resource_manager.engine.model.entities import Instant, Request
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.placement.reserved import Reservation, Reservations
from resource_manager.engine.queue.dependencies import JobDependencies
from resource_manager.engine.requests import submission
from resource_manager.engine.scheduling.backfill import Backfill, Candidate
from resource_manager.engine.state import State
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import Slot
from tests.simulation import manager as simulated
from tests.simulation.executor import Executor

Patch = pytest.MonkeyPatch


# -- time limits -------------------------------------------------------------------------------


def time_limit_starts_again_with_the_front(patch: Patch) -> None:
    """After a start of the front, time limits count from this start."""
    real = SlotTable.adopt
    recover = Executor._recover
    now_ms = 0

    def adopt(table: SlotTable, slot: Slot) -> Any:
        limited = slot.limited_since_ms is not None
        return real(table, replace(slot, limited_since_ms=now_ms) if limited else slot)

    def recovers(executor: Executor) -> None:
        nonlocal now_ms
        now_ms = executor.loop.now_ms
        recover(executor)

    patch.setattr(SlotTable, "adopt", adopt)
    patch.setattr(Executor, "_recover", recovers)


def time_limit_needs_the_manager(patch: Patch) -> None:
    """While the manager is away, slots run on."""
    real = Executor._end_at_limits

    def end_at_limits(executor: Executor) -> None:
        if executor.loop.now_ms - executor._contact_ms < 1_500:
            real(executor)
        else:
            executor.after(100, executor._end_at_limits)

    patch.setattr(Executor, "_end_at_limits", end_at_limits)


def reused_slot_keeps_its_old_count(patch: Patch) -> None:
    """The next thread in the slot gets only the remaining time."""
    patch.setattr(SlotTable, "reused", lambda *_: False)


# -- timeouts of requests ----------------------------------------------------------------------


def timeouts_are_forgotten_at_a_start(patch: Patch) -> None:
    """After a restart, requests wait without an end."""
    restore = restoring.restore

    def restored(snapshot: Snapshot, settings: EngineSettings, at: Instant) -> State:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(RequestTimeouts, "start", lambda *_: None)
            return restore(snapshot, settings, at)

    patch.setattr(simulated, "restore", restored)


def requests_time_out_early(patch: Patch) -> None:
    """A request is rejected half a second before its timeout."""
    real = RequestTimeouts.start

    def start(timeouts: RequestTimeouts, request: Request) -> None:
        real(timeouts, request)
        if request.waiting_until_ms is not None:
            request.waiting_until_ms -= 500
            timeouts.timers.arm(Timer.REQUEST, request.allocation_id, request.waiting_until_ms)

    patch.setattr(RequestTimeouts, "start", start)


# -- dependencies between jobs -----------------------------------------------------------------


def waiting_job_gets_slots(patch: Patch) -> None:
    """A job that waits for others is served like any other."""
    patch.setattr(FlowTree, "hold_job", lambda *_: None)


def outcomes_are_ignored(patch: Patch) -> None:
    """A job starts although the job before it has failed."""
    patch.setattr(JobCondition, "is_met", lambda *_: True)


def dependencies_are_forgotten_at_a_start(patch: Patch) -> None:
    """After a restart, jobs do not wait any more."""
    restore = restoring.restore

    def restored(snapshot: Snapshot, settings: EngineSettings, at: Instant) -> State:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(DependencyMoves, "adopt", lambda *_: None)
            return restore(snapshot, settings, at)

    patch.setattr(simulated, "restore", restored)


def end_of_a_job_releases_nobody(patch: Patch) -> None:
    """Jobs still wait for a job that has ended."""
    patch.setattr(JobDependencies, "note_end", lambda *_: None)


# -- users and rules ---------------------------------------------------------------------------


def limits_of_users_are_forgotten_at_a_start(patch: Patch) -> None:
    """After a restart, users have no limits."""
    restore = restoring.restore

    def restored(snapshot: Snapshot, settings: EngineSettings, at: Instant) -> State:
        snapshot.user_limits = []
        return restore(snapshot, settings, at)

    patch.setattr(simulated, "restore", restored)


def slots_from_before_a_limit_do_not_count(patch: Patch) -> None:
    """A new limit counts only slots that are placed later."""
    real = Users._refresh

    def refresh(users: Users, owner: str) -> None:
        before = users.flows.get(owner)
        real(users, owner)
        flow = users.flows.get(owner)
        if before is None and flow is not None:
            flow.used.clear()
            flow.running = 0

    patch.setattr(Users, "_refresh", refresh)


def user_may_have_one_job_more(patch: Patch) -> None:
    """The limit of jobs is not checked."""
    patch.setattr(jobs, "check_jobs", lambda *_: None)


def user_may_submit_without_end(patch: Patch) -> None:
    """The limit of requests is not checked."""
    patch.setattr(submission, "check_requests", lambda *_: None)


def last_rule_chooses_the_group(patch: Patch) -> None:
    """The order of rules is reversed."""
    real = group_rules.group_of

    def group_of(groups: Any, event: Any) -> str:
        reversed_order = {
            name: replace(
                group, rules=tuple(replace(rule, order=-rule.order) for rule in group.rules)
            )
            for name, group in groups.items()
        }
        return real(reversed_order, event)

    patch.setattr(jobs, "group_of", group_of)


def labels_of_jobs_are_ignored_by_rules(patch: Patch) -> None:
    """A rule for a label chooses the group of every job."""
    real = group_rules._matches

    def matches(rule: GroupRule, event: Any) -> bool:
        return real(replace(rule, labels=()), event)

    patch.setattr(group_rules, "_matches", matches)


# -- planned reservations and backfill ---------------------------------------------------------


def backfill_ignores_run_times(patch: Patch) -> None:
    """Work that ends later than the owner's start is placed on its hosts."""
    real = Backfill._candidates

    def candidates(fill: Backfill, latest_ms: int, room: Any) -> Any:
        del latest_ms
        for each in real(fill, 1 << 60, room):
            yield Candidate(each.waiter, 0)

    patch.setattr(Backfill, "_candidates", candidates)


def slots_that_outlast_their_estimate_move_the_start(patch: Patch) -> None:
    """The owner's planned start moves later again and again, so more and more work is placed before
    it.
    """

    def promised(fill: Backfill, each: Reservation) -> int | None:
        each.promised_ms = fill._times.start_ms(fill._state.hosts, each.hosts)
        return each.promised_ms

    patch.setattr(Backfill, "_promised", promised)


def plan_does_not_count_as_a_reservation(patch: Patch) -> None:
    """A job may have a planned start and another reservation."""
    patch.setattr(Reservations, "of_job", lambda *_: False)


JOB_RULES: tuple[Callable[[Patch], None], ...] = (
    time_limit_starts_again_with_the_front,
    time_limit_needs_the_manager,
    reused_slot_keeps_its_old_count,
    timeouts_are_forgotten_at_a_start,
    requests_time_out_early,
    waiting_job_gets_slots,
    outcomes_are_ignored,
    dependencies_are_forgotten_at_a_start,
    end_of_a_job_releases_nobody,
    limits_of_users_are_forgotten_at_a_start,
    slots_from_before_a_limit_do_not_count,
    user_may_have_one_job_more,
    user_may_submit_without_end,
    last_rule_chooses_the_group,
    labels_of_jobs_are_ignored_by_rules,
    backfill_ignores_run_times,
    slots_that_outlast_their_estimate_move_the_start,
    plan_does_not_count_as_a_reservation,
)
