"""Installs the `cuda-checkpoint` for tests, and defines which processes use CUDA."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("program.py")


class CudaProcesses:
    """Processes that use CUDA. A program moves them off their GPUs and back."""

    def __init__(self) -> None:
        # It is not below the folder of a test: the helper and tasks of other users must reach it.
        self.folder = Path(tempfile.mkdtemp(prefix="cuda-"))
        self.folder.chmod(0o755)
        for name in ("processes", "parked"):
            (self.folder / name).mkdir(mode=0o777)
            (self.folder / name).chmod(0o777)
        # The profile of the driver for tests, if this driver is used.
        self.profile = self.folder / "profile"
        program = self.folder / "cuda-checkpoint"
        text = _SOURCE.read_text().replace("FAKE_CUDA_FOLDER", str(self.folder))
        program.write_text(f"#!{sys.executable} -I\n{text}")
        program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables with which an executor finds the program."""
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    @property
    def log(self) -> list[str]:
        """Returns all actions so far, such as "lock 4711"."""
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def uses(self, pid: int) -> None:
        """Lets a process begin to use CUDA."""
        (self.folder / "processes" / str(pid)).write_text("running")

    def state(self, pid: int) -> str:
        return (self.folder / "processes" / str(pid)).read_text()

    @contextmanager
    def failing(self, action: str) -> Iterator[None]:
        """Lets an action fail within the block."""
        with self._marked(f"fail-{action}"):
            yield

    @contextmanager
    def holding(self, action: str) -> Iterator[None]:
        """Keeps an action from ending within the block."""
        with self._marked(f"hold-{action}"):
            yield

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        mark = self.folder / name
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def clean_up(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
