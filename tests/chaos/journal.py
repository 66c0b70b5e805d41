"""The journal of a job master: one JSON object per line, written at once.

So even the journal of a killed job master is correct.
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
REFUSED = "refused"  # rejected as infeasible at once: id, reason
EVENT = "event"  # in the watch stream: job_id, sequence, id, state, reason, generation, executor
GRANTED = "granted"  # the client returned a slot: id, generation, executor
TASK = "task"  # started: task_id, id, generation, executor
TASK_ENDED = "task_ended"  # with the right result: task_id
SLOT_LOST = "slot_lost"  # while a task ran, or before: id, generation, executor, reason
RELEASED = "released"  # id
CANCELLED = "cancelled"  # id
JOB_LOST = "job_lost"  # ended by others: job_id, reason
JOB_ENDED = "job_ended"  # ended by this job master: job_id
WRONG = "wrong"  # an error that must never happen: message
DONE = "done"  # the last line of a job master that was asked to stop


class Journal:
    """Appends to a file; written lines survive if the process is killed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, what: str, **values: Any) -> None:
        """Appends one line."""
        line = json.dumps({"at": time.time(), "what": what, **values})
        os.write(self._fd, line.encode() + b"\n")


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the complete lines so far; an incomplete last line is left out."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)
