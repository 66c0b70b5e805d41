"""Checks that every planted bug is found by a seed of the suite, or by a seed named here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.planted import RULES
from tests.simulation.planted_cpus import CPUS_MISHANDLED
from tests.simulation.planted_devices import DEVICES_IN_A_STORM, DEVICES_MISHANDLED
from tests.simulation.planted_elastic import ELASTIC
from tests.simulation.planted_fair import FAIR
from tests.simulation.planted_faults import FAULTS_MISHANDLED
from tests.simulation.planted_jobs import JOB_RULES
from tests.simulation.planted_priorities import PRIORITIES_MISHANDLED
from tests.simulation.planted_rejections import REJECTIONS
from tests.simulation.planted_revocation import REVOCATION_MISHANDLED
from tests.simulation.test_simulation import SEEDS
from tests.simulation.world import (
    ALL_WISHES,
    WISHES,
    WITH_CPUS,
    WITH_DEVICE_STORM,
    WITH_DEVICES,
    WITH_EARLY,
    WITH_PRIORITIES,
    WITH_REVOCATION,
    WITH_TIMES,
    Failed,
    Plan,
    World,
)

KINDS = (
    RULES,
    FAULTS_MISHANDLED,
    ELASTIC,
    FAIR,
    CPUS_MISHANDLED,
    DEVICES_MISHANDLED,
    DEVICES_IN_A_STORM,
    REJECTIONS,
    PRIORITIES_MISHANDLED,
    JOB_RULES,
    REVOCATION_MISHANDLED,
)
WISHES_OF = {
    FAIR: ALL_WISHES,
    CPUS_MISHANDLED: WITH_CPUS,
    DEVICES_MISHANDLED: WITH_DEVICES,
    DEVICES_IN_A_STORM: WITH_DEVICE_STORM,
    REJECTIONS: WITH_EARLY,
    PRIORITIES_MISHANDLED: WITH_PRIORITIES,
    JOB_RULES: WITH_TIMES,
    REVOCATION_MISHANDLED: WITH_REVOCATION,
}
PLANTED = [plant for kind in KINDS for plant in kind]
QUICK = {plant for kind in KINDS for plant in kind[-2:]}
"""The quick run has the newest two bugs of each kind; the other bugs need `--all`."""

FINDINGS = ("Violation", "IllegalTransition", "InvariantBroken", "KeyError")
"""A check fails, or the engine raises and would discard its state."""

FOUND_BY = {
    "generation_ignored_in_release": 1,
    "refused_request_goes_to_the_end_of_the_line": 1,
    "command_outlives_its_registration": 7,
    "unowned_slots_are_never_told": 7,
    "overtaken_registration_is_taken_in": 67,
    "nobody_dials_an_unreachable_executor_again": 8,
    "writes_are_not_fenced": 20,
    "nobody_asks_whether_the_lease_lasts": 33,
    "lower_epoch_is_obeyed": 28,
    "restored_books_begin_at_their_old_epoch": 6,
    "restored_books_use_numbers_again": 7,
    "answer_goes_out_before_the_checkpoint": 10,
    "remains_are_left_on_the_host": 2,
    "orphans_are_kept": 15,
    "change_that_waits_is_forgotten_at_a_restart": 8,
    "change_that_waits_for_use_is_never_tried_again": 14,
    "any_report_confirms_a_change": 11,
    "job_master_is_not_told_of_its_new_size": 1,
    "intent_is_not_rolled_forward": 35,
    "size_is_told_before_it_is_enforced": 1,
    "refusal_of_one_member_leaves_the_others_what_they_have": 1,
    "loss_of_one_member_leaves_the_others_what_they_have": 1,
    "gang_in_vain_is_never_tried_again": 2,
    "what_is_asked_for_is_not_durable_first": 4,
    "stops_are_forgotten_at_a_restart": 16,
    "executor_is_struck_before_its_provider_said_that_it_is_gone": 4,
    "stop_that_failed_is_taken_for_done": 4,
    "what_was_asked_for_is_not_planned_on": 5,
    "maximum_is_about_those_who_are_there": 5,
    "latecomers_are_nobodys": 24,
    "idle_executors_are_kept": 4,
    "who_was_planned_waits_like_everybody": 6,
    "shape_is_asked_for_beyond_its_count": 4,
    "group_change_is_answered_before_it_is_durable": 101,
    "reuse_is_answered_before_it_is_durable": 103,
    "limits_of_groups_are_forgotten_at_a_start": 101,
    "maximum_forgets_what_is_being_freed": 103,
    "maximum_that_is_raised_wakes_nobody": 117,
    "minimum_is_not_served_first": 105,
    "hosts_are_held_for_whoever_is_gone": 102,
    "slots_go_on_above_a_lowered_maximum": 201,
    "work_that_was_handed_on_still_waits": 102,
    "member_is_placed_again_after_a_start": 100,
    "cpus_are_given_that_do_not_run": 2,
    "cpus_of_a_slot_that_shrinks_are_given_before_it_has_shrunk": 0,
    "cpus_of_slots_are_forgotten_at_a_start": 9,
    "rules_about_neighbors_are_forgotten_at_a_start": 7,
    "executor_forgets_cpus_of_slots_when_it_starts": 1,
    "settings_of_operators_are_not_told": 6,
    "devices_of_slots_are_forgotten_at_a_start": 1,
    "executor_forgets_devices_of_slots_when_it_starts": 1,
    "devices_with_problems_get_new_work": 5,
    "conditions_of_devices_are_ignored": 7,
    "cordons_are_not_durable": 7,
    "cordons_are_forgotten_when_an_executor_registers": 2,
    "virtual_functions_are_given_twice": 10,
    "vanished_device_keeps_nothing": 53,
    "slots_of_one_decision_get_the_same_device": 1,
    "work_that_a_device_has_lost_goes_on": 1,
    "slot_that_is_confirmed_on_a_failed_device_goes_on": 32,
    "capacity_is_free_before_the_processes_are_back": 6,
    "infeasible_requests_wait_for_ever": 11,
    "executors_count_as_known_at_once": 11,
    "infeasible_requests_are_rejected_with_the_first_executor": 11,
    "priorities_of_requests_are_forgotten_at_a_start": 11,
    "requests_of_a_job_are_served_in_order_of_arrival": 2,
    "jobs_of_a_group_are_served_without_priorities": 2,
    "time_limit_starts_again_with_the_front": 207,
    "time_limit_needs_the_manager": 200,
    "reused_slot_keeps_its_old_count": 222,
    "timeouts_are_forgotten_at_a_start": 200,
    "requests_time_out_early": 200,
    "waiting_job_gets_slots": 200,
    "outcomes_are_ignored": 212,
    "dependencies_are_forgotten_at_a_start": 200,
    "end_of_a_job_releases_nobody": 200,
    "limits_of_users_are_forgotten_at_a_start": 200,
    "slots_from_before_a_limit_do_not_count": 214,
    "user_may_have_one_job_more": 216,
    "user_may_submit_without_end": 209,
    "last_rule_chooses_the_group": 216,
    "labels_of_jobs_are_ignored_by_rules": 212,
    "backfill_ignores_run_times": 215,
    "slots_that_outlast_their_estimate_move_the_start": 206,
    "plan_does_not_count_as_a_reservation": 206,
    "slots_are_ordered_before_revoked_slots_have_ended": 7,
    "slots_that_are_not_revocable_are_revoked": 7,
    "capacity_of_revoked_slots_goes_back_to_nobody": 10,
}
"""For each bug, a seed that finds it. This makes the test fast. If the seed does not find the bug
any more, all seeds are tried.
"""


def seed_that_finds(plant: Callable[[pytest.MonkeyPatch], None]) -> tuple[int, str]:
    """Returns the first seed that fails, and its log; -1: no seed fails."""
    first = FOUND_BY.get(plant.__name__, 0)
    wishes = next((found for kind, found in WISHES_OF.items() if plant in kind), WISHES)
    for seed in (first, *(seed for seed in SEEDS if seed != first)):
        try:
            World(Plan(seed, demands_work=False, wishes=wishes)).run()
        except Failed as failed:
            return seed, str(failed)
    return -1, ""


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(
            plant,
            id=plant.__name__.replace("_", " "),
            marks=() if plant in QUICK else pytest.mark.full,
        )
        for plant in PLANTED
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    plant(monkeypatch)
    seed, story = seed_that_finds(plant)
    record_property("found by seed", seed)
    assert seed >= 0, "no seed finds it"
    assert any(error in story.splitlines()[0] for error in FINDINGS), story


def test_enough_is_planted() -> None:
    assert len({plant.__name__ for plant in PLANTED}) >= 111
