"""Encodes values that rows store as text, mostly JSON: profiles, labels, isolation, resizes, cpus.

Many rows have equal values. For types with many equal values, texts and decoded values are cached,
and rows share them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import CpuPolicy, HostPolicy
from finegrain.intervals import IntervalSet
from finegrain.mapping.json_form import JsonCodec, JsonForm
from finegrain.mapping.rows import FLOAT, Text
from finegrain.mapping.shared import by_identity
from finegrain.mapping.stored import FORMS
from finegrain.resources import ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.group_rules import GroupRule
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Cordon, Ended, Resize

T = TypeVar("T")

_KNOWN_PROFILES = 65_536  # maximum size of each cache of texts or values
_KNOWN_PARTS = 4_096  # maximum size of the cache for data that events share

_quoted = json.encoder.encode_basestring_ascii
json_text = json.JSONEncoder(
    separators=(",", ":")
).encode  # `dumps` would build an encoder each time

_JSON = JsonCodec(FORMS | {Resize: JsonForm(omit="none")}, refuse_unknown=True)


def _json_of(kind: type[T]) -> Text:
    """Returns the JSON text form of a class, without a cache."""

    def write(value: T) -> str:
        return json_text(_JSON.to_json(value))

    def read(text: str) -> T:
        return _JSON.from_json(kind, json.loads(text))

    return Text(write, read)


def _shared(text: Text) -> Text:
    """Returns a text form with a cache, for values that many rows share: equal texts decode to one
    object.
    """
    return Text(lru_cache(_KNOWN_PROFILES)(text.write), lru_cache(_KNOWN_PROFILES)(text.read))


def _policy_text(policy: CpuPolicy) -> str:
    data = _JSON.to_json(policy)
    return json_text(data) if data else ""  # "" is the column's default


def _policy_of(text: str) -> CpuPolicy:
    return _JSON.from_json(CpuPolicy, json.loads(text) if text else {})


def _labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    return json_text(dict(labels))


def _labels_of(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(json.loads(text).items())


def _amounts_text(amounts: Mapping[str, int]) -> str:
    return json_text(dict(amounts))


def _ended_text(ended: Mapping[Ended, IntervalSet]) -> str:
    """Encodes the ends of a range's members: a list of [state, reason, message, [start, end, ...]].

    Each pair of start and end is one interval of indexes.
    """
    return json_text(
        [
            [str(state), str(reason), message, [bound for run in indexes.runs() for bound in run]]
            for (state, reason, message), indexes in ended.items()
        ]
    )


def _ended_of(text: str) -> dict[Ended, IntervalSet]:
    return {
        (RequestState(state), reason, message): IntervalSet(
            zip(bounds[::2], bounds[1::2], strict=True)
        )
        for state, reason, message, bounds in json.loads(text)
    }


_shared_text = by_identity(json_text, _KNOWN_PARTS)
"""Returns JSON of plain data that many rows share and that never changes."""


class _Names(dict[str, str]):
    """The JSON text of each name of a member, with its colon."""

    def __missing__(self, name: str) -> str:
        text = self[name] = f"{_quoted(name)}:"
        return text


_names = _Names()


def _slot_text(slot: Mapping[str, object]) -> str:
    """Returns JSON of a slot as events contain it. Texts of its nested parts are cached."""
    members = []
    for name, value in slot.items():
        if isinstance(value, str):
            text = _quoted(value)
        elif type(value) is int:
            text = str(value)
        else:
            # Dicts of slots are shared between events and never changed, so their texts are cached.
            text = _shared_text(value) if isinstance(value, dict) else json_text(value)
        members.append(_names[name] + text)
    return "{" + ",".join(members) + "}"


def _list_of(kind: type[T]) -> Text:
    """Returns the JSON text form of a tuple of values of one class."""

    def write(values: tuple[T, ...]) -> str:
        return json_text([_JSON.to_json(each) for each in values])

    def read(text: str) -> tuple[T, ...]:
        return tuple(_JSON.from_json(kind, each) for each in json.loads(text))

    return Text(write, read)


SLOT_OF_EVENT = Text(_slot_text, json.loads)
"""The text form of a slot as `engine/lifecycle/journal.py` describes it."""

TEXTS: Mapping[Any, Text] = {
    float: FLOAT,
    ResourceProfile: _shared(_json_of(ResourceProfile)),
    tuple[tuple[str, str], ...]: _shared(Text(_labels_text, _labels_of)),
    CpuPolicy: _shared(Text(_policy_text, _policy_of)),
    CpuAssignment: _json_of(CpuAssignment),
    Isolation: _shared(_json_of(Isolation)),
    Resize: _json_of(Resize),
    HostPolicy: _json_of(HostPolicy),
    tuple[Cordon, ...]: _list_of(Cordon),
    tuple[JobDependency, ...]: _list_of(JobDependency),
    tuple[GroupRule, ...]: _list_of(GroupRule),
    tuple[str, ...]: _list_of(str),
    Mapping[str, int]: Text(_amounts_text, json.loads),
    dict[Ended, IntervalSet]: Text(_ended_text, _ended_of),
}
"""Text form of columns that are not text, number, flag or enum, by the type of the attribute."""
