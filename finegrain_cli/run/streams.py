"""Standard input and output of commands in slots: bytes, passed on unchanged or line by line.

Decides what happens when nobody reads any more, and how lines of several members are kept apart.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import finegrain_client as fg

INPUT_CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 64 * 1024


def pass_on(chunk: fg.OutputChunk) -> None:
    """Writes what a command wrote to the same stream of ours."""
    write(chunk.stream, chunk.data)


def write(name: str, data: bytes) -> None:
    """Writes to our standard output or error; both may have no reader any more."""
    stream = sys.stdout if name == "stdout" else sys.stderr
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        # Nobody reads any more: end, once, as a command at the head of a pipe does. What still
        # comes goes nowhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        os.kill(os.getpid(), signal.SIGTERM)


class LabelledLines:
    """Passes a command's output on line by line, each behind a label, so that lines of several
    commands never mix. A line that is longer than 64 KiB is cut in two.
    """

    def __init__(self, label: str) -> None:
        self._label = label.encode()
        self._begun: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def __call__(self, chunk: fg.OutputChunk) -> None:
        """Takes some output in; passes on whatever lines are complete."""
        *lines, rest = (self._begun[chunk.stream] + chunk.data).split(b"\n")
        while len(rest) >= LINE_BYTES_MAX:
            lines.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._begun[chunk.stream] = rest
        if lines:
            write(chunk.stream, b"".join(self._label + line + b"\n" for line in lines))

    def end(self) -> None:
        """Passes on what has no end of line."""
        for name, rest in self._begun.items():
            if rest:
                write(name, self._label + rest + b"\n")
            self._begun[name] = b""


def standard_input() -> AsyncIterator[bytes] | None:
    """Our standard input as chunks; None where there is none, or a terminal that others use."""
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None
        os.fstat(0)
    except OSError:
        return None
    return _read_input()


async def _read_input() -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()
        try:
            loop.add_reader(0, ready.set)
        except PermissionError:  # a plain file is always ready
            ready.set()
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        data = os.read(0, INPUT_CHUNK_BYTES)
        if not data:
            return
        yield data
