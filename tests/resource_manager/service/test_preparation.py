"""Tests of conditions under which a resource manager refuses to start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import InvalidArgument
from resource_manager.engine.model.settings import Fairness
from resource_manager.options import ResourceManagerOptions
from resource_manager.service.preparation import settings_of

OPTIONS = ResourceManagerOptions(state_dir=Path("/nowhere"))


def test_fairness_arrives_as_it_was_chosen() -> None:
    chosen = Fairness(order="arrival", usage_measure="cpu", half_life_ms=None, reservations_max=0)

    assert settings_of(replace(OPTIONS, fairness=chosen)).fairness == chosen


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("order", "random", "one of fair, arrival"),
        ("usage_measure", "gpu", "one of dominant, slots, cpu"),
        ("half_life_ms", 999, "1000 or more"),
        ("lookahead_ms", -1, "0 or more"),
        ("usage_interval_ms", 0, "1 or more"),
        ("starvation_timeout_ms", 0, "1 or more"),
        ("starvation_placements", -1, "0 or more"),
        ("reservations_max", -1, "0 or more"),
        ("reserved_part_max", 1.5, "a part, from 0 to 1"),
        ("reserved_part_max", float("nan"), "a part, from 0 to 1"),
    ],
)
def test_fairness_that_cannot_work_is_refused_by_name(
    field: str, value: Any, expected: str
) -> None:
    wrong = replace(Fairness(), **{field: value})
    with pytest.raises(InvalidArgument) as caught:
        settings_of(replace(OPTIONS, fairness=wrong))
    assert caught.value.field == f"fairness.{field}"
    assert caught.value.expected == expected
