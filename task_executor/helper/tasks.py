"""The tasks of this executor, with their directories and supervisors, including tasks of earlier
helpers.

This module checks the user as which a task may run. It orders a supervisor to start the task, and
receives the news of the task's end. The supervisors write the output and the exit records.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.child import bound_to, remove_as
from task_executor.helper.loop import Job, Loop
from task_executor.helper.paths import (
    boot_id,
    digest,
    random_name,
    read_json,
    remove_directory,
    start_ticks,
    temporary_directory,
    write_json,
)
from task_executor.helper.protocol import Fault, as_fault, fault_of
from task_executor.helper.running_task import Adopted
from task_executor.helper.supervisor import Setup
from task_executor.helper.supervisors import Ended, SupervisorLink, Unanswered, fork_supervisor

_START_S, _ANSWER_S, _END_S = 60.0, 5.0, 2.0
_TAKEOVERS, _TAKEOVERS_S = 8, 10.0  # no supervisor takes over tasks more often than this


class Task:
    """One task. It has a directory below `tasks`.

    Attributes:
        record: the content of task.json.
        exit: the content of exit.json, after this file was written.
        link: the supervisor of the task, while it is known and runs.
        pipes: copies of the read ends of stdout and stderr, for a supervisor that is killed.
    """

    def __init__(self, directory: Path, record: dict[str, Any]) -> None:
        self.id, self.directory, self.record = directory.name, directory, record
        self.slot = f"{record['allocation_id']}.{record['generation']}"
        self.exit: dict[str, Any] | None = None
        self.link: SupervisorLink | None = None
        self.pipes = (-1, -1)
        # True: the end is reported only after the answer to the start.
        self.start_unanswered = False

    def describe(self) -> dict[str, Any]:
        names = ("task_id", "allocation_id", "generation", "pid", "start_time_ticks")
        state = {"state": "exited" if self.exit else "running", "exit": self.exit}
        known = {name: self.record.get(name, 0) for name in names}
        return known | state | {"directory": str(self.directory)}

    def read_exit(self) -> dict[str, Any] | None:
        """Returns the exit record; None: it is not written yet."""
        return read_json(self.directory / "exit.json")

    def was_begun(self) -> bool:
        """False if its supervisor has certainly not begun to start it."""
        is_new = "control" in self.record  # a shim of version 0.2 always has its task
        begun = (self.directory / name for name in ("exit.json.new", "exit.json"))
        return not is_new or any(path.exists() for path in begun)

    def close_pipes(self) -> None:
        for fd in self.pipes:
            if fd >= 0:
                os.close(fd)
        self.pipes = (-1, -1)

    def copy_pipes(self, supervisor: int, pipes: list[tuple[int, int]]) -> None:
        """Opens the read ends of the pipes of the task a second time.

        While one process has them open, a kill of the supervisor does not make the task's next
        write fail.

        Args:
            supervisor: the process of the supervisor.
            pipes: the supervisor's descriptors of stdout and stderr. Each comes with its inode.
        """
        self.close_pipes()
        stdout, stderr = (_copy_pipe(supervisor, *each) for each in pipes)
        self.pipes = (stdout, stderr)


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
        self._sockets = Path(config["state_dir"]) / "supervisors"
        self._sockets.mkdir(mode=0o700, exist_ok=True)
        self.known: dict[str, Task] = {}
        self.unidentified: set[str] = set()  # directories of which the task is not known yet
        self._links: dict[int, SupervisorLink] = {}  # live supervisors by pid
        self._own: SupervisorLink | None = None  # the supervisor that starts new tasks
        self._pids: dict[int, Task] = {}  # running tasks by the pid of their first process
        self._takeovers: deque[float] = deque(maxlen=_TAKEOVERS)
        # Ends of tasks whose supervisor was killed: status, CPU microseconds, peak memory in bytes.
        self._reaped: dict[str, tuple[int, int, int]] = {}

    def supervisors_of(self, slot: str) -> list[int]:
        """Returns the pids of the supervisors of a slot's running tasks."""
        return [t.record["shim_pid"] for t in self.known.values() if t.slot == slot and not t.exit]

    # -- tasks of earlier helpers ----------------------------------------------------------------

    def adopt(self) -> None:
        """Adopts the tasks of an earlier helper."""
        for directory in self.directory.iterdir():
            self.unidentified.add(directory.name)
            self.loop.run(self._adopt(directory))
        used = {str(task.record.get("control")) for task in self.known.values() if not task.exit}
        for left in self._sockets.iterdir():
            if str(left) not in used:
                left.unlink(missing_ok=True)

    def _adopt(self, directory: Path) -> Job:
        record = read_json(directory / "task.json")
        # A shim of version 0.2 locks the directory until it has written the record.
        while record is None and _is_locked(directory / "lock"):
            yield 0.01
            record = read_json(directory / "task.json")
        if record is None:  # the helper was killed before it ordered the start
            remove_directory(directory)
            self.unidentified.discard(directory.name)
            return
        task = self.known[directory.name] = Task(directory, record)
        link = self._link_of(record)
        if link is not None:
            yield from self._ask_state(task, link)
        elif exit_record := task.read_exit():
            task.exit = exit_record
        elif task.was_begun():
            self._lost(task)
        else:
            self._drop(task)
        self.unidentified.discard(task.id)

    def _ask_state(self, task: Task, link: SupervisorLink) -> Job:
        """Asks the supervisor of an earlier helper about a task.

        An exit record counts only if the supervisor has reported it. Before that, the record may be
        lost in a power failure.
        """
        self._attach(task, link)
        # A shim of version 0.2 has one task, and ends with it.
        if "control" not in task.record:
            return
        try:
            answer = yield from link.ask("state", {"task_id": task.id}, _START_S)
        except (Fault, Unanswered):
            # If the task has ended, `_supervisor_ended` has already found its outcome.
            return
        if task.exit:
            return
        if answer["pid"]:
            self._started(task, answer)
        elif exit_record := task.read_exit():
            task.exit = exit_record
            self._release(task)
        else:
            self._drop(task)

    def _drop(self, task: Task) -> None:
        """Removes a task that no supervisor has begun to start. The front will order it again."""
        self._release(task)
        del self.known[task.id]
        remove_directory(task.directory)

    def _link_of(self, record: dict[str, Any]) -> SupervisorLink | None:
        """Returns the supervisor that a record names; None: it has ended.

        The start time shows that the pid does not belong to another process.
        """
        pid = record["shim_pid"]
        if record["boot_id"] != boot_id() or start_ticks(pid) != record["shim_start_ticks"]:
            return None
        if pid not in self._links:
            control = record.get("control") or str(self.directory / record["task_id"] / "control")
            self._links[pid] = self._link(pid, Path(control))
        return self._links[pid]

    # -- supervisors -----------------------------------------------------------------------------

    def _link(self, pid: int, control: Path) -> SupervisorLink:
        return SupervisorLink(self.loop, pid, control, self._supervisor_ended, self._on_event)

    def _new_supervisor(self, adopted: list[Adopted]) -> SupervisorLink:
        control = self._sockets / random_name(6)
        setup = Setup(
            control,
            self.directory,
            self.config["front_gid"],
            self.driver,
            self.config["allow_root_tasks"],
            adopted,
        )
        pid, peer = fork_supervisor(setup)
        link = self._links[pid] = self._link(pid, control)
        link.use(peer)
        link.is_own = True
        return link

    def _supervisor(self, cpus: str) -> SupervisorLink:
        """Returns the supervisor for a new task."""
        # Without cgroups, the fork inherits the cpus of this process.
        if self.driver.name == "none":
            with bound_to(cpus):
                return self._new_supervisor([])
        if self._own is None or not self._own.can_start():
            self._own = self._new_supervisor([])
        return self._own

    def _attach(self, task: Task, link: SupervisorLink) -> None:
        task.link = link
        link.tasks.add(task.id)

    def _on_event(self, event: dict[str, Any]) -> None:
        task = self.known.get(event["task_id"])
        if task is not None and not task.exit:
            self._ended(task, event["record"])

    def _supervisor_ended(self, link: SupervisorLink) -> None:
        """Finds what became of the tasks of a supervisor, and keeps tasks running if it can."""
        del self._links[link.pid]
        running = [self.known[name] for name in link.tasks if not self.known[name].exit]
        orphans = []
        for task in running:
            if exit_record := task.read_exit():
                self._ended(task, exit_record)
            elif self._can_continue(task, link):
                orphans.append(task)
            elif task.start_unanswered:
                task.link = None  # `start` cleans up
            elif task.was_begun():
                self._lost(task)
            else:
                self._drop(task)
        if orphans:
            self._continue(orphans)

    def _can_continue(self, task: Task, link: SupervisorLink) -> bool:
        """True if another supervisor can take over a task.

        Its exit status is known only if this helper reaps it. Input may have been lost, so a task
        with stdin cannot be continued. Without cgroups, nothing shows which processes belong to it.
        """
        pid = task.record.get("pid", 0)
        is_there = bool(pid) and start_ticks(pid) == task.record["start_time_ticks"]
        return (
            link.is_own
            and not self._is_crashing()
            and (is_there or task.id in self._reaped)
            and not task.record["stdin"]
            and self.driver.name != "none"
        )

    def _is_crashing(self) -> bool:
        """True if supervisors end again and again. One of the tasks may be the cause."""
        times = self._takeovers
        return len(times) == _TAKEOVERS and time.monotonic() - times[0] < _TAKEOVERS_S

    def _continue(self, tasks: list[Task]) -> None:
        self._takeovers.append(time.monotonic())
        adopted = [
            Adopted(task.record, task.record["pid"], task.pipes, self._reaped.get(task.id))
            for task in tasks
        ]
        link = self._own = self._new_supervisor(adopted)
        for task in tasks:
            self._attach(task, link)
            task.record |= _place(link)
            write_json(task.directory / "task.json", task.record)

    def reap(self) -> None:
        """Reaps ended child processes: supervisors, and what killed supervisors have left."""
        with suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                pid, status, usage = ended
                task = self._pids.get(pid)
                if task is None or task.exit:
                    continue
                cpu_usec = round((usage.ru_utime + usage.ru_stime) * 1e6)
                end = self._reaped[task.id] = (status, cpu_usec, usage.ru_maxrss * 1024)
                # If the supervisor has just ended, the next one gets the end when it starts.
                if task.link is not None and task.link.is_alive:
                    names = ("status", "cpu_usec", "peak_bytes")
                    args = {"pid": pid} | dict(zip(names, end, strict=True))
                    self.loop.run(task.link.ask("reaped", args, _ANSWER_S), lambda *_: None)

    def end_supervisors(self) -> None:
        """Ends the supervisors, which have no task, and waits for them."""
        for link in self._links.values():
            link.release()
        for link in self._links.values():
            link.wait(_END_S)

    # -- ends ------------------------------------------------------------------------------------

    def _lost(self, task: Task) -> None:
        self.loop.run(self._finish_lost(task))

    def _finish_lost(self, task: Task) -> Job:
        """Kills a task whose supervisor was killed, and writes the exit record."""
        why = "the host was restarted"
        if task.record["boot_id"] == boot_id():
            why = "its supervisor was killed, so the task was killed too"
            yield from self._kill(task)
        error = Fault("TERMINATED", why).as_dict()
        exit_record = {"error": error, "ended_unix_ms": round(time.time() * 1000)}
        try:
            write_json(task.directory / "exit.json", exit_record, 0o640, self.config["front_gid"])
        finally:  # if the disk is full, the next helper writes the record
            self._ended(task, exit_record)

    def _kill(self, task: Task) -> Job:
        pid = task.record.get("pid")
        # The start time shows whether the pid still belongs to the task, and not to another
        # process.
        if pid and start_ticks(pid) == task.record["start_time_ticks"]:
            # Without cgroups, other processes of the task can be found only by its process group.
            self.driver.signal(-pid, signal.SIGKILL)
        yield from self.driver.kill(task.record["group"])
        yield from self.driver.remove(task.record["group"])

    def _ended(self, task: Task, exit_record: dict[str, Any]) -> None:
        task.exit = exit_record
        self._reaped.pop(task.id, None)
        self._release(task)
        # The front must receive the answer to the start before the end of the task. Otherwise it
        # would not know the task.
        if not task.start_unanswered:
            self._send_end(task)

    def _release(self, task: Task) -> None:
        """Frees what belongs to a running task only."""
        task.close_pipes()
        self._pids.pop(task.record.get("pid", 0), None)
        link, task.link = task.link, None
        if link is not None:
            link.tasks.discard(task.id)
            if not link.tasks and link is not self._own:
                link.release()

    def _send_end(self, task: Task) -> None:
        if task.exit and task.exit.get("oom_kills"):
            self.send_event({"event": "task_oom", "task_id": task.id})
        self.send_event({"event": "task_exited", "task_id": task.id, "record": task.exit})

    # -- requests --------------------------------------------------------------------------------

    def start(self, args: dict[str, Any], limits: Callable[[], dict[str, Any]]) -> Job:
        """Starts a task, and returns its pid and start time.

        If the call is repeated with the same content, the job returns the existing task. A call
        with the same id but other content is an error.

        Args:
            args: the arguments of the call.
            limits: a function that returns the limits of the slot. The slot may be moved or
                destroyed while the job waits. So the job calls the function only after it has
                finished waiting.

        Raises:
            Fault: the task cannot be started.
        """
        task_id = args["task_id"]
        # Leave fields of later versions out of the digest if they are not set. The digests of tasks
        # from earlier helpers do not contain these fields.
        later = ("memory_limit_bytes", "output_holder")
        named = {n: v for n, v in args.items() if n not in later or v is not None}
        content = digest(named)
        # Wait: the id may belong to a task from before a restart, whose record this helper has not
        # read yet.
        while task_id in self.unidentified:
            yield 0.01
        # If the id is known, the call is a retry or a conflict.
        if known := self.known.get(task_id):
            if known.record["digest"] != content:
                message = f"task {task_id} exists with different content"
                raise Fault("ALREADY_EXISTS", message, task_id=task_id)
            yield from self._until_started(known)
            if not known.record.get("pid"):
                fault = Fault("START_FAILED", "the task did not start; submit it again").as_dict()
                raise fault_of((known.exit or {}).get("error") or fault)
            if known.exit:  # the caller may not have received the event
                self.loop.later(0, lambda: self._send_end(known))
            return {name: known.record[name] for name in ("pid", "start_time_ticks")}
        uid, gid = self._user(args["uid"], args["gid"])
        _check_within(limits()["memory_bytes"], args["memory_limit_bytes"])
        # A new task: choose its user, directory and groups.
        spec = args | {"uid": uid, "gid": gid, "digest": content, "scratch": None}
        if args["cwd"] is None:
            parent = self.config["scratch_root"] or temporary_directory()
            # The name is random, because every user can make files in the temporary directory.
            spec["cwd"] = spec["scratch"] = f"{parent}/finegrain-task-{random_name(8)}"
        slot = f"{args['allocation_id']}.{args['generation']}"
        spec |= {"slot": self.driver.slot(slot), "boot_id": boot_id()}
        spec |= {"started_unix_ms": round(time.time() * 1000)}
        spec["group"] = self.driver.task(spec["slot"], task_id)
        return (yield from self._order(spec, limits))

    def _order(self, spec: dict[str, Any], limits: Callable[[], dict[str, Any]]) -> Job:
        """Orders a supervisor to start a task, and returns the pid and start time of the task."""
        task_id = spec["task_id"]
        task = self._make(spec, limits)
        link = task.link
        assert link is not None  # noqa: S101 - `_make` has set it
        try:
            answer = yield from link.ask("start", {"spec": spec}, _START_S)
        except (Fault, Unanswered) as error:
            # If a supervisor was killed before it began, it has started nothing.
            if isinstance(error, Ended) and not task.was_begun():
                self._drop(task)
                return (yield from self._order(spec, limits))
            if isinstance(error, Unanswered) and not isinstance(error, Ended):
                message = f"its supervisor did not answer within {_START_S:.0f} s"
                message += "; submit the same task again"
                raise Fault("START_FAILED", message, task_id=task_id) from None
            yield from self._remove_unstarted(task)
            if isinstance(error, Fault):
                raise
            message = "its supervisor was killed; submit the same task again"
            raise Fault("START_FAILED", message, task_id=task_id) from None
        self._started(task, answer)
        # The event of the end is sent after this answer.
        self.loop.later(0, lambda: self._start_answered(task))
        return {name: answer[name] for name in ("pid", "start_time_ticks")}

    def _make(self, spec: dict[str, Any], limits: Callable[[], dict[str, Any]]) -> Task:
        """Makes the directory and the record of a task, and finds a supervisor for it."""
        directory = self.directory / spec["task_id"]
        cpus = limits()["cpus"] if self.driver.report()["cpuset"] == "affinity" else ""
        try:
            directory.mkdir(mode=0o750)
            os.chown(directory, -1, self.config["front_gid"])
            link = self._supervisor(cpus)
            # Values of environment variables may be secret, so only the names are stored.
            record = spec | _place(link) | {"env": sorted(spec["env"])}
            # A later helper finds the task by this record, so it is written before the start.
            write_json(directory / "task.json", record)
        except OSError:
            remove_directory(directory)
            raise
        task = self.known[spec["task_id"]] = Task(directory, record)
        task.start_unanswered = True
        self._attach(task, link)
        return task

    def _started(self, task: Task, answer: dict[str, Any]) -> None:
        task.record |= {name: answer[name] for name in ("pid", "start_time_ticks")}
        write_json(task.directory / "task.json", task.record)
        # The end may have been reported with the same data as the answer.
        if not task.exit and task.link is not None:
            self._pids[answer["pid"]] = task
            task.copy_pipes(task.link.pid, answer["pipes"])

    def _start_answered(self, task: Task) -> None:
        task.start_unanswered = False
        if task.exit:
            self._send_end(task)

    def _remove_unstarted(self, task: Task) -> Job:
        """Removes everything that is left of a task that never ran. The same id can be submitted
        again.
        """
        yield from self._kill(task)
        task.exit = {"error": None}  # then `forget` removes the task
        self._release(task)
        yield from self.forget(task.id)

    def _until_started(self, task: Task) -> Job:
        while not task.exit and not task.record.get("pid") and self.known.get(task.id) is task:
            yield 0.01

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
        """Sends one request to a task's supervisor, without blocking other requests.

        Raises:
            Fault: TASK_UNKNOWN, TASK_ENDED or UNREACHABLE. After TASK_ENDED, a caller that writes
                input discards its remaining input. So this reason is used only if the task has
                certainly ended.
        """
        while task_id in self.unidentified:
            yield 0.01
        # Stage 1: find the task, and wait until it has started.
        if task_id not in self.known:
            raise Fault("TASK_UNKNOWN", f"no task {task_id} on this executor", task_id=task_id)
        task = self.known[task_id]
        yield from self._until_started(task)
        # Stage 2: one request. If the supervisor has just ended, wait until the state of the task
        # is known.
        deadline, problem = time.monotonic() + _ANSWER_S, "it has ended"
        while not task.exit and time.monotonic() < deadline:
            if (link := task.link) is None or not link.is_alive:
                yield 0.01
                continue
            named = {} if "control" not in task.record else {"task_id": task_id}
            try:
                return (yield from link.ask(verb, args | named, deadline - time.monotonic()))
            except Unanswered as error:
                problem = str(error)
                yield 0.01
        if task.exit:
            raise Fault("TASK_ENDED", f"task {task_id} has ended", task_id=task_id)
        message = f"the supervisor of task {task_id} does not answer ({problem}); try again"
        raise Fault("UNREACHABLE", message, task_id=task_id)

    def forget(self, task_id: str) -> Job:
        """Removes all files of an ended task, including a scratch directory that the supervisor
        left."""
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
            remove_directory(task.directory)


def _copy_pipe(supervisor: int, fd: int, inode: int) -> int:
    """Opens the pipe that another process has as `fd`; -1: the process has already closed the
    pipe.
    """
    if fd < 0:
        return -1
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        copy = os.open(f"/proc/{supervisor}/fd/{fd}", flags)
    except OSError:
        return -1
    # The supervisor may have closed the descriptor, and may use its number for another task.
    if os.fstat(copy).st_ino == inode:
        return copy
    os.close(copy)
    return -1


def _check_within(slot_bytes: int, memory_bytes: int | None) -> None:
    if memory_bytes is not None and memory_bytes > slot_bytes:
        message = f"memory_limit_bytes is {memory_bytes}; expected at most the slot's {slot_bytes}"
        raise Fault("CARVE_FAILED", message)


def _place(link: SupervisorLink) -> dict[str, Any]:
    """Returns the entries of a record by which a later helper finds the supervisor."""
    names = {"shim_pid": link.pid, "shim_start_ticks": link.start_ticks}
    return names | {"control": str(link.control)}


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
