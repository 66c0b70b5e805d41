"""Adopts the tasks of earlier helpers.

The journals of supervisors show which tasks exist (see `journal.py`). A supervisor that still runs
also knows orders that are not in its journal yet. A task that version 0.2 started has a directory
with its records, and a separate supervisor, which was called a shim.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.journal import Journal, journal_names
from task_executor.helper.loop import Job, Loop
from task_executor.helper.paths import (
    boot_id,
    is_alive,
    read_json,
    remove_directory,
    start_ticks,
)
from task_executor.helper.protocol import Fault
from task_executor.helper.supervision import START_S, Supervision
from task_executor.helper.supervisors import SupervisorLink, Unanswered
from task_executor.helper.task import Task


class Adoption(Supervision):
    """All tasks by id. Tasks of earlier helpers are included. See the base class for the
    arguments.
    """

    def __init__(
        self, loop: Loop, config: dict[str, Any], driver: Driver, send_event: Callable[..., None]
    ) -> None:
        super().__init__(loop, config, driver, send_event)
        self.unidentified: set[str] = set()  # directories whose task is not known yet
        self._adopting = 0  # number of supervisors that have not reported their tasks yet

    def adopt(self) -> None:
        """Adopts the tasks of an earlier helper."""
        journals = [Journal(self._folder, name) for name in journal_names(self._folder)]
        # Ask running supervisors first: if a task was taken over, the journal of an ended
        # supervisor also contains this task.
        for journal in sorted(journals, key=lambda each: not _is_alive(each)):
            self._adopt_journal(journal)
        for directory in self.directory.iterdir():
            if directory.name not in self.known and _is_previous(directory):
                self.unidentified.add(directory.name)
                self.loop.run(self._adopt_previous(directory))
        self._lose_tasks()
        used = {link.control.name for link in self._links.values()}
        used |= {each.name for each in journals if not each.owner}
        for left in self._folder.iterdir():
            if left.suffix != ".journal" and left.name.partition(".")[0] not in used:
                left.unlink(missing_ok=True)
        self.loop.run(self._remove_strays())

    def _adopt_journal(self, journal: Journal) -> None:
        if not journal.owner:
            self._adopting += 1
            self.loop.run(self._wait_for_owner(journal))
        elif _is_alive(journal) and (link := self._link_to(journal)) is not None:
            for task_id, entry in journal.entries.items():
                self._attach(self._know(task_id, entry), link)
            self._adopting += 1
            self.loop.run(self._ask_tasks(link, set(journal.entries)))
        else:
            self._take_journal(journal)

    def _wait_for_owner(self, journal: Journal) -> Job:
        """Waits for a supervisor that the earlier helper had just forked."""
        is_abandoned = False
        while not journal.owner and not is_abandoned:
            yield 0.01
            # Keep this order, because the supervisor can write and end between the two checks.
            is_abandoned = journal.is_abandoned()
            journal = Journal(self._folder, journal.name)
        self._adopting -= 1
        self._adopt_journal(journal) if journal.owner else journal.remove()
        self._lose_tasks()

    def _link_to(self, journal: Journal) -> SupervisorLink | None:
        pid = journal.owner["pid"]
        try:
            link = self._links[pid] = self._link(pid, self._folder / journal.name)
        except ProcessLookupError:  # the supervisor has just ended
            return None
        return link

    def _know(self, task_id: str, entry: dict[str, Any]) -> Task:
        """Returns the task of an entry of a journal."""
        if task_id not in self.known:
            record = entry["start"] | entry.get("process", {})
            self.known[task_id] = Task(self.directory / task_id, record)
        return self.known[task_id]

    def _take_journal(self, journal: Journal) -> None:
        """Takes over the journal of a supervisor that has ended."""
        for task_id, entry in list(journal.entries.items()):
            task = self._know(task_id, entry)
            task.record.setdefault("shim_pid", journal.owner["pid"])
            task.journals.append(journal)
            if not task.exit and task.link is None:
                task.exit = entry.get("end")
        if not journal.entries:
            journal.remove()

    def _ask_tasks(self, link: SupervisorLink, expected: set[str]) -> Job:
        """Asks the supervisor of an earlier helper about all its tasks."""
        after, is_complete = "", False
        try:
            while not is_complete:
                try:
                    answer = yield from link.ask("tasks", {"after": after}, START_S)
                except Unanswered:
                    if not link.is_alive:
                        raise
                    # The supervisor does not run at present, for example because of SIGSTOP. It
                    # possibly has unread orders for tasks that the front orders again. So wait.
                    yield 0.01
                    continue
                for each in answer["tasks"]:
                    expected.discard(each["task_id"])
                    self._identify(each, link)
                after = answer["after"]
                is_complete = not after
        except (Fault, Unanswered):
            # If the supervisor has ended, `_supervisor_ended` has already found the outcome of its
            # tasks.
            return
        finally:
            self._adopting -= 1
        # A start has failed, or a task was forgotten, after the journal was read.
        for task_id in expected & self.known.keys():
            if (task := self.known[task_id]).link is link and not task.exit:
                self._drop(task)

    def _identify(self, found: dict[str, Any], link: SupervisorLink) -> None:
        task = self.known.get(found["task_id"])
        if task is None:  # the order of the task was still unread when the journal was read
            entries = Journal(self._folder, link.control.name).entries
            if (entry := entries.get(found["task_id"])) is None:
                return
            task = self._know(found["task_id"], entry)
            self._attach(task, link)
        if task.exit:
            return
        if found["exit"]:
            task.record |= {name: found[name] for name in ("pid", "start_time_ticks")}
            task.exit = found["exit"]
            self._release(task)
        elif found["pid"]:
            self._started(task, found)
        else:
            self.loop.run(self._ask_state(task, link))

    def _lose_tasks(self) -> None:
        """Ends tasks that have neither an end in their journal nor a supervisor."""
        for task in list(self.known.values()):
            is_old = task.is_previous or task.start_unanswered
            if task.link is None and not task.exit and not is_old:
                self._lost(task)

    def _remove_strays(self) -> Job:
        """Removes directories of output that belong to no task."""
        while self._adopting:
            yield 0.01
        for directory in list(self.directory.iterdir()):
            if directory.name not in self.known and not _is_previous(directory):
                remove_directory(directory)

    def until_known(self, task_id: str) -> Job:
        """Waits while the id possibly belongs to a task from before a restart."""
        while task_id in self.unidentified or (self._adopting and task_id not in self.known):
            yield 0.01

    @property
    def is_adopting(self) -> bool:
        return bool(self._adopting or self.unidentified)

    def _adopt_previous(self, directory: Path) -> Job:
        """Adopts a task that an earlier version started."""
        record = read_json(directory / "task.json")
        # A shim of version 0.2 locks the directory until it has written the record.
        while record is None and _is_locked(directory / "lock"):
            yield 0.01
            record = read_json(directory / "task.json")
        if record is None:  # the helper was killed before it ordered the start
            remove_directory(directory)
            self.unidentified.discard(directory.name)
            return
        task = self.known[directory.name] = Task(directory, record, is_previous=True)
        if (link := self._link_of(record)) is not None:
            # The supervisor has only this task, and ends when the task ends.
            self._attach(task, link)
        elif exit_record := task.read_exit():
            task.exit = exit_record
        else:
            self._lost(task)
        self.unidentified.discard(task.id)

    def _ask_state(self, task: Task, link: SupervisorLink) -> Job:
        """Asks the supervisor of an earlier helper about a task that is just being started."""
        try:
            answer = yield from link.ask("state", {"task_id": task.id}, START_S)
        except (Fault, Unanswered):
            # If the supervisor has ended, `_supervisor_ended` has already found the outcome.
            return
        if task.exit:
            return
        if answer["pid"]:
            self._started(task, answer)
        else:
            self._drop(task)

    def _link_of(self, record: dict[str, Any]) -> SupervisorLink | None:
        """Returns the supervisor that a record names; None if the supervisor has ended.

        The start time shows that the pid does not belong to another process.
        """
        pid = record["shim_pid"]
        if record["boot_id"] != boot_id() or start_ticks(pid) != record["shim_start_ticks"]:
            return None
        if pid not in self._links:
            control = self.directory / record["task_id"] / "control"
            self._links[pid] = self._link(pid, control)
        return self._links[pid]


def _is_alive(journal: Journal) -> bool:
    return bool(journal.owner) and is_alive(journal.owner)


def _is_previous(directory: Path) -> bool:
    """True if the directory possibly has the record of a task that an earlier version started."""
    return any((directory / name).exists() for name in ("task.json", "lock"))


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
