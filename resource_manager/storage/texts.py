"""Values that stand in a row as JSON text: profiles, labels, isolation reports, changes of size,
what is said about cpus.

Decides their spelling, and keeps what many rows share. Refuses to know tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import CpuPolicy
from finegrain.intervals import IntervalSet
from finegrain.resources import ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Ended, Resize

_KNOWN_PROFILES = 65_536  # different profiles kept decoded; clusters use few
_KNOWN_ISOLATIONS = 4_096  # likewise of isolation reports

_quoted = json.encoder.encode_basestring_ascii
json_text = json.JSONEncoder(separators=(",", ":")).encode  # `dumps` would make one each time


@lru_cache(_KNOWN_PROFILES)
def profile_text(profile: ResourceProfile) -> str:
    """JSON of a profile."""
    return json_text(profile.to_dict())


@lru_cache(_KNOWN_PROFILES)
def profile_of(text: str) -> ResourceProfile:
    """The profile; equal texts give one and the same."""
    return ResourceProfile.from_dict(json.loads(text))


def ended_text(ended: Mapping[Ended, IntervalSet]) -> str:
    """JSON of how members of a range ended: [state, reason, message, [start, end, ...]] each."""
    return json_text(
        [
            [str(state), str(reason), message, [bound for run in indexes.runs() for bound in run]]
            for (state, reason, message), indexes in ended.items()
        ]
    )


def ended_of(text: str) -> dict[Ended, IntervalSet]:
    """How members of a range ended."""
    return {
        (RequestState(state), reason, message): IntervalSet(
            zip(bounds[::2], bounds[1::2], strict=True)
        )
        for state, reason, message, bounds in json.loads(text)
    }


@lru_cache(_KNOWN_PROFILES)
def labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    """JSON of sorted labels."""
    return json_text(dict(labels))


@lru_cache(_KNOWN_PROFILES)
def labels_of(text: str) -> tuple[tuple[str, str], ...]:
    """The labels, in the order of the text."""
    return tuple(json.loads(text).items())


@lru_cache(_KNOWN_ISOLATIONS)
def isolation_of(text: str) -> dict[str, object]:
    """Shared by all that say the same, so nobody may change it."""
    found: dict[str, object] = json.loads(text)
    return found


@lru_cache(_KNOWN_PROFILES)
def cpu_policy_text(policy: CpuPolicy) -> str:
    """JSON of what a request says about its cpus; empty where it says nothing."""
    data = policy.to_dict()
    return json_text(data) if data else ""


@lru_cache(_KNOWN_PROFILES)
def cpu_policy_of(text: str) -> CpuPolicy:
    """What a request says about its cpus; equal texts give one and the same."""
    return CpuPolicy.from_dict(json.loads(text) if text else {})


def assignment_text(assignment: CpuAssignment | None) -> str | None:
    """JSON of the cpus and NUMA nodes of a slot."""
    return None if assignment is None else json_text(assignment.to_dict())


def assignment_of(text: str | None) -> CpuAssignment | None:
    """The cpus and NUMA nodes of a slot."""
    return None if text is None else CpuAssignment.from_dict(json.loads(text))


_texts: dict[int, tuple[object, str]] = {}


def _shared_text(data: object) -> str:
    """JSON of plain data that nobody changes and that many share; told apart by identity, which is
    good as long as the data is kept beside its text.
    """
    known = _texts.get(id(data))
    if known is None:
        if len(_texts) >= _KNOWN_ISOLATIONS:
            _texts.clear()
        known = _texts[id(data)] = (data, json_text(data))
    return known[1]


def isolation_text(isolation: Mapping[str, object] | None) -> str | None:
    """JSON of an isolation report."""
    return None if isolation is None else _shared_text(isolation)


def slot_text(slot: Mapping[str, object] | None) -> str | None:
    """JSON of a slot as events carry it; what its profile and isolation say is shared by many."""
    if slot is None:
        return None
    return "{" + ",".join([_member(name, value) for name, value in slot.items()]) + "}"


def _member(name: str, value: object) -> str:
    if isinstance(value, str):
        text = _quoted(value)
    elif type(value) is int:
        text = str(value)
    else:
        text = _shared_text(value) if isinstance(value, dict) else json_text(value)
    return f"{_quoted(name)}:{text}"


def optional_dict(text: str | None) -> dict[str, object] | None:
    """Plain data, if there is any."""
    return None if text is None else json.loads(text)


def resize_text(resize: Resize | None) -> str | None:
    """JSON of a change of size."""
    if resize is None:
        return None
    data: dict[str, object] = {
        "number": resize.number,
        "profile": resize.profile.to_dict(),
        "cpu_limit_milli": resize.cpu_limit_milli,
        "wait_for_use": resize.wait_for_use,
        "arrival_number": resize.arrival_number,
    }
    if resize.assignment is not None:
        data["assignment"] = resize.assignment.to_dict()
    return json_text(data)


def resize_of(text: str | None) -> Resize | None:
    """The change of size."""
    if text is None:
        return None
    data = json.loads(text)
    assignment = data.pop("assignment", None)
    return Resize(
        **data | {"profile": ResourceProfile.from_dict(data["profile"])},
        assignment=None if assignment is None else CpuAssignment.from_dict(assignment),
    )
