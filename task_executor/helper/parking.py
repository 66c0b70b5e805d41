"""Parks and unparks slots: executes an agent that moves the processes of a slot (`parking_agent`).

A process of its own, and not a fork: what it starts may load a driver's library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups.base import Driver
from task_executor.helper.loop import Job
from task_executor.helper.protocol import FRAME_BYTES_MAX, Fault
from task_executor.helper.slots import Slots

_AGENT = Path(__file__).resolve().parents[1] / "parking_agent.py"
_AGENT_S = 3_500.0  # the front waits a little longer
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)  # by the helper


def move(
    slots: Slots, driver: Driver, name: str, order: dict[str, Any], memory_bytes: int = 0
) -> Job:
    """A job that moves all processes of a slot off their GPUs, or back. Repeatable.

    Args:
        slots: all slots.
        driver: of control groups.
        name: the slot.
        order: `park` and `device_map` of the agent's order.
        memory_bytes: memory of GPUs that has to fit into the slot's memory in addition.

    Returns:
        The agent's answer: `processes`, how many were moved now.

    Raises:
        Fault: BELOW_USE if the slot's memory is too small, else PARK_FAILED; some processes may
            have been moved.
    """
    yield from _make_room(slots, driver, name, memory_bytes)
    pids = sorted(driver.pids(driver.slot(name), slots.shims_of(name)))
    lock = slots.directory / f"{name}.lock"
    answer = yield from _run(order | {"pids": pids, "lock": str(lock)})
    if error := answer.get("error"):
        raise Fault("PARK_FAILED", error, slot=name)
    lock.unlink(missing_ok=True)
    return answer


def _make_room(slots: Slots, driver: Driver, name: str, memory_bytes: int) -> Job:
    """Makes the kernel reclaim memory that the contents of GPUs will need."""
    limits, group = slots.limits[name], driver.slot(name)
    left = limits["memory_bytes"] - memory_bytes
    try:
        if left < 0:
            raise Fault("BELOW_USE", "", used=0)
        yield from driver.make_room(group, left)
    except Fault as fault:
        used = fault.details["used"]
        message = (
            f"the {memory_bytes} bytes that its tasks have on GPUs do not fit into its memory of"
            f" {limits['memory_bytes']} bytes, of which {used} are in use; resize it first"
        )
        raise Fault("BELOW_USE", message, asked=memory_bytes, used=used) from None
    finally:
        if name in slots.limits:
            driver.apply(group, slots.limits[name])


def _run(order: dict[str, Any]) -> Job:
    # Files in memory and no pipes: nothing blocks, however long order and answer are.
    files = [os.memfd_create("order"), os.memfd_create("answer")]
    try:
        os.pwrite(files[0], json.dumps(order).encode(), 0)
        ends = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(files)]
        program = [sys.executable, "-I", "-S", "-X", "utf8", str(_AGENT)]
        pid = os.posix_spawn(
            program[0], program, os.environ, file_actions=ends, setsigdef=_IGNORED, setpgroup=0
        )
        files.append(os.pidfd_open(pid))
        yield files[2], _AGENT_S
        answer = os.pread(files[1], FRAME_BYTES_MAX, 0)
        if not answer:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return json.loads(answer or '{"error": "the agent has failed; see the helper\'s log"}')
    finally:
        for fd in files:
            os.close(fd)
