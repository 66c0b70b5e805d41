"""Creates, resizes, moves and destroys the slots of this executor. Each slot has a record on disk.

An operation on a slot succeeds completely or changes nothing. The front decides which job owns a
slot, and whether a slot fits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.loop import Job, within
from task_executor.helper.paths import boot_id, read_json, write_json
from task_executor.helper.protocol import Fault, as_fault, expand

_DESTROY_S = 30.0


class Slots:
    """All slots by name.

    Args:
        state: the directory of the records.
        driver: the cgroup driver.
        supervisors_of: a function that returns the pids of the running supervisors of a slot, given
            the name of the slot.
    """

    def __init__(
        self, state: Path, driver: Driver, supervisors_of: Callable[[str], list[int]]
    ) -> None:
        self.directory, self.driver, self.supervisors_of = state / "slots", driver, supervisors_of
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.limits: dict[str, dict[str, Any]] = {}
        self.destroying: set[str] = set()
        self.resizing: set[str] = set()

    def adopt(self) -> list[Job]:
        """Adopts the slots of an earlier helper. Returns jobs of the helper's loop (see `Job`),
        which complete the resizes that the earlier helper did not finish.
        """
        unfinished = []
        for path in self.directory.glob("*.json"):
            record = read_json(path)
            group = self.driver.slot(path.stem)
            whole = all(self.driver.kernel.exists(directory) for directory in group.values())
            # Groups do not survive a reboot, so ignore records from before a reboot.
            if record and record["boot_id"] == boot_id() and whole:
                self.limits[path.stem] = record["limits"]
                # Possibly the earlier helper ended while the slot was frozen.
                self.driver.thaw(group)
                with suppress(Fault, OSError):  # if this fails, the front corrects the limits later
                    self.driver.limit_devices(group, record["limits"])
                # If the record contains a new size, a resize was interrupted. The returned job
                # completes the resize.
                unfinished += [self.resize(record["to"])] if record.get("to") else []
            else:
                path.unlink()
        self._rebind_supervisors()
        return unfinished

    def strangers(self) -> list[str]:
        """Returns the groups without a record. The caller destroys them."""
        kernel, places = self.driver.kernel, self.driver.base.values()
        found = {p.rpartition("/")[2] for base in places for p in kernel.children(f"{base}/slots")}
        return sorted(found - self.limits.keys() - self.destroying)

    def need(self, args: dict[str, Any]) -> str:
        """Returns the name of a slot.

        Raises:
            Fault: the slot does not exist, or is being destroyed.
        """
        name = slot_name(args)
        if name not in self.limits:
            raise Fault("ALLOCATION_UNKNOWN", f"no slot {name} on this executor", slot=name)
        if name in self.destroying:
            raise Fault("SLOT_NOT_READY", f"slot {name} is being destroyed", slot=name)
        return name

    def create(self, limits: dict[str, Any]) -> dict[str, Any]:
        """Creates a slot, and returns the isolation report.

        If the slot already exists with the same limits, the method only returns the report. After
        an error, nothing of the slot is left.

        Raises:
            Fault: the slot exists with other limits, or cannot be created.
        """
        name = slot_name(limits)
        if name in self.limits:
            if self.limits[self.need(limits)] != limits:
                raise Fault("ALREADY_EXISTS", f"slot {name} exists with other limits", slot=name)
            return self.driver.report()
        group = self.driver.slot(name)
        try:
            # Move supervisors off the dedicated cpus before the slot gets these cpus.
            self._bind_supervisors(limits)
            self.driver.make(group)
            self.driver.apply(group, limits)
            # Write the record last. After a crash before this line, the group has no record, so the
            # next helper destroys the group. No helper adopts a slot that is only partly made.
            self._write(name, limits)
            self.limits[name] = limits
        except (Fault, OSError) as error:
            self._rebind_supervisors()
            for _wait in range(3):  # the group has no process, so no pause is needed
                next(self.driver.remove(group), None)
            if isinstance(error, Fault):
                raise
            raise Fault("CARVE_FAILED", f"{error}", file=str(error.filename)) from None
        return self.driver.report()

    def _bind_supervisors(self, *planned: dict[str, Any]) -> None:
        """Moves supervisors off cpus that are or will be dedicated. Most supervisors belong to
        other slots."""
        slots = (*self.limits.values(), *planned)
        # For slots with dedicated cpus, the front sets the limit -1, which means no quota.
        pinned = (each for each in slots if each["cpu_limit_milli"] == -1)
        self.driver.bind_supervisors({cpu for each in pinned for cpu in expand(each["cpus"])})

    def _rebind_supervisors(self) -> None:
        with suppress(Fault, OSError):  # the next carve or move of a slot tries this again
            self._bind_supervisors()

    def _write(self, name: str, limits: dict[str, Any], to: dict[str, Any] | None = None) -> None:
        content = {"boot_id": boot_id(), "limits": limits, "to": to}
        write_json(self.directory / f"{name}.json", content)

    def resize(self, limits: dict[str, Any]) -> Job:
        """Applies all new limits. If this fails, the old limits are applied again.

        The call can be repeated. The record on disk contains both sizes, so that after a crash the
        next helper continues the resize.

        Raises:
            Fault: the slot does not exist, is being destroyed, or still has its old limits.
        """
        name = self.need(limits)
        # Two changes of one slot at the same time could mix their limits.
        while name in self.resizing:
            yield 0.02
        # Check the slot again, because it can be destroyed during the wait.
        old, failure = self.limits[self.need(limits)], Fault("CARVE_FAILED", "nothing was tried")
        self.resizing.add(name)
        try:
            # Write the record first. After a crash, the next helper then knows about the resize.
            self._write(name, old, limits)
            # If the new limits fail, apply the old limits again. The old limits can fail too, if
            # tasks now use more than these limits. In this case try the new limits once more.
            for wanted in (limits, old, limits):
                try:
                    yield from self.driver.make_room(self.driver.slot(name), wanted["memory_bytes"])
                    # Move supervisors off the new cpus before the slot gets these cpus.
                    self._bind_supervisors(wanted)
                    self.driver.apply(self.driver.slot(name), wanted)
                    self._bind_tasks(name, wanted["cpus"])
                except (Fault, OSError) as error:
                    failure = as_fault(error, "CARVE_FAILED")
                    continue
                self.limits[name] = wanted
                # If the disk is full, the record still has both sizes. So the next helper repeats
                # the resize.
                with suppress(OSError):
                    self._write(name, wanted)
                break
        finally:
            self.resizing.discard(name)
            self._rebind_supervisors()
        if self.limits[name] != limits:
            raise failure
        return self.driver.report()

    def place(self, slots: list[dict[str, Any]]) -> Job:
        """Binds slots to other cpus and memory nodes. If one slot cannot be bound, no slot moves.

        The call can be repeated. Slots that no longer exist are skipped. The job yields after each
        slot, because there can be thousands of slots.

        Raises:
            Fault: a slot could not be bound. As far as possible, all slots are bound in the same
                way as before.
        """
        names, before = [slot_name(each) for each in slots], list[dict[str, Any]]()
        # Wait for resizes in progress, because a resize could restore the old cpus.
        while self.resizing.intersection(names):
            yield 0.02
        self.resizing.update(names)
        try:
            items = list(zip(names, slots, strict=True))
            # Move supervisors off all new cpus before the first slot moves.
            self._bind_supervisors(
                *(self.limits[n] | each for n, each in items if n in self.limits)
            )
            # Move the slots one at a time, and record the old binding of each slot.
            for name, each in items:
                if known := self.limits.get(name):
                    before.append(known)
                    self._place(name, known | {"cpus": each["cpus"], "mems": each["mems"]})
                    yield 0.0
        except (Fault, OSError) as error:
            # Undo: move back all slots that were moved.
            for known in before:
                if (name := slot_name(known)) in self.limits:
                    # if this fails, the front corrects the slot later
                    with suppress(Fault, OSError):
                        self._place(name, known)
            raise as_fault(error, "CARVE_FAILED") from None
        finally:
            self.resizing.difference_update(names)
            self._rebind_supervisors()
        return None

    def _place(self, name: str, limits: dict[str, Any]) -> None:
        """Binds a slot.

        The method writes the record first. So the slot does not move if the disk is full.
        """
        group = self.driver.slot(name)
        if self.limits[name] != limits:
            self._write(name, limits)
            self.limits[name] = limits
        try:
            self.driver.bind(group, limits["cpus"], limits["mems"])
            self._bind_tasks(name, limits["cpus"])
        except (Fault, OSError):
            # if a group does not exist, the slot is being removed, and this is no error
            if all(map(self.driver.kernel.exists, group.values())):
                raise

    def _bind_tasks(self, name: str, cpus: str) -> None:
        self.driver.bind_tasks(self.driver.slot(name), self.supervisors_of(name), cpus)

    def destroy(self, name: str, grace_s: float = 0.0) -> Job:
        """Terminates a slot's processes, waits until its supervisors have written the exit records,
        and removes its groups.

        With a grace period, the job first sends SIGTERM to the processes. Then it sends SIGKILL
        until no process is left. The call can be repeated.

        Raises:
            Fault: SLOT_NOT_READY. Processes are left after the time limit.
        """
        # A resize in progress must not write limits into a group that is being removed.
        while name in self.destroying | self.resizing:
            yield 0.02
        self.destroying.add(name)
        try:
            if not self._remove_unused(name):
                if grace_s:
                    yield from self._ask_to_end(name, grace_s)
                yield from within(_DESTROY_S, self._empty(name), lambda: self._not_empty(name))
            # Delete the record last, because a restarted helper must know the slot and its limits
            # until the slot is empty.
            with suppress(FileNotFoundError):
                os.unlink(f"{self.directory}/{name}.json")  # noqa: PTH108
            limits = self.limits.pop(name, None)
            if limits is None or limits["cpu_limit_milli"] == -1:
                self._rebind_supervisors()
        finally:
            self.destroying.discard(name)
        return None

    def _remove_unused(self, name: str) -> bool:
        """Removes the groups of a slot that has neither tasks nor processes. This is the usual
        case, because most job masters release a slot after its last task.
        """
        group = self.driver.slot(name)
        return not self.supervisors_of(name) and self.driver.remove_unused(group)

    def _ask_to_end(self, name: str, grace_s: float) -> Job:
        group = self.driver.slot(name)
        self.driver.ask_to_end(group, self.supervisors_of(name))
        while grace_s > 0 and self.driver.pids(group, self.supervisors_of(name)):
            yield 0.02
            grace_s -= 0.02

    def _empty(self, name: str) -> Job:
        group = self.driver.slot(name)
        # Remove the CPU limit: the processes need CPU time to exit.
        self.driver.unthrottle(group)
        yield from self.driver.kill(group, self.supervisors_of(name))
        # Kill again while the slot has a supervisor. A supervisor that is just starting can add its
        # task after a kill.
        while supervisors := self.supervisors_of(name):
            yield 0.005
            yield from self.driver.kill(group, supervisors)
        yield from self.driver.kill(group)
        yield from self.driver.remove(group)

    def _not_empty(self, name: str) -> Fault:
        left = sorted(self.driver.pids(self.driver.slot(name), self.supervisors_of(name)))
        message = f"slot {name} is not empty after {_DESTROY_S:.0f} s; processes left: {left[:10]}"
        return Fault("SLOT_NOT_READY", message, slot=name, pids=left[:10])


def slot_name(args: dict[str, Any]) -> str:
    """Returns the name of a slot. The allocation id in `args` was already checked, so the name is
    safe as the name of a directory.
    """
    return f"{args['allocation_id']}.{args['generation']}"
