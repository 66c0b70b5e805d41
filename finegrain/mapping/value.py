"""The base of values that programs read as JSON (`-o json`, `to_dict()`).

Bytes are integers, moments are RFC 3339 in UTC ("Z"), durations are float seconds, names are in
snake_case, an absent value is null, what a task wrote is text (undecodable bytes replaced).
"""

from __future__ import annotations

from typing import Any

from finegrain.mapping.json_form import JsonCodec
from finegrain.resources import PROFILE_FORM, ResourceProfile

SHOWN = JsonCodec({ResourceProfile: PROFILE_FORM})
"""Every field, whatever it holds; of profiles those that are not zero."""


class Value:
    """A dataclass that can be written as JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON-able form; see the head of this module."""
        data: dict[str, Any] = SHOWN.to_json(self)
        return data
