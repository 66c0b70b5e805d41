"""Flags of a command, made of the keys of the configuration, so that every key has its flag.

Decides their names and help. A flag is read by the same code as the key of a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, get_origin

import typer

from finegrain_cli.config.load import Flag
from finegrain_cli.config.values import Key, amount_text, keys_of

_NAMES = {"labels": "label", "memory_pools": "memory-pool", "extended": "resource"}
_NAMED_SECTIONS = ("log", "fairness")
_METAVARS = {"manager": "HOST:PORT[,...]", "labels": "KEY=VALUE", "memory_pools": "PART=SIZE"}


def parameters(*sections: str) -> list[inspect.Parameter]:
    """One parameter of a typer command per key; None means that the flag was not given."""
    return [_parameter(key) for section in sections for key in keys_of(section)]


def flags_given(sections: tuple[str, ...], given: Mapping[str, Any]) -> list[Flag]:
    """The flags that were given, by the values of the `parameters`."""
    return [
        Flag(flag_name(key), key.section, key.name, _value(given[_argument(key)]))
        for section in sections
        for key in keys_of(section)
        if given.get(_argument(key)) not in (None, [])
    ]


def flag_name(key: Key) -> str:
    """The flag of a key: "--log-level" for log.level, "--listen" for rm.listen."""
    name = _NAMES.get(key.name, key.name.replace("_", "-"))
    return f"--{key.section}-{name}" if key.section in _NAMED_SECTIONS else f"--{name}"


def _argument(key: Key) -> str:
    return f"{key.section}_{key.name}"


def _parameter(key: Key) -> inspect.Parameter:
    default, annotation = _shape(key)
    return inspect.Parameter(
        _argument(key), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _shape(key: Key) -> tuple[Any, Any]:
    name = flag_name(key)
    text = (key.help[:1].upper() + key.help[1:] + _default_text(key)).rstrip()
    if key.field.annotation is bool:
        option = typer.Option(f"{name}/--no-{name[2:]}", help=text, show_default=False)
        return None, Annotated[bool | None, option]
    option = typer.Option(name, help=text, metavar=_metavar(key), show_default=False)
    if get_origin(key.field.annotation) is dict:
        return [], Annotated[list[str], option]
    return None, Annotated[str | None, option]


def _metavar(key: Key) -> str:
    if key.name in _METAVARS:
        return _METAVARS[key.name]
    if key.kind is not None:
        return {"bytes": "SIZE", "milliseconds": "DURATION"}.get(key.kind.value, "CORES")
    if get_origin(key.field.annotation) is dict:
        return "NAME=COUNT"
    return "TEXT" if key.field.annotation is str else "NUMBER"


def _default_text(key: Key) -> str:
    default = key.default
    if key.kind is not None and isinstance(default, int):
        return f" [default: {amount_text(key.kind, default)}]"
    if default in (None, "", False) or isinstance(default, list | dict):
        return ""
    return f" [default: {default}]"


def _value(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    if not all("=" in each for each in given):
        return ",".join(given)  # refused with the words for this key
    return {name: text for name, _, text in (each.partition("=") for each in given)}
