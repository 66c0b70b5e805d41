"""Converts events of the schedule to JSON text and back. State files contain events as JSON
text.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import get_args

from finegrain_client.graph.schedule import Event, TaskId

_KINDS = {kind.__name__: kind for kind in get_args(Event)}


def event_to_json(event: Event) -> str:
    """Returns an event as text."""
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    return json.dumps({"event": type(event).__name__, **values}, separators=(",", ":"))


def event_from_json(text: str) -> Event:
    """Reads an event that `event_to_json` returned."""
    data = json.loads(text)
    kind = _KINDS[data.pop("event")]
    if "task" in data:
        data["task"] = TaskId(*data["task"])
    if "hosts" in data:
        data["hosts"] = tuple(data["hosts"])
    event: Event = kind(**data)
    return event
