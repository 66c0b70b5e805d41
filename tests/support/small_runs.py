"""Runs pytest on a few lines of code, in a separate process with this repository's plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S

_CONFTEST = 'pytest_plugins = ["tests.support.plugin"]\n'
_SETTINGS = "[pytest]\naddopts = --import-mode=importlib --strict-markers -p no:cacheprovider\n"


@contextmanager
def small_run(
    folder: Path, code: str, *args: str, ci: bool = False, **popen: Any
) -> Iterator[subprocess.Popen[str]]:
    """Starts pytest on one file with this code; its output and errors share one pipe."""
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "pytest.ini").write_text(_SETTINGS)
    (folder / "test_small.py").write_text(code)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'client'}"}
    environment |= {"CI": "true" if ci else "", "PYTEST_ADDOPTS": ""}
    for name in [each for each in environment if each.startswith("PYTEST_XDIST")]:
        del environment[name]  # this run must not act as a worker of the outer one
    command = [sys.executable, "-m", "pytest", "-q", *args, "test_small.py"]
    options = {"cwd": folder, "env": environment, "text": True, **pipes, **popen}
    with subprocess.Popen(command, **options) as run:
        try:
            yield run
        finally:
            run.kill()  # has no effect if the run has ended


def run_to_its_end(folder: Path, code: str, *args: str, ci: bool = False) -> tuple[int, str]:
    """Returns the exit code of the run and its output."""
    with small_run(folder, code, *args, ci=ci) as run:
        said, _ = run.communicate(timeout=PATIENCE_S)
        return run.returncode, said
