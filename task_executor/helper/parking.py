"""Parks and unparks slots: executes NVIDIA's `cuda-checkpoint` for the processes of a slot.

The program needs root, and may load the driver's library: so it is executed, and never a fork. A
process that uses CUDA is running, locked (its calls wait), or checkpointed (its part of the GPU's
memory lies in its own memory, and it has left the GPU). Both operations can be repeated after any
failure: they start from the state in which they find each process.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault
from task_executor.helper.slots import Slots

PROGRAM = "cuda-checkpoint"
RUNNING, LOCKED, CHECKPOINTED = "running", "locked", "checkpointed"

_LOCK_MS = 10_000  # work that was submitted to the GPU must end within this time
_STATE_S, _COPY_S = 60.0, 1_800.0  # an act copies up to all memory of a GPU
_OUTPUT_BYTES_MAX = 4_096
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)  # by the helper
# The helper's loop reaps all children, so the exit status comes as the last line.
_SCRIPT = '"$0" "$@" 2>&1; echo "$?"'


class Parking:
    """Parks and unparks slots, each slot by one call at a time."""

    def __init__(self, slots: Slots, driver: Driver) -> None:
        self._slots, self._driver = slots, driver
        self._busy: set[str] = set()

    def park(self, name: str, memory_bytes: int) -> Job:
        """A job that moves all processes of a slot off their GPUs.

        Args:
            name: the slot.
            memory_bytes: memory of GPUs that has to fit into the slot's memory in addition.

        Returns:
            `processes`: how many were moved now.

        Raises:
            Fault: BELOW_USE if the slot's memory is too small, else PARK_FAILED; some processes may
                have been moved.
        """
        return self._alone(name, lambda: self._park(name, memory_bytes))

    def unpark(self, name: str, device_map: str) -> Job:
        """A job that moves all processes of a slot to their GPUs again.

        Args:
            name: the slot.
            device_map: "old=new" for UUIDs of GPUs; empty: they return to those that they had.

        Returns:
            `processes`: how many were moved now.

        Raises:
            Fault: PARK_FAILED; some processes may have been moved.
        """
        return self._alone(name, lambda: self._unpark(name, device_map))

    def _alone(self, name: str, work: Callable[[], Job]) -> Job:
        while name in self._busy:
            yield 0.02
        self._busy.add(name)
        try:
            if name not in self._slots.limits:  # destroyed while this has waited
                raise Fault("ALLOCATION_UNKNOWN", f"no slot {name} on this executor", slot=name)
            return {"processes": (yield from work())}
        finally:
            self._busy.discard(name)

    def _park(self, name: str, memory_bytes: int) -> Job:
        yield from self._make_room(name, memory_bytes)
        looked_at: set[int] = set()
        locked = []
        # All are locked before the first one is moved, because they may share memory of a GPU. A
        # process may fork meanwhile.
        while new := sorted(self._pids(name) - looked_at):
            for pid in new:
                looked_at.add(pid)
                state = yield from self._state(pid)
                if state == RUNNING:
                    yield from self._act(pid, "lock", "--timeout", str(_LOCK_MS))
                if state in (RUNNING, LOCKED):
                    locked.append(pid)
        for pid in locked:
            yield from self._act(pid, "checkpoint")
        return len(locked)

    def _unpark(self, name: str, device_map: str) -> Job:
        options = ("--device-map", device_map) if device_map else ()
        states: dict[int, str] = {}
        for pid in sorted(self._pids(name)):
            state = yield from self._state(pid)
            if state in (LOCKED, CHECKPOINTED):
                states[pid] = state
        # None may run before all are back, because they may share memory of a GPU.
        for pid, state in states.items():
            if state == CHECKPOINTED:
                yield from self._act(pid, "restore", *options)
        for pid in states:
            yield from self._act(pid, "unlock")
        return len(states)

    def _make_room(self, name: str, memory_bytes: int) -> Job:
        """Makes the kernel reclaim memory that the contents of GPUs will need."""
        limits, group = self._slots.limits[name], self._driver.slot(name)
        left = limits["memory_bytes"] - memory_bytes
        try:
            if left < 0:
                raise Fault("BELOW_USE", "", asked=left, used=0)
            yield from self._driver.make_room(group, left)
        except Fault as fault:
            if fault.reason != "BELOW_USE":
                raise
            used = fault.details["used"]
            message = (
                f"the {memory_bytes} bytes that its tasks have on GPUs do not fit into its memory"
                f" of {limits['memory_bytes']} bytes, of which {used} are in use; resize it first"
            )
            raise Fault("BELOW_USE", message, asked=memory_bytes, used=used) from None
        finally:
            if name in self._slots.limits:
                self._driver.apply(group, self._slots.limits[name])

    def _pids(self, name: str) -> set[int]:
        return self._driver.pids(self._driver.slot(name), self._slots.shims_of(name))

    def _state(self, pid: int) -> Job:
        """Returns the state of a process; None if it does not use CUDA, or has ended."""
        status, said = yield from self._run(_STATE_S, "--get-state", "--pid", str(pid))
        if status == 0 and said in (RUNNING, LOCKED, CHECKPOINTED):
            return said
        # The program fails in the same way for a process without CUDA and for one that it cannot
        # reach. The front asks the driver in the end who still has memory.
        if status == 0:
            raise _failed(pid, "ask for the state", said)
        return None

    def _act(self, pid: int, action: str, *options: str) -> Job:
        arguments = ("--action", action, "--pid", str(pid), *options)
        status, said = yield from self._run(_COPY_S, *arguments)
        # A process that has ended has left the GPU.
        if status != 0 and Path(f"/proc/{pid}").exists():
            raise _failed(pid, action, said)

    def _run(self, seconds: float, *arguments: str) -> Job:
        """Returns exit status and output of the program; a status of -1 if it took too long."""
        program = shutil.which(PROGRAM)
        if program is None:
            raise Fault("PARK_FAILED", f"{PROGRAM} is not installed where the helper runs")
        # A file in memory and no pipe: nothing blocks, however much the program says.
        output = os.memfd_create("output")
        try:
            ends: list[tuple[int, int] | tuple[int, int, int]] = [
                (os.POSIX_SPAWN_CLOSE, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ]
            command = ["/bin/sh", "-c", _SCRIPT, program, *arguments]
            path = {"PATH": os.environ.get("PATH", os.defpath)}
            pid = os.posix_spawn(
                command[0], command, path, file_actions=ends, setsigdef=_IGNORED, setpgroup=0
            )
            ended = os.pidfd_open(pid)
            try:
                yield ended, seconds
                said = os.pread(output, _OUTPUT_BYTES_MAX, 0).decode(errors="replace")
                *lines, status = said.strip().splitlines() or [""]
                if status.isdecimal():
                    return int(status), " ".join(lines).strip()
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                return -1, f"{PROGRAM} did not end within {seconds:.0f} s"
            finally:
                os.close(ended)
        finally:
            os.close(output)


def _failed(pid: int, action: str, said: str) -> Fault:
    message = f"{PROGRAM} could not {action} process {pid}: {said[:300] or 'it said nothing'}"
    return Fault("PARK_FAILED", message, pid=pid)
