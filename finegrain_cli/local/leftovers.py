"""What a stopped local cluster has left on this host: looked up, never assumed.

Decides what counts: processes that name its directories, control groups that its helpers made.
Refuses to remove anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from resource_manager.providers.process_tree import executor_processes


def find_leftovers(base: Path, state_dir: Path, executor_dirs: Sequence[Path]) -> list[str]:
    """One line per process and per control group that should be gone."""
    found = {
        each: words for folder in (base, state_dir) for each, words in executor_processes(folder)
    }
    return [
        *(f"process {each.pid}: {' '.join(words)[:200]}" for each, words in found.items()),
        *(f"cgroup {path}" for folder in executor_dirs for path in groups_of(folder)),
    ]


def groups_of(executor_dir: Path) -> list[str]:
    """The executor's own control groups, by the note of its helper, as far as they exist."""
    try:
        note = json.loads((executor_dir / "helper" / "helper.json").read_text(encoding="utf-8"))
        paths = dict.fromkeys(note["base"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return [path for path in paths if Path(path).exists()]
