"""Unpacks the code of previous versions, for processes of tests. The archives are beside the stored
data of these versions.

An archive is the content of a wheel without type stubs, with the commit in the version number: a
process that runs this code reports this commit wherever it reports its version. There are two
archives. One archive is of the version without certificates: the present version takes over its
state, and refuses its peers. The other archive is of a version with certificates: its daemons and
commands work with those of the present version.
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
PEERS_ARCHIVE = EVIDENCE / "peers.tar.xz"
COMMIT = "fa90260"
VERSION = f"0.1.0+{COMMIT}"
"""The version that the archived code reports. A test release never has a local version."""
PEERS_VERSION = "0.2.0+d60205e1"
"""The version that the code of the peers reports."""


class PreviousCode:
    """The unpacked code of a previous version.

    Args:
        folder: where to unpack it; removed by its owner.
        archive: the archive with the code.
    """

    def __init__(self, folder: Path, archive: Path = ARCHIVE) -> None:
        self.folder = folder
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that put this code before the installed code. They have no effect if the
        current directory contains other code.
        """
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
