"""The configuration in force, the version, and completion for shells."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
