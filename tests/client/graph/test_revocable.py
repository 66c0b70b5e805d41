"""Revocable slots in job graphs: operators that share slots or start together must agree."""

from __future__ import annotations

import pytest

import finegrain_client as fg
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan_json import plan_from_json, plan_to_json
from finegrain_client.graph_run.task_start import slot_spec


def graph(*, job: bool = False, mode: str = "batch", **operators: bool | None) -> fg.JobGraph:
    found = fg.JobGraph("job", mode, options=fg.JobOptions(revocable=job))
    for name, revocable in operators.items():
        found.operator(name, revocable=revocable)
    return found


def test_the_value_of_the_job_applies_to_operators_without_a_value() -> None:
    plan = graph(job=True, a=None, b=False).compile()

    assert [each.revocable for each in plan.groups] == [True, False]
    assert plan_from_json(plan_to_json(plan)) == plan
    requested = [slot_spec(each, plan.slot_times, "slot").revocable for each in plan.groups]
    assert requested == [True, False]


def test_all_slots_of_a_plan_can_be_made_revocable() -> None:
    plan = graph(a=None, b=True).compile().with_revocable_slots()

    assert all(each.revocable for each in plan.groups)


def test_operators_of_one_region_are_revocable_or_none_is() -> None:
    connected = graph(a=True, b=None)
    connected.connect("a", "b")
    with pytest.raises(GraphError) as caught:
        connected.compile()

    assert caught.value.message == (
        "operator a is revocable and operator b is not, but both are in slot sharing group"
        " region-1; make both revocable, or none"
    )


def test_operators_of_one_group_are_revocable_or_none_is() -> None:
    with pytest.raises(GraphError, match="operator b is revocable and operator a is not"):
        graph(mode="streaming", a=False, b=True).compile()


def test_a_value_must_be_a_flag() -> None:
    with pytest.raises(fg.InvalidArgument, match="revocable of operator a is 'yes'"):
        graph(a="yes")  # type: ignore[arg-type]
