"""Instances that are made from the fields of other instances."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from finegrain.mapping.copies import copier
from finegrain.mapping.fields import MappingError


@dataclass(frozen=True, slots=True)
class Asked:
    name: str
    cpu_milli: int = 0
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Placed:
    name: str
    cpu_milli: int
    host: str
    notes: list[str] = field(default_factory=list)


def test_fields_of_the_same_name_are_copied_and_others_are_given_or_default() -> None:
    place = copier(Placed, Asked, "host")
    asked = Asked("a", 500, ("gpu",))
    assert place(asked, host="h") == Placed("a", 500, "h")
    assert place(asked, host="h").notes is not place(asked, host="h").notes


def test_a_copy_is_another_instance_with_the_same_values() -> None:
    copy = copier(Placed, Placed)
    placed = Placed("a", 500, "h", ["moved"])
    assert copy(placed) == placed
    assert copy(placed) is not placed


def test_what_is_given_takes_the_place_of_what_the_source_has() -> None:
    rename = copier(Asked, Asked, "name")
    assert rename(Asked("a", 500), name="b") == Asked("b", 500)
    with pytest.raises(TypeError, match="name"):
        rename(Asked("a"))


@pytest.mark.parametrize(
    ("given", "message"),
    [("", "Asked lacks host of Placed"), ("host hots", "Placed has no fields hots")],
)
def test_a_field_that_nobody_has_is_found_when_the_copier_is_made(given: str, message: str) -> None:
    with pytest.raises(MappingError, match=message):
        copier(Placed, Asked, given)
