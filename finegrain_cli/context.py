"""Keeps the options of the current invocation, such as configuration, form of the output and
addresses.

Commands get these options from `current()`. This module does not import gRPC.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finegrain_cli.config.sources import ClientSettings, is_configured
from finegrain_cli.text.output import OutputFormat

if TYPE_CHECKING:
    from finegrain_cli.config.load import Configuration


@dataclass(slots=True)
class Invocation:
    """Global options of this invocation. An option that was not given is empty."""

    config_file: str = ""
    manager: str = ""
    credentials: str = ""
    output: OutputFormat = OutputFormat.TABLE
    _configuration: Configuration | None = None

    def configuration(self) -> Configuration:
        """Returns the merged configuration, which is read only once. Flags have the highest
        priority, followed by the environment, files and defaults.

        Raises:
            ConfigurationError: a file cannot be read, a key is unknown, or a value is invalid.
        """
        if self._configuration is None:
            from finegrain_cli.config.load import load_configuration

            self._configuration = load_configuration(self.config_file)
            warn_of(self._configuration)
        return self._configuration

    def client_settings(self) -> ClientSettings:
        """Returns the values of the configuration that a call to a resource manager needs.

        Raises:
            ConfigurationError: see `configuration`.
        """
        if not is_configured(self.config_file, os.environ):
            return ClientSettings()
        settings = self.configuration().settings
        return ClientSettings(
            **{**settings.client.model_dump(), "manager": tuple(settings.client.manager)},
            rm_state_dir=settings.rm.state_dir,
        )


def warn_of(configuration: Configuration) -> None:
    """Prints the configuration's warnings on standard error, for example warnings about renamed
    keys.
    """
    for warning in configuration.warnings:
        print(f"warning: {warning}", file=sys.stderr)


_CURRENT: ContextVar[Invocation | None] = ContextVar("invocation", default=None)


def enter(invocation: Invocation) -> None:
    """Stores an invocation. `current` then returns this invocation."""
    _CURRENT.set(invocation)


def current() -> Invocation:
    """Returns the current invocation. If `enter` was not called, returns an invocation without
    options.
    """
    invocation = _CURRENT.get()
    if invocation is None:
        invocation = Invocation()
        _CURRENT.set(invocation)
    return invocation
