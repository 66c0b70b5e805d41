"""The tasks of this executor: their directories, their shims, and finding both again after a
restart.

Decides who is still alive and which user a task may be. Refuses to know output and exit codes: the
shim writes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.loop import Job, Loop
from task_executor.helper.paths import boot_id, read_json, start_ticks, write_json
from task_executor.helper.protocol import Fault, decode, encode, frames
from task_executor.helper.server import socket_address
from task_executor.helper.shim import run_shim

_START_S, _ANSWER_S = 60.0, 10.0


class Task:
    """One directory below `tasks`. `record` is task.json, `exit` is exit.json once there is one."""

    def __init__(self, directory: Path, record: dict[str, Any]) -> None:
        self.id, self.directory, self.record = directory.name, directory, record
        self.slot = f"{record['allocation_id']}.{record['generation']}"
        self.exit: dict[str, Any] | None = None
        self.shim_fd = -1

    def describe(self) -> dict[str, Any]:
        names = ("allocation_id", "generation", "pid", "start_time_ticks")
        known = {name: self.record.get(name, 0) for name in names}
        state = "exited" if self.exit else "running"
        return known | {
            "task_id": self.id,
            "state": state,
            "directory": str(self.directory),
            "exit": self.exit,
        }


class Tasks:
    def __init__(
        self,
        loop: Loop,
        config: dict[str, Any],
        driver: Driver,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.loop, self.config, self.driver, self.tell = loop, config, driver, tell
        self.directory = Path(config["state_dir"]) / "tasks"
        self.directory.mkdir(mode=0o750, exist_ok=True)
        os.chown(self.directory, -1, config["front_gid"])
        self.known: dict[str, Task] = {}

    def shims_of(self, slot: str) -> list[int]:
        return [t.record["shim_pid"] for t in self.known.values() if t.slot == slot and not t.exit]

    def adopt(self) -> None:
        """Shims that live are watched again; one that left no exit record gets one that says so."""
        for directory in self.directory.iterdir():
            record = read_json(directory / "task.json")
            if record is None:  # the helper died before there was a process
                shutil.rmtree(directory)
                continue
            self.known[directory.name] = task = Task(directory, record)
            task.exit = read_json(directory / "exit.json")
            if not task.exit:
                self._watch(task)

    def _watch(self, task: Task) -> None:
        """A pidfd cannot be confused by a reused pid; the start time, read after, proves whom it
        is for.
        """
        shim = task.record["shim_pid"]
        try:
            fd = os.pidfd_open(shim)
        except ProcessLookupError:
            fd = -1
        same = (
            task.record["boot_id"] == boot_id()
            and start_ticks(shim) == task.record["shim_start_ticks"]
        )
        if fd >= 0 and same:
            task.shim_fd = fd
            self.loop.watch(fd, lambda _events: self._shim_gone(task))
        else:
            if fd >= 0:
                os.close(fd)
            self._shim_gone(task)

    def _shim_gone(self, task: Task) -> None:
        if task.shim_fd >= 0:
            self.loop.unwatch(task.shim_fd)
            os.close(task.shim_fd)
            task.shim_fd = -1
        exit_record = read_json(task.directory / "exit.json")
        if exit_record is None:
            self.loop.run(self._bury_lost(task))
        else:
            self._ended(task, exit_record)

    def _bury_lost(self, task: Task) -> Job:
        rebooted = task.record["boot_id"] != boot_id()
        why = (
            "the host was restarted"
            if rebooted
            else "its shim was killed; the task was killed with it"
        )
        if not rebooted:
            yield from self.driver.kill(task.record["group"])
            yield from self.driver.remove(task.record["group"])
        lost = {
            "error": Fault("TERMINATED", why).as_dict(),
            "ended_unix_ms": round(time.time() * 1000),
        }
        write_json(task.directory / "exit.json", lost, 0o640)
        os.chown(task.directory / "exit.json", -1, self.config["front_gid"])
        self._ended(task, lost)

    def _ended(self, task: Task, exit_record: dict[str, Any]) -> None:
        task.record = read_json(task.directory / "task.json") or task.record
        task.exit = exit_record
        if self.known.get(task.id) is task:
            event = "task_oom" if exit_record.get("oom_kills") else ""
            for name in filter(None, (event, "task_exited")):
                self.tell({"event": name, "task_id": task.id, "record": exit_record})

    def start(self, args: dict[str, Any], limits: dict[str, Any]) -> Job:
        digest = hashlib.sha256(json.dumps(args, sort_keys=True).encode()).hexdigest()
        if known := self.known.get(args["task_id"]):
            return (yield from self._started_before(known, digest))
        uid, gid = self._user(args["uid"], args["gid"])
        directory = self.directory / args["task_id"]
        directory.mkdir(mode=0o750)
        os.chown(directory, -1, self.config["front_gid"])
        scratch = None if args["cwd"] else self._make_scratch(uid, gid)
        affinity = limits["cpus"] if self.driver.report()["cpuset"] == "affinity" else ""
        slot = f"{args['allocation_id']}.{args['generation']}"
        spec = args | {"uid": uid, "gid": gid, "cwd": args["cwd"] or scratch, "scratch": scratch}
        spec |= {"slot": self.driver.slot(slot), "affinity": affinity, "digest": digest}
        spec["front_gid"] = self.config["front_gid"]
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            run_shim(spec, directory, self.driver, writer)
        os.close(writer)
        record = spec | {
            "shim_pid": pid,
            "shim_start_ticks": start_ticks(pid),
            "boot_id": boot_id(),
        }
        record["group"] = self.driver.task(spec["slot"], args["task_id"])
        task = self.known[args["task_id"]] = Task(directory, record)
        self._watch(task)
        yield reader, _START_S
        os.set_blocking(reader, False)
        told = os.read(reader, 1 << 16)
        os.close(reader)
        answer = json.loads(told) if told else {"error": None}
        if "error" in answer:
            while not task.exit:  # its directory is the shim's until it has gone
                yield 0.002
            error = answer["error"] or task.exit.get("error") or {}
            yield from self.forget(task.id)
            raise Fault(
                error.get("reason", "START_FAILED"),
                error.get("message", "shim died"),
                **error.get("details", {}),
            )
        task.record |= answer
        return answer

    def _started_before(self, task: Task, digest: str) -> Job:
        """The same task again is the same task; an id with other content is a conflict."""
        if task.record["digest"] != digest:
            raise Fault(
                "ALREADY_EXISTS", f"task {task.id} exists with other content", task_id=task.id
            )
        while not task.exit and not task.record.get("pid"):
            yield 0.01
            task.record = read_json(task.directory / "task.json") or task.record
        if task.exit and not task.record.get("pid") and (error := task.exit.get("error")):
            raise Fault(error["reason"], error["message"], **error["details"])
        return {name: task.record.get(name, 0) for name in ("pid", "start_time_ticks")}

    def _user(self, uid: int | None, gid: int | None) -> tuple[int, int]:
        """The user of a task, from the configured one and range; without root only our own."""
        own = os.geteuid()
        if own != 0:
            uid, gid = own if uid is None else uid, os.getegid() if gid is None else gid
            if (uid, gid) != (own, os.getegid()):
                message = f"uid {uid}, gid {gid}: without root, tasks run as uid {own} only"
                raise Fault("USER_NOT_ALLOWED", message, uid=uid, gid=gid)
            return uid, gid
        config = self.config
        chosen = [
            (uid if uid is not None else config["task_uid"], config["task_uid"]),
            (gid if gid is not None else config["task_gid"], config["task_gid"]),
        ]
        for number, usual in chosen:
            in_range = config["task_uid_min"] <= number <= config["task_uid_max"]
            if (number == 0 and not config["allow_root_tasks"]) or (
                number not in (0, usual) and not in_range
            ):
                message = f"tasks may not run as {number}; allowed: {usual} (task_user)"
                message += ", 0 with allow_root_tasks" if number == 0 else ""
                raise Fault("USER_NOT_ALLOWED", message, uid=chosen[0][0], gid=chosen[1][0])
        return chosen[0][0], chosen[1][0]

    def _make_scratch(self, uid: int, gid: int) -> str:
        """Directly below the temporary directory, because another user must be able to get
        there.
        """
        path = tempfile.mkdtemp(prefix="finegrain-task-", dir=self.config["scratch_root"])
        if os.geteuid() == 0:
            os.chown(path, uid, gid)
        Path(path).chmod(0o711)
        return path

    def need(self, task_id: str) -> Task:
        if task_id not in self.known:
            raise Fault("TASK_UNKNOWN", f"no task {task_id} on this executor", task_id=task_id)
        return self.known[task_id]

    def ask(self, task_id: str, verb: str, args: dict[str, Any]) -> Job:
        """One question to a task's shim, without waiting for it in any other way than a job
        does.
        """
        task = self.need(task_id)
        gone = Fault("TASK_ENDED", f"task {task_id} does not run any more", task_id=task_id)
        if task.exit:
            raise gone
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as peer:
            inbox = bytearray()
            try:
                with socket_address(task.directory / "control") as address:
                    peer.connect(address)
                peer.sendall(encode({"id": 0, "verb": verb, "args": args}))
                while not (whole := list(frames(inbox))):
                    yield peer.fileno(), _ANSWER_S
                    data = peer.recv(1 << 16)
                    inbox += data
                    if not data:
                        raise gone
            except OSError as error:
                raise Fault(
                    "TASK_ENDED", f"task {task_id}: its shim does not answer: {error}"
                ) from None
        answer = decode(whole[0])
        if answer.get("error"):
            raise Fault(
                answer["error"]["reason"], answer["error"]["message"], **answer["error"]["details"]
            )
        return answer["result"]

    def forget(self, task_id: str) -> Job:
        """Remove all that is left of an ended task: scratch as the task's user, so that no link
        leads us astray.
        """
        task = self.known.get(task_id)
        if not task:
            return
        if not task.exit:
            raise Fault(
                "SLOT_NOT_READY", f"task {task_id} still runs; kill it first", task_id=task_id
            )
        if scratch := task.record.get("scratch"):
            pid = os.fork()
            if pid == 0:
                _remove_as(task.record["uid"], task.record["gid"], scratch)
            fd = os.pidfd_open(pid)
            yield fd, 3600.0
            os.close(fd)
        if self.known.pop(task_id, None):
            shutil.rmtree(task.directory)


def _remove_as(uid: int, gid: int, path: str) -> None:
    try:
        os.closerange(3, 1024)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        script = 'chmod -R u+rwX "$1"; exec rm -rf -- "$1"'
        os.execv("/bin/sh", ["sh", "-c", script, "sh", path])  # noqa: S606
    finally:
        os._exit(1)
