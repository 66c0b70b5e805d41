"""Implements the shim, a process for each task, which starts the task, watches it and records its
end.

The shim is a fork of the helper. The shim continues when the helper and the front stop. It decides
when the task has ended. The helper sends requests to the shim's control socket, and reads the
result of the task in `exit.json`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from task_executor.helper.cgroups.base import Driver, Group
from task_executor.helper.child import become_task, remove_as
from task_executor.helper.forks import become_subreaper, close_all_but, default_signals
from task_executor.helper.loop import WRITE, Job, Loop, within
from task_executor.helper.output import TaskOutput
from task_executor.helper.paths import start_ticks, sync_directory, write_json
from task_executor.helper.protocol import SHIM_VERBS, Fault, as_fault, fault_of
from task_executor.helper.server import FrameServer, listen

KILL_GRACE_S = 5.0  # time between SIGTERM and SIGKILL after a timeout
_INPUT_BYTES_MAX = 256 << 10
_RECORD_BYTES = 16384  # reserved at the start, so that the exit record fits on a full disk
_DRAIN_S, _REMOVE_S, _RETRIES = 2.0, 10.0, 60
_PF_FORKNOEXEC = 0x40  # include/linux/sched.h; in the flags of /proc/PID/stat


def run_shim(
    spec: dict[str, Any], directory: Path, front_gid: int, driver: Driver, keep: tuple[int, int]
) -> NoReturn:
    """Runs the shim in the forked process; never returns.

    Args:
        spec: the specification of the task.
        directory: the directory of the task.
        front_gid: the group that may read the records and logs.
        driver: the cgroup driver.
        keep: the descriptor for the report to the helper, and the descriptor of the directory's
            lock. All other descriptors are closed.
    """
    try:
        os.setsid()
        default_signals()
        # A signal that ends the helper must not end the shim, which must record the task's end.
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        close_all_but(keep)
        # Open /dev/null as the descriptors 0 to 2, so that no pipe or log becomes standard output
        # by accident.
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        # Orphans of the task become children of the shim. Without cgroups, this is the only way to
        # find the orphans.
        become_subreaper()
        # Move the shim to a group outside the slot, so that the slot's limits do not apply to the
        # shim, and the end of the slot does not kill it.
        driver.enter(driver.shims())
        _Shim(spec, directory, front_gid, driver, keep[0]).run()
    except BaseException as error:
        exit_record = {"error": as_fault(error, "START_FAILED").as_dict()}
        with suppress(OSError):
            os.write(keep[0], json.dumps(exit_record).encode())
        # The helper reads this record when the shim has ended, even if the report was lost.
        write_json(directory / "exit.json", exit_record, 0o640, front_gid)
    finally:
        os._exit(0)


class _Shim:
    def __init__(
        self, spec: dict[str, Any], directory: Path, front_gid: int, driver: Driver, report_fd: int
    ) -> None:
        self.spec, self.directory, self.driver = spec, directory, driver
        self.front_gid, self.report_fd = front_gid, report_fd
        self.group: Group = spec["group"]
        self.loop = Loop(self._reap)
        self.pid, self.status, self.timed_out, self.started = 0, -1, False, time.time()
        self.used_usec, self.peak_bytes, self.died_before_exec = 0, 0, False
        self.inbox, self.received, self.input_fd, self.input_ends = bytearray(), 0, -1, False
        self.output = TaskOutput(
            self.loop, directory, spec["log_limit_bytes"], front_gid, spec["output_holder"]
        )

    def run(self) -> None:
        # Reserve the disk space of the exit record before the task starts.
        record = os.open(self.directory / "exit.json.new", os.O_WRONLY | os.O_CREAT, 0o640)
        os.fchown(record, -1, self.front_gid)
        os.posix_fallocate(record, 0, _RECORD_BYTES)
        # Write the record of the task before the task starts, because a restarted helper finds the
        # shim by this record.
        self._write_task()
        control = listen(self.directory / "control", os.geteuid(), os.getegid())
        FrameServer(self.loop, control, {0, os.geteuid()}, SHIM_VERBS, self._handle)
        self.loop.run(self._run_task(record), self._ended)
        self.loop.serve()

    def _ended(self, _value: Any, error: Exception | None) -> None:
        self.loop.running = False
        if error:
            raise error

    def _write_task(self) -> None:
        """Writes the record by which a later helper finds the shim, without the values of env."""
        me = {"shim_pid": os.getpid(), "shim_start_ticks": start_ticks(os.getpid())}
        task = {"pid": self.pid, "start_time_ticks": start_ticks(self.pid) if self.pid else 0}
        record = self.spec | me | task | {"env": sorted(self.spec["env"])}
        write_json(self.directory / "task.json", record)

    def _run_task(self, record: int) -> Job:
        fault = None
        try:
            # Stage 1: start the program.
            self._make_scratch()
            self.driver.make(self.group)
            # Set the limit before the process exists, so that the task never runs without the
            # limit.
            if limit := self.spec["memory_limit_bytes"]:
                self.driver.limit_memory(self.group, limit)
            error_fd = self._fork()
            yield from self._until_exec(error_fd)
            # Stage 2: the task runs. Write the pid to the record before the helper can report the
            # task as started.
            self._write_task()
            self._report({"pid": self.pid, "start_time_ticks": start_ticks(self.pid) or 0})
            if self.spec["timeout_ms"]:
                self.loop.later(self.spec["timeout_ms"] / 1000, self._on_timeout)
            # If the shim has already reaped the task, the pid may belong to another process.
            pidfd = os.pidfd_open(self.pid) if self.status < 0 else -1
            while self.status < 0:
                yield pidfd, 3600.0
        except (Fault, OSError) as problem:
            fault = as_fault(problem, "START_FAILED")
        yield from self._finish(record, fault)

    def _make_scratch(self) -> None:
        """Makes the scratch directory, directly in the temporary directory that all users may
        enter."""
        if scratch := self.spec["scratch"]:
            os.mkdir(scratch, 0o700)  # noqa: PTH102 - fails if the path exists
            fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            os.fchmod(fd, 0o711)
            # from now on, the task's user may replace the directory
            os.fchown(fd, self.spec["uid"], self.spec["gid"])
            os.close(fd)

    def _fork(self) -> int:
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "error")}
        stdin, feed = os.pipe() if self.spec["stdin"] else (os.open("/dev/null", os.O_RDONLY), -1)
        self.pid = os.fork()
        # The child continues in `become_task`, which never returns.
        if self.pid == 0:
            stdio = (stdin, pipes["stdout"][1], pipes["stderr"][1])
            groups = {**self.spec["slot"], **self.group}
            become_task(self.spec, self.driver, groups, stdio, pipes["error"][1])
        os.close(stdin)
        for _reader, writer in pipes.values():
            # The shim must close its copy of the writers. Otherwise it would never see the end of
            # the streams.
            os.close(writer)
        for name in ("stdout", "stderr"):
            self.output.collect(name, pipes[name][0])
        if feed >= 0:
            # Make the descriptor non-blocking, because a task that does not read its input must not
            # block the shim.
            os.set_blocking(feed, False)
            self.input_fd = feed
        return pipes["error"][0]

    def _until_exec(self, error_fd: int) -> Job:
        """Waits until the program runs.

        The pipe closes when the process calls exec, or when it ends before exec. A flag of the
        kernel shows which of the two happened.
        """
        yield error_fd, 3600.0
        reply = os.read(error_fd, 1 << 16)
        os.close(error_fd)
        if reply:
            raise fault_of(json.loads(reply))
        # If the pipe is closed and the flag is still set, the process is ending. Wait until the
        # shim has reaped the process.
        while self.status < 0 and self._is_fork():
            yield 0.001
        if self.status >= 0 and self.died_before_exec:
            if self.driver.counters(self.group).get("oom_kills"):
                raise Fault(
                    "LIMIT_TOO_SMALL",
                    "the task ran out of memory before its program started; the limit is too small",
                )
            raise Fault("START_FAILED", "killed before its program ran")

    def _is_fork(self) -> bool:
        """True if the task's process has not called exec yet.

        The method reads a flag of the kernel, because a program can change the name of its process.
        """
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return bool(int(stat.rpartition(")")[2].split()[6]) & _PF_FORKNOEXEC)

    def _reap(self) -> None:
        """Reaps all ended processes below the shim, including orphans.

        Only the end of the task's first process is the end of the task.
        """
        while True:
            try:
                # Use WNOWAIT, so that the process is not reaped yet: after the reaping, the flag in
                # /proc no longer exists.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid == self.pid:
                self.died_before_exec = self._is_fork()
            _, status, usage = os.wait4(ended.si_pid, 0)
            # The exit record has these sums only if no cgroup counts the use. ru_maxrss is in KiB.
            self.used_usec += round((usage.ru_utime + usage.ru_stime) * 1e6)
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
            if ended.si_pid == self.pid:
                self.status = status

    def _on_timeout(self) -> None:
        if self.status < 0:
            self.timed_out = True
            self._stop(KILL_GRACE_S)

    def _stop(self, grace_s: float) -> None:
        def kill() -> None:
            if self.status < 0:
                self.loop.run(self.driver.kill(self.group, [os.getpid()]))

        if grace_s:
            self.driver.ask_to_end(self.group, [os.getpid()])
        self.loop.later(grace_s, kill)

    def _handle(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        # A pid of 0 means that the fork has not happened yet.
        if self.status >= 0 or not self.pid:
            raise Fault("TASK_ENDED", f"task {self.spec['task_id']} is not running")
        match verb:
            case "signal":
                # The process is not reaped yet, so its pid cannot belong to another process.
                os.killpg(self.pid, args["signum"])
            case "kill":
                self._stop(args["grace_ms"] / 1000)
            case "input":
                return self._take_input(args["offset"], args["data"].encode("latin-1"), args["eof"])
            case "hold":
                return self.output.hold(args["holder"], args["stdout"], args["stderr"])
        return {}

    def _take_input(self, offset: int, data: bytes, eof: bool) -> dict[str, Any]:
        """Accepts as many new bytes as the buffer can hold. The caller must send the remaining
        bytes again.

        When the task's stdin is closed, all bytes count as accepted.
        """
        if not self.spec["stdin"]:
            raise Fault("SLOT_NOT_READY", "the task was started without stdin")
        if offset > self.received:
            message = (
                f"offset is {offset}; expected at most {self.received}, the bytes received so far"
            )
            raise Fault("OUT_OF_RANGE", message, offset=offset, accepted=self.received)
        # A caller that got no answer sends the same bytes again, so skip the bytes that are already
        # known.
        new = data[self.received - offset :][: _INPUT_BYTES_MAX - len(self.inbox)]
        if self.input_ends:  # the task cannot read more input
            self.received = max(self.received, offset + len(data))
        else:
            self.received += len(new)
            self.inbox += new
            # The input ends only when all bytes before the end have been accepted.
            self.input_ends = eof and self.received >= offset + len(data)
            self._feed()
        return {"accepted_offset": self.received}

    def _feed(self, _events: int = 0) -> None:
        if self.input_fd < 0:
            self.inbox.clear()
            return None
        try:
            while self.inbox:
                del self.inbox[: os.write(self.input_fd, self.inbox)]
        except BlockingIOError:
            return self.loop.watch(self.input_fd, self._feed, WRITE)
        except OSError:
            # The task has closed its stdin, so it will never read the remaining bytes.
            self.inbox.clear()
            self.input_ends = True
        self.loop.unwatch(self.input_fd)
        if self.input_ends:
            os.close(self.input_fd)
            self.input_fd = -1
        return None

    def _finish(self, record: int, fault: Fault | None) -> Job:
        """Kills all remaining processes of the task, writes the exit record, and reports the record
        to the helper.
        """
        # Stage 1: kill the remaining processes of the task.
        yield from self._try_for_a_while(self.driver.kill(self.group, [os.getpid()]))
        self._reap()
        # Stage 2: read the counters, because they are lost when the group is removed.
        counters = self.driver.counters(self.group)
        yield from self._try_for_a_while(self.driver.remove(self.group))
        # Stage 3: make the result durable. Write the logs before the record, so that a reader of
        # the record finds all output.
        yield from self.output.finish()
        # The padding overwrites the whole reserved space, because JSON allows spaces at the end.
        body = json.dumps(self._exit_record(counters, fault)).encode().ljust(_RECORD_BYTES)
        for attempt in range(_RETRIES):
            try:
                os.pwrite(record, body, 0)
                os.fsync(record)
                break
            except OSError:
                yield 1.0 if attempt else 0.1
        (self.directory / "exit.json.new").rename(self.directory / "exit.json")
        sync_directory(self.directory)
        # Remove the scratch directory after the report, because the removal of a large directory
        # must not delay the report of the task's end.
        yield from self._remove_scratch()
        if fault:
            self._report({"error": fault.as_dict()})

    def _remove_scratch(self) -> Job:
        """Removes the scratch directory.

        If the removal takes long, the process that removes the directory continues after the shim
        has ended.
        """
        if scratch := self.spec["scratch"]:
            remove_as(self.spec["uid"], self.spec["gid"], scratch)
            end = time.monotonic() + _DRAIN_S
            while os.path.lexists(scratch) and time.monotonic() < end:
                yield 0.002

    def _try_for_a_while(self, job: Job) -> Job:
        """Runs a job with a deadline, because a group that stays busy must not delay the exit
        record."""
        try:
            yield from within(_REMOVE_S, job, lambda: Fault("INTERNAL", "group is still busy"))
        except (Fault, OSError):
            return

    def _exit_record(self, counters: dict[str, int], fault: Fault | None) -> dict[str, Any]:
        ended = self.status >= 0 and not fault
        exit_status = os.waitstatus_to_exitcode(self.status) if ended else None
        oom_kills = counters.get("oom_kills", 0)
        return {
            "exit_code": exit_status if exit_status is not None and exit_status >= 0 else None,
            "signal": -exit_status if exit_status is not None and exit_status < 0 else None,
            # If the exit status is 0, the kernel killed only another process of the task, so the
            # task does not count as killed for memory.
            "oom_killed": oom_kills > 0 and exit_status != 0,
            "oom_kills": oom_kills,
            "timed_out": self.timed_out,
            "peak_memory_bytes": counters.get("memory_peak_bytes", self.peak_bytes),
            "cpu_usec": counters.get("cpu_usec", self.used_usec),
            "started_unix_ms": round(self.started * 1000),
            "ended_unix_ms": round(time.time() * 1000),
            "error": fault.as_dict() if fault else None,
        } | self.output.counts()

    def _report(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # if the helper has ended, a later helper reads the files
            os.write(self.report_fd, json.dumps(message).encode())
