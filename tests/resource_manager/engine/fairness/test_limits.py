"""Tests of sums and limits: which requests fit, which limit blocks a request, and the capacity that
a plan may use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resource_manager.engine.fairness.quotas import (
    UNBOUNDED,
    QuotaLedger,
    counted,
    fulfilment,
    needs_slots,
    quota_block,
    room,
    total_need,
    unlimited_dimension,
)


@dataclass
class Group:
    id: str = "group/a"
    maximum: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    running: int = 0


def test_memory_is_one_dimension_however_an_executor_pools_it() -> None:
    parts = {"cpu_milli": 500, "task_heap_memory_bytes": 3, "managed_memory_bytes": 4}
    assert counted(parts) == {"cpu_milli": 500, "memory_bytes": 7}
    assert counted({"cpu_milli": 500, "memory_bytes": 7}) == {"cpu_milli": 500, "memory_bytes": 7}
    assert counted({"cpu_milli": 0, "extended.license": 2}) == {"extended.license": 2}


def test_as_many_fit_as_the_narrowest_dimension_of_the_narrowest_level_admits() -> None:
    inner = Group(maximum={"cpu_milli": 4_000}, used={"cpu_milli": 1_000})
    outer = Group("group/b", {"cpu_milli": 9_000, "memory_bytes": 10}, {"memory_bytes": 4})
    need = {"cpu_milli": 500, "memory_bytes": 1}
    assert room([inner], need, 100) == 6
    assert room([inner, outer], need, 100) == 6
    assert room([inner, outer], need, 5) == 5
    assert room([inner, outer], {"memory_bytes": 4}, 100) == 1
    assert room([], need, 7) == 7


def test_a_limit_of_zero_admits_nothing_and_an_absent_one_everything() -> None:
    paused = Group(maximum={"cpu_milli": 0})
    assert room([paused], {"cpu_milli": 10}, 9) == 0
    assert room([paused], {"memory_bytes": 10}, 9) == 9
    found = quota_block([paused], {"cpu_milli": 10})
    assert found is not None
    assert found.never


def test_what_is_above_its_maximum_already_stops_only_what_adds_to_it() -> None:
    lowered = Group(maximum={"cpu_milli": 1_000}, used={"cpu_milli": 5_000})
    assert room([lowered], {"cpu_milli": 1}, 3) == 0
    assert room([lowered], {"extended.license": 1}, 3) == 3
    assert quota_block([lowered], {"extended.license": 1}) is None


def test_a_limit_in_slots_counts_slots_whatever_they_book() -> None:
    group = Group(maximum={"slots": 5}, used={"cpu_milli": 90_000}, running=3)
    assert room([group], needs_slots({"cpu_milli": 64_000}), 10) == 2
    found = quota_block([group], needs_slots({"cpu_milli": 1}, 3))
    assert found is not None
    assert (found.dimension, found.need, found.used, found.never) == ("slots", 3, 3, False)
    # the growth of a slot needs no further slot
    assert quota_block([group], {"cpu_milli": 1_000}) is None
    ledger = QuotaLedger()
    assert ledger.admit([group], needs_slots({"cpu_milli": 1}), 9) == 2
    assert ledger.admit([group], needs_slots({"cpu_milli": 1}), 9) == 0


def test_the_limit_that_would_never_let_it_is_named_first() -> None:
    full = Group("group/full", {"cpu_milli": 2_000}, {"cpu_milli": 1_500})
    small = Group("group/small", {"memory_bytes": 5})
    found = quota_block([full, small], {"cpu_milli": 1_000, "memory_bytes": 6})
    assert found is not None
    assert (found.group_id, found.dimension, found.never) == ("group/small", "memory_bytes", True)
    found = quota_block([full, small], {"cpu_milli": 1_000})
    assert found is not None
    assert (found.need, found.used, found.maximum, found.never) == (1_000, 1_500, 2_000, False)


@pytest.mark.parametrize(
    ("used", "running", "minimum", "share"),
    [
        ({}, 0, {}, UNBOUNDED),
        ({}, 0, {"cpu_milli": 4}, 0.0),
        ({"cpu_milli": 3}, 1, {"cpu_milli": 4, "memory_bytes": 10}, 0.75),
        ({"cpu_milli": 4}, 1, {"cpu_milli": 4, "memory_bytes": 10}, 1.0),
        ({"cpu_milli": 9}, 1, {"cpu_milli": 0}, UNBOUNDED),
        ({"cpu_milli": 9}, 3, {"slots": 4}, 0.75),
    ],
)
def test_a_minimum_is_reached_where_one_dimension_of_it_is(
    used: dict[str, int], running: int, minimum: dict[str, int], share: float
) -> None:
    assert fulfilment(used, running, minimum) == share


def test_a_plan_counts_on_no_more_than_the_limits_admit_together() -> None:
    ledger = QuotaLedger()
    top = Group("group/top", {"cpu_milli": 10}, {"cpu_milli": 1})
    left, right = Group("group/left", {"cpu_milli": 6}), Group("group/right")
    assert ledger.admit([left, top], {"cpu_milli": 2}, 100) == 3
    assert ledger.admit([right, top], {"cpu_milli": 4}, 1) == 0
    assert ledger.admit([right, top], {"cpu_milli": 2}, 1) == 1
    assert ledger.admit([right, top], {"cpu_milli": 2}, 100) == 0
    assert ledger.admit([right, top], {"cpu_milli": 1}, 100) == 1
    assert top.used == {"cpu_milli": 1}


def test_a_plan_that_adds_nothing_of_a_limited_dimension_uses_none_of_it() -> None:
    group = Group(maximum={"cpu_milli": 10, "memory_bytes": 1})
    ledger = QuotaLedger()
    assert ledger.admit([group], {"cpu_milli": 2}, 1) == 1
    assert ledger.admit([group], {"memory_bytes": 1}, 100) == 1


def test_only_dimensions_that_slots_are_booked_in_can_be_limited() -> None:
    assert unlimited_dimension({"cpu_milli": 1, "memory_bytes": 1, "extended.license": 1}) == ""
    parts = {"cpu_milli": 1, "managed_memory_bytes": 1}
    assert unlimited_dimension(parts) == "managed_memory_bytes"


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu_milli", "memory_bytes", "extended.license"]), st.integers(0, 9)
)


@given(
    chain=st.lists(st.builds(Group, maximum=AMOUNTS, used=AMOUNTS), max_size=3),
    needs=st.lists(st.tuples(AMOUNTS, st.integers(0, 6)), max_size=8),
)
def test_whatever_is_admitted_is_within_every_limit_and_one_more_is_not(
    chain: list[Group], needs: list[tuple[dict[str, int], int]]
) -> None:
    for number, group in enumerate(chain):
        group.id = f"group/{number}"
    ledger = QuotaLedger()
    for need, count in needs:
        planned = ledger.admit(chain, need, count)
        assert planned == room(chain, need, count) <= count
        for group in chain:
            for name, amount in need.items():
                before = group.used.get(name, 0)
                group.used[name] = before + planned * amount
                limit = group.maximum.get(name)
                assert limit is None or group.used[name] <= max(limit, before)
        ledger = QuotaLedger()  # the planned amounts are booked now
        if planned < count:
            assert quota_block(chain, need) is not None
            assert not room(chain, total_need([(need, 1)]), 1)
