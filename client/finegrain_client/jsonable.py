"""The JSON-able form of values: the shape that other programs read.

Bytes are integers, timestamps are RFC 3339 in UTC ("Z"), durations are float seconds, names are in
snake_case, an absent value is null, what a task wrote is text (undecodable bytes replaced).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from finegrain.resources import ResourceProfile


class Value:
    """A dataclass that can be written as JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; see the head of this module."""
        return {each.name: jsonable(getattr(self, each.name)) for each in fields(self)}  # type: ignore[arg-type]


def jsonable(value: Any) -> Any:
    """JSON-able form of anything that a field of a value may hold."""
    if isinstance(value, ResourceProfile | Value):
        return value.to_dict()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(each) for each in value]
    return value
