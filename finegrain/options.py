"""Defines the options that both daemons have: listening and logging."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The addresses at which a daemon serves calls, metrics and health.

    Addresses have the form "host:port". With port 0, the kernel chooses the port.
    """

    address: str
    metrics_address: str = ""  # empty: no metrics port
    reflection: bool = False


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The format and the level of a daemon's log."""

    level: str = "info"  # one of debug, info, warning and error
    format: str = "auto"  # json, text, or auto (text on a terminal, otherwise JSON)
