"""Stores the output of threads of work: files in the results folder, and the last bytes in the
state file.

Each attempt writes to its own files. A file is opened for each chunk, and closed after it: ten
thousand attempts can run at the same time, and files that stay open would need too many
descriptors. When an attempt counts as the result of its thread, its files are synced and renamed
before the result is recorded. So the files of a recorded result are complete.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from finegrain_client.types.status import OutputChunk, StreamName

TAIL_BYTES = 1_000
"""Number of bytes at the end of each stream that the state file keeps."""

MISSING = b"\n[finegrain: %d bytes are missing here: OUTPUT_LOST]\n"
"""Marks a gap in the output, where the executor dropped output beyond the limit."""

SYNCS_AT_ONCE = 32

PART = ".part"
STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


class Output:
    """The output streams of one attempt."""

    def __init__(self, folder: Path | None, thread: int, attempt: int) -> None:
        self._folder = folder
        self._thread = thread
        self._attempt = attempt
        self._begun: set[StreamName] = set()
        self._tails: dict[StreamName, bytes] = {}

    def take(self, chunk: OutputChunk) -> None:
        """Appends a chunk. The chunks must come in order.

        Raises:
            OSError: the chunk cannot be written.
        """
        data = chunk.data
        if chunk.missing_bytes:
            data = MISSING % chunk.missing_bytes + data
        self._tails[chunk.stream] = (self.tail(chunk.stream) + data)[-TAIL_BYTES:]
        if self._folder is None:
            return
        first = chunk.stream not in self._begun
        self._begun.add(chunk.stream)
        # Truncate the file at the first chunk: a runner that takes over the attempt reads the
        # output from the start.
        with self._part(self._folder, chunk.stream).open("wb" if first else "ab") as file:
            file.write(data)

    def tail(self, stream: StreamName) -> bytes:
        """Returns the end of a stream."""
        return self._tails.get(stream, b"")

    @property
    def has_files(self) -> bool:
        """True if the attempt has written output to files."""
        return self._folder is not None and bool(self._begun)

    def publish(self) -> bool:
        """Makes the files of this attempt the files of its thread. Call this only for the attempt
        that counts as the result.

        Returns:
            True if the folder has changed.

        Raises:
            OSError: the files cannot be written.
        """
        if self._folder is None:
            return False
        has_changed = bool(self._begun)
        for stream in STREAMS:
            final = self._folder / f"{self._thread}.{stream}"
            if stream not in self._begun:
                # an earlier attempt may have left this file, although its result was not recorded
                with suppress(FileNotFoundError):
                    final.unlink()
                    has_changed = True
                continue
            part = self._part(self._folder, stream)
            with part.open("rb") as file:
                # Sync the content before the rename. A file with its final name is then complete.
                os.fdatasync(file.fileno())
            part.rename(final)
        return has_changed

    def discard(self) -> None:
        """Deletes the files of this attempt."""
        if self._folder is not None:
            for stream in self._begun:
                self._part(self._folder, stream).unlink(missing_ok=True)

    def _part(self, folder: Path, stream: StreamName) -> Path:
        return folder / f"{self._thread}.{stream}.{self._attempt}{PART}"


def publish_all(folder: Path | None, outputs: Sequence[Output]) -> None:
    """Publishes many attempts in parallel, because a file system combines concurrent syncs.

    Raises:
        OSError: the files cannot be written.
    """
    if folder is None or not outputs:
        return
    # An attempt without output needs no sync of a file, and so no thread.
    has_changed = [each.publish() for each in outputs if not each.has_files]
    if written := [each for each in outputs if each.has_files]:
        with ThreadPoolExecutor(min(len(written), SYNCS_AT_ONCE)) as pool:
            # Submit all calls before the first wait. Otherwise the calls would run one after the
            # other.
            published = [pool.submit(each.publish) for each in written]
            has_changed += [each.result() for each in published]
    if not any(has_changed):
        return
    # The renames are durable only after a sync of the folder.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path | None) -> None:
    """Removes the files of an earlier runner's attempts. The output of running attempts is read
    again.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"*{PART}"):
            left.unlink(missing_ok=True)
