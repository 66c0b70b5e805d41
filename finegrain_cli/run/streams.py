"""Passes standard input to commands in slots, and passes on their output.

The bytes of a single command are passed on unchanged. The output of gang members is passed on line
by line, with a label. This module also handles output to a pipe that its reader has closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from typing import BinaryIO

import finegrain_client as fg
from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain_cli.text.output import say

INPUT_CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 64 * 1024
_NAMES = {"stdout": "output", "stderr": "error"}


class OutputTarget:
    """Writes the output of the command of `run`, or of all commands of a gang.

    Args:
        path: a file for both streams. If empty, standard output and standard error of the command
            are written to the same streams of this process.

    Raises:
        InvalidArgument: the file cannot be written.
    """

    def __init__(self, path: str = "") -> None:
        self._file: BinaryIO | None = None
        self._path = path
        # Write one chunk at a time. Otherwise, lines of several commands could mix while a write
        # waits.
        self._one_at_a_time = asyncio.Lock()
        if path:
            try:
                self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - open until the end
            except OSError as error:
                expected = f"a file that can be written ({error.strerror})"
                raise InvalidArgument("--output", path, expected) from None

    async def pass_on(self, chunk: fg.OutputChunk) -> None:
        """Writes a chunk. Prints a message on standard error if bytes before the chunk are
        missing.
        """
        tell_missing(chunk)
        await self.write(chunk.stream, chunk.data)

    async def write(self, name: str, data: bytes) -> None:
        """Writes to the file, or to standard output or error of this process.

        If the reader has closed the stream, this process sends itself SIGTERM, and later output is
        dropped.

        Raises:
            FinegrainError: the output cannot be written. The reason is DISK_FULL or CONFIGURATION.
        """
        stream = self._file or (sys.stdout if name == "stdout" else sys.stderr).buffer
        async with self._one_at_a_time:
            # Write in a thread, because a pipe or terminal can block for a long time. During this
            # time, the event loop must renew the job's lease, and the hold of the task's output.
            try:
                if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    _write(stream, data)
                else:
                    await asyncio.to_thread(_write, stream, data)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise FinegrainError(
                    f"the output cannot be written to {self._path or f'standard {_NAMES[name]}'}: "
                    f"{error.strerror}; the command was ended",
                    reason=Reason.DISK_FULL if full else Reason.CONFIGURATION,
                ) from None

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def tell_missing(chunk: fg.OutputChunk, label: str = "") -> None:
    """If bytes before this chunk are missing, prints their number on standard error.

    Args:
        chunk: the chunk.
        label: a text before the name of the stream, such as "member 2: ".
    """
    if chunk.missing_bytes:
        say(
            f"finegrain: {label}{chunk.missing_bytes} bytes of standard {_NAMES[chunk.stream]} are "
            f"missing here [{Reason.OUTPUT_LOST}]"
        )


def _write(stream: BinaryIO, data: bytes) -> None:
    try:
        view = memoryview(data)
        while view:
            view = view[stream.write(view) :]
        stream.flush()
    except BrokenPipeError:
        # When the reader closes the pipe, this process ends like any command in a pipe. Later
        # output goes to /dev/null, so that this error happens only once.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        os.kill(os.getpid(), signal.SIGTERM)


class LabelledLines:
    """Writes a command's output line by line, with a label before each line.

    Each line is written in one step, so that lines of several commands never mix. A line that is
    longer than 64 KiB is split.

    Args:
        target: the object that writes the lines.
        member: the index of the command in its gang. The label of the lines is "[INDEX] ".
    """

    def __init__(self, target: OutputTarget, member: int) -> None:
        self._target = target
        self._member = member
        self._label = f"[{member}] ".encode()
        self._begun: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    async def __call__(self, chunk: fg.OutputChunk) -> None:
        """Adds a chunk of output, and writes all lines that are complete."""
        tell_missing(chunk, f"member {self._member}: ")
        *lines, rest = (self._begun[chunk.stream] + chunk.data).split(b"\n")
        # Split a long line, because output without newlines must not fill the memory.
        while len(rest) >= LINE_BYTES_MAX:
            lines.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._begun[chunk.stream] = rest
        if lines:
            text = b"".join(self._label + line + b"\n" for line in lines)
            await self._target.write(chunk.stream, text)

    async def end(self) -> None:
        """Writes the last line of each stream if this line has no newline."""
        for name, rest in self._begun.items():
            if rest:
                await self._target.write(name, self._label + rest + b"\n")
            self._begun[name] = b""


def standard_input() -> AsyncIterator[bytes] | None:
    """Returns chunks of standard input, or None if standard input cannot be read.

    In two cases, standard input cannot be read. In the first case, it is closed. In the second
    case, it is a terminal and this process is in the background, so that the kernel would stop a
    process that reads.
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
        except PermissionError:  # epoll refuses regular files; they are always readable
            ready.set()
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        data = os.read(0, INPUT_CHUNK_BYTES)
        if not data:
            return
        yield data
