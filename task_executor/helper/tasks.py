"""Keeps the tasks of this executor, with their directories and shims, including tasks of earlier
helpers.

This module starts shims, watches for their end, and checks which user a task may run as. The shims
write the output and the exit records.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.child import bound_to, remove_as
from task_executor.helper.loop import Job, Loop
from task_executor.helper.paths import boot_id, read_json, start_ticks, write_json
from task_executor.helper.protocol import Fault, as_fault, decode, encode, fault_of, frames
from task_executor.helper.server import socket_address
from task_executor.helper.shim import run_shim

_START_S, _ANSWER_S = 60.0, 5.0


class Task:
    """One task, with its directory below `tasks`.

    Attributes:
        record: the content of task.json.
        exit: the content of exit.json, when it exists.
    """

    def __init__(self, directory: Path, record: dict[str, Any]) -> None:
        self.id, self.directory, self.record = directory.name, directory, record
        self.slot = f"{record['allocation_id']}.{record['generation']}"
        self.exit: dict[str, Any] | None = None
        self.shim_fd = -1
        # True: the start is not answered yet, so the end of the task must not be reported yet.
        self.start_unanswered = False

    def refresh(self) -> None:
        self.record = read_json(self.directory / "task.json") or self.record

    def describe(self) -> dict[str, Any]:
        names = ("task_id", "allocation_id", "generation", "pid", "start_time_ticks")
        state = {"state": "exited" if self.exit else "running", "exit": self.exit}
        known = {name: self.record.get(name, 0) for name in names}
        return known | state | {"directory": str(self.directory)}


class Tasks:
    """All tasks by id.

    Args:
        loop: the event loop.
        config: the configuration of the helper.
        driver: the cgroup driver.
        send_event: a function that sends an event to the front, if a front is connected.
    """

    def __init__(
        self, loop: Loop, config: dict[str, Any], driver: Driver, send_event: Callable[..., None]
    ) -> None:
        self.loop, self.config, self.driver, self.send_event = loop, config, driver, send_event
        self.directory = Path(config["state_dir"]) / "tasks"
        self.directory.mkdir(mode=0o750, exist_ok=True)
        os.chown(self.directory, -1, config["front_gid"])
        self.known: dict[str, Task] = {}
        self.unidentified: set[str] = set()  # directories whose shim is not known yet

    def shims_of(self, slot: str) -> list[int]:
        return [t.record["shim_pid"] for t in self.known.values() if t.slot == slot and not t.exit]

    def adopt(self) -> None:
        """Adopts the tasks of an earlier helper."""
        for directory in self.directory.iterdir():
            self.unidentified.add(directory.name)
            self.loop.run(self._adopt(directory))

    def _adopt(self, directory: Path) -> Job:
        """Waits for the record of a shim that is being started.

        A shim locks its directory until it ends. If the directory is not locked and has no record,
        no task was started in it.
        """
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while (record := read_json(directory / "task.json")) is None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield 0.01
                continue
            # Read again: the shim may have written the record just before it ended.
            record = read_json(directory / "task.json")
            break
        os.close(lock)
        self.unidentified.discard(directory.name)
        if record is None:
            shutil.rmtree(directory)
            return
        self.known[directory.name] = task = Task(directory, record)
        task.exit = read_json(directory / "exit.json")
        if not task.exit:
            self._watch(task)

    def _watch(self, task: Task) -> None:
        """Watches a shim by its pidfd, because a pid can be reused.

        The method reads the start time after it has opened the pidfd. The start time shows whether
        the process is really the shim.
        """
        record = task.record
        try:
            task.shim_fd = os.pidfd_open(record["shim_pid"])
        except ProcessLookupError:
            return self._shim_exited(task)
        same_boot = record["boot_id"] == boot_id()
        if same_boot and start_ticks(record["shim_pid"]) == record["shim_start_ticks"]:
            return self.loop.watch(task.shim_fd, lambda _events: self._shim_exited(task))
        return self._shim_exited(task)

    def _shim_exited(self, task: Task) -> None:
        if task.shim_fd >= 0:
            self.loop.unwatch(task.shim_fd)
            os.close(task.shim_fd)
            task.shim_fd = -1
        task.refresh()
        if exit_record := read_json(task.directory / "exit.json"):
            self._ended(task, exit_record)
        else:
            self.loop.run(self._finish_lost(task))

    def _finish_lost(self, task: Task) -> Job:
        """Does the work of a shim that was killed: kills the shim's task, and writes the exit
        record.
        """
        why = "the host was restarted"
        if task.record["boot_id"] == boot_id():
            why = "its shim was killed, so the task was killed too"
            pid = task.record.get("pid")
            # The start time shows whether the pid still belongs to the task, and not to another
            # process.
            if pid and start_ticks(pid) == task.record["start_time_ticks"]:
                # Without cgroups, the process group is the only way to find other processes of the
                # task.
                self.driver.signal(-pid, signal.SIGKILL)
            yield from self.driver.kill(task.record["group"])
            yield from self.driver.remove(task.record["group"])
        error = Fault("TERMINATED", why).as_dict()
        exit_record = {"error": error, "ended_unix_ms": round(time.time() * 1000)}
        try:
            write_json(task.directory / "exit.json", exit_record, 0o640, self.config["front_gid"])
        finally:  # if the disk is full, the next helper writes the record
            self._ended(task, exit_record)

    def _ended(self, task: Task, exit_record: dict[str, Any]) -> None:
        task.exit = exit_record
        # The front must receive the answer to the start before the end of the task, because it does
        # not know the task before the answer.
        if not task.start_unanswered:
            self._send_end(task)

    def _send_end(self, task: Task) -> None:
        if task.exit and task.exit.get("oom_kills"):
            self.send_event({"event": "task_oom", "task_id": task.id})
        self.send_event({"event": "task_exited", "task_id": task.id, "record": task.exit})

    def start(self, args: dict[str, Any], limits: Callable[[], dict[str, Any]]) -> Job:
        """Starts a task, and returns its pid and start time.

        If the call is repeated with the same content, the job returns the existing task. A call
        with the same id but other content is an error.

        Args:
            args: the arguments of the call.
            limits: a function that returns the limits of the slot. The job calls it only when it
                has finished waiting, because the slot may be moved or destroyed meanwhile.

        Raises:
            Fault: the task cannot be started.
        """
        task_id = args["task_id"]
        # Leave fields of later versions out of the digest if they are not set, because the digests
        # of earlier helpers' tasks do not contain these fields.
        later = ("memory_limit_bytes", "output_holder")
        named = {n: v for n, v in args.items() if n not in later or v is not None}
        digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
        # Wait: the id may belong to a task from before a restart, whose record this helper has not
        # read yet.
        while task_id in self.unidentified:
            yield 0.01
        # If the id is known, the call is a retry or a conflict.
        if known := self.known.get(task_id):
            if known.record["digest"] != digest:
                message = f"task {task_id} exists with different content"
                raise Fault("ALREADY_EXISTS", message, task_id=task_id)
            yield from self._until_started(known)
            if not known.record.get("pid") and known.exit and known.exit.get("error"):
                raise fault_of(known.exit["error"])
            if known.exit:  # the caller may not have received the event
                self.loop.later(0, lambda: self._send_end(known))
            return {name: known.record[name] for name in ("pid", "start_time_ticks")}
        uid, gid = self._user(args["uid"], args["gid"])
        _check_within(limits()["memory_bytes"], args["memory_limit_bytes"])
        # A new task: choose its user, directory and groups.
        spec = args | {"uid": uid, "gid": gid, "digest": digest, "scratch": None}
        if args["cwd"] is None:
            parent = self.config["scratch_root"] or tempfile.gettempdir()
            # The name is random, because every user can make files in the temporary directory.
            spec["cwd"] = spec["scratch"] = f"{parent}/finegrain-task-{secrets.token_hex(8)}"
        slot = f"{args['allocation_id']}.{args['generation']}"
        spec |= {"slot": self.driver.slot(slot), "boot_id": boot_id()}
        spec["group"] = self.driver.task(spec["slot"], task_id)
        # Without cgroups, the fork inherits the cpus of this process, so they are read right before
        # the fork.
        binds = self.driver.report()["cpuset"] == "affinity"
        with bound_to(limits()["cpus"] if binds else ""):
            task, reader = self._fork_shim(spec)
        try:
            return (yield from self._started(task, reader))
        finally:
            os.close(reader)

    def _fork_shim(self, spec: dict[str, Any]) -> tuple[Task, int]:
        directory, front_gid = self.directory / spec["task_id"], self.config["front_gid"]
        try:
            directory.mkdir(mode=0o750)
            os.chown(directory, -1, front_gid)
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        # The lock is taken before the fork. The shim inherits it, so the directory is locked
        # without interruption.
        fcntl.flock(lock, fcntl.LOCK_EX)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            run_shim(spec, directory, front_gid, self.driver, (writer, lock))
        os.close(writer)
        os.close(lock)
        me = {"shim_pid": pid, "shim_start_ticks": start_ticks(pid)}
        task = self.known[spec["task_id"]] = Task(directory, spec | me)
        # This is set before `_watch`, which may find that the shim has already ended.
        task.start_unanswered = True
        self._watch(task)
        return task, reader

    def _started(self, task: Task, reader: int) -> Job:
        """Waits until the shim reports that the program runs. If the task failed to start, deletes
        it.
        """
        yield reader, _START_S
        os.set_blocking(reader, False)
        try:
            reply = os.read(reader, 1 << 16)
        except BlockingIOError:
            message = f"its shim did not answer within {_START_S:.0f} s; submit the same task again"
            raise Fault("START_FAILED", message, task_id=task.id) from None
        answer: dict[str, Any] = json.loads(reply) if reply else {"error": None}
        if "error" not in answer:
            task.record |= answer
            # Send the event of the task's end, if there is one, after this answer.
            self.loop.later(0, lambda: self._start_answered(task))
            return answer
        while not task.exit:  # wait, because the shim uses the directory until the shim ends
            yield 0.002
        fault = fault_of(answer["error"] or task.exit["error"])
        # Delete everything of a task that never ran, so that the same id can be submitted again.
        yield from self.forget(task.id)
        raise fault

    def _start_answered(self, task: Task) -> None:
        task.start_unanswered = False
        if task.exit:
            self._send_end(task)

    def _until_started(self, task: Task) -> Job:
        while not task.exit and not task.record.get("pid"):
            yield 0.01
            task.refresh()

    def limit(self, task_id: str, memory_bytes: int, slot_bytes: Callable[[str], int]) -> Job:
        """Changes the memory limit of a task, unless it has ended. The call can be repeated.

        Args:
            task_id: the id of the task.
            memory_bytes: the new limit.
            slot_bytes: a function that returns the memory limit of a slot, given its name.

        Raises:
            Fault: TASK_UNKNOWN, BELOW_USE (the old limit is in effect) or CARVE_FAILED.
        """
        while task_id in self.unidentified:
            yield 0.01
        if (task := self.known.get(task_id)) is None:
            raise Fault("TASK_UNKNOWN", f"no task {task_id} on this executor", task_id=task_id)
        yield from self._until_started(task)
        group = task.record["group"]
        if task.exit or not all(map(self.driver.kernel.exists, group.values())):
            return
        _check_within(slot_bytes(task.slot), memory_bytes)
        controller, _soft, file = self.driver.reclaim_files
        old = self.driver.count(group, controller, file)
        try:
            yield from self.driver.make_room(group, memory_bytes)
            self.driver.limit_memory(group, memory_bytes)
        except (Fault, OSError) as error:
            if old:  # `make_room` may have throttled the task
                self.driver.limit_memory(group, old)
            raise as_fault(error, "CARVE_FAILED") from None

    def _user(self, uid: int | None, gid: int | None) -> tuple[int, int]:
        """Returns the user of a task: the configured user, or a user of the allowed range.

        If the helper does not run as root, only the helper's own user is allowed.

        Raises:
            Fault: USER_NOT_ALLOWED.
        """
        own, config = os.geteuid(), self.config
        default_user = (config["task_uid"], config["task_gid"]) if own == 0 else (own, os.getegid())
        chosen = (default_user[0] if uid is None else uid, default_user[1] if gid is None else gid)
        for number, default in zip(chosen, default_user, strict=True):
            if own != 0:
                allowed, hint = number == default, "only root can run tasks as another user"
            elif number == 0:
                allowed, hint = config["allow_root_tasks"], "set allow_root_tasks to allow it"
            else:
                low, high = config["task_uid_min"], config["task_uid_max"]
                allowed, hint = number == default or low <= number <= high, "see task_user"
            if not allowed:
                message = f"uid {chosen[0]}, gid {chosen[1]} may not run tasks; {hint}"
                raise Fault("USER_NOT_ALLOWED", message, uid=chosen[0], gid=chosen[1])
        return chosen

    def ask(self, task_id: str, verb: str, args: dict[str, Any]) -> Job:
        """Sends one request to a task's shim, without blocking other requests.

        Raises:
            Fault: TASK_UNKNOWN, TASK_ENDED or UNREACHABLE. The reason is TASK_ENDED only if the
                task has certainly ended, because a caller that writes input discards the remaining
                input after this error.
        """
        while task_id in self.unidentified:
            yield 0.01
        # Stage 1: find the task, and wait until it has started.
        if task_id not in self.known:
            raise Fault("TASK_UNKNOWN", f"no task {task_id} on this executor", task_id=task_id)
        task = self.known[task_id]
        yield from self._until_started(task)
        ended = Fault("TASK_ENDED", f"task {task_id} has ended", task_id=task_id)
        deadline = time.monotonic() + _ANSWER_S
        if task.exit:
            raise ended
        # Stage 2: one request on a new connection. No step may block, not even the connect.
        request = bytearray(encode({"id": 0, "verb": verb, "args": args}))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as peer:
            try:
                with socket_address(task.directory / "control") as address:
                    peer.connect(address)
                answer = decode((yield from _exchange(peer, request, deadline)))
            except OSError as error:
                while not isinstance(error, BlockingIOError) and time.monotonic() < deadline:
                    if task.exit:
                        raise ended from None
                    yield 0.01  # the shim is ending; its pidfd will show the end
                message = f"the shim of task {task_id} does not answer ({error}); try again"
                raise Fault("UNREACHABLE", message, task_id=task_id) from None
        if not answer["ok"]:
            raise fault_of(answer["error"])
        return answer["result"]

    def forget(self, task_id: str) -> Job:
        """Removes all files of an ended task, including a scratch directory that the shim left."""
        while task_id in self.unidentified:
            yield 0.01
        if (task := self.known.get(task_id)) is None:
            return
        if not task.exit:
            message = f"task {task_id} still runs; kill it first"
            raise Fault("SLOT_NOT_READY", message, task_id=task_id)
        if (scratch := task.record["scratch"]) and os.path.lexists(scratch):
            fd = os.pidfd_open(remove_as(task.record["uid"], task.record["gid"], scratch))
            yield fd, 3600.0
            os.close(fd)
        # Another call may have removed the task during the wait.
        if self.known.pop(task_id, None):
            shutil.rmtree(task.directory)


def _check_within(slot_bytes: int, memory_bytes: int | None) -> None:
    if memory_bytes is not None and memory_bytes > slot_bytes:
        message = f"memory_limit_bytes is {memory_bytes}; expected at most the slot's {slot_bytes}"
        raise Fault("CARVE_FAILED", message)


def _exchange(peer: socket.socket, outbox: bytearray, deadline: float) -> Job:
    """Sends `outbox`, and returns the frame of the answer.

    Raises:
        OSError: the peer closed the connection.
        BlockingIOError: there was no answer before the deadline.
    """
    inbox, whole = bytearray(), list[bytes]()
    # Send without blocking, then wait for one whole frame.
    while outbox:  # input can be larger than the buffer of the socket
        try:
            del outbox[: peer.send(outbox)]
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            yield 0.001
    while not whole:
        yield peer.fileno(), max(0.0, deadline - time.monotonic())
        inbox += (data := peer.recv(1 << 20))
        if not data:
            raise ConnectionResetError("the shim closed the connection")
        whole = list(frames(inbox))
    return whole[0]
