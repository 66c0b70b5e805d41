"""Which batch is meant: a name, the name of a state file, or its path.

Decides that the newest one of a name is meant. Refuses to know what is in a batch.
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
    """All batches of this user whose state files lie where they lie by default, newest last. Files
    that are no batches, or are just being made, are passed over.
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
    """The state file that is meant: by its path, else that of the newest batch of that name, or
    whose file's name is or begins so.

    Raises:
        NotFound: there is none.
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
        f"no batch is called {text!r}, and there is no such state file; `finegrain batches` lists"
        f" those in {default_folder()}",
        details={"name": text},
    )


def short_name(batch: BatchStatus) -> str:
    """What it is called on the command line, unambiguously."""
    return Path(batch.state_file).stem


def command_for(state_file: Path, option: str = "--attach") -> str:
    """The command that goes on with a batch."""
    from finegrain_client.batch.status import default_folder

    known = state_file.parent == default_folder().absolute()
    return f"finegrain batch {option} {shlex.quote(state_file.stem if known else str(state_file))}"
