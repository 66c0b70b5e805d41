"""Dataclasses as JSON: the notation, what may be left out, and errors with paths."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import InvalidArgument
from finegrain.mapping.json_form import JsonCodec, JsonForm, from_json, to_json


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    left: int
    right: int = 0


ONE = Pair(1)


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Outer:
    number: int
    text: str = ""
    ready: bool = False
    colour: Colour = Colour.RED
    cpus: CpuSet = EMPTY
    when: datetime | None = None
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: Pair = ONE
    labels: tuple[tuple[str, str], ...] = ()
    amounts: Mapping[str, int] = field(default_factory=dict)
    by_node: Mapping[int, int] = field(default_factory=dict)
    anything: Any = None


FULL = Outer(
    number=4,
    text="t",
    ready=True,
    colour=Colour.BLUE,
    cpus=CpuSet.parse("0-3"),
    when=datetime(2024, 5, 1, 12, tzinfo=UTC),
    inner=Inner("i", 2.5),
    many=(Inner("a"), Inner("b")),
    pair=Pair(1, 2),
    labels=(("a", "b"), ("c", "d")),
    amounts={"cpu_milli": 1},
    by_node={0: 5},
    anything={"free": [1, None, "x"]},
)


def test_the_notation_of_every_kind_of_field() -> None:
    assert to_json(FULL) == {
        "number": 4,
        "text": "t",
        "ready": True,
        "colour": "blue",
        "cpus": "0-3",
        "when": "2024-05-01T12:00:00Z",
        "inner": {"name": "i", "weight": 2.5},
        "many": [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 1.0}],
        "pair": {"left": 1, "right": 2},
        "labels": {"a": "b", "c": "d"},
        "amounts": {"cpu_milli": 1},
        "by_node": {"0": 5},
        "anything": {"free": [1, None, "x"]},
    }


@pytest.mark.parametrize("omit", ["nothing", "none", "default"])
def test_a_full_and_an_empty_value_come_back_through_text(omit: Any) -> None:
    codec = JsonCodec({Outer: JsonForm(omit=omit)})
    for value in (FULL, Outer(0)):
        assert codec.from_json(Outer, json.loads(json.dumps(codec.to_json(value)))) == value


@given(
    st.builds(
        Outer,
        number=st.integers(),
        text=st.text(),
        colour=st.sampled_from(Colour),
        inner=st.none() | st.builds(Inner, name=st.text(), weight=st.floats(allow_nan=False)),
        labels=st.dictionaries(st.text(), st.text()).map(
            lambda found: tuple(sorted(found.items()))
        ),
        anything=st.none(),
    )
)
def test_any_value_comes_back(value: Outer) -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(value)))) == value


def test_what_a_form_leaves_out() -> None:
    defaults = JsonCodec({Outer: JsonForm(omit="default", names={"number": "n"})})
    assert defaults.to_json(Outer(0, text="x")) == {"n": 0, "text": "x"}
    always = JsonCodec({Outer: JsonForm(omit="default", always="ready")})
    assert always.to_json(Outer(0)) == {"number": 0, "ready": False}
    hidden = JsonCodec({Inner: JsonForm(omit="none", hidden="weight")})
    assert hidden.to_json(Inner("i", 3.0)) == {"name": "i"}
    assert hidden.from_json(Inner, {"name": "i", "weight": 3.0}) == Inner("i")


def test_a_form_may_be_a_list() -> None:
    codec = JsonCodec({Pair: JsonForm(as_list=True)})
    assert codec.to_json(FULL)["pair"] == [1, 2]
    assert codec.from_json(Pair, [1]) == Pair(1, 0)
    with pytest.raises(InvalidArgument, match="a list of at most 2"):
        codec.from_json(Pair, [1, 2, 3], "pair")


def test_values_of_any_kind_are_written_by_what_they_are() -> None:
    assert to_json([Inner("a"), Colour.RED, (1, b"\xff"), {"k": Pair(1)}]) == [
        {"name": "a", "weight": 1.0},
        "red",
        [1, "\ufffd"],
        {"k": {"left": 1, "right": 0}},
    ]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ([], "Outer"),
        ({}, "number"),
        ({"number": True}, "number"),
        ({"number": 1, "text": None}, "text"),
        ({"number": 1, "colour": "green"}, "colour"),
        ({"number": 1, "colour": []}, "colour"),
        ({"number": 1, "cpus": "x"}, "cpus"),
        ({"number": 1, "cpus": 4}, "cpus"),
        ({"number": 1, "when": "soon"}, "when"),
        ({"number": 1, "inner": {"name": 4}}, "inner.name"),
        ({"number": 1, "inner": {"name": "i", "weight": "1"}}, "inner.weight"),
        ({"number": 1, "many": [{"name": "a"}, {}]}, "many[1].name"),
        ({"number": 1, "many": {}}, "many"),
        ({"number": 1, "labels": {"a": 1}}, "labels[a]"),
        ({"number": 1, "amounts": []}, "amounts"),
    ],
)
def test_errors_name_the_path(data: Any, path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_json(Outer, data)
    assert caught.value.field == path


def test_a_list_is_read_as_what_the_field_says() -> None:
    assert from_json(list[int], [1, 2]) == [1, 2]
    assert from_json(list[Pair], [{"left": 1}]) == [ONE]
    assert from_json(tuple[int, ...], [1, 2]) == (1, 2)
    with pytest.raises(InvalidArgument) as caught:
        from_json(list[Pair], [{"left": 1}, {"left": "x"}], "pairs")
    assert caught.value.field == "pairs[1].left"


def test_a_whole_number_is_a_float_too() -> None:
    assert from_json(Inner, {"name": "i", "weight": 2}) == Inner("i", 2.0)


def test_unknown_keys_are_ignored_unless_refused() -> None:
    data = {"name": "i", "colour": "blue"}
    assert from_json(Inner, data) == Inner("i")
    with pytest.raises(InvalidArgument, match="colour"):
        JsonCodec(refuse_unknown=True).from_json(Inner, data)
