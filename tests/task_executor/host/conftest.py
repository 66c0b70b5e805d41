"""Machines as directories: recorded machines, and small machines written by hand."""

import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

TREES = Path(__file__).parents[2] / "data" / "topologies"


@pytest.fixture
def tree() -> Iterator[Callable[[str], Path]]:
    """Returns the root directory of a recorded machine, by name."""
    # Files are in memory if possible: the largest machine has 6,500 files.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory, prefix="finegrain-machines-") as folder:

        @cache
        def unpack(name: str) -> Path:
            root = Path(folder, name)
            with tarfile.open(TREES / f"{name}.tar.xz") as archive:
                archive.extractall(root, filter="fully_trusted")
            return root

        yield unpack


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
