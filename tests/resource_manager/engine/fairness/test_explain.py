"""Tests of the sentences that explain the choice: exact numbers, order, and reasons."""

from __future__ import annotations

from typing import Any

from resource_manager.engine.explain.fairness import Step, steps
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.settings import Fairness

CORE = {"cpu_milli": 1_000}


def tree(**fairness: Any) -> FlowTree:
    """Three groups; two jobs in the first one, all with work waiting."""
    made = FlowTree(Fairness(**{"half_life_ms": None, "lookahead_ms": 0, **fairness}), 0)
    for name, weight in (("default", 1.0), ("medium", 4.0), ("low", 1.0)):
        made.put_group(name, "", weight=weight, limits=({}, {}))
    jobs = ("a", "default"), ("b", "default"), ("m", "medium"), ("l", "low")
    for number, (job, group) in enumerate(jobs):
        made.add_job(job, group)
        made.wait(job, number, 5)
        made.activate(job)
    return made


def received(made: FlowTree, job: str, amount: float) -> None:
    """Gives a job this usage now, through one slot that has ended."""
    made.place(job, CORE, 1, amount)
    made.advance(made.clock.now_ms + 1_000)
    made.stop_accruing(job, amount)
    made.remove_slot(job, CORE)


def told(made: FlowTree, job: str) -> list[Step]:
    return list(steps(made, job, {}, "dominant"))


def test_the_group_comes_first_and_then_the_job() -> None:
    made = tree()
    received(made, "a", 412.0)
    received(made, "m", 412.0)
    received(made, "l", 500.0)
    first, second = told(made, "a")
    assert (first.group, first.position, first.backlogged) == ("", 2, 3)
    assert [each.name for each in first.ahead] == ["medium"]
    assert first.summary == (
        "group default is served after group medium: its virtual time is 412.0 (usage 412.0"
        " share-seconds / weight 1), against 103.0 (usage 412.0 / weight 4) of group medium;"
        " it is number 2 of 3 with queued requests"
    )
    assert second.summary == (
        "job a is served after job b: its virtual time is 412.0 (usage 412.0 share-seconds /"
        " weight 1), against 0.0 of job b; it is number 2 of 2 with queued requests"
    )
    assert told(made, "m")[0].summary == (
        "group medium is served next, out of 3 with queued requests: its virtual time is 103.0"
        " (usage 412.0 share-seconds / weight 4), against 412.0 of group default"
    )
    assert told(made, "l")[0].summary.startswith(
        "group low is served after group medium and 1 more: its virtual time is 500.0 (usage"
    )


def test_numbers_have_as_many_digits_as_it_takes_to_tell_them_apart() -> None:
    made = tree()
    received(made, "a", 0.12)
    received(made, "b", 0.1234)
    (_, second) = told(made, "b")
    assert (
        "its virtual time is 0.123 (usage 0.123 share-seconds / weight 1), against 0.120 of job a"
    ) in second.summary


def test_the_sentence_splits_usage_into_past_and_expected() -> None:
    made = tree(lookahead_ms=30_000)
    made.place("a", CORE, 2, 0.25)
    made.advance(10_000)
    (_, second) = told(made, "a")
    assert (
        "its virtual time is 20.0 (usage 20.0 share-seconds / weight 1; of this 5.0 so far, 15.0"
        " expected from 2 running slots)" in second.summary
    )


def test_a_minimum_that_is_not_reached_comes_before_virtual_time() -> None:
    made = tree()
    made.put_group("low", "", weight=1.0, limits=({}, {"cpu_milli": 4_000}))
    received(made, "a", 1.0)
    made.place("l", CORE, 1, 9.0)
    made.advance(made.clock.now_ms + 1_000)
    assert told(made, "l")[0].summary == (
        "group low is served next, out of 3 with queued requests: it has 25 % of its guaranteed"
        " minimum, against group medium, which has reached its minimum or has no minimum"
    )
    assert told(made, "m")[0].summary.endswith(
        "against 25 % of the guaranteed minimum of group low;"
        " it is number 2 of 3 with queued requests"
    )
    assert told(made, "m")[0].ahead[0].minimum_reached == 250_000


def test_of_equals_the_one_that_has_waited_longest_is_first() -> None:
    made = tree()
    (_, second) = told(made, "b")
    assert second.summary.endswith(
        "against 0.0 of job a; of equal flows, the flow that has waited longest is first;"
        " it is number 2 of 2 with queued requests"
    )


def test_the_first_of_all_steps_is_who_the_choice_takes() -> None:
    made = tree()
    for job, amount in (("a", 3.0), ("b", 1.0), ("m", 20.0), ("l", 9.0)):
        received(made, job, amount)
    chosen = made.first_job()
    assert chosen is not None
    assert [step.position for step in told(made, chosen.name)] == [1, 1]
    for other in {"a", "b", "m", "l"} - {chosen.name}:
        assert max(step.position for step in told(made, other)) > 1


def test_a_job_that_is_over_has_no_steps() -> None:
    assert told(tree(), "nobody") == []
