"""Decodes the tables of the command provider in the providers' file.

docs/providers.md explains each key for administrators.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finegrain.config_table import ConfigTable
from resource_manager.providers.command_template import read_template

HANDLES = ("executor_id", "last_line")
TIMEOUT_MS = 60_000
RUN_AT_ONCE_MAX = 8


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """The table [command]: settings that all shapes of the provider share."""

    directory: Path | None
    run_at_once_max: int


@dataclass(frozen=True, slots=True)
class CommandShape:
    """The table [shape.command]; docs/providers.md explains each key."""

    start: tuple[str, ...]
    stop: tuple[str, ...]
    status: tuple[str, ...]
    timeout_ms: int
    handle: str
    handle_pattern: str
    stop_gone: tuple[int, ...]
    status_gone: tuple[int, ...]
    status_running_pattern: str


def read_settings(table: ConfigTable) -> CommandSettings:
    """Decodes the table [command].

    Raises:
        ConfigurationError: a value is invalid; see `ConfigTable`.
    """
    directory = table.text("directory", "", empty_ok=True)
    at_once = table.integer("run_at_once_max", RUN_AT_ONCE_MAX, least=1, most=256)
    table.end()
    return CommandSettings(Path(directory) if directory else None, at_once)


def read_command_shape(table: ConfigTable) -> CommandShape:
    """Decodes the table [shape.command].

    Raises:
        ConfigurationError: a value is invalid, or both handle and handle_pattern are set.
    """
    pattern = table.pattern("handle_pattern")
    if pattern and "handle" in table:
        table.wrong("handle", table.text("handle"), "no handle together with handle_pattern")
    status = "status" in table
    return CommandShape(
        start=read_template(table, "start", with_handle=False),
        stop=read_template(table, "stop", with_handle=True),
        status=read_template(table, "status", with_handle=True) if status else (),
        timeout_ms=table.duration_ms("timeout", TIMEOUT_MS, least_ms=100),
        handle=table.choice("handle", HANDLES, "executor_id"),
        handle_pattern=pattern,
        stop_gone=tuple(table.integers("stop_gone", ())),
        # `systemctl status` returns 3 for a unit that does not run, and 4 for a unit that does not
        # exist.
        status_gone=tuple(table.integers("status_gone", (3, 4))),
        status_running_pattern=table.pattern("status_running_pattern"),
    )
