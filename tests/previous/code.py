"""The code of the previous version, from the archive beside the evidence, for processes of tests.

The archive is the wheel's content without type stubs, with the commit in the version number: a
process that runs this code says so wherever it tells its version.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.support.components import REPOSITORY

EVIDENCE = REPOSITORY / "tests/data/previous"
ARCHIVE = EVIDENCE / "code.tar.xz"
COMMIT = "fa90260"
VERSION = f"0.1.0+{COMMIT}"
"""The version that the archived code reports. A test release never has a local version."""


class PreviousCode:
    """The unpacked code of the previous version.

    Args:
        folder: where to unpack it; removed by its owner.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with tarfile.open(ARCHIVE) as packed:
            packed.extractall(folder, filter="data")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that put this code before the installed one; not for a current directory that
        has other code in it."""
        return {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, code: str, cwd: Path) -> str:
        """The output of a program text that imports this version's packages."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=cwd,
            env={"PATH": os.environ["PATH"], **self.environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout
