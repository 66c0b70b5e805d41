"""Implements the commands that show the effective configuration and the version, and print shell
completion scripts.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finegrain_cli.command_tree import COMPLETE_VARIABLE
from finegrain_cli.common import ConfigOption, OutputOption, enter_command, reporting_errors
from finegrain_cli.context import current
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.text.output import OutputFormat, print_list, print_object

if TYPE_CHECKING:
    from finegrain_cli.config.load import Configuration

PARTS = ("grpcio", "protobuf", "sqlalchemy", "psycopg", "nvidia-ml-py", "uvloop")


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    config = typer.Typer(no_args_is_help=True)
    config.command()(reporting_errors(show))
    config.command()(reporting_errors(check))
    app.add_typer(config, name="config", help="Show or check the configuration.")
    app.command()(reporting_errors(completion))
    app.command(name="version")(reporting_errors(show_version))


def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Also show where each value comes from.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Show every value in effect, in the form of a configuration file.

    \b
    Examples:
      finegrain config show --origin
    """
    enter_command(output, config_file=config)
    configuration = current().configuration()
    rows = list(_rows(configuration))
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_list("Configuration", rows, (), output)
    else:
        print("\n".join(_lines(rows, origin=origin)))


def check(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Only this file; default: all sources.")
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Check the configuration without starting a daemon.

    \b
    Examples:
      finegrain config check
      finegrain config check /etc/finegrain/finegrain.toml
    """
    enter_command(output, config_file=config)
    from finegrain_cli.config.checks import find_problems
    from finegrain_cli.config.load import InvalidConfiguration, check_file, load_configuration

    try:
        loaded = check_file(Path(file)) if file else load_configuration(config)
    except InvalidConfiguration as error:
        read, problems = [file] if file else [], list(error.problems)
    else:
        read = [file] if file else sorted(set(loaded.origins.values()))
        problems = [*loaded.warnings, *find_problems(loaded.settings)]
    text = "\n".join(problems) or f"ok: {', '.join(read) or 'nothing is set, defaults apply'}"
    data = {"ok": not problems, "sources": read, "problems": problems}
    print_object("ConfigurationCheck", data, output, text)
    if problems:
        raise typer.Exit(ExitCode.ERROR)


def completion(
    shell: Annotated[
        Shell, typer.Argument(help="Shell to print the script for.", show_default=False)
    ],
) -> None:
    """Print the completion script for a shell.

    Save the script in a file that the shell reads.

    \b
    Examples:
      finegrain completion fish > ~/.config/fish/completions/finegrain.fish
    """
    from typer._completion_shared import get_completion_script

    print(
        get_completion_script(
            prog_name="finegrain", complete_var=COMPLETE_VARIABLE, shell=shell.value
        )
    )


def show_version(output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the version.

    -o wide also shows the versions of Python and libraries.
    """
    enter_command(output)
    import sqlite3

    parts = {name: _version_of(name) for name in PARTS}
    data = {
        "version": _version_of("finegrain") or "0",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
        "parts": parts,
    }
    text = f"finegrain {data['version']}"
    if output is OutputFormat.WIDE:
        text += f"\npython {data['python']} ({sys.executable})\nsqlite {data['sqlite']}"
        text += "".join(f"\n{name} {found or 'not installed'}" for name, found in parts.items())
    print_object("Version", data, output, text)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _rows(configuration: Configuration) -> Iterator[dict[str, Any]]:
    from finegrain_cli.config.values import all_keys, device_type_keys, shown, toml_text, value_of

    for key in all_keys():
        value = value_of(configuration.settings, key)
        yield {
            "key": key.path,
            "value": shown(value),
            "unit": key.kind.value if key.kind else None,
            "text": toml_text(key, value),
            "origin": configuration.origins.get(key.path, "default"),
            "variable": key.variable,
        }
    for name, section in sorted(configuration.settings.devices.items()):
        for key in device_type_keys(name):
            value = getattr(section, key.name)
            yield {
                "key": key.path,
                "value": value,
                "unit": None,
                "text": toml_text(key, value),
                "origin": configuration.origins.get(key.section, "default"),
                "variable": None,
            }


def _lines(rows: list[dict[str, Any]], *, origin: bool) -> Iterator[str]:
    before = ""
    for row in rows:
        section, _, name = row["key"].rpartition(".")
        if section != before:
            yield from ([""] if before else [])
            yield f"[{section}]"
            before = section
        line = f"{name} = {row['text']}" if row["text"] else f"# {name} is not set"
        yield f"{line}  # {row['origin']}" if origin else line
