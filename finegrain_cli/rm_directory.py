"""Finds the state directory of the resource manager, for commands that work on its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finegrain_cli.context import current

StateDirOption = Annotated[
    str,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="State directory of the resource manager; default: rm.state_dir.",
    ),
]


def state_dir_of(given: str) -> Path:
    """Returns the state directory of the resource manager: `given`, or the configured directory if
    `given` is empty.
    """
    from finegrain_cli.config.daemon_options import rm_state_dir

    return Path(given) if given else rm_state_dir(current().configuration().settings.rm)
