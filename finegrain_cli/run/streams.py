"""Standard input and output of commands in slots.

The bytes of a single command are passed on unchanged. The output of gang members is passed on line
by line, with a label. This module also handles a pipe whose reader has closed it.
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
    """Writes a chunk of a command's output to the same stream of this process."""
    write(chunk.stream, chunk.data)


def write(name: str, data: bytes) -> None:
    """Writes to standard output or error of this process.

    If the reader has closed the stream, this process receives SIGTERM and later output is dropped.
    """
    stream = sys.stdout if name == "stdout" else sys.stderr
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        # Any command in a pipe ends when the reader closes it. /dev/null takes the output that
        # still arrives, so this happens only once.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        os.kill(os.getpid(), signal.SIGTERM)


class LabelledLines:
    """Writes a command's output line by line, with a label before each line.

    Whole lines are written at once, so lines of several commands never mix. A line longer than
    64 KiB is split.
    """

    def __init__(self, label: str) -> None:
        self._label = label.encode()
        self._begun: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def __call__(self, chunk: fg.OutputChunk) -> None:
        """Takes a chunk of output and writes all lines that are complete."""
        *lines, rest = (self._begun[chunk.stream] + chunk.data).split(b"\n")
        # Output without newlines must not fill the memory.
        while len(rest) >= LINE_BYTES_MAX:
            lines.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._begun[chunk.stream] = rest
        if lines:
            write(chunk.stream, b"".join(self._label + line + b"\n" for line in lines))

    def end(self) -> None:
        """Writes the rest of each stream, which has no newline."""
        for name, rest in self._begun.items():
            if rest:
                write(name, self._label + rest + b"\n")
            self._begun[name] = b""


def standard_input() -> AsyncIterator[bytes] | None:
    """Returns chunks of standard input; None if standard input cannot be read.

    It cannot be read if it is closed, or if it is a terminal and this process is in the background:
    the kernel would stop the process.
    """
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
        except PermissionError:  # epoll refuses a regular file, which is always readable
            ready.set()
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        data = os.read(0, INPUT_CHUNK_BYTES)
        if not data:
            return
        yield data
