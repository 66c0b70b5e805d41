"""Parks and unparks slots. The agent `parking_agent.py` moves the processes of a slot."""

from __future__ import annotations

from typing import Any

from task_executor.helper.agent import run_agent
from task_executor.helper.cgroups.base import Driver
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault
from task_executor.helper.slots import Slots

_AGENT_S = 3_500.0  # the front waits a little longer


def move(
    slots: Slots, driver: Driver, name: str, order: dict[str, Any], memory_bytes: int = 0
) -> Job:
    """Moves all processes of a slot off their GPUs, or back. This job can be repeated.

    Args:
        slots: all slots.
        driver: the cgroup driver.
        name: the name of the slot.
        order: the values `park` and `device_map` of the order to the agent.
        memory_bytes: the GPU memory whose contents must also fit into the slot's memory, in bytes.

    Returns:
        The agent's answer: `processes` is the number of processes that this job moved.

    Raises:
        Fault: BELOW_USE if the slot's memory is too small; PARK_FAILED for any other failure. Some
            processes have possibly been moved.
    """
    yield from _make_room(slots, driver, name, memory_bytes)
    pids = sorted(driver.pids(driver.slot(name), slots.supervisors_of(name)))
    lock = slots.directory / f"{name}.lock"
    order = order | {"pids": pids, "lock": str(lock)}
    answer = yield from run_agent("parking_agent.py", order, _AGENT_S)
    if answer is None or "error" in answer:
        error = answer["error"] if answer else "the agent has failed; see the helper's log"
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
            f"the {memory_bytes} bytes of its tasks on GPUs do not fit into its memory of"
            f" {limits['memory_bytes']} bytes, of which {used} are in use; resize the slot first"
        )
        raise Fault("BELOW_USE", message, asked=memory_bytes, used=used) from None
    finally:
        if name in slots.limits:
            driver.apply(group, slots.limits[name])
