"""Moves processes off their GPUs and back, with NVIDIA's `cuda-checkpoint`.

The helper runs this program. The program reads one order from standard input and writes one answer
to standard output, both as JSON. A process that uses CUDA has one of three states: running, locked
(its calls wait), or checkpointed (it has left the GPU, and its own memory contains its data from
the GPU). An order can be repeated after any failure, because the program begins from the present
state of each process.

The program needs root, and `cuda-checkpoint` can load the driver's library. So the program runs in
a separate process, and it uses only the standard library.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = "cuda-checkpoint"
RUNNING, LOCKED, CHECKPOINTED = "running", "locked", "checkpointed"

_LOCK_MS = 10_000  # time limit for work that was submitted to the GPU
_STATE_S, _COPY_S = 60.0, 1_800.0  # an action copies up to all memory of a GPU
_AFTER = {"lock": LOCKED, "checkpoint": CHECKPOINTED, "restore": LOCKED, "unlock": RUNNING}


class ParkError(Exception):
    """A process could not be moved."""


def park(pids: list[int]) -> int:
    """Moves processes off their GPUs. Returns the number of processes that this call moved.

    Raises:
        ParkError: a process could not be moved. Other processes have possibly been moved.
    """
    states = {pid: state for pid in pids if (state := _state(pid)) in (RUNNING, LOCKED)}
    # Lock all processes before the agent moves the first process, because processes can share
    # memory of a GPU.
    for pid, state in states.items():
        if state == RUNNING:
            _act(pid, "lock", "--timeout", str(_LOCK_MS))
    for pid in states:
        _act(pid, "checkpoint")
    return len(states)


def unpark(pids: list[int], device_map: str) -> int:
    """Moves processes back to GPUs. Returns the number of processes that this call moved.

    Args:
        pids: the processes.
        device_map: "old=new" for UUIDs of GPUs; empty to move the processes to their previous GPUs.

    Raises:
        ParkError: a process could not be moved. Other processes have possibly been moved.
    """
    options = ("--device-map", device_map) if device_map else ()
    states = {pid: state for pid in pids if (state := _state(pid)) in (LOCKED, CHECKPOINTED)}
    # Move all processes back before the first process continues, because processes can share memory
    # of a GPU.
    for pid, state in states.items():
        if state == CHECKPOINTED:
            _act(pid, "restore", *options)
    for pid in states:
        _act(pid, "unlock")
    return len(states)


def _state(pid: int) -> str:
    """Returns the state of a process; empty if the process does not use CUDA, or has ended.

    The state is also empty if `cuda-checkpoint` cannot reach the process. So the executor finally
    asks the driver which processes still have memory of the GPU.
    """
    status, output = _run(_STATE_S, "--get-state", "--pid", str(pid))
    if status == 0 and output not in (RUNNING, LOCKED, CHECKPOINTED):
        raise ParkError(f"{PROGRAM} reports the state {output!r} of process {pid}")
    return output if status == 0 else ""


def _act(pid: int, action: str, *options: str) -> None:
    status, output = _run(_COPY_S, "--action", action, "--pid", str(pid), *options)
    # Ignore a failure if the process has ended, because an ended process has left the GPU. Also
    # ignore a failure if an earlier agent has already carried out the action.
    if status != 0 and Path(f"/proc/{pid}").exists() and _state(pid) != _AFTER[action]:
        raise ParkError(f"{PROGRAM} could not {action} process {pid}: {output or 'no output'}")


def _run(seconds: float, *arguments: str) -> tuple[int, str]:
    """Returns the exit status and the output of `cuda-checkpoint`."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise ParkError(f"{PROGRAM} is not installed where the helper of the executor runs")
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"it did not end within {seconds:.0f} s"
    return done.returncode, " ".join(done.stdout.decode(errors="replace").split())[:300]


def main() -> None:
    """Executes one order, with the fields `lock` (a path), `park`, `pids` and `device_map`."""
    order: dict[str, Any] = json.load(sys.stdin)
    with Path(order["lock"]).open("w") as lock:
        # Wait for the agent of an earlier helper, which possibly still works on the slot.
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer: dict[str, Any]
        try:
            pids = order["pids"]
            moved = park(pids) if order["park"] else unpark(pids, order["device_map"])
            answer = {"processes": moved}
        except (ParkError, OSError) as error:
            answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
