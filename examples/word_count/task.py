"""Runs a task of `job.toml`: it reads, shuffles or reduces words. All tasks share the folder
FOLDER.

The program finds its work in FINEGRAIN_TASK (operators, subtask) and FINEGRAIN_EDGES (inputs,
outputs); see docs/job-graphs.md.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["FOLDER"])
TASK = json.loads(os.environ["FINEGRAIN_TASK"])
EDGES = json.loads(os.environ["FINEGRAIN_EDGES"])
SUBTASK: int = TASK["subtask_index"]
OPERATOR: str = TASK["operators"][0]["operator_id"]


def write(name: str, words: Counter[str]) -> None:
    """Writes counts to a file. The file gets its name only when it is complete."""
    part = FOLDER / f"{name}.part{os.getpid()}"
    part.write_text(json.dumps(words, sort_keys=True))
    part.rename(FOLDER / name)


def inputs() -> Counter[str]:
    """Returns the sum of the counts that the producers have written for this subtask."""
    words: Counter[str] = Counter()
    for edge in EDGES["inputs"]:
        for task in edge["tasks"]:
            file = FOLDER / f"{edge['operator']}-{task['subtask']}-{SUBTASK}.json"
            if not file.exists():
                # The runner then runs the producer's region again.
                sys.exit(f"input missing: {edge['edge']}")
            words.update(json.loads(file.read_text()))
    return words


def read() -> None:
    """Counts the words of this subtask's files, and writes one file of counts for each subtask of
    `shuffle`.
    """
    files = sorted(FOLDER.glob("*.txt"))[SUBTASK :: TASK["parallelism"]]
    words = Counter(word for file in files for word in file.read_text().lower().split())
    output: dict[str, Any] = EDGES["outputs"][0]
    for number in output["subtasks"]:
        count = len(output["subtasks"])
        mine = {word: n for word, n in words.items() if zlib.crc32(word.encode()) % count == number}
        write(f"read-{SUBTASK}-{number}.json", Counter(mine))


def main() -> None:
    """Does the work of this task."""
    if OPERATOR == "read":
        read()
    elif OPERATOR == "shuffle":
        write(f"shuffle-{SUBTASK}-0.json", inputs())
    else:
        write("counts.json", inputs())


main()
