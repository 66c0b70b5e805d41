"""What a job master writes down as it happens, one JSON object per line, so that even one that is
killed leaves a true account.

Decides the words of the journal. Refuses to know what follows from them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JOB = "job"  # a job is registered: job_id
ASKED = "asked"  # before the call: job_id, ids
ACKNOWLEDGED = "acknowledged"  # the call returned: job_id, ids
REFUSED = "refused"  # infeasible from the start: id, reason
EVENT = "event"  # of the watch stream: job_id, sequence, id, state, reason, generation, executor
GRANTED = "granted"  # the client has handed out a slot: id, generation, executor
TASK = "task"  # started: task_id, id, generation, executor
TASK_ENDED = "task_ended"  # as it should: task_id
SLOT_LOST = "slot_lost"  # while a task ran, or before it could: id, generation, executor, reason
RELEASED = "released"  # id
CANCELLED = "cancelled"  # id
JOB_LOST = "job_lost"  # somebody else ended it: job_id, reason
JOB_ENDED = "job_ended"  # by us: job_id
WRONG = "wrong"  # what must never be: message
DONE = "done"  # the last line of a job master that was asked to finish


class Journal:
    """Appends to a file; what was written is there even if the process is killed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, what: str, **values: Any) -> None:
        """One line."""
        line = json.dumps({"at": time.time(), "what": what, **values})
        os.write(self._fd, line.encode() + b"\n")


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Its lines so far; a last one that is not complete is left out."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)
