"""Lists processes and threads from /proc, for hosts where slots have no cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def threads(pids: Iterable[int]) -> set[int]:
    """Returns the ids of all threads of these processes. Processes that have ended are skipped."""
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            found.update(int(entry.name) for entry in os.scandir(f"/proc/{pid}/task"))
    return found


def descendants(roots: Iterable[int]) -> set[int]:
    """Returns all descendants of the processes `roots`, without `roots` and without zombies."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                # The name in parentheses can contain spaces, so split only the text after the
                # closing parenthesis.
                state, parent = (
                    Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()[:2]
                )
            except OSError:
                continue
            children.setdefault(int(parent), []).append(int(entry.name))
            # A zombie still has a pid, but has ended already.
            zombies |= {int(entry.name)} if state in "ZX" else set()
    found: set[int] = set()
    pending = list(roots)
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending += below
    return found - zombies
