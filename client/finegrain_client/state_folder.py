"""Finds the state files of batches and job graphs in their default folders.

The command line searches these folders for the name that a user types, so this module must be fast
to import.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The default folder of one kind of state files.

    Attributes:
        kind: "batch" or "job"; the suffix of the files.
        name: name of the folder below the user's state directory.
    """

    kind: str
    name: str

    def path(self) -> Path:
        """Returns the folder.

        For batches, the folder is `$FINEGRAIN_BATCH_DIR`. If this variable is not set, the folder
        is `finegrain/batches` below `$XDG_STATE_HOME` (by default `~/.local/state`). For job
        graphs, the variable is `$FINEGRAIN_JOB_DIR`, and the folder is `finegrain/jobs`.
        """
        if own := os.environ.get(f"FINEGRAIN_{self.kind.upper()}_DIR"):
            return Path(own).absolute()
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        return Path(state) / "finegrain" / self.name

    def new_file(self, name: str) -> Path:
        """Returns an unused path for a new state file.

        Args:
            name: name of the batch or job.
        """
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or self.kind
        stem = f"{plain[:80]}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        path, number = self.path() / f"{stem}.{self.kind}", 2
        while path.exists():
            path, number = path.with_name(f"{stem}-{number}.{self.kind}"), number + 1
        return path

    def files(self, folder: Path | None = None) -> list[Path]:
        """Returns the state files, newest last.

        Args:
            folder: the folder to read; None means the default folder.
        """
        found = []
        for path in (folder or self.path()).glob(f"*.{self.kind}"):
            with suppress(FileNotFoundError):  # the file was removed in the meantime
                found.append((path.stat().st_mtime, path.name, path))
        return [path for *_, path in sorted(found)]


BATCHES: Final = StateFolder("batch", "batches")
JOBS: Final = StateFolder("job", "jobs")
