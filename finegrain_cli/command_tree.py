"""Defines the tree of commands. The module of a command is imported when the command is used.

The functions in `commands` declare options as parameters, which typer reads. This module decides
which of these functions are loaded, and writes the list of commands.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

COMPLETE_VARIABLE: Final = "_FINEGRAIN_COMPLETE"
"""Name of the environment variable that the completion scripts of shells set."""

SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Run work": {"run": "run", "batch": "batch", "batches": "batch", "job": "job"},
    "See the cluster": {
        "status": "lists",
        "executors": "executors",
        "slots": "lists",
        "requests": "lists",
        "jobs": "lists",
        "events": "lists",
        "explain": "operate",
        "advise": "advise",
        "groups": "groups",
        "users": "users",
        "providers": "elastic",
        "devices": "devices",
        "topo": "host",
        "usage": "usage",
        "web": "web",
    },
    "Change slots and jobs": {
        "release": "operate",
        "terminate": "operate",
        "resize": "elastic",
        "slot": "slot",
    },
    "Change executors": {
        "drain": "operate",
        "undrain": "operate",
        "forget": "operate",
        "cordon": "devices",
        "uncordon": "devices",
    },
    "Identities": {
        "login": "identities",
        "whoami": "identities",
        "token": "identities",
        "identity": "identities",
        "audit": "audit",
    },
    "Run a cluster": {
        "up": "daemons",
        "rm": "daemons",
        "executor": "daemons",
        "db": "database",
        "certs": "certificates",
        "config": "settings",
        "doctor": "host",
        "detect": "host",
    },
    "More": {
        "simulate": "simulate",
        "completion": "settings",
        "help": "",
        "version": "settings",
    },
}
"""Sections of the list of commands. Each section has the names of its commands, and for each
command the module in `commands` that registers the command.
"""

MODULES: Final = {name: module for names in SECTIONS.values() for name, module in names.items()}


class CommandTree(TyperGroup):
    """The root of the commands. It loads a command's module when the command is looked up."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _skip_conversions(self)
        _name_arguments(self)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click passes it
        """Returns all names, in the order of the sections."""
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command, or None if no command has this name."""
        if cmd_name not in self.commands and MODULES.get(cmd_name):
            for name, command in loaded(MODULES[cmd_name]).items():
                self.commands.setdefault(name, command)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command that the arguments name. The error for an unknown command names similar
        commands.
        """
        if args and args[0] not in MODULES:
            # load all commands, because typer compares the name with the loaded commands
            for name in MODULES:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands by section, with all names at the same width."""
        width = max(map(len, MODULES))
        for title, names in SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            limit = formatter.width - 6 - width
            rows = [
                (name.ljust(width), command.get_short_help_str(limit))
                for name, command in found
                if command is not None and not command.hidden
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def loaded(module: str) -> dict[str, Any]:
    """Imports a module of `commands`. Returns the commands that the module registers, by name."""
    part = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    import_module(f"finegrain_cli.commands.{module}").register(part)
    commands: dict[str, Any] = dict(get_group(part).commands)
    for command in commands.values():
        _skip_conversions(command)
        _name_arguments(command)
    return commands


def _name_arguments(command: Any) -> None:
    """Shows arguments in usage lines as other programs do: "ID...", "[ID]", "-- COMMAND".

    typer puts additional brackets around a metavar with brackets, and writes types such as "<str>"
    behind it.
    """
    for inner in getattr(command, "commands", {}).values():
        _name_arguments(inner)
    for parameter in command.params:
        if parameter.param_type_name != "argument":
            continue
        name = parameter.metavar or str(parameter.name).upper()
        parameter.metavar = name
        usage = name if parameter.required or name.startswith("[") else f"[{name}]"
        parameter.get_usage_pieces = partial(_constant, [usage])
        if not parameter.type_descriptor.is_choice:
            parameter.display_type_rich = partial(_constant, "")


def _constant(value: Any, ctx: Any) -> Any:  # noqa: ARG001 - typer passes it
    return value


def _skip_conversions(command: Any) -> None:
    """Makes a command use pydantic only for the values that need a conversion.

    typer alone would import pydantic even for a text that needs no conversion. The import of
    pydantic takes as long as all other work of a short command. If `_unconverted` returns no value,
    typer converts the value with pydantic.
    """
    for inner in getattr(command, "commands", {}).values():
        _skip_conversions(inner)
    get_params = command.get_params

    def get_fast_params(ctx: Any) -> Any:
        found = get_params(ctx)  # `params` would not include the option --help
        for parameter in found:
            if not isinstance(parameter.get_runtime_param, _FastParameter):
                parameter.get_runtime_param = _FastParameter(parameter)
        return found

    command.get_params = get_fast_params


class _FastParameter:
    """Converts the values of one parameter. An instance replaces the parameter's
    `get_runtime_param`.
    """

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter
        self._typers = parameter.get_runtime_param

    def __call__(self) -> _FastParameter:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        _check_not_empty(param, value, ctx)
        found = _unconverted(self._parameter, value)
        if found is not None:
            return found.value
        try:
            return self._typers().coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as error:
            # The message of pydantic begins with the class of the error, and does not name the
            # value.
            error.message = error.message.removeprefix("Value error, ")
            _, prefix, expected = error.message.partition("Input should be ")
            if prefix:
                expected = expected.partition(", unable to parse")[0]
                number = "" if expected.startswith("a ") else "a number "
                error.message = f"it is {value!r}; expected {number}{expected}"
            raise


def _check_not_empty(parameter: Any, value: Any, ctx: Any) -> None:
    """Checks that an option that the user typed is not empty. Applies only to options for which an
    empty value would mean that the option was not given.

    Raises:
        BadParameter: the value is empty, for example because a script uses a variable that is not
            set.
    """
    if parameter.param_type_name != "option" or parameter.default is None:
        return
    if value == "" or (parameter.multiple and "" in (value or ())):
        source = ctx.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            message = "it is empty; give a value, or leave the option out"
            raise typer.BadParameter(message, ctx=ctx, param=parameter)


class _Found:
    def __init__(self, value: Any) -> None:
        self.value = value


def _unconverted(parameter: Any, value: Any) -> _Found | None:
    """Returns the value if it needs no conversion, or None if typer must convert the value."""
    annotation = parameter.type_descriptor.annotation
    several = parameter.multiple or parameter.nargs == -1
    if value is None:
        return _Found(() if several else None)
    if several:
        if isinstance(value, list | tuple) and all(type(each) is str for each in value):
            return _Found(list(value)) if annotation == list[str] else None
        return None
    if annotation in (str, int, bool, float) and type(value) is annotation:
        # A value that is not a text is a default, and needs no conversion.
        return _Found(value)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        members = {member.value: member for member in annotation}
        return _Found(members[value]) if value in members else None
    return None
