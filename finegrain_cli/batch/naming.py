"""Finds the batch that a user means: by name, name of the state file, or path.

If several batches have the same name, the user means the newest batch.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError, NotFound

if TYPE_CHECKING:
    from finegrain_client.batch.status import BatchStatus


def found_batches() -> list[BatchStatus]:
    """Returns all batches of this user in the default folder, newest last.

    The function skips files that are not batches, and batches whose creation is not complete.
    """
    from finegrain_client.batch.status import read_status, state_files

    found = []
    for path in state_files():
        try:
            found.append(read_status(path))
        except FinegrainError:
            continue
    return sorted(found, key=lambda each: (each.create_time, each.state_file))


def state_file_of(text: str) -> Path:
    """Returns the state file of a batch.

    `text` can be, in order of priority: the path of the file, the file's name without suffix, the
    name of a batch, or the beginning of the file's name. If several batches match, the function
    chooses the newest batch.

    Raises:
        NotFound: there is no such batch.
    """
    from finegrain_client.batch.status import default_folder

    path = Path(text).expanduser()
    if path.is_file():
        return path.absolute()
    if os.sep not in text:
        batches = found_batches()
        for matches in (
            [each for each in batches if short_name(each) == text],
            [each for each in batches if each.spec.name == text],
            [each for each in batches if short_name(each).startswith(text)],
        ):
            if matches:
                return Path(matches[-1].state_file)
    raise NotFound(
        f"there is no batch with the name {text!r}, and no such state file; `finegrain batches` "
        f"lists the batches in {default_folder()}",
        details={"name": text},
    )


def short_name(batch: BatchStatus) -> str:
    """Returns the unique name of a batch on the command line."""
    return Path(batch.state_file).stem


def command_for(state_file: Path, option: str = "--attach") -> str:
    """Returns the command that continues a batch, or the command that applies `option` to the
    batch.
    """
    from finegrain_client.batch.status import default_folder

    known = state_file.parent == default_folder().absolute()
    return f"finegrain batch {option} {shlex.quote(state_file.stem if known else str(state_file))}"
