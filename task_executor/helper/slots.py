"""The slots of this executor: created, resized, moved and destroyed, each with a record on disk.

An operation on a slot succeeds completely or changes nothing. The front decides who owns a slot and
whether it fits.
"""

from __future__ import annotations

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
    """All slots by name. `shims_of(name)` returns the live shims of a slot's tasks."""

    def __init__(self, state: Path, driver: Driver, shims_of: Callable[[str], list[int]]) -> None:
        self.directory, self.driver, self.shims_of = state / "slots", driver, shims_of
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.limits: dict[str, dict[str, Any]] = {}
        self.destroying: set[str] = set()
        self.resizing: set[str] = set()

    def adopt(self) -> list[Job]:
        """Adopts the slots of an earlier helper; the jobs finish its interrupted resizes."""
        unfinished = []
        for path in self.directory.glob("*.json"):
            record = read_json(path)
            group = self.driver.slot(path.stem)
            whole = all(self.driver.kernel.exists(directory) for directory in group.values())
            # Groups do not outlive a reboot, so a record of another boot describes nothing.
            if record and record["boot_id"] == boot_id() and whole:
                self.limits[path.stem] = record["limits"]
                # The earlier helper may have frozen the slot and died before the thaw.
                self.driver.thaw(group)
                with suppress(Fault, OSError):  # the front compares, and resizes what differs
                    self.driver.limit_devices(group, record["limits"])
                # A record with a target means that a resize was interrupted. It is continued later.
                unfinished += [self.resize(record["to"])] if record.get("to") else []
            else:
                path.unlink()
        self._rebind_shims()
        return unfinished

    def strangers(self) -> list[str]:
        """Returns the groups that no record names, for the caller to destroy."""
        kernel, places = self.driver.kernel, self.driver.base.values()
        found = {p.rpartition("/")[2] for base in places for p in kernel.children(f"{base}/slots")}
        return sorted(found - self.limits.keys() - self.destroying)

    def need(self, args: dict[str, Any]) -> str:
        """Returns the name of a slot that exists and is not being destroyed. Raises Fault."""
        name = slot_name(args)
        if name not in self.limits:
            raise Fault("ALLOCATION_UNKNOWN", f"no slot {name} on this executor", slot=name)
        if name in self.destroying:
            raise Fault("SLOT_NOT_READY", f"slot {name} is being destroyed", slot=name)
        return name

    def create(self, limits: dict[str, Any]) -> dict[str, Any]:
        """Creates a slot, or nothing; returns what is enforced.

        The same limits again are the same slot. Raises Fault.
        """
        name = slot_name(limits)
        if name in self.limits:
            if self.limits[self.need(limits)] != limits:
                raise Fault("ALREADY_EXISTS", f"slot {name} exists with other limits", slot=name)
            return self.driver.report()
        group = self.driver.slot(name)
        try:
            # Shims leave the cpus before the slot gets them.
            self._bind_shims(limits)
            self.driver.make(group)
            self.driver.apply(group, limits)
            # The record comes last. A crash before it leaves a group without a record, and the next
            # helper destroys that: no half-made slot is ever adopted.
            self._write(name, limits)
            self.limits[name] = limits
            self._rebind_shims()
        except (Fault, OSError) as error:
            for _wait in range(3):  # it has no process, so no waiting is needed
                next(self.driver.remove(group), None)
            if isinstance(error, Fault):
                raise
            raise Fault("CARVE_FAILED", f"{error}", file=str(error.filename)) from None
        return self.driver.report()

    def _bind_shims(self, *planned: dict[str, Any]) -> None:
        """Keeps shims off cpus that are, or will be, dedicated: most serve tasks of other slots."""
        slots = (*self.limits.values(), *planned)
        # The front marks slots with dedicated cpus by -1, which means no quota.
        pinned = (each for each in slots if each["cpu_limit_milli"] == -1)
        self.driver.bind_shims({cpu for each in pinned for cpu in expand(each["cpus"])})

    def _rebind_shims(self) -> None:
        with suppress(Fault, OSError):  # the next carve or move repeats it
            self._bind_shims()

    def _write(self, name: str, limits: dict[str, Any], to: dict[str, Any] | None = None) -> None:
        content = {"boot_id": boot_id(), "limits": limits, "to": to}
        write_json(self.directory / f"{name}.json", content)

    def resize(self, limits: dict[str, Any]) -> Job:
        """Applies all new limits, or the old ones again. Repeatable.

        The record on disk names both sizes, so a helper that starts after a crash continues. Raises
        Fault.
        """
        name = self.need(limits)
        # Two changes of one slot at once could mix their limits.
        while name in self.resizing:
            yield 0.02
        # It may have been destroyed while this has waited.
        old, failure = self.limits[self.need(limits)], Fault("CARVE_FAILED", "nothing was tried")
        self.resizing.add(name)
        try:
            # The record comes first: after a crash the next helper sees that a resize was in
            # progress.
            self._write(name, old, limits)
            # The new limits, or else the old ones again. If tasks now use more than the old size,
            # the new limits are tried once more.
            for wanted in (limits, old, limits):
                try:
                    yield from self.driver.make_room(self.driver.slot(name), wanted["memory_bytes"])
                    # Shims leave new cpus before the slot gets them.
                    self._bind_shims(wanted)
                    self.driver.apply(self.driver.slot(name), wanted)
                    self._bind_tasks(name, wanted["cpus"])
                except (Fault, OSError) as error:
                    failure = as_fault(error, "CARVE_FAILED")
                    continue
                self.limits[name] = wanted
                with suppress(OSError):  # full disk: the old record leads here too
                    self._write(name, wanted)
                break
        finally:
            self.resizing.discard(name)
            self._rebind_shims()
        if self.limits[name] != limits:
            raise failure
        return self.driver.report()

    def place(self, slots: list[dict[str, Any]]) -> Job:
        """Binds slots to other cpus and memory nodes: all of them, or none. Repeatable.

        Slots that no longer exist are skipped. It yields after each slot, because there may be
        thousands. Raises Fault.
        """
        names, before = [slot_name(each) for each in slots], list[dict[str, Any]]()
        # A resize that is in progress would bring the old cpus back.
        while self.resizing.intersection(names):
            yield 0.02
        self.resizing.update(names)
        try:
            items = list(zip(names, slots, strict=True))
            # Shims leave all new cpus before the first slot moves.
            self._bind_shims(*(self.limits[n] | each for n, each in items if n in self.limits))
            # Move the slots one at a time, and remember where each one was.
            for name, each in items:
                if known := self.limits.get(name):
                    before.append(known)
                    self._place(name, known | {"cpus": each["cpus"], "mems": each["mems"]})
                    yield 0.0
        except (Fault, OSError) as error:
            # Undo: all slots that have moved go back.
            for known in before:
                if (name := slot_name(known)) in self.limits:
                    with suppress(Fault, OSError):  # the front compares after a failure
                        self._place(name, known)
            raise as_fault(error, "CARVE_FAILED") from None
        finally:
            self.resizing.difference_update(names)
            self._rebind_shims()
        return None

    def _place(self, name: str, limits: dict[str, Any]) -> None:
        """Writes the record first: on a full disk the slot then stays where its record says."""
        group = self.driver.slot(name)
        if self.limits[name] != limits:
            self._write(name, limits)
            self.limits[name] = limits
        try:
            self.driver.bind(group, limits["cpus"], limits["mems"])
            self._bind_tasks(name, limits["cpus"])
        except (Fault, OSError):
            if all(map(self.driver.kernel.exists, group.values())):  # else: it is being removed
                raise

    def _bind_tasks(self, name: str, cpus: str) -> None:
        self.driver.bind_tasks(self.driver.slot(name), self.shims_of(name), cpus)

    def destroy(self, name: str, grace_s: float = 0.0) -> Job:
        """Terminates a slot's processes, waits for the shims' exit records, and removes its groups.

        SIGTERM first if there is a grace period, then SIGKILL until no process is left. Repeatable.
        Raises SLOT_NOT_READY.
        """
        # A resize in progress must not write limits into a group that is being removed.
        while name in self.destroying | self.resizing:
            yield 0.02
        self.destroying.add(name)
        try:
            if grace_s:
                yield from self._ask_to_end(name, grace_s)
            yield from within(_DESTROY_S, self._empty(name), lambda: self._not_empty(name))
            # Deleted last: until the slot is empty, a restarted helper must know it and its limits.
            (self.directory / f"{name}.json").unlink(missing_ok=True)
            self.limits.pop(name, None)
            self._rebind_shims()
        finally:
            self.destroying.discard(name)
        return None

    def _ask_to_end(self, name: str, grace_s: float) -> Job:
        group = self.driver.slot(name)
        self.driver.ask_to_end(group, self.shims_of(name))
        while grace_s > 0 and self.driver.pids(group, self.shims_of(name)):
            yield 0.02
            grace_s -= 0.02

    def _empty(self, name: str) -> Job:
        group = self.driver.slot(name)
        # Without these limits the processes get the CPU time that they need to exit.
        self.driver.unthrottle(group)
        yield from self.driver.kill(group, self.shims_of(name))
        while shims := self.shims_of(
            name
        ):  # a shim that was just starting adds its task after the kill
            yield 0.005
            yield from self.driver.kill(group, shims)
        yield from self.driver.kill(group)
        yield from self.driver.remove(group)

    def _not_empty(self, name: str) -> Fault:
        left = sorted(self.driver.pids(self.driver.slot(name), self.shims_of(name)))
        message = f"slot {name} is not empty after {_DESTROY_S:.0f} s; processes left: {left[:10]}"
        return Fault("SLOT_NOT_READY", message, slot=name, pids=left[:10])


def slot_name(args: dict[str, Any]) -> str:
    """Returns a name that is safe for a directory: the id was checked before."""
    return f"{args['allocation_id']}.{args['generation']}"
