"""Starts tasks, and carries out requests about them.

This module checks that a task is allowed to run as its user, and orders a supervisor to start the
task. The supervisors write the output and the exit records.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from task_executor.helper.adoption import Adoption
from task_executor.helper.child import remove_as
from task_executor.helper.loop import Job
from task_executor.helper.paths import (
    boot_id,
    digest,
    random_name,
    remove_directory,
    temporary_directory,
)
from task_executor.helper.protocol import Fault, as_fault, fault_of
from task_executor.helper.supervision import ANSWER_S, START_S
from task_executor.helper.supervisors import Ended, Unanswered
from task_executor.helper.task import Task

_ATTEMPTS = 3


class Tasks(Adoption):
    """All tasks by id, and the requests about them. See the base class for the arguments."""

    # -- requests --------------------------------------------------------------------------------

    def start(self, args: dict[str, Any], limits: Callable[[], dict[str, Any]]) -> Job:
        """Starts a task, and returns its pid and start time.

        If the call is repeated with the same content, the job returns the existing task. A call
        with the same id but other content is an error.

        Args:
            args: the arguments of the call.
            limits: a function that returns the limits of the slot. The slot can be moved or
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
        yield from self.until_known(task_id)
        # If the id is known, the call is a retry or a conflict.
        if known := self.known.get(task_id):
            if known.record["digest"] != content:
                message = f"task {task_id} exists with different content"
                raise Fault("ALREADY_EXISTS", message, task_id=task_id)
            yield from self._until_started(known)
            if not known.record.get("pid"):
                fault = Fault("START_FAILED", "the task did not start; submit it again").as_dict()
                raise fault_of((known.exit or {}).get("error") or fault)
            if known.exit:  # send the event again: possibly the caller has not received it
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

    def _order(
        self, spec: dict[str, Any], limits: Callable[[], dict[str, Any]], attempts: int = _ATTEMPTS
    ) -> Job:
        """Orders a supervisor to start a task, and returns the pid and start time of the task.

        Args:
            spec: the specification of the task.
            limits: see `start`.
            attempts: how often the method tries, if supervisors end before they begin to start the
                task.
        """
        task_id = spec["task_id"]
        task = self._make(spec, limits)
        link = task.link
        assert link is not None  # noqa: S101 - `_make` has set it
        try:
            answer = yield from link.ask("start", {"spec": spec}, START_S)
        except (Fault, Unanswered) as error:
            if isinstance(error, Ended):
                yield from self._until_ended(link)
                # If a supervisor was killed before it began, it has started nothing.
                if attempts > 1 and not self._was_begun(task, link):
                    self._drop(task)
                    return (yield from self._order(spec, limits, attempts - 1))
            if isinstance(error, Unanswered) and not isinstance(error, Ended):
                message = f"its supervisor did not answer within {START_S:.0f} s"
                message += "; submit the same task again"
                raise Fault("START_FAILED", message, task_id=task_id) from None
            yield from self._remove_unstarted(task)
            if isinstance(error, Fault):
                raise
            message = "its supervisor was killed; submit the same task again"
            raise Fault("START_FAILED", message, task_id=task_id) from None
        self._started(task, answer)
        # The event of the end is sent after this answer.
        self.loop.soon(lambda: self._start_answered(task))
        return {name: answer[name] for name in ("pid", "start_time_ticks")}

    def _make(self, spec: dict[str, Any], limits: Callable[[], dict[str, Any]]) -> Task:
        """Finds a supervisor for a new task."""
        cpus = limits()["cpus"] if self.driver.report()["cpuset"] == "affinity" else ""
        link = self._supervisor(cpus)
        # Values of environment variables can be secret, so only the names are kept.
        record = spec | {"env": sorted(spec["env"])}
        task = self.known[spec["task_id"]] = Task(self.directory / spec["task_id"], record)
        task.start_unanswered = True
        self._attach(task, link)
        return task

    def _remove_unstarted(self, task: Task) -> Job:
        """Removes everything that is left of a task that never ran. The same id can then be
        submitted again.
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
        yield from self.until_known(task_id)
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
            if old:  # `make_room` has possibly throttled the task
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
        yield from self.until_known(task_id)
        # Stage 1: find the task, and wait until it has started.
        if task_id not in self.known:
            raise Fault("TASK_UNKNOWN", f"no task {task_id} on this executor", task_id=task_id)
        task = self.known[task_id]
        yield from self._until_started(task)
        # Stage 2: one request. If the supervisor has just ended, wait until the state of the task
        # is known.
        deadline, problem = time.monotonic() + ANSWER_S, "it has ended"
        while not task.exit and time.monotonic() < deadline:
            if (link := task.link) is None or not link.is_alive:
                yield 0.01
                continue
            named = {} if task.is_previous else {"task_id": task_id}
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
        yield from self.until_known(task_id)
        if (task := self.known.get(task_id)) is None:
            return
        if not task.exit:
            message = f"task {task_id} still runs; kill it first"
            raise Fault("SLOT_NOT_READY", message, task_id=task_id)
        if (scratch := task.record["scratch"]) and os.path.lexists(scratch):
            fd = os.pidfd_open(remove_as(task.record["uid"], task.record["gid"], scratch))
            yield fd, 3600.0
            os.close(fd)
        # Possibly another call has removed the task during the wait.
        if self.known.pop(task_id, None):
            self._forget_record(task)
            remove_directory(task.directory)

    def _forget_record(self, task: Task) -> None:
        for journal in task.journals:
            journal.forget(task.id)
        link = task.source
        if link is not None and link.is_alive and not task.is_previous:
            link.tell("forget", {"task_id": task.id})


def _check_within(slot_bytes: int, memory_bytes: int | None) -> None:
    if memory_bytes is not None and memory_bytes > slot_bytes:
        message = f"memory_limit_bytes is {memory_bytes}; expected at most the slot's {slot_bytes}"
        raise Fault("CARVE_FAILED", message)
