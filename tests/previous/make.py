"""Makes the evidence of a version: `python -m tests.previous.make [--peers] COMMIT [FOLDER]`.

Takes the commit's files with `git archive`, and puts this folder's generators beside them. Then
runs the generators with the code and the test helpers of the commit. Needs root, cgroup v1 and
PostgreSQL. With `--peers`, only packs the code of the peers (`peers.tar.xz`), for which none of
these is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.support.components import REPOSITORY

GENERATORS = ("fill", "keep_state", "tour")


def main(commit: str, folder: Path) -> None:
    """Replaces the evidence in the folder."""
    with tempfile.TemporaryDirectory(prefix="fg-") as place:
        made = Path(place, "made")
        made.mkdir()
        source, unpacked = build(commit, Path(place), made / "code.tar.xz")
        ours = source / "tests/previous"
        shutil.copytree(Path(__file__).parent, ours, dirs_exist_ok=True)
        for name in GENERATORS:
            module = f"tests.previous.{name}"
            _run(source, sys.executable, "-m", module, str(made), code=unpacked)
        for each in made.iterdir():
            kept = folder / each.name
            shutil.rmtree(kept, ignore_errors=True)
            kept.unlink(missing_ok=True)
            shutil.move(each, kept)


def make_peers(commit: str, folder: Path) -> None:
    """Replaces only the code of the version whose daemons and commands work with the present
    version.
    """
    with tempfile.TemporaryDirectory(prefix="fg-") as place:
        build(commit, Path(place), folder / "peers.tar.xz")


def build(commit: str, place: Path, target: Path) -> tuple[Path, Path]:
    """Builds the wheel of a commit in a directory, and packs the wheel's content.

    Returns:
        The directory of the sources, and the directory of the wheel's content.
    """
    source, wheel = place / "source", place / "wheel"
    for each in (source, wheel):
        each.mkdir()
    archive = place / "archive.tar"
    _run(REPOSITORY, "git", "archive", "--output", str(archive), commit)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    project = source / "pyproject.toml"
    text, count = re.subn(r'(?m)^(version = "[\d.]+)"', rf'\1+{commit}"', project.read_text())
    assert count == 1, "no version in pyproject.toml"
    project.write_text(text)
    _run(source, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheel))
    pack(next(wheel.glob("*.whl")), wheel / "unpacked", target)
    return source, wheel / "unpacked"


def pack(wheel: Path, unpacked: Path, target: Path) -> None:
    """Writes the content of a wheel, without type stubs, to an archive. The archive has the same
    bytes each time.
    """
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(unpacked)

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if info.name.endswith((".pyi", "/RECORD")):
            return None
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(target, "w:xz", preset=9) as packed:
        for each in sorted(unpacked.iterdir()):
            packed.add(each, each.name, filter=plain)


def _run(cwd: Path, *command: str, code: Path | None = None) -> None:
    # `-m` first searches packages in the current directory, which contains the source of the same
    # version.
    path = {"PYTHONPATH": f"{code}"} if code else {}
    subprocess.run(command, cwd=cwd, env=os.environ | path, check=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    make = make_peers if "--peers" in arguments else main
    commit, *place = [each for each in arguments if each != "--peers"]
    make(commit, Path(*place or [str(REPOSITORY / "tests/data/previous")]))
