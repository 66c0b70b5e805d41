"""Collects the output of a task from its pipes. One reader of the output, the holder, receives
every byte.

While there is a holder, the supervisor does not read a pipe whose log is full of unacknowledged
bytes. So the task waits, in the same way as in a shell pipeline. Without a holder, the task never
waits.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from task_executor.helper.loop import Job, Loop
from task_executor.helper.output_log import OutputLog, available
from task_executor.helper.protocol import Fault

# While the holder reads, the front renews the hold every 5 s. So a hold ends 60 to 65 s after the
# last read.
HOLD_S = 65.0
_DISK_S = 60.0  # if the disk is full for longer than this time, the supervisor drops held output
_DRAIN_S, _RETRY_S = 2.0, 0.5
_CHUNK_BYTES = 1 << 16
_PIPE_BYTES_MAX = 1 << 20  # the largest pipe that a task without privileges can make


class _Stream:
    def __init__(self, log: OutputLog) -> None:
        self.log, self.fd, self.is_paused = log, -1, False
        self.disk_full_since: float | None = None


class TaskOutput:
    """The two output streams of one task.

    Args:
        loop: the event loop.
        directory: the directory of the task.
        limit: the maximum number of bytes to store of each stream.
        gid: the group that can read the logs.
        holder: the id of the reader that is the holder from the start of the task; None if there is
            no holder.
    """

    def __init__(
        self, loop: Loop, directory: Path, limit: int, gid: int, holder: str | None
    ) -> None:
        self._loop, self._holder, self._limit = loop, holder, limit
        self._directory = directory
        self._held_until = time.monotonic() + HOLD_S if holder else 0.0
        self._streams = {
            name: _Stream(OutputLog(directory, name, limit, gid)) for name in ("stdout", "stderr")
        }
        self._retries = False

    @property
    def is_held(self) -> bool:
        # With a limit of 0, no output is stored, so a holder would block the task indefinitely.
        return self._limit > 0 and time.monotonic() < self._held_until

    def collect(self, name: str, fd: int) -> None:
        """Starts to read a pipe."""
        stream = self._streams[name]
        stream.fd = fd
        self._watch(stream)

    def hold(self, holder: str, stdout: int, stderr: int) -> dict[str, Any]:
        """Renews the hold, and records the positions up to which the holder has received the
        output.

        Raises:
            Fault: ALREADY_EXISTS: another reader holds the output.
        """
        if self._holder != holder and self.is_held:
            message = "another reader holds the output of this task; watch it without a holder"
            raise Fault("ALREADY_EXISTS", message)
        self._holder, self._held_until = holder, time.monotonic() + HOLD_S
        for stream, position in zip(self._streams.values(), (stdout, stderr), strict=True):
            stream.log.acknowledge(position)
        self._resume()
        return {"limit_bytes": self._limit}

    def finish(self) -> Job:
        """Reads all remaining bytes of the pipes after the end of the task.

        The time is limited. Without cgroups, a process that has escaped from the task can keep the
        pipes open. The end of the task does not wait for the holder, so all bytes in the pipes are
        stored. Held output can then exceed `limit` by the size of a pipe.
        """
        for stream in self._open():
            if self.is_held:
                stream.log.limit += fcntl.fcntl(stream.fd, fcntl.F_GETPIPE_SZ)
        self._resume()
        end = time.monotonic() + _DRAIN_S
        while self._open() and time.monotonic() < end:
            yield 0.001
        self._held_until = 0.0
        for stream in self._open():
            self._loop.unwatch(stream.fd)
            taken = 0
            while taken < _PIPE_BYTES_MAX and available(stream.fd):
                taken += stream.log.take(stream.fd, _PIPE_BYTES_MAX, keep=False) or 0
        self.close()

    def close(self) -> None:
        """Closes all descriptors."""
        for stream in self._streams.values():
            self._end(stream)
            stream.log.close()

    def restore(self) -> None:
        """Continues the logs of a supervisor that was killed. The holder must renew its hold."""
        for stream in self._streams.values():
            stream.log.restore()
        self._held_until = time.monotonic() + HOLD_S if self._holder else 0.0

    def pipes(self) -> list[tuple[int, int]]:
        """Returns descriptor and inode of the pipes of stdout and stderr. The descriptor is -1 if
        the stream has ended.
        """
        fds = [stream.fd for stream in self._streams.values()]
        return [(fd, os.fstat(fd).st_ino if fd >= 0 else 0) for fd in fds]

    def to_sync(self) -> list[str]:
        """Returns the files that must be synced before the end of the task is reported."""
        files = [path for stream in self._streams.values() for path in stream.log.to_sync()]
        # Also sync the directories, because the first byte of output made the directory of the
        # task.
        return [*files, str(self._directory), str(self._directory.parent)] if files else []

    def lost(self) -> None:
        """Records that output is possibly lost, because a file could not be synced."""
        for stream in self._streams.values():
            if stream.log.to_sync():
                stream.log.lost()

    def counts(self) -> dict[str, int]:
        """Returns the entries about the output, for the exit record."""
        counts = {}
        for name, stream in self._streams.items():
            counts[f"{name}_bytes"] = stream.log.end - stream.log.dropped
            counts[f"{name}_dropped_bytes"] = stream.log.dropped
        return counts

    def _open(self) -> list[_Stream]:
        return [stream for stream in self._streams.values() if stream.fd >= 0]

    def _read(self, stream: _Stream) -> None:
        keep, since = self.is_held, stream.disk_full_since
        if since is not None and time.monotonic() - since > _DISK_S:
            keep = False
        try:
            taken = stream.log.take(stream.fd, _CHUNK_BYTES, keep=keep)
        except BlockingIOError:
            return None
        except OSError:
            stream.disk_full_since = since or time.monotonic()
            return self._pause(stream)
        stream.disk_full_since = None
        if taken is None:
            return self._pause(stream)
        if taken == 0:
            self._end(stream)
        return None

    def _end(self, stream: _Stream) -> None:
        if stream.fd >= 0:
            self._loop.unwatch(stream.fd)
            os.close(stream.fd)
            stream.fd = -1

    def _pause(self, stream: _Stream) -> None:
        self._loop.unwatch(stream.fd)
        stream.is_paused = True
        if not self._retries:
            self._retries = True
            self._loop.later(_RETRY_S, self._retry)

    def _retry(self) -> None:
        """Reads the pipes again: possibly the disk has space again, or the hold has expired."""
        self._retries = False
        self._resume()

    def _resume(self) -> None:
        for stream in self._open():
            if stream.is_paused:
                stream.is_paused = False
                self._watch(stream)

    def _watch(self, stream: _Stream) -> None:
        self._loop.watch(stream.fd, lambda _events: self._read(stream))
