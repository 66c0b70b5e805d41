"""The files of this repository."""

from __future__ import annotations

import subprocess

from tests.support.components import REPOSITORY


def repository_files() -> list[str]:
    """Returns the paths, in the repository, of files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.split("\0") if (REPOSITORY / name).is_file()]
