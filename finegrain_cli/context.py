"""What the common options settled, once per invocation: configuration, output form, addresses.

Commands take it from `current()`; nothing in here imports gRPC before a command asks for a
connection.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finegrain_cli.text.output import OutputFormat

if TYPE_CHECKING:
    from finegrain_cli.config.load import Configuration


@dataclass(slots=True)
class Invocation:
    """Global options of this invocation, as given; empty where they were not."""

    config_file: str = ""
    manager: str = ""
    token_file: str = ""
    output: OutputFormat = OutputFormat.TABLE
    _configuration: Configuration | None = None

    def configuration(self) -> Configuration:
        """The merged configuration (flag > environment > file > default), read once.

        Raises:
            ConfigurationError: a file cannot be read, a key is unknown, or a value is wrong.
        """
        if self._configuration is None:
            from finegrain_cli.config.load import load_configuration

            self._configuration = load_configuration(self.config_file)
            warn_of(self._configuration)
        return self._configuration


def warn_of(configuration: Configuration) -> None:
    """Says on standard error what the configuration should be written as."""
    for warning in configuration.warnings:
        print(f"warning: {warning}", file=sys.stderr)


_CURRENT: ContextVar[Invocation | None] = ContextVar("invocation", default=None)


def enter(invocation: Invocation) -> None:
    """Makes this the invocation that `current` returns."""
    _CURRENT.set(invocation)


def current() -> Invocation:
    """The invocation at hand; one without options where none was entered."""
    invocation = _CURRENT.get()
    if invocation is None:
        invocation = Invocation()
        _CURRENT.set(invocation)
    return invocation
