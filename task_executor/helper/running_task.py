"""Runs one task of a supervisor: its process, its input and output, and the record of its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from task_executor.helper.cgroups.base import Driver, Group
from task_executor.helper.child import remove_as
from task_executor.helper.journal import Journal
from task_executor.helper.loop import Job, Loop, Timer, within
from task_executor.helper.output import TaskOutput
from task_executor.helper.paths import process_stat
from task_executor.helper.protocol import Fault, as_fault, fault_of
from task_executor.helper.spawner import Lost
from task_executor.helper.syncing import Syncer

KILL_GRACE_S = 5.0  # time between SIGTERM and SIGKILL after a timeout
_REMOVE_S, _DRAIN_S, _STATUS_S, _RETRY_S, _RETRIES = 10.0, 2.0, 3.0, 1.0, 60


class Adopted(NamedTuple):
    """A task whose supervisor was killed.

    Attributes:
        spec: the specification of the task.
        pid: its first process, which the helper reaps.
        pipes: the descriptors from which its stdout and stderr are read; -1 for an ended stream.
        ended: status, CPU microseconds and peak memory in bytes, if the process has ended already.
    """

    spec: dict[str, Any]
    pid: int
    pipes: tuple[int, int]
    ended: tuple[int, int, int] | None


class Supervises(Protocol):
    """The methods of a supervisor that its tasks call."""

    loop: Loop
    driver: Driver
    syncer: Syncer
    front_gid: int
    journal: Journal

    def fork(
        self,
        task: RunningTask,
        spec: dict[str, Any],
        entrances: Sequence[str],
        streams: Sequence[int],
    ) -> int:
        """Forks the first process of the task, which calls `become_task`. Returns its pid.

        Args:
            task: the task.
            spec: its specification.
            entrances: see `Driver.entrances`.
            streams: the descriptors of the standard streams, and the one for errors.

        Raises:
            Lost: it is unknown whether the process exists.
            OSError: the kernel refused the fork.
        """

    def runs(self, task: RunningTask) -> bool:
        """Returns False if the start of the task has failed, or the task has ended."""

    def ended(self, task: RunningTask, record: dict[str, Any]) -> None:
        """Reports the end of a task. The record of the end is durable."""

    def spare(self, slot: Group, group: Group) -> None:
        """Keeps the control group of an ended task for the next task of the slot."""

    def spared(self, slot: Group) -> Group | None:
        """Returns the group of an ended task of the slot, or None."""

    def forget(self, task: RunningTask) -> None:
        """Removes an ended task for which no work is left."""


class RunningTask:
    """A task from its start to its exit record.

    Args:
        supervisor: the supervisor of the task.
        spec: the specification of the task.
        directory: the directory of its output, which is made for the first byte of output.
    """

    def __init__(self, supervisor: Supervises, spec: dict[str, Any], directory: Path) -> None:
        self._supervisor, self._spec, self._directory = supervisor, spec, directory
        self._loop, self._driver = supervisor.loop, supervisor.driver
        self.id: str = spec["task_id"]
        self._group: Group = spec["group"]
        self._pid, self._start_ticks, self._status = 0, 0, -1
        self._is_started = self._died_before_exec = self._timed_out = self._is_lost = False
        self._used_usec, self._peak_bytes = 0, 0
        self._input_fd, self._received = -1, 0
        self._remover = 0
        self._timer: Timer | None = None
        holder, limit = spec["output_holder"], spec["log_limit_bytes"]
        self._output = TaskOutput(self._loop, directory, limit, supervisor.front_gid, holder)

    # -- start -----------------------------------------------------------------------------------

    def start(self) -> Job:
        """Starts the program. The job ends when the program runs.

        Raises:
            Fault: the program did not start. No process, group or file of the task is left.
        """
        try:
            self._make_scratch()
            self._make_group()
            # Set the limit before the process exists. So the task never runs without the limit.
            if limit := self._spec["memory_limit_bytes"]:
                self._driver.limit_memory(self._group, limit)
            yield from self._until_exec(self._fork())
        except (Fault, OSError) as problem:
            yield from self._remove_group()
            self._output.close()
            self._close_input()
            self._remove_scratch()
            raise as_fault(problem, "START_FAILED") from None
        self._is_started = True
        self._begin_timeout()
        # If the process has already ended, finish the task now.
        if self._status >= 0:
            self._loop.run(self._finish())

    def adopt(self, adopted: Adopted) -> None:
        """Takes over a task whose supervisor was killed, while the task's program runs."""
        self._pid, self._is_started = adopted.pid, True
        self._start_ticks = self._spec["start_time_ticks"]
        self._output.restore()
        for name, fd in zip(("stdout", "stderr"), adopted.pipes, strict=True):
            if fd >= 0:
                self._output.collect(name, fd)
        self._begin_timeout()
        if (ended := adopted.ended) is not None:
            self._loop.later(0, lambda: self.reaped(*ended))
        else:
            self._watch_exit()

    def identity(self) -> dict[str, Any]:
        """Returns the facts by which the helper finds the process, and the read ends of its
        pipes.
        """
        return self.process() | {"pipes": self._output.pipes()}

    def process(self) -> dict[str, Any]:
        """Returns the first process; the pid is 0 until the program runs."""
        pid = self._pid if self._is_started else 0
        return {"pid": pid, "start_time_ticks": self._start_ticks}

    def until_started(self) -> Job:
        while not self._is_started and self._supervisor.runs(self):
            yield 0.002

    def _make_group(self) -> None:
        spare = self._supervisor.spared(self._spec["slot"])
        if spare is None or not self._driver.reuse(spare, self._group):
            self._driver.make(self._group)

    def _make_scratch(self) -> None:
        """Makes the scratch directory, directly in the temporary directory that all users can
        enter."""
        if scratch := self._spec["scratch"]:
            os.mkdir(scratch, 0o700)  # noqa: PTH102 - fails if the path exists
            fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            os.fchmod(fd, 0o711)
            # From now on, the task's user can replace the directory.
            os.fchown(fd, self._spec["uid"], self._spec["gid"])
            os.close(fd)

    def _fork(self) -> int:
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "error")}
        has_stdin = self._spec["stdin"]
        stdin, feed = os.pipe() if has_stdin else (os.open("/dev/null", os.O_RDONLY), -1)
        entrances = self._driver.entrances({**self._spec["slot"], **self._group})
        writers = [writer for _reader, writer in pipes.values()]
        try:
            self._pid = self._supervisor.fork(self, self._spec, entrances, (stdin, *writers))
        except Lost:
            self._pid = 0  # the process possibly exists; `_until_exec` waits until this is known
        except OSError:
            for fd in (*(reader for reader, _writer in pipes.values()), *((feed,) * has_stdin)):
                os.close(fd)
            raise
        finally:
            # The supervisor must close its copy of the writers. Otherwise it would never see the
            # end of the streams.
            for fd in (stdin, *writers):
                os.close(fd)
        for name in ("stdout", "stderr"):
            self._output.collect(name, pipes[name][0])
        if feed >= 0:
            # The descriptor is non-blocking: a task that does not read its input must not block the
            # supervisor.
            os.set_blocking(feed, False)
            self._input_fd = feed
        return pipes["error"][0]

    def _until_exec(self, error_fd: int) -> Job:
        """Waits until the program runs.

        The pipe closes in two cases: the process calls exec, or the process ends before exec. A
        flag of the kernel shows which of the two happened.
        """
        yield error_fd, 3600.0
        reply = os.read(error_fd, 1 << 16)
        os.close(error_fd)
        if reply:
            raise fault_of(json.loads(reply))
        if not self._pid:
            # Nothing writes to the pipe any more, so the process does not exist or is in its group,
            # where it is killed.
            raise Fault("START_FAILED", "the process that starts the programs of tasks was killed")
        # If the pipe is closed and the flag is still set, the process is ending. So wait until it
        # is reaped.
        while self._status < 0:
            stat = process_stat(self._pid)
            if stat is not None:
                self._start_ticks = stat.start_ticks
                if not stat.is_fork:
                    return
            yield 0.001
        if self._died_before_exec:
            if self._driver.counters(self._group).get("oom_kills"):
                raise Fault(
                    "LIMIT_TOO_SMALL",
                    "the task ran out of memory before its program started; the limit is too small",
                )
            raise Fault("START_FAILED", "killed before its program ran")

    # -- the end of the process ------------------------------------------------------------------

    def before_reaped(self) -> None:
        """Reads values of the first process that are lost when it is reaped."""
        if not self._is_started and (stat := process_stat(self._pid)) is not None:
            self._died_before_exec, self._start_ticks = stat.is_fork, stat.start_ticks

    def reaped(self, status: int, used_usec: int, peak_bytes: int) -> None:
        """Records the end of the first process, which is the end of the task."""
        self._status = status
        self.count_use(used_usec, peak_bytes)
        if self._is_started:
            self._loop.run(self._finish())

    def _watch_exit(self) -> None:
        """Watches a process that is not a child of this process, until it ends.

        The helper reaps the process and reports its status. If the helper is killed, another
        process reaps the task, and its status is lost.
        """
        try:
            pidfd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._loop.later(_STATUS_S, self._status_is_lost)
            return

        def exited(_events: int) -> None:
            self._loop.unwatch(pidfd)
            os.close(pidfd)
            self._loop.later(_STATUS_S, self._status_is_lost)

        self._loop.watch(pidfd, exited)

    def _status_is_lost(self) -> None:
        if self._status < 0:
            self._status, self._is_lost = 0, True
            self._loop.run(self._finish())

    def count_use(self, used_usec: int, peak_bytes: int) -> None:
        """Counts the use of an ended process. The sums are reported only without cgroups."""
        self._used_usec += used_usec
        self._peak_bytes = max(self._peak_bytes, peak_bytes)

    def _begin_timeout(self) -> None:
        if timeout_ms := self._spec["timeout_ms"]:
            left_ms = timeout_ms - (time.time() * 1000 - self._spec["started_unix_ms"])
            # If the clock was set back, this must not make the counted time longer.
            left_s = max(0.0, min(left_ms, timeout_ms) / 1000)
            self._timer = self._loop.later(left_s, self._on_timeout)

    def _on_timeout(self) -> None:
        if self._status < 0:
            self._timed_out = True
            self._stop(KILL_GRACE_S)

    def _stop(self, grace_s: float) -> None:
        def kill() -> None:
            if self._status < 0:
                self._loop.run(self._driver.kill(self._group, [os.getpid()]))

        if grace_s:
            self._driver.ask_to_end(self._group, [os.getpid()])
        self._loop.later(grace_s, kill)

    # -- requests --------------------------------------------------------------------------------

    def handle(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        """Carries out a request of the helper.

        Raises:
            Fault: the task has ended, or an argument is wrong.
        """
        # A pid of 0 means that the fork has not happened yet.
        if self._status >= 0 or not self._pid:
            raise Fault("TASK_ENDED", f"task {self.id} is not running")
        match verb:
            case "signal":
                # The process is not reaped yet. So its pid cannot belong to another process.
                os.killpg(self._pid, args["signum"])
            case "kill":
                self._stop(args["grace_ms"] / 1000)
            case "input":
                return self._take_input(args["offset"], args["data"].encode("latin-1"), args["eof"])
            case "hold":
                return self._output.hold(args["holder"], args["stdout"], args["stderr"])
        return {}

    def _take_input(self, offset: int, data: bytes, eof: bool) -> dict[str, Any]:
        """Writes as many new bytes as the pipe can hold. The caller sends the other bytes again.

        After stdin was closed, all bytes count as accepted.
        """
        if not self._spec["stdin"]:
            raise Fault("SLOT_NOT_READY", "the task was started without stdin")
        if offset > self._received:
            message = (
                f"offset is {offset}; expected at most {self._received}, the bytes received so far"
            )
            raise Fault("OUT_OF_RANGE", message, offset=offset, accepted=self._received)
        # A caller that got no answer sends the same bytes again, so known bytes are skipped.
        new = memoryview(data)[self._received - offset :]
        while new and self._input_fd >= 0:
            try:
                written = os.write(self._input_fd, new)
            except BlockingIOError:
                return {"accepted_offset": self._received}
            except OSError:
                # The task has closed its stdin, so it will not read the other bytes.
                self._close_input()
                break
            self._received += written
            new = new[written:]
        if self._input_fd < 0:
            self._received = max(self._received, offset + len(data))
        # The input ends only when all bytes before the end have been accepted.
        elif eof:
            self._close_input()
        return {"accepted_offset": self._received}

    def _close_input(self) -> None:
        if self._input_fd >= 0:
            os.close(self._input_fd)
            self._input_fd = -1

    # -- the end of the task ---------------------------------------------------------------------

    def _finish(self) -> Job:
        """Kills all remaining processes of the task, and writes the exit record."""
        # Stage 1: kill the remaining processes. The counters of the group are lost when the group
        # is removed, so `_remove_group` returns them.
        counters = yield from self._remove_group()
        # Stage 2: make the result durable. Do not wait until the scratch directory is removed,
        # because the removal of a large directory takes longer.
        self._remove_scratch()
        yield from self._output.finish()
        self._close_input()
        if self._timer is not None:
            self._loop.cancel(self._timer)
        self._write_record(counters, _RETRIES)

    def _write_record(self, counters: dict[str, int], retries: int) -> None:
        """Writes the exit record, and syncs it together with the output. Tasks that end in the same
        iteration of the event loop share one sync.

        After a failure, the method tries again later, because the disk possibly has space again.
        """
        record, journal = self._exit_record(counters), self._supervisor.journal

        def synced(is_durable: bool) -> None:
            if is_durable or not retries:
                journal.synced()
                self._recorded(record)
            else:
                # The kernel could not write all data of the output.
                self._output.lost()
                self._loop.later(_RETRY_S, lambda: self._write_record(counters, retries - 1))

        try:
            journal.add(self.id, "end", record)
        except OSError:
            return synced(is_durable=False)
        paths = [*self._output.to_sync(), *journal.to_sync()]
        return self._supervisor.syncer.sync(paths, synced)

    def _recorded(self, record: dict[str, Any]) -> None:
        self._supervisor.ended(self, record)
        # The removal of a large directory must not delay the report of the end.
        self._loop.run(self._until_removed())

    def _until_removed(self) -> Job:
        """Waits for the process that removes the scratch directory, but not for long."""
        end = time.monotonic() + _DRAIN_S
        while self._remover and time.monotonic() < end:
            try:
                os.kill(self._remover, 0)
            except OSError:  # the supervisor has already reaped the process
                break
            yield 0.005
        self._supervisor.forget(self)

    def _remove_group(self) -> Job:
        """Kills all processes of the task, and returns the counters of its group.

        The time is limited, because a group that stays busy must not delay the exit record.
        """
        counters = self._driver.counters(self._group)
        if counters.get("pids") != 0:
            yield from _for_a_while(self._driver.kill(self._group, [os.getpid()]))
            counters = self._driver.counters(self._group)
        if self._driver.is_reusable(self._group, counters):
            self._supervisor.spare(self._spec["slot"], self._group)
        else:
            yield from _for_a_while(self._driver.remove(self._group))
        return counters

    def _remove_scratch(self) -> None:
        """Starts the removal of the scratch directory, which can take long."""
        if not (scratch := self._spec["scratch"]):
            return
        try:
            # Try `rmdir` first, to save a fork. It is safe although the directory belongs to the
            # task's user: `rmdir` removes only an empty directory, and follows no link.
            os.rmdir(scratch)  # noqa: PTH106
        except FileNotFoundError:
            return
        except OSError:
            self._remover = remove_as(self._spec["uid"], self._spec["gid"], scratch)

    def _exit_record(self, counters: dict[str, int]) -> dict[str, Any]:
        exit_status = None if self._is_lost else os.waitstatus_to_exitcode(self._status)
        lost = "its exit status is lost: its supervisor was killed, and then the helper"
        oom_kills = counters.get("oom_kills", 0)
        return {
            "exit_code": exit_status if exit_status is not None and exit_status >= 0 else None,
            "signal": -exit_status if exit_status is not None and exit_status < 0 else None,
            # With exit status 0, the task has survived the kill of one of its processes. So the
            # task does not count as killed for memory.
            "oom_killed": oom_kills > 0 and exit_status != 0,
            "oom_kills": oom_kills,
            "timed_out": self._timed_out,
            "peak_memory_bytes": counters.get("memory_peak_bytes", self._peak_bytes),
            "cpu_usec": counters.get("cpu_usec", self._used_usec),
            "started_unix_ms": self._spec["started_unix_ms"],
            "ended_unix_ms": round(time.time() * 1000),
            "error": Fault("TERMINATED", lost).as_dict() if self._is_lost else None,
        } | self._output.counts()


def _for_a_while(job: Job) -> Job:
    try:
        yield from within(_REMOVE_S, job, lambda: Fault("INTERNAL", "group is still busy"))
    except (Fault, OSError):
        return
