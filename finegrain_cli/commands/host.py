"""What this host has, what is wrong with it, and how an executor sees it."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
