"""Copies of the checkout for mutants, each with a server that runs the tests there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.server import Outcome, Request


def files_of(root: Path) -> list[str]:
    """Returns files that git tracks or would track, relative to `root`; without git, all."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.rstrip("\0").split("\0")
    else:
        names = [str(each.relative_to(root)) for each in root.rglob("*")]
        names = [name for name in names if "__pycache__" not in name]
    return sorted(name for name in names if (root / name).is_file())


def digest(root: Path, more: str) -> str:
    """Returns a hash of the checkout's content and of `more`."""
    result = hashlib.sha256(more.encode())
    for name in files_of(root):
        result.update(f"\0{name}\0".encode() + (root / name).read_bytes())
    return result.hexdigest()[:16]


class Copy:
    """One copy and its server."""

    def __init__(self, root: Path, folder: Path, tests: list[str]) -> None:
        self.root = folder
        for name in files_of(root):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)
        # The tool itself, if the tree is not its own repository (as in its tests).
        for source in Path(__file__).parent.glob("*.py"):
            target = folder / "tests/mutation" / source.name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        if (root / ".tools").exists():
            (folder / ".tools").symlink_to(root / ".tools")
        self._protected = str(root)
        python_path = os.pathsep.join([str(folder), str(folder / "client")])
        environment = os.environ | {"PYTHONPATH": python_path}
        # Compile once, and never again: of two changes of a file within one second, the second must
        # not be mistaken for the first.
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--collect-only", *tests],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.server"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, request: Request) -> Outcome:
        """Runs tests in this copy."""
        assert self._server.stdin
        assert self._server.stdout
        whole = Request(**{**vars(request), "protected": self._protected})
        self._server.stdin.write(whole.encode())
        self._server.stdin.flush()
        return Outcome(**json.loads(self._server.stdout.readline()))

    @contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """Replaces the text of a file in this block."""
        file = self.root / path
        before = file.read_bytes()
        self._write(file, text.encode())
        try:
            yield
        finally:
            self._write(file, before)

    @staticmethod
    def _write(file: Path, data: bytes) -> None:
        file.write_bytes(data)
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            stale.unlink()

    def close(self) -> None:
        """Ends the server."""
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()


@contextmanager
def copy_of(root: Path, tests: list[str]) -> Iterator[Copy]:
    """Makes a copy, and removes it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="finegrain-mutation-"))
    folder.chmod(0o755)  # some tests run as another user
    try:
        copy = Copy(root, folder, tests)
        try:
            yield copy
        finally:
            copy.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
