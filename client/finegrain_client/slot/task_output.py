"""Where a reader stands in a task's output, and what it keeps of it.

Decides that no byte is delivered twice, whatever a resumed stream repeats. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from finegrain.resources import MIB
from finegrain.v1 import task_executor_pb2 as te
from finegrain_client.types.status import OutputChunk, StreamName, TaskResult

CAPTURED_BYTES_MAX = 16 * MIB
"""Kept per stream by `output="capture"`; the first bytes count, what follows is left out."""

_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}


@dataclass(slots=True)
class Offsets:
    """The first byte wanted of each stream."""

    stdout: int = 0
    stderr: int = 0

    def reach_the_end(self, result: TaskResult) -> bool:
        """True where nothing more can come of a task that ended so."""
        kept = result.stdout_bytes + result.stderr_bytes - result.dropped_bytes
        return self.stdout + self.stderr >= kept

    def take(self, message: te.WatchTaskResponse) -> OutputChunk | None:
        """What is new in a message, and moves past it; None where nothing is."""
        output = message.output
        name = _NAMES.get(output.stream)
        if name is None or not output.data:
            return None
        wanted = self.stdout if name == "stdout" else self.stderr
        data = output.data[max(0, wanted - output.offset) :]
        if not data:
            return None
        start = max(wanted, output.offset)
        setattr(self, name, start + len(data))
        return OutputChunk(name, start, data)


class Capture:
    """What a task wrote, up to a limit per stream."""

    def __init__(self) -> None:
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, chunk: OutputChunk) -> None:
        """Keeps the chunk, or as much of it as the limit allows."""
        kept = self._kept[chunk.stream]
        kept += chunk.data[: max(0, CAPTURED_BYTES_MAX - len(kept))]

    def complete(self, result: TaskResult) -> TaskResult:
        """The result together with what was kept."""
        return replace(
            result, stdout=bytes(self._kept["stdout"]), stderr=bytes(self._kept["stderr"])
        )
