"""What threads of work write: into files of the results folder, and the last of it into the state.

Decides where it goes and that a thread's files are those of the attempt that counts, complete.
An attempt writes into files of its own, opened for each piece (no descriptor is kept: there may be
ten thousand of them); the one that counts is renamed, and synced, before its result is recorded.
Refuses to know what it means.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from finegrain_client.types.status import OutputChunk, StreamName

TAIL_BYTES = 1_000
"""Kept of each stream in the state file."""

SYNCS_AT_ONCE = 32

PART = ".part"
STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


class Output:
    """The two streams of one attempt."""

    def __init__(self, folder: Path | None, thread: int, attempt: int) -> None:
        self._folder = folder
        self._thread = thread
        self._attempt = attempt
        self._begun: set[StreamName] = set()
        self._tails: dict[StreamName, bytes] = {}

    def take(self, chunk: OutputChunk) -> None:
        """Some more of it, in order.

        Raises:
            OSError: it cannot be written.
        """
        self._tails[chunk.stream] = (self.tail(chunk.stream) + chunk.data)[-TAIL_BYTES:]
        if self._folder is None:
            return
        first = chunk.stream not in self._begun
        self._begun.add(chunk.stream)
        with self._part(self._folder, chunk.stream).open("wb" if first else "ab") as file:
            file.write(chunk.data)

    def tail(self, stream: StreamName) -> bytes:
        """The last of a stream."""
        return self._tails.get(stream, b"")

    def publish(self) -> None:
        """This attempt is the one that counts: its files become the thread's.

        Raises:
            OSError: they cannot be written.
        """
        if self._folder is None:
            return
        for stream in STREAMS:
            final = self._folder / f"{self._thread}.{stream}"
            if stream not in self._begun:
                final.unlink(missing_ok=True)  # of an attempt that counted in vain
                continue
            part = self._part(self._folder, stream)
            with part.open("rb") as file:
                os.fdatasync(file.fileno())
            part.rename(final)

    def discard(self) -> None:
        """Nobody wants it."""
        if self._folder is not None:
            for stream in self._begun:
                self._part(self._folder, stream).unlink(missing_ok=True)

    def _part(self, folder: Path, stream: StreamName) -> Path:
        return folder / f"{self._thread}.{stream}.{self._attempt}{PART}"


def publish_all(folder: Path | None, outputs: Sequence[Output]) -> None:
    """Publishes many, side by side: a file system writes many syncs down in one go.

    Raises:
        OSError: they cannot be written.
    """
    if folder is None or not outputs:
        return
    with ThreadPoolExecutor(min(len(outputs), SYNCS_AT_ONCE)) as pool:
        for done in [pool.submit(each.publish) for each in outputs]:
            done.result()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path | None) -> None:
    """Removes what attempts of an earlier runner have left; what still runs is read again."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"*{PART}"):
            left.unlink(missing_ok=True)
