"""Finds the job that a user means, by path or name of its state file.

If several jobs match, the user means the newest job.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from finegrain.errors import NotFound


def state_file_of(text: str) -> Path:
    """Returns the state file that `find_state_file` finds for a job.

    Raises:
        NotFound: there is no such job.
    """
    from finegrain_client.state_folder import JOBS

    if (found := find_state_file(text)) is not None:
        return found
    raise NotFound(
        f"there is no job with the name {text!r}, and no such state file; name a job that was "
        f"started with `finegrain job run` (state files are in {JOBS.path()})",
        details={"name": text},
    )


def find_state_file(text: str) -> Path | None:
    """Returns the state file of a job, or None if there is no such job.

    `text` can be the path of the file, the file's name without suffix, or the beginning of this
    name.
    """
    from finegrain_client.state_folder import JOBS

    path = Path(text).expanduser()
    if path.is_file():
        return path.absolute()
    if os.sep not in text:
        files = JOBS.files()
        for matches in (
            [each for each in files if each.stem == text],
            [each for each in files if each.stem.startswith(text)],
        ):
            if matches:
                return matches[-1]
    return None


def command_for(state_file: Path, command: str = "run --attach") -> str:
    """Returns the command that continues a job, or another command for the job."""
    from finegrain_client.state_folder import JOBS

    known = state_file.parent == JOBS.path().absolute()
    return f"finegrain job {command} {shlex.quote(state_file.stem if known else str(state_file))}"
