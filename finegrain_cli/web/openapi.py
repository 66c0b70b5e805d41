"""Describes the HTTP interface in OpenAPI 3.1. The module generates the description from the table
of routes.

The schemas of requests come from the messages of the protocol. The schemas of answers come from the
classes that the client library and the commands use.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor

from finegrain.cpuset import CpuSet
from finegrain.ids import ID_PATTERN
from finegrain.resources import ResourceProfile
from finegrain.rpc.mapping.fields import DURATION, TIMESTAMP, is_map, is_repeated
from finegrain.software_version import software_version
from finegrain_cli.web.problems import MEDIA_TYPE
from finegrain_cli.web.requests import (
    DURATION_S_MAX,
    INTEGER_RANGES,
    entry_of,
    named_fields,
    words_of,
)
from finegrain_cli.web.routes import ROUTES, Route

_NUMBER = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
PRINTABLE = r"^[^\u0000-\u001f\u007f-\u00a0\u00ad\u2028\u2029]*$"
"""Pattern of texts in requests. The server refuses some more characters that cannot be printed."""
_IDS = ("executor_id", "job_id")
"""Fields in paths that are single ids. Other ids can also be parts of ids, or ranges."""

Schema = dict[str, Any]


@cache
def description() -> Schema:
    """Returns the whole description."""
    schemas: dict[str, Schema] = {"Problem": _PROBLEM}
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "finegrain",
            "version": software_version(),
            "description": "Calls of a finegrain resource manager. Amounts of memory are in bytes,"
            " amounts of cpu in thousandths of a core, times in RFC 3339, durations in seconds.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"certificate": {"type": "mutualTLS"}},
        },
        "security": [{"certificate": []}],
    }


_PROBLEM: Schema = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "stable reason code"},
        "details": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def _operation(route: Route, schemas: dict[str, Schema]) -> Schema:
    in_path = re.findall(r"{(\w+)}", route.path)
    described = named_fields(route.request.DESCRIPTOR)
    parameters: list[Schema] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {
                "type": "string",
                "pattern": f"^{ID_PATTERN.pattern}$" if name in _IDS else PRINTABLE,
            },
        }
        for name in in_path
    ]
    others = {name: field for name, field in described.items() if name not in in_path}
    operation: Schema = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            str(route.status): {
                "description": "success",
                "content": {"application/json": {"schema": _answer(route, schemas)}},
            },
            "default": {
                "description": "problem details with a reason code",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if not route.changes:
        parameters += [
            {"name": name, "in": "query", "schema": _of_field(field, schemas)}
            for name, field in others.items()
            if not is_map(field)
            and (field.message_type is None or field.message_type.full_name == DURATION)
        ]
        return operation
    parameters.append(
        {
            "name": "Idempotency-Key",
            "in": "header",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }
    )
    if route.guarded_by:
        parameters.append(
            {"name": "If-Match", "in": "header", "schema": {"type": "string", "minLength": 1}}
        )
    operation["requestBody"] = {
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        name: _or_null(_of_field(field, schemas)) for name, field in others.items()
                    },
                }
            }
        }
    }
    return operation


def _operation_id(route: Route) -> str:
    """Returns the unique name of a route. The name is also unique if one call of the protocol
    serves two routes.
    """
    same = [each for each in ROUTES if each.call == route.call]
    at = same.index(route)
    return route.name if at == 0 else f"{route.name}{at + 1}"


def _answer(route: Route, schemas: dict[str, Schema]) -> Schema:
    envelope: Schema = {
        "type": "object",
        "required": ["api_version", "kind"],
        "properties": {"api_version": {"type": "string"}, "kind": {"const": route.kind}},
    }
    if route.value is None:
        return envelope
    found = _of_type(route.value, schemas)
    if not route.is_list:
        return {"allOf": [envelope, found]}
    envelope["required"].append("items")
    envelope["properties"] |= {
        "items": {"type": "array", "items": found},
        "next_page_token": {"type": "string"},
    }
    return envelope


def _of_field(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    if is_map(field):
        value = entry_of(field, "value")
        return {"type": "object", "additionalProperties": _of_one(value, schemas)}
    one = _of_one(field, schemas)
    return {"type": "array", "items": one} if is_repeated(field) else one


def _or_null(schema: Schema) -> Schema:
    """Returns the schema of a field in a body: null stands for an absent field."""
    return {"anyOf": [schema, {"type": "null"}]}


def _of_one(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    if field.message_type is not None:
        return _of_message(field.message_type, schemas)
    if field.enum_type is not None:
        return {"enum": list(words_of(field.enum_type))}
    if field.cpp_type in INTEGER_RANGES:
        low, high = INTEGER_RANGES[field.cpp_type]
        if field.name == "page_size":
            low = 0
        return {"type": "integer", "minimum": low, "maximum": high}
    if field.cpp_type in _NUMBER:
        return {"type": "number"}
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"type": "boolean"}
    return {"type": "string", "pattern": PRINTABLE}


def _of_message(descriptor: Any, schemas: dict[str, Schema]) -> Schema:
    if descriptor.full_name == DURATION:
        return {
            "type": "number",
            "minimum": 0,
            "maximum": DURATION_S_MAX,
            "description": "seconds",
        }
    if descriptor.full_name == TIMESTAMP:
        return {"type": "string", "format": "date-time"}
    name = f"{descriptor.name}Message"
    if name not in schemas:
        schemas[name] = {"type": "object", "additionalProperties": False}
        schemas[name]["properties"] = {
            key: _or_null(_of_field(field, schemas))
            for key, field in named_fields(descriptor).items()
        }
    return {"$ref": f"#/components/schemas/{name}"}


def _of_type(kind: Any, schemas: dict[str, Schema]) -> Schema:
    """Returns the schema of the JSON form of a class; see `finegrain.mapping.value`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        options = [_of_type(each, schemas) for each in arguments]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of_type(arguments[1], schemas)}
    if isinstance(origin, type) and issubclass(origin, list | tuple | frozenset):
        return {"type": "array", "items": _of_type(arguments[0], schemas)}
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string"}
    if is_dataclass(kind) and isinstance(kind, type):
        return _of_dataclass(kind, schemas)
    return {}


_PLAIN: dict[Any, Schema] = {
    type(None): {"type": "null"},
    str: {"type": "string"},
    bytes: {"type": "string"},
    CpuSet: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    ResourceProfile: {"type": "object"},
}


def _of_dataclass(kind: type, schemas: dict[str, Schema]) -> Schema:
    if kind.__name__ not in schemas:
        # Set this before the fields are read, because a class can contain itself.
        schemas[kind.__name__] = {}
        hints = get_type_hints(kind)
        schemas[kind.__name__] |= {
            "type": "object",
            "properties": {
                each.name: _of_type(hints[each.name], schemas)
                for each in fields(kind)
                if not each.name.startswith("_")
            },
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
