"""Converts plans to JSON and back, with a schema version. A fraction becomes a text, such as "1/3".

Keys are the names of the fields of `plan.py`. Within a schema version, keys are only added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from finegrain.errors import InvalidArgument
from finegrain.mapping.json_form import JsonCodec, JsonForm
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan

SCHEMA_VERSION = 1

_FRACTION = re.compile(r"\d{1,40}(/[1-9]\d{0,39})?")


def _read_fraction(data: object, where: str) -> Fraction:
    if not isinstance(data, str) or not _FRACTION.fullmatch(data):
        raise InvalidArgument(where, data, 'a fraction, such as "1/3"')
    return Fraction(data)


_CODEC = JsonCodec({Fraction: JsonForm(write=str, read=_read_fraction)})


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Returns the plan as JSON data."""
    return {"schema_version": SCHEMA_VERSION, **_CODEC.to_json(plan)}


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Reads a plan that `plan_to_json` returned. Ignores keys that only a later version knows.

    Raises:
        GraphError: the schema version is unknown.
        InvalidArgument: a value is missing, or has a wrong type.
    """
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise GraphError(
            f"the plan has schema_version {version}; this version of finegrain reads"
            f" {SCHEMA_VERSION}; compile the graph again"
        )
    return _CODEC.from_json(Plan, data)
