"""Defines the base class of values that programs read as JSON (`-o json`, `to_dict()`).

Bytes are integers, times are RFC 3339 in UTC ("Z"), durations are float seconds, names are in
snake_case, absent values are null. The output of a task is text (undecodable bytes are replaced).
"""

from __future__ import annotations

from typing import Any, ClassVar

from finegrain.mapping.json_form import JsonCodec
from finegrain.resources import PROFILE_FORMS

SHOWN = JsonCodec(PROFILE_FORMS)
"""Writes every field with every value, except that profiles leave out zero amounts."""


class Value:
    """A dataclass that can be written as JSON.

    Attributes:
        HIDDEN: names of fields that JSON leaves out, separated by spaces.
    """

    __slots__ = ()

    HIDDEN: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form, as described at the top of this module."""
        data: dict[str, Any] = SHOWN.to_json(self)
        return data
