"""Read what a task has written so far, from the log files that its shim keeps.

A log is the head of one stream, at most `log_limit_bytes` long; what came after is only counted, in
`exit.json`. The file grows until the exit record is there. Tasks cannot write the directory, so no
link can stand in for a log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Stream = Literal["stdout", "stderr"]


def log_path(task_dir: Path, stream: Stream) -> Path:
    return task_dir / f"{stream}.log"


def read_output(task_dir: Path, stream: Stream, offset: int, max_bytes: int) -> bytes:
    """At most max_bytes from offset (both in bytes); empty at the present end, or if nothing is
    there yet.

    Raises OSError when the file exists and cannot be read.
    """
    try:
        fd = os.open(log_path(task_dir, stream), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, max_bytes, offset)
    finally:
        os.close(fd)
