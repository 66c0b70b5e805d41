"""Start the daemons: the resource manager, an executor, or both for one person."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
