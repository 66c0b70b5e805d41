"""Keeps the supervisors of tasks. When a supervisor ends, this module finds the outcome of its
tasks.

A running task always has a supervisor, unless the task is being ended.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.child import bound_to
from task_executor.helper.journal import Journal
from task_executor.helper.loop import Job, Loop
from task_executor.helper.paths import (
    boot_id,
    random_name,
    remove_directory,
    start_ticks,
)
from task_executor.helper.protocol import Fault
from task_executor.helper.running_task import Adopted
from task_executor.helper.supervisor import Setup
from task_executor.helper.supervisors import SupervisorLink, fork_supervisor
from task_executor.helper.task import Task

# The longest time in which a supervisor must start a task, and in which it must answer.
START_S, ANSWER_S = 60.0, 5.0
_END_S = 2.0
_TAKEOVERS, _TAKEOVERS_S = 8, 10.0  # tasks are taken over at most 8 times in 10 s


class Supervision:
    """All tasks by id, with their supervisors.

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
        self._folder = Path(config["state_dir"]) / "supervisors"  # sockets and journals
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.known: dict[str, Task] = {}
        self._links: dict[int, SupervisorLink] = {}  # live supervisors by pid
        self._own: SupervisorLink | None = None  # the supervisor that starts new tasks
        self._pids: dict[int, Task] = {}  # running tasks by the pid of their first process
        self._takeovers: deque[float] = deque(maxlen=_TAKEOVERS)
        # Ends of tasks whose supervisor was killed: status, CPU microseconds, peak memory in bytes.
        self._reaped: dict[str, tuple[int, int, int]] = {}

    def supervisors_of(self, slot: str) -> list[int]:
        """Returns the pids of the supervisors of a slot's running tasks."""
        return [t.record["shim_pid"] for t in self.known.values() if t.slot == slot and not t.exit]

    # -- supervisors -----------------------------------------------------------------------------

    def _link(self, pid: int, control: Path) -> SupervisorLink:
        return SupervisorLink(self.loop, pid, control, self._supervisor_ended, self._on_event)

    def _new_supervisor(self, adopted: list[Adopted]) -> SupervisorLink:
        control = self._folder / random_name(6)
        lock = Journal.create(self._folder, control.name, len(adopted))
        setup = Setup(
            control,
            lock,
            self.directory,
            self.config["front_gid"],
            self.driver,
            self.config["allow_root_tasks"],
            adopted,
        )
        try:
            pid, peer = fork_supervisor(setup)
        finally:
            os.close(lock)
        link = self._links[pid] = self._link(pid, control)
        link.use(peer)
        link.is_own = True
        return link

    def _supervisor(self, cpus: str) -> SupervisorLink:
        """Returns the supervisor for a new task."""
        # Without cgroups, set the cpus before the fork, because the fork inherits the cpus of this
        # process.
        if self.driver.name == "none":
            with bound_to(cpus):
                return self._new_supervisor([])
        if self._own is None or not self._own.can_start():
            self._own = self._new_supervisor([])
        return self._own

    def _attach(self, task: Task, link: SupervisorLink) -> None:
        task.link = task.source = link
        task.record["shim_pid"] = link.pid
        link.tasks.add(task.id)

    def _on_event(self, event: dict[str, Any]) -> None:
        task = self.known.get(event["task_id"])
        if task is not None and not task.exit:
            self._ended(task, event["record"])

    def _supervisor_ended(self, link: SupervisorLink) -> None:
        """Finds the outcome of the tasks of a supervisor that has ended. If possible, keeps the
        tasks running.
        """
        del self._links[link.pid]
        if link.control.parent == self._folder:
            journal = Journal(self._folder, link.control.name)
            self._keep_journal(journal)
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
            try:
                self._continue(orphans)
            except OSError:  # the disk is full
                for task in orphans:
                    self._lost(task)

    def _until_ended(self, link: SupervisorLink) -> Job:
        """Waits until a supervisor that has closed its connection has ended, but not for long."""
        end = time.monotonic() + _END_S
        while link.is_alive and time.monotonic() < end:
            yield 0.002

    def _was_begun(self, task: Task, link: SupervisorLink) -> bool:
        """Returns False if a supervisor that has closed its connection has not begun to start a
        task.
        """
        # If the supervisor takes long to end, its journal is not stored in `task` yet.
        return task.was_begun() or task.id in Journal(self._folder, link.control.name).entries

    def _keep_journal(self, journal: Journal) -> None:
        """Keeps the journal of a supervisor that has ended, because its tasks still need it."""
        for task_id in list(journal.entries):
            if (task := self.known.get(task_id)) is not None:
                task.journals.append(journal)
            else:
                journal.forget(task_id)
        if not journal.entries:
            journal.remove()

    def _can_continue(self, task: Task, link: SupervisorLink) -> bool:
        """True if another supervisor can take over a task.

        The exit status of a task is known only if this helper reaps the task. A task with stdin
        cannot be continued, because input is possibly lost. Without cgroups, nothing shows which
        processes belong to the task.
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
        """True if supervisors end again and again. One of the tasks is possibly the cause."""
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

    def reap(self) -> None:
        """Reaps ended child processes: supervisors, and processes of killed supervisors."""
        with suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                pid, status, usage = ended
                task = self._pids.get(pid)
                if task is None or task.exit:
                    continue
                cpu_usec = round((usage.ru_utime + usage.ru_stime) * 1e6)
                end = self._reaped[task.id] = (status, cpu_usec, usage.ru_maxrss * 1024)
                # If the supervisor of this task has just ended, report nothing now. The next
                # supervisor receives the end of the task when that supervisor starts.
                if task.link is not None and task.link.is_alive:
                    names = ("status", "cpu_usec", "peak_bytes")
                    args = {"pid": pid} | dict(zip(names, end, strict=True))
                    self.loop.run(task.link.ask("reaped", args, ANSWER_S), lambda *_: None)

    def end_supervisors(self) -> None:
        """Ends all supervisors, and waits for them. They must have no tasks."""
        for link in self._links.values():
            link.release()
        for link in self._links.values():
            link.wait(_END_S)

    def _drop(self, task: Task) -> None:
        """Removes a task that no supervisor has begun to start. The front will order its start
        again.
        """
        self._release(task)
        del self.known[task.id]
        remove_directory(task.directory)

    # -- ends ------------------------------------------------------------------------------------

    def _lost(self, task: Task) -> None:
        if not task.is_lost:
            task.is_lost = True
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
            task.write_exit(exit_record, self.config["front_gid"])
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
        # The front must receive the answer to the start before the end of the task. Otherwise the
        # front would not know the task.
        if not task.start_unanswered:
            self._send_end(task)

    def _release(self, task: Task) -> None:
        """Frees the resources that only a running task needs."""
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

    def _started(self, task: Task, answer: dict[str, Any]) -> None:
        task.record |= {name: answer[name] for name in ("pid", "start_time_ticks")}
        # If the supervisor has sent the end of the task together with this answer, the task needs
        # nothing more.
        if not task.exit and task.link is not None:
            self._pids[answer["pid"]] = task
            task.copy_pipes(task.link.pid, answer["pipes"])

    def _start_answered(self, task: Task) -> None:
        task.start_unanswered = False
        if task.exit:
            self._send_end(task)
