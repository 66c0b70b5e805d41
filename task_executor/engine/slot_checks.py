"""Checks that the amounts of an ordered slot are valid, and that they are free."""

from __future__ import annotations

from finegrain.errors import InvalidArgument, Reason, ResourceExhausted
from finegrain.resources import Amounts, fits, shortfall
from task_executor.engine.slots import SlotSpec


def check_amounts(spec: SlotSpec) -> None:
    """Checks the CPU, the CPU time limit and the memory of an ordered slot.

    Raises:
        InvalidArgument: the CPU or the memory is zero, or the limit is below the booked CPU. Or the
            slot is pinned and its limit is not equal to the booked CPU.
    """
    cpu_milli, cap = spec.profile.cpu_milli, spec.cpu_limit_milli
    if cpu_milli <= 0:
        raise InvalidArgument("profile.cpu_milli", cpu_milli, "1 or more")
    if spec.memory_bytes <= 0:
        raise InvalidArgument("memory_bytes", spec.memory_bytes, "1 or more")
    if cap < cpu_milli:
        expected = f"0 or at least the booked cpu_milli ({cpu_milli})"
        raise InvalidArgument("cpu_limit_milli", cap, expected)
    if spec.is_pinned and cap != cpu_milli:
        expected = f"0 or the booked cpu_milli ({cpu_milli}): its dedicated cpus are the limit"
        raise InvalidArgument("cpu_limit_milli", cap, expected)


def check_fit(subject: str, need: Amounts, free: Amounts, total: Amounts) -> None:
    """Checks that `need` fits into `free`.

    Args:
        subject: the name of the slot or resize, for the message.
        need: the amounts to book.
        free: the amounts that are available.
        total: the capacity of the executor, for the message.

    Raises:
        ResourceExhausted: INSUFFICIENT_RESOURCES. The details contain the requested, available and
            total amount of each dimension that does not fit.
    """
    if fits(need, free):
        return
    details: dict[str, int] = {}
    parts = []
    for name in shortfall(need, free):
        asked, available, whole = need[name], free.get(name, 0), total.get(name, 0)
        parts.append(f"{name}: requested {asked}, available {available} of {whole}")
        details |= {f"asked.{name}": asked, f"available.{name}": available, f"total.{name}": whole}
    raise ResourceExhausted(
        f"{subject} does not fit on this executor ({'; '.join(parts)}); place it on another one or "
        "wait",
        reason=Reason.INSUFFICIENT_RESOURCES,
        details=details,
    )
