"""Converts slots to the plain data in job events. It can be stored as JSON and converted to a
SlotStatus message.
"""

from __future__ import annotations

from functools import lru_cache

from finegrain.mapping.fields import attributes_of
from finegrain.mapping.stored import STORED
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import Isolation
from resource_manager.engine.model.entities import SLOT_RUNTIME, Resize, Slot

_ALWAYS = frozenset({"allocation_id", "generation", "job_id", "cpu_limit_milli", "executor_id"})

_OPTIONAL = tuple(
    name
    for name, each in attributes_of(Slot).items()
    if each.hint in (int, str)
    and not each.optional
    and name not in _ALWAYS.union(SLOT_RUNTIME.split())
)
"""Fields with numbers and strings that are left out if they are 0 or empty."""


def slot_to_dict(slot: Slot, executor_address: str) -> dict[str, object]:
    """Returns the fields of SlotStatus (slots.proto) by name, without empty ones.

    `profile` is `ResourceProfile.to_dict()`. `profile` and `isolation` are cached and shared
    between calls, so callers must not change them. `allocated_time_ms` is in milliseconds since
    1970. `resizes` has the unfinished resizes, as `SlotResize` without `message`. `assignment` has
    the form of `finegrain/mapping/stored.py`.
    """
    data: dict[str, object] = {
        "allocation_id": slot.allocation_id,
        "generation": slot.generation,
        "job_id": slot.job_id,
        "profile": _profile_data(slot.profile),
        "memory_bytes": slot.profile.booked_memory_bytes,
        "cpu_limit_milli": slot.cpu_limit_milli,
        "state": str(slot.state),
        "executor_id": slot.executor_id,
        "executor_address": executor_address,
    }
    for name in _OPTIONAL:
        if value := getattr(slot, name):
            data[name] = value
    if slot.isolation is not None:
        data["isolation"] = _isolation_data(slot.isolation)
    if slot.allocated_time_ms is not None:
        data["allocated_time_ms"] = slot.allocated_time_ms
    if slot.ordered is not None or slot.wanted is not None:
        under_way = ((slot.ordered, "ORDERED"), (slot.wanted, "WAITING"))
        data["resizes"] = [_resize(one, state) for one, state in under_way if one is not None]
    if slot.assignment is not None:
        data["assignment"] = STORED.to_json(slot.assignment)
    return data


def _resize(resize: Resize, state: str) -> dict[str, object]:
    data: dict[str, object] = {
        "resize_number": resize.number,
        "profile": _profile_data(resize.profile),
        "memory_bytes": resize.profile.booked_memory_bytes,
        "cpu_limit_milli": resize.cpu_limit_milli,
        "state": state,
    }
    if resize.assignment is not None:
        data["assignment"] = STORED.to_json(resize.assignment)
    return data


@lru_cache(4_096)
def _isolation_data(isolation: Isolation) -> dict[str, object]:
    data: dict[str, object] = STORED.to_json(isolation)
    return data


@lru_cache(16_384)
def _profile_data(profile: ResourceProfile) -> dict[str, object]:
    return profile.to_dict()
