"""Keeps a reader's position in a task's output, and the captured part of the output.

A resumed stream can repeat bytes, but the reader gets each byte only once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from finegrain.resources import MIB
from finegrain.v1 import task_executor_pb2 as te
from finegrain_client.types.status import OutputChunk, StreamName, TaskResult

CAPTURED_BYTES_MAX = 16 * MIB
"""Number of bytes at the start of each stream that `output="capture"` keeps."""

_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}


@dataclass(slots=True)
class Offsets:
    """Offset of the next byte to read from each stream."""

    stdout: int = 0
    stderr: int = 0
    missing: int = 0  # bytes of both streams that this reader did not get

    def reach_the_end(self, result: TaskResult) -> bool:
        """True if the last byte of both streams was read."""
        return self.missing_at_end(result) == 0

    def missing_at_end(self, result: TaskResult) -> int:
        """Returns the number of bytes after the offsets, for a task with this result."""
        return max(0, result.stdout_bytes - self.stdout) + max(0, result.stderr_bytes - self.stderr)

    def take(self, message: te.WatchTaskResponse) -> OutputChunk | None:
        """Returns the new bytes of a message, and moves the offsets past these bytes. Returns None
        if no byte is new.
        """
        output = message.output
        name = _NAMES.get(output.stream)
        if name is None or not output.data:
            return None
        wanted = self.stdout if name == "stdout" else self.stderr
        data = output.data[max(0, wanted - output.offset) :]
        if not data:
            return None
        # If the executor has dropped bytes, continue at the first byte that exists.
        start = max(wanted, output.offset)
        self.missing += start - wanted
        setattr(self, name, start + len(data))
        return OutputChunk(name, start, data, start - wanted)


class Capture:
    """The first part of a task's output, up to a limit or a gap in each stream."""

    def __init__(self) -> None:
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, chunk: OutputChunk) -> None:
        """Keeps the chunk, or the part of it that the limit allows."""
        kept = self._kept[chunk.stream]
        if chunk.offset == len(kept):
            kept += chunk.data[: CAPTURED_BYTES_MAX - len(kept)]

    def complete(self, result: TaskResult) -> TaskResult:
        """Returns the result with the captured output."""
        return replace(
            result, stdout=bytes(self._kept["stdout"]), stderr=bytes(self._kept["stderr"])
        )
