"""Generates the flags of a command from the keys of the configuration. Every key has a flag.

The same code decodes the value of a flag and the value of a key in a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, get_origin

import typer

from finegrain_cli.config.load import Flag
from finegrain_cli.config.renamed import old_names, renaming_warning
from finegrain_cli.config.values import Key, amount_text, keys_of

_NAMES = {"labels": "label", "memory_pools": "memory-pool", "extended": "resource"}
_NAMED_SECTIONS = ("log", "fairness")
_METAVARS = {
    "manager": "HOST:PORT[,...]",
    "labels": "KEY=VALUE",
    "memory_pools": "PART=SIZE",
    "default_slot_memory_percent": "PART=PERCENT",
}


def parameters(*sections: str) -> list[inspect.Parameter]:
    """Returns a typer parameter for each key, and a hidden parameter for each old name of a key.

    A parameter has the value None if its flag was not given.
    """
    keys = [key for section in sections for key in keys_of(section)]
    return [
        *(_parameter(key) for key in keys),
        *(_parameter(key, old) for key in keys for old in old_names(key.section, key.name)),
    ]


def flags_given(sections: tuple[str, ...], given: Mapping[str, Any]) -> list[Flag]:
    """Returns the flags that were given. `given` has the values of the `parameters`."""
    found: list[Flag] = []
    for key in (key for section in sections for key in keys_of(section)):
        # Add the current name last, because a later flag of the same key has priority.
        for name in (*old_names(key.section, key.name), key.name):
            value = given.get(f"{key.section}_{name}")
            if value in (None, []):
                continue
            given_name, current_name = flag_name(key, name), flag_name(key)
            warning = (
                renaming_warning(given_name, current_name) if given_name != current_name else ""
            )
            found.append(Flag(given_name, key.section, key.name, _value(value), warning))
    return found


def flag_name(key: Key, name: str = "") -> str:
    """Returns the flag of a key: "--log-level" for log.level, "--listen" for rm.listen.

    If `name` is an older name of the key, the function returns the flag of the older name.
    """
    name = name or key.name
    name = _NAMES.get(name, name.replace("_", "-"))
    return f"--{key.section}-{name}" if key.section in _NAMED_SECTIONS else f"--{name}"


def _parameter(key: Key, old: str = "") -> inspect.Parameter:
    default, annotation = _option(key, old)
    return inspect.Parameter(
        f"{key.section}_{old or key.name}",
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=annotation,
    )


def _option(key: Key, old: str) -> tuple[Any, Any]:
    name, hidden = flag_name(key, old), bool(old)
    text = (key.help[:1].upper() + key.help[1:] + _default_text(key)).rstrip()
    if key.field.annotation is bool:
        option = typer.Option(
            f"{name}/--no-{name[2:]}", help=text, show_default=False, hidden=hidden
        )
        return None, Annotated[bool | None, option]
    option = typer.Option(name, help=text, metavar=_metavar(key), show_default=False, hidden=hidden)
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
    if get_origin(key.field.annotation) is list:
        return "TEXT[,...]"
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
        # This text is not valid for the key. So the decoder raises the error of this key.
        return ",".join(given)
    return {name: text for name, _, text in (each.partition("=") for each in given)}
