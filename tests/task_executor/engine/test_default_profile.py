"""Tests each rule for the resources of a request that states none."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from finegrain.errors import InvalidArgument
from task_executor.engine.default_profile import (
    DefaultSlot,
    default_slot,
    memory_parts,
    parse_fraction,
)

MIB, GIB = 1024**2, 1024**3


def slot(**options: Any) -> DefaultSlot:
    """Returns the default profile on a host with 8 CPUs, 4 cores and 10 GiB."""
    return default_slot(8000, 10 * GIB, 4, **options)


def test_d7_the_fraction_comes_first() -> None:
    given = slot(default_slot_fraction=Fraction(1, 10), number_of_slots=2)
    assert (given.cpu_milli, given.memory_bytes) == (800, GIB)


def test_d7_without_a_fraction_the_number_of_slots_divides() -> None:
    given = slot(number_of_slots=2)
    assert (given.cpu_milli, given.memory_bytes) == (4000, 5 * GIB)


def test_d7_without_either_there_is_one_slot_per_core() -> None:
    given = slot()
    assert (given.cpu_milli, given.memory_bytes) == (2000, 10 * GIB // 4)
    assert given.deprecation_warning is None


def test_d6_the_same_fraction_is_more_on_a_larger_host() -> None:
    larger = default_slot(64000, 80 * GIB, 32, default_slot_fraction=Fraction(1, 10))
    assert (larger.cpu_milli, larger.memory_bytes) == (6400, 8 * GIB)


def test_d15_the_number_of_slots_is_deprecated_and_names_the_new_option() -> None:
    warning = slot(number_of_slots=2).deprecation_warning or ""
    assert "number_of_slots is deprecated" in warning
    assert "default_slot_fraction to 1/2" in warning
    both = slot(number_of_slots=2, default_slot_fraction=Fraction(1, 4)).deprecation_warning or ""
    assert "ignored" in both


@pytest.mark.parametrize("slots", [3, 7, 13])
def test_amounts_are_rounded_down_so_that_all_slots_fit(slots: int) -> None:
    given = slot(number_of_slots=slots)
    assert given.cpu_milli * slots <= 8000
    assert given.memory_bytes * slots <= 10 * GIB
    assert given.memory_bytes % (64 * 1024) == 0
    assert given.cpu_milli == 8000 // slots


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"default_slot_fraction": Fraction(0)}, "default_slot_fraction"),
        ({"default_slot_fraction": Fraction(3, 2)}, "default_slot_fraction"),
        ({"number_of_slots": 0}, "number_of_slots"),
        ({"number_of_slots": 10_000}, "default_slot_fraction"),
    ],
    ids=["nothing", "more than all", "no slots", "too small to start anything"],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        slot(**options)
    assert refusal.value.field == field


def test_d8_explicit_amounts_replace_the_fraction() -> None:
    given = slot(default_slot_cpu_milli=1500, default_slot_memory_bytes=GIB + 5)
    assert (given.cpu_milli, given.memory_bytes) == (1500, GIB)
    half = slot(default_slot_cpu_milli=1500, default_slot_fraction=Fraction(1, 10))
    assert (half.cpu_milli, half.memory_bytes) == (1500, GIB)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"default_slot_cpu_milli": 9_000}, "default_slot_cpu"),
        ({"default_slot_memory_bytes": 11 * GIB}, "default_slot_memory"),
        ({"default_slot_memory_bytes": 1}, "default_slot_memory"),
    ],
)
def test_explicit_amounts_beyond_the_total_are_refused(options: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} is .* the total"):
        slot(**options)


def test_memory_parts_come_from_one_total_by_percentages() -> None:
    parts = memory_parts(GIB, {"managed": 33, "network": 10})
    assert sum(parts.values()) == GIB
    assert all(amount % 65_536 == 0 for amount in parts.values())
    assert parts["managed_memory_bytes"] == GIB * 33 // 100 // 65_536 * 65_536
    assert memory_parts(GIB, {"managed": 0})["task_heap_memory_bytes"] == GIB
    for wrong in ({"heap": 1}, {"managed": 101}, {"managed": 60, "network": 50}):
        with pytest.raises(InvalidArgument, match="default_slot_memory_percent"):
            memory_parts(GIB, wrong)


def test_a_host_without_known_memory_has_no_default_slot() -> None:
    with pytest.raises(InvalidArgument, match="of the 8 cores and 0 of this executor"):
        default_slot(8000, 0, 4)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0.1, Fraction(1, 10)),
        ("0.25", Fraction(1, 4)),
        ("1/3", Fraction(1, 3)),
        (1, Fraction(1)),
        (Decimal("0.05"), Fraction(1, 20)),
    ],
)
def test_fractions_are_exact(value: Any, want: Fraction) -> None:
    assert parse_fraction(value) == want


@pytest.mark.parametrize("value", ["a tenth", "1/0", "nan", "inf", ""])
def test_what_is_no_fraction_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match="a fraction such as"):
        parse_fraction(value)
