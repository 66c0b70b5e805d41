"""Finds control groups of the machine that runs the tests."""

from __future__ import annotations

import glob
from pathlib import Path

ROOT = "/sys/fs/cgroup"
DEPTH_MAX = 4  # of a hierarchy's mount and the parents of our groups


def groups_called(pattern: str) -> list[Path]:
    """Returns the groups in all hierarchies whose name, or path below a parent, matches `pattern`.

    `Path.glob` is not used: it fails when another process removes a group during the search.
    """
    above = ["*/" * depth for depth in range(DEPTH_MAX + 1)]
    found = [each for parents in above for each in glob.glob(f"{ROOT}/{parents}{pattern}/")]  # noqa: PTH207
    return [Path(each) for each in found]
