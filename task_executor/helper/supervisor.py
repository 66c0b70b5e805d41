"""Implements the supervisor, a process that starts tasks, watches them and records their ends.

A supervisor is a fork of the helper, and continues when the helper and the front stop. With
cgroups, each helper has one supervisor for all tasks that it starts. Without cgroups, each task has
a separate supervisor: the descendants of the supervisor are the processes of the task.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from task_executor.helper.cgroups.base import Driver, Group
from task_executor.helper.child import become_task, prepare_for_tasks
from task_executor.helper.forks import become_subreaper, close_all_but, default_signals
from task_executor.helper.journal import Journal
from task_executor.helper.loop import Job, Loop
from task_executor.helper.paths import identity_of
from task_executor.helper.protocol import SUPERVISOR_VERBS, Fault, as_fault
from task_executor.helper.running_task import Adopted, RunningTask
from task_executor.helper.server import NO_ANSWER, FrameServer, listen
from task_executor.helper.spawner import Spawner, can_spawn
from task_executor.helper.syncing import Syncer

_SPARES_OF_SLOT, _SPARED_SLOTS = 8, 256
_PAGE = 400  # maximum number of tasks in one answer


class Setup(NamedTuple):
    """The data that a supervisor needs to start.

    Attributes:
        control: the path of the socket for helpers that start later.
        journal_fd: the descriptor that locks the journal, which has the name of the socket.
        tasks_directory: the directory of all tasks.
        front_gid: the group that can read the records and logs.
        driver: the cgroup driver.
        allow_root_tasks: True if tasks are allowed to run as user 0.
        adopted: the running tasks of a supervisor that was killed.
    """

    control: Path
    journal_fd: int
    tasks_directory: Path
    front_gid: int
    driver: Driver
    allow_root_tasks: bool
    adopted: list[Adopted]


def run_supervisor(setup: Setup, starter: socket.socket) -> NoReturn:
    """Runs the supervisor in the forked process; never returns.

    Args:
        setup: see the class.
        starter: the connection to the helper that has forked this process. All other descriptors
            are closed, except the pipes of adopted tasks.
    """
    try:
        os.setsid()
        default_signals()
        pipes = (fd for each in setup.adopted for fd in each.pipes)
        close_all_but({starter.fileno(), setup.journal_fd, *pipes})
        # Let /dev/null occupy the descriptors 0 to 2. So no pipe or log becomes standard output by
        # accident.
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        # Orphans of tasks become children of the supervisor. Without cgroups, the supervisor can
        # find orphans only in this way.
        become_subreaper()
        # The supervisor must not be in the group of a slot. So no limit of a slot applies to the
        # supervisor, and the end of a slot does not kill it.
        setup.driver.enter(setup.driver.supervisors())
        # Start the spawner before this process drops capabilities for its forks: a program that is
        # executed later could not get them back. Without cgroups, each task has its own supervisor,
        # so a spawner would fork only once.
        has_spawner = setup.driver.name != "none" and can_spawn()
        spawner = Spawner(with_root=setup.allow_root_tasks) if has_spawner else None
        prepare_for_tasks(with_root=setup.allow_root_tasks)
        Supervisor(setup, starter, spawner).run()
    finally:
        os._exit(0)


class Supervisor:
    """The tasks of this process.

    Args:
        setup: see the class.
        starter: the connection to the helper.
        spawner: the process that forks the processes of tasks; None if this process does it.
    """

    def __init__(
        self, setup: Setup, starter: socket.socket, spawner: Spawner | None = None
    ) -> None:
        self._spawner = spawner
        self.driver, self.front_gid = setup.driver, setup.front_gid
        self._control, self._directory = setup.control, setup.tasks_directory
        self.loop = Loop(self._reap)
        self.syncer = Syncer(self.loop)
        self.journal = Journal(setup.control.parent, setup.control.name)
        self.journal.own(identity_of(os.getpid()))
        self._is_served = True
        self._running: dict[str, RunningTask] = {}
        # Ended tasks whose directories must still be removed.
        self._ended: dict[str, RunningTask] = {}
        self._by_pid: dict[int, RunningTask] = {}
        # For each slot, the groups of ended tasks. The next tasks of the slot use these groups.
        # When the slot is removed, the groups are removed, too.
        self._spares: dict[str, list[Group]] = {}
        listener = listen(setup.control, os.geteuid(), os.getegid())
        uids = {0, os.geteuid()}
        self._server = FrameServer(self.loop, listener, uids, SUPERVISOR_VERBS, self._handle)
        self._server.serve(starter, self._starter_ended)
        for each in setup.adopted:
            task = RunningTask(self, each.spec, self._directory / each.spec["task_id"])
            self._running[task.id] = self._by_pid[each.pid] = task
            self.journal.begin(task.id, each.spec)
            task.adopt(each)
            self.journal.add(task.id, "process", task.process())

    def run(self) -> None:
        self.loop.serve()
        self.syncer.close()
        # If tasks are left, the helper still needs the journal.
        if not self.journal.entries:
            self.journal.remove()
        with suppress(OSError):
            self._control.unlink()

    # -- requests --------------------------------------------------------------------------------

    def _handle(self, verb: str, args: dict[str, Any]) -> Any:
        match verb:
            case "start":
                return self._start(args["spec"])
            case "state":
                return self._state(args["task_id"])
            case "tasks":
                return self._tasks(args["after"])
            case "forget":
                self.journal.forget(args["task_id"])
                self.journal.compact(self.syncer.sync)
                return NO_ANSWER
            case "reaped":
                task = self._by_pid.pop(args["pid"], None)
                if task is not None:
                    task.reaped(args["status"], args["cpu_usec"], args["peak_bytes"])
                return {}
        if (task := self._running.get(args.pop("task_id"))) is None:
            raise Fault("TASK_ENDED", "the task is not running")
        return task.handle(verb, args)

    def _start(self, spec: dict[str, Any]) -> Job:
        task = RunningTask(self, spec, self._directory / spec["task_id"])
        self._running[task.id] = task
        try:
            # Record the start before anything else, so that a later helper knows the task. Values
            # of environment variables can be secret, so only the names are stored.
            self.journal.begin(task.id, spec | {"env": sorted(spec["env"])})
            yield from task.start()
        except BaseException as problem:
            del self._running[task.id]
            self.journal.forget(task.id)
            self._end_if_unused()
            raise as_fault(problem, "START_FAILED") from None
        self.journal.add(task.id, "process", task.process())
        return task.identity()

    def _state(self, task_id: str) -> Job:
        """Waits until a task has started or failed to start. Then returns facts about its process.

        The pid is 0 if the task does not run. A later helper sends this request.
        """
        if (task := self._running.get(task_id)) is not None:
            yield from task.until_started()
        if task is None or not self.runs(task):
            return {"pid": 0}
        return task.identity()

    def _tasks(self, after: str) -> Job:
        """Returns the existing tasks, page by page in the order of their ids, to a later helper.

        If the helper that ordered a start has just ended, the order is possibly still unread.
        """
        while self._is_served:
            yield 0.002
        names = [name for name in sorted(self.journal.entries) if name > after][:_PAGE]
        found = []
        for name in names:
            # A later helper must see the end of a task only when the record is durable. Until then,
            # the task counts as running.
            if (task := self._running.get(name)) is not None:
                found.append({"task_id": name, "exit": None} | task.identity())
            else:
                entry = self.journal.entries[name]
                found.append({"task_id": name, "exit": entry["end"]} | entry["process"])
        return {"tasks": found, "after": names[-1] if len(names) == _PAGE else ""}

    def _starter_ended(self) -> None:
        self._is_served = False
        self._end_if_unused()

    # -- called by tasks -------------------------------------------------------------------------

    def runs(self, task: RunningTask) -> bool:
        return self._running.get(task.id) is task

    def fork(
        self,
        task: RunningTask,
        spec: dict[str, Any],
        entrances: Sequence[str],
        streams: Sequence[int],
    ) -> int:
        pid = None
        if self._spawner is not None and self._spawner.is_ready():
            pid = self._spawner.fork(spec, entrances, streams)
        if pid is None:
            pid = os.fork()
            # The child continues in `become_task`, which never returns.
            if pid == 0:
                stdin, stdout, stderr, error = streams
                become_task(spec, entrances, (stdin, stdout, stderr), error)
        self._by_pid[pid] = task
        return pid

    def ended(self, task: RunningTask, record: dict[str, Any]) -> None:
        del self._running[task.id]
        self._ended[task.id] = task
        self._server.broadcast({"event": "ended", "task_id": task.id, "record": record})

    def spare(self, slot: Group, group: Group) -> None:
        """Keeps the group of an ended task for the next task of the slot."""
        key = next(iter(slot.values()))
        kept = self._spares.pop(key, [])
        self._spares[key] = [*kept[: _SPARES_OF_SLOT - 1], group]
        while len(self._spares) > _SPARED_SLOTS:
            del self._spares[next(iter(self._spares))]

    def spared(self, slot: Group) -> Group | None:
        """Returns the group of an ended task of the slot, or None."""
        kept = self._spares.get(next(iter(slot.values()), ""))
        return kept.pop() if kept else None

    def forget(self, task: RunningTask) -> None:
        del self._ended[task.id]
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        # No answer or event is lost if it was not sent yet: a helper reads the records after the
        # supervisor has ended.
        if not self._is_served and not self._running and not self._ended:
            self.loop.running = False

    def _reap(self) -> None:
        """Reaps all ended processes below this one, including orphans of tasks."""
        while True:
            try:
                # WNOWAIT does not reap the process yet. `before_reaped` must read the flags of the
                # process in /proc, which exist only until the process is reaped.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            task = self._by_pid.pop(pid, None)
            if task is not None:
                task.before_reaped()
            _, status, usage = os.wait4(pid, 0)
            if self._spawner is not None and pid == self._spawner.pid:
                self._spawner.reaped()
            used_usec = round((usage.ru_utime + usage.ru_stime) * 1e6)
            # ru_maxrss is in KiB.
            if task is not None:
                task.reaped(status, used_usec, usage.ru_maxrss * 1024)
            # Without cgroups, this supervisor has one task, and its orphans count as its use.
            elif self.driver.name == "none":
                for each in self._running.values():
                    each.count_use(used_usec, usage.ru_maxrss * 1024)
