"""The control groups of the machine that the tests run on."""

from __future__ import annotations

import glob
from pathlib import Path

ROOT = "/sys/fs/cgroup"
DEPTH_MAX = 4  # of a hierarchy's mount and our groups' parents


def groups_called(path: str) -> list[Path]:
    """Groups of this name, or path below some parent, in all hierarchies.

    Others' groups come and go meanwhile, which `Path.glob` does not forgive.
    """
    parents = ["/".join("*" * depth) for depth in range(1, DEPTH_MAX + 1)]
    return [Path(found) for each in parents for found in glob.glob(f"{ROOT}/{each}/{path}")]  # noqa: PTH207
