"""Finds processes and cgroups that a stopped local cluster has left on this host. Does not remove
them.

A process belongs to the cluster if its command line contains a path in the cluster's directories. A
cgroup belongs to the cluster if a helper of the cluster created it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from resource_manager.providers.process_tree import executor_processes


def find_leftovers(base: Path, state_dir: Path, executor_dirs: Sequence[Path]) -> list[str]:
    """Returns one line for each process and each control group that should no longer exist.

    Args:
        base: temporary directory of the cluster.
        state_dir: state directory of the cluster.
        executor_dirs: state directories of the cluster's executors.
    """
    found = {
        each: words for folder in (base, state_dir) for each, words in executor_processes(folder)
    }
    return [
        *(f"process {each.pid}: {' '.join(words)[:200]}" for each, words in found.items()),
        *(f"cgroup {path}" for folder in executor_dirs for path in groups_of(folder)),
    ]


def groups_of(executor_dir: Path) -> list[str]:
    """Reads the control groups of an executor from the note of the executor's helper. Returns the
    groups that still exist.
    """
    try:
        note = json.loads((executor_dir / "helper" / "helper.json").read_text(encoding="utf-8"))
        paths = dict.fromkeys(note["base"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return [path for path in paths if Path(path).exists()]
