"""Whether the amounts of an ordered slot make sense, and whether they are free.

Decides the words and numbers of these refusals. Refuses to know who has what.
"""

from __future__ import annotations

from finegrain.errors import InvalidArgument, Reason, ResourceExhausted
from finegrain.resources import Amounts, fits, shortfall
from task_executor.engine.slots import SlotSpec


def check_amounts(spec: SlotSpec) -> None:
    """Raises:
    InvalidArgument: nothing is asked, or a cap below what is booked, or above it where that has
        no meaning.
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
        expected = f"0 or the booked cpu_milli ({cpu_milli}): its cpus are the cap"
        raise InvalidArgument("cpu_limit_milli", cap, expected)


def check_fit(subject: str, need: Amounts, free: Amounts, total: Amounts) -> None:
    """Raises:
    ResourceExhausted: INSUFFICIENT_RESOURCES, with asked, available and total of all that lacks.
    """
    if fits(need, free):
        return
    details: dict[str, int] = {}
    parts = []
    for name in shortfall(need, free):
        asked, available, whole = need[name], free.get(name, 0), total.get(name, 0)
        parts.append(f"{name}: asked {asked}, available {available} of {whole}")
        details |= {f"asked.{name}": asked, f"available.{name}": available, f"total.{name}": whole}
    raise ResourceExhausted(
        f"{subject} does not fit here ({'; '.join(parts)}); place it elsewhere or wait",
        reason=Reason.INSUFFICIENT_RESOURCES,
        details=details,
    )
