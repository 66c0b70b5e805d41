"""Reads the output of a task from the log files that its shim writes.

A log contains the first `log_limit_bytes` of one stream. Later bytes are only counted, in
`exit.json`. The file grows until the exit record exists. Tasks cannot write to the directory, so a
task cannot replace a log by a link.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Stream = Literal["stdout", "stderr"]


def log_path(task_dir: Path, stream: Stream) -> Path:
    """Returns the path of a task's log of one stream."""
    return task_dir / f"{stream}.log"


def read_output(task_dir: Path, stream: Stream, offset: int, max_bytes: int) -> bytes:
    """Reads output from a log.

    Args:
        task_dir: the task's directory.
        stream: stdout or stderr.
        offset: the position of the first byte to read.
        max_bytes: the maximum number of bytes to return.

    Returns:
        The bytes; empty at the present end of the log, or if there is no log yet.

    Raises:
        OSError: the file exists, but cannot be read.
    """
    try:
        fd = os.open(log_path(task_dir, stream), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, max_bytes, offset)
    finally:
        os.close(fd)
