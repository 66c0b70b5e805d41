"""Look after the database of the resource manager."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
