"""Tests of batch specs, of their commands, and of the estimated duration."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import finegrain_client as fg
from finegrain_client.batch.rate import Rate

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_places_are_filled_and_other_braces_left_alone() -> None:
    spec = fg.BatchSpec(
        9, ["awk", "{print $1}", "{index}-{threads}.{attempt}", "{{index}}", "{other}"]
    )
    assert spec.command_of(4, 2) == ["awk", "{print $1}", "4-9.2", "{index}", "{other}"]


def test_the_environment_says_the_same() -> None:
    spec = fg.BatchSpec(9, ["work"], env={"SHARD": "s{index}"})
    assert spec.env_of("id", 4, 2) == {
        "SHARD": "s4",
        "FINEGRAIN_BATCH_ID": "id",
        "FINEGRAIN_BATCH_INDEX": "4",
        "FINEGRAIN_BATCH_THREADS": "9",
        "FINEGRAIN_BATCH_ATTEMPT": "2",
    }


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("threads", {"threads": 0}),
        ("threads", {"threads": 1_000_001}),
        ("command", {"command": []}),
        ("slot", {"slot": fg.SlotSpec(count=2)}),
        ("name", {"name": "a\nb"}),
        ("env", {"env": {"FINEGRAIN_BATCH_INDEX": "1"}}),
        ("timeout_s", {"timeout_s": 0}),
        ("retries", {"retries": -1}),
        ("on_failure", {"on_failure": "explode"}),
        ("failures_max", {"failures_max": -1}),
        ("straggler_factor", {"straggler_factor": 0.5}),
        ("output_limit_bytes", {"output_limit_bytes": 0}),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, changes: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"threads": 1, "command": ["work"]}
    with pytest.raises(fg.InvalidArgument) as refused:
        fg.BatchSpec(**whole | changes)
    assert refused.value.details["field"] == field


def test_a_batch_needs_a_spec_or_a_state_file() -> None:
    with pytest.raises(fg.InvalidArgument, match="state_file"):
        fg.BatchJob(None)  # type: ignore[arg-type]


def test_what_is_left_is_divided_by_what_runs_at_one_time() -> None:
    pace = Rate([10.0] * 20)
    estimate = pace.estimate(NOON, to_run=30, running_s=[0.0] * 10, at_once=10)
    assert estimate is not None
    assert estimate.remaining_s == pytest.approx(40)
    assert (estimate.end_time - NOON).total_seconds() == pytest.approx(40)
    assert "the 20 done so far" in estimate.basis


def test_one_that_has_just_begun_takes_as_long_as_others_did() -> None:
    estimate = Rate([10.0]).estimate(NOON, to_run=0, running_s=[1.0, 9.9], at_once=2)
    assert estimate is not None
    assert estimate.remaining_s == pytest.approx(9)


def test_nothing_is_estimated_from_nothing() -> None:
    assert Rate().estimate(NOON, to_run=5, running_s=[1.0], at_once=1) is None
    assert Rate([1.0]).estimate(NOON, to_run=5, running_s=[], at_once=0) is None


def test_stragglers_are_known_when_half_is_done() -> None:
    pace = Rate([1.0] * 19 + [3.0])
    assert pace.straggler_after_s(2, 41) is None
    assert pace.straggler_after_s(2, 40) == 2.0
    assert Rate([1.0] * 4).straggler_after_s(2, 4) is None


def test_jobs_before_a_batch_and_labels_of_its_job_are_kept_with_it() -> None:
    failed = fg.JobDependency("job-2", fg.JobCondition.FAILED)
    spec = fg.BatchSpec(1, ["work"], after=["job-1", failed], job_labels={"team": "ml"})
    assert spec.after == (fg.JobDependency("job-1"), failed)
    assert fg.BatchSpec.from_json(spec.to_json()) == spec
    with pytest.raises(fg.InvalidArgument, match="after"):
        fg.BatchSpec(1, ["work"], after=["no id"])
