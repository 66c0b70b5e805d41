"""Machines as directories: recorded ones, unpacked once per session, and small ones by hand."""

import tarfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

TREES = Path(__file__).parents[2] / "data" / "topologies"


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The root directory of a recorded machine, by name.  Tests that change it make a copy."""

    @cache
    def unpack(name: str) -> Path:
        root = tmp_path_factory.mktemp(name, numbered=False)
        with tarfile.open(TREES / f"{name}.tar.xz") as archive:
            archive.extractall(root, filter="data")
        return root

    return unpack


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Writes a machine from relative paths and contents, and returns its root."""

    def write(files: Mapping[str, str]) -> Path:
        for path, content in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return tmp_path

    return write
