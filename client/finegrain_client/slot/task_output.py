"""A reader's position in a task's output, and the captured part of the output.

A resumed stream may repeat bytes, but the reader gets each byte only once.
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

    def reach_the_end(self, result: TaskResult) -> bool:
        """True if the reader has all output that the executor kept for a task with this result."""
        # Dropped bytes are not known per stream, so the sums are compared.
        kept = result.stdout_bytes + result.stderr_bytes - result.dropped_bytes
        return self.stdout + self.stderr >= kept

    def take(self, message: te.WatchTaskResponse) -> OutputChunk | None:
        """Returns the new bytes of a message and moves past them; None if no byte is new."""
        output = message.output
        name = _NAMES.get(output.stream)
        if name is None or not output.data:
            return None
        wanted = self.stdout if name == "stdout" else self.stderr
        data = output.data[max(0, wanted - output.offset) :]
        if not data:
            return None
        # If the executor dropped bytes in between, the position jumps ahead.
        start = max(wanted, output.offset)
        setattr(self, name, start + len(data))
        return OutputChunk(name, start, data)


class Capture:
    """The first part of a task's output, up to a limit per stream."""

    def __init__(self) -> None:
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, chunk: OutputChunk) -> None:
        """Keeps the chunk, or the part of it that the limit allows."""
        kept = self._kept[chunk.stream]
        kept += chunk.data[: max(0, CAPTURED_BYTES_MAX - len(kept))]

    def complete(self, result: TaskResult) -> TaskResult:
        """Returns the result with the captured output."""
        return replace(
            result, stdout=bytes(self._kept["stdout"]), stderr=bytes(self._kept["stderr"])
        )
