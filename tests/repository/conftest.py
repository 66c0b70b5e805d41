"""Builds the wheel once per run, from a copy of the repository's files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY

# Everything the build reads; a copy, so that a build neither sees nor leaves anything else.
BUILD_INPUTS = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "finegrain",
    "client",
    "finegrain_cli",
    "resource_manager",
    "task_executor",
    "migrations",
    "protos",
    "tests",
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a freshly built wheel."""
    source = tmp_path_factory.mktemp("source")
    for name in BUILD_INPUTS:
        original = REPOSITORY / name
        if original.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(original, source / name, ignore=ignore)
        else:
            shutil.copy2(original, source / name)
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("finegrain-*.whl")
    return built
