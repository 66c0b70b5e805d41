"""Dataclasses as rows: order, texts, parts, and classes that do not fit their columns."""

import json
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from finegrain.mapping.fields import MappingError
from finegrain.mapping.rows import FLOAT, WORD, RowCodec, Text


class State(StrEnum):
    WAITING = "WAITING"
    DONE = "DONE"


@dataclass(slots=True)
class Spec:
    key: str
    labels: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(slots=True)
class Item:
    spec: Spec
    state: State = State.WAITING
    reason: str = ""
    ready: bool = False
    settled: bool | None = None
    weight: float = 1.0
    members: list[str] = field(default_factory=list)  # at run time only


LABELS = Text(json.dumps, lambda text: tuple(json.loads(text)))
COLUMNS = ("item_id", "state", "reason", "labels", "limit", "ready", "settled", "weight")
CODEC = RowCodec(
    Item,
    COLUMNS,
    texts={float: FLOAT, tuple[str, ...]: LABELS},
    exceptions={"item_id": "spec.key", "reason": ("reason", WORD)},
    parts="spec",
    unstored="members",
)


def test_a_row_has_the_columns_in_order() -> None:
    item = Item(Spec("a", ("x",), 4), State.DONE, State.DONE, True, False, 0.1, ["m"])
    row = CODEC.encode(item)
    assert row == ("a", "DONE", "DONE", '["x"]', 4, True, False, "0.1")
    assert [type(each) for each in row[:3]] == [str, str, str]
    item.members, item.reason = [], "DONE"
    assert CODEC.decode(row) == item


def test_null_stays_none_and_drivers_may_return_numbers_for_booleans() -> None:
    row = ["a", "WAITING", "", "[]", None, 1, None, "1.0"]
    assert CODEC.decode(row) == Item(Spec("a"), ready=True)
    assert CODEC.encode(CODEC.decode(row))[6] is None


def test_some_columns_can_be_written_alone() -> None:
    moves = RowCodec(Item, ("item_id", "state"), exceptions={"item_id": "spec.key"})
    assert moves.encode(Item(Spec("a"))) == ("a", "WAITING")


def test_a_column_without_attribute_and_an_attribute_without_column_are_refused() -> None:
    with pytest.raises(MappingError, match="colour"):
        RowCodec(Item, ("colour",)).encode(Item(Spec("a")))
    forgotten = RowCodec(Spec, ("key", "limit"))
    with pytest.raises(MappingError, match="labels has no column"):
        forgotten.decode(("a", 1))


def test_exceptions_that_name_nothing_are_refused() -> None:
    with pytest.raises(MappingError, match="stores key"):
        RowCodec(Spec, ("key", "labels", "limit"), unstored="key").decode(("a", "", 1))
    with pytest.raises(MappingError, match="no columns name"):
        RowCodec(Spec, ("key",), exceptions={"name": "key"}).encode(Spec("a"))
