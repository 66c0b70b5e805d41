"""Converts values of the configuration to text, and lists all keys.

A user can copy the text of a value into a configuration file. The text is then decoded to the same
value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from finegrain.units import format_cpu
from finegrain_cli.config.model import DeviceTypeSection, Kind, Settings

_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DURATIONS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@/]*@")

NEVER = "never"
DEVICES = "devices"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration."""

    section: str
    name: str
    field: FieldInfo

    @property
    def path(self) -> str:
        """The name in errors and in `config show`: "rm.listen"."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets the key."""
        return f"FINEGRAIN_{self.section}__{self.name}".upper()

    @property
    def kind(self) -> Kind | None:
        """The base unit of the value, or None if the value has no unit."""
        return next((each for each in _markers(self.field) if isinstance(each, Kind)), None)

    @property
    def default(self) -> Any:
        """The default, in base units."""
        return self.field.get_default()

    @property
    def help(self) -> str:
        return self.field.description or ""


def all_keys() -> Iterator[Key]:
    """Yields every key, section by section."""
    for section, holder in Settings.model_fields.items():
        model: Any = holder.annotation
        # [devices.TYPE] has no fixed keys; see `device_type_keys`.
        for name, field in getattr(model, "model_fields", {}).items():
            yield Key(section, name, field)


def device_type_keys(type_: str) -> list[Key]:
    """Returns the keys of the section [devices.TYPE]. No environment variable sets these keys."""
    return [
        Key(f"{DEVICES}.{type_}", name, field)
        for name, field in DeviceTypeSection.model_fields.items()
    ]


def keys_of(section: str) -> list[Key]:
    """Returns the keys of one section."""
    return [key for key in all_keys() if key.section == section]


def value_of(settings: BaseModel, key: Key) -> Any:
    """Returns the value of a key, in base units."""
    return getattr(getattr(settings, key.section), key.name)


def shown(value: Any) -> Any:
    """Returns a value in the form for programs. Amounts are in base units, and passwords in URLs
    are masked.
    """
    return _PASSWORD.sub(r"\1:***@", value) if isinstance(value, str) else value


def toml_text(key: Key, value: Any) -> str:
    """Returns a value as TOML. For None, the text is "never" if the key has a default, and empty if
    it has none.
    """
    if value is None:
        return json.dumps(NEVER) if key.default is not None else ""
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{json.dumps(name)} = {_plain(key.kind, each)}" for name, each in value.items()
        )
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_plain(key.kind, each) for each in value) + "]"
    return _plain(key.kind, shown(value))


def amount_text(kind: Kind, amount: int) -> str:
    """Returns an amount in the largest unit that divides it: "64MiB", "30s", "0.01"."""
    if kind is Kind.CPU:
        return format_cpu(amount)
    units = _SIZES if kind is Kind.SIZE else _DURATIONS
    for unit, factor in units:
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return str(amount)


def _plain(kind: Kind | None, value: Any) -> str:
    if kind is not None and isinstance(value, int):
        return json.dumps(amount_text(kind, value))
    # TOML and JSON write these values in the same form.
    return json.dumps(value, ensure_ascii=False)


def _markers(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    yield from _nested(field.annotation)


def _nested(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for inner in get_args(annotation):
        yield from _nested(inner)
