"""Runs agents. An agent is a program that loads a driver's library, or that starts another program
with such a library.

Each agent is a separate program, so the helper itself never loads a library. Otherwise every fork
of the helper would contain the library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.loop import Job
from task_executor.helper.protocol import FRAME_BYTES_MAX

_FOLDER = Path(__file__).resolve().parents[1]
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)  # signals that the helper ignores


def run_agent(name: str, order: dict[str, Any], answer_s: float) -> Job:
    """Returns a job that gives an order to an agent. The job returns the agent's answer, or None if
    the agent does not answer in time.
    """
    # Use files in memory instead of pipes, because a long order or answer could block a pipe.
    files = [os.memfd_create("order"), os.memfd_create("answer")]
    try:
        os.pwrite(files[0], json.dumps(order).encode(), 0)
        ends = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(files)]
        program = [sys.executable, "-I", "-S", "-X", "utf8", str(_FOLDER / name)]
        pid = os.posix_spawn(
            program[0], program, os.environ, file_actions=ends, setsigdef=_IGNORED, setpgroup=0
        )
        files.append(os.pidfd_open(pid))
        yield files[2], answer_s
        answer = os.pread(files[1], FRAME_BYTES_MAX, 0)
        if not answer:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return json.loads(answer or "null")
    finally:
        for fd in files:
            os.close(fd)
