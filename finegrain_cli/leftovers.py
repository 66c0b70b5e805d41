"""What a stopped local cluster has left on this host: looked up, never assumed.

Decides what counts: processes that name its directories, control groups that its helpers made.
Refuses to remove anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def find_leftovers(base: Path, state_dir: Path, executor_dirs: Sequence[Path]) -> list[str]:
    """One line per process and per control group that should be gone."""
    return [
        *(f"process {pid}: {words}" for pid, words in _processes((base, state_dir))),
        *(f"cgroup {path}" for folder in executor_dirs for path in groups_of(folder)),
    ]


def _processes(directories: Iterable[Path]) -> list[tuple[int, str]]:
    """Live processes whose command line names one of the directories: executors, their
    helpers and their shims."""
    marks = [os.fsencode(each) for each in directories]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        ours = b"task_executor" in words or b"\0executor\0serve\0" in words
        if ours and any(mark in words for mark in marks):
            text = words.replace(b"\0", b" ").decode(errors="replace")
            found.append((int(entry.name), text[:200]))
    return found


def groups_of(executor_dir: Path) -> list[str]:
    """The executor's own control groups, by the note of its helper, as far as they exist."""
    try:
        note = json.loads((executor_dir / "helper" / "helper.json").read_text(encoding="utf-8"))
        paths = dict.fromkeys(note["base"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return [path for path in paths if Path(path).exists()]
