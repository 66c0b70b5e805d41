"""The control groups of the machine that the tests run on."""

from __future__ import annotations

import glob
from pathlib import Path

ROOT = "/sys/fs/cgroup"
DEPTH_MAX = 4  # of a hierarchy's mount and our groups' parents


def groups_called(pattern: str) -> list[Path]:
    """Groups of this name, or path below some parent, in all hierarchies; may have wildcards.

    Others' groups come and go meanwhile, which `Path.glob` does not forgive.
    """
    above = ["*/" * depth for depth in range(DEPTH_MAX + 1)]
    found = [each for parents in above for each in glob.glob(f"{ROOT}/{parents}{pattern}/")]  # noqa: PTH207
    return [Path(each) for each in found]
