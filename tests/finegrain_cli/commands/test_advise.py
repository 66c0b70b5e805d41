"""`finegrain advise`: its call and its output."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain_cli.commands.advise import advice_text
from tests.support.cli import ADVICE, JOB, FakeCluster, Finegrain


def test_the_recommendation_comes_first_then_what_it_goes_by(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    result = finegrain("advise", JOB.job_id[:6])

    assert result.exit_code == 0, result.output
    assert cluster.done == [("advise", JOB.job_id, 120.0, 0.95)]
    assert result.stdout.splitlines() == [
        "recommended  530 threads",
        "observed     190 threads, 8 run, 2 wait",
        "durations    median 2m21s, 95 % within 5m14s, longest 7m49s",
        "target       95 % within 2m00s; 35.2 % were",
        "- few threads have finished: this is a rough estimate",
    ]


def test_a_job_is_known_by_its_name(finegrain: Finegrain, cluster: FakeCluster) -> None:
    finegrain("advise", JOB.name)

    assert cluster.done == [("advise", JOB.job_id, 120.0, 0.95)]


def test_of_several_jobs_of_one_name_the_ids_are_told(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = replace(JOB, job_id="01aaaaaa-older", ended=True)
    monkeypatch.setattr(cluster, "jobs", lambda include_ended, matching: [older, JOB])
    result = finegrain("advise", JOB.name)

    assert (result.exit_code, cluster.done) == (2, [])
    assert f"jobs with this name: {JOB.job_id} (active), {older.job_id} (ended)" in result.stderr
    assert finegrain("advise", older.job_id).exit_code == 0


def test_another_target(finegrain: Finegrain, cluster: FakeCluster) -> None:
    finegrain("advise", JOB.job_id, "--target", "30s", "--quantile", "0.5", "--json")

    assert cluster.done == [("advise", JOB.job_id, 30.0, 0.5)]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ("nobody",),
            3,
            "no job has the name or id 'nobody', or an id that begins or ends with it",
        ),
        ((JOB.job_id, "--quantile", "1"), 2, "--quantile is 1.0; expected above 0 and below 1"),
        ((JOB.job_id, "--target", "soon"), 2, "--target is 'soon'"),
    ],
)
def test_what_cannot_be_asked(
    finegrain: Finegrain, cluster: FakeCluster, arguments: tuple[str, ...], code: int, told: str
) -> None:
    result = finegrain("advise", *arguments)

    assert (result.exit_code, cluster.done) == (code, [])
    assert told in result.stderr


def test_attempts_that_were_repeated_are_named() -> None:
    repeated = replace(ADVICE, attempts_unfinished=12)

    assert advice_text(repeated).splitlines()[2] == (
        "attempts     202, of which 12 finished no thread and do not count"
    )


def test_nothing_to_go_by() -> None:
    nothing = replace(
        ADVICE, threads_recommended=0, threads_observed=0, remarks=("ask again when some have",)
    )

    assert advice_text(nothing).splitlines() == [
        "recommended  nothing yet",
        "observed     0 threads, 8 run, 2 wait",
        "- ask again when some have",
    ]
