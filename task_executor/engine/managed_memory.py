"""Divides the managed memory of each slot among the operators that run in it.

Operators register exact fractions, as in Flink's FLIP-53. The fractions of all operators in a slot
add up to at most 1, and every quota is rounded down. So the quotas never add up to more than the
slot's managed memory.

Example: a slot has 100 pages. "sort" registers 2/3 and gets 66 pages. "join" registers 1/3 and gets
33 pages. One page belongs to no operator. If the slot grows to 300 pages, the operators have 200
and 100 pages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final, NamedTuple

from finegrain.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Reason
from task_executor.engine.slots import SlotKey

FRACTION_EXPECTED: Final = (
    'more than 0 and at most 1, written as "3/4" or "0.75" with at most 40 digits on each side'
)
OPERATORS_MAX: Final = 1_000  # maximum number of operators in one slot
_FRACTION: Final = re.compile(r"\d{1,40}/\d{1,40}|\d{1,40}(\.\d{1,40})?")


class Quota(NamedTuple):
    """The quota of one operator: bytes, and the whole pages in them."""

    memory_bytes: int
    pages: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A registered operator. Its claim ends with its task.

    If `task_id` is empty, the claim ends with the slot.
    """

    fraction: Fraction
    task_id: str


class ManagedMemory:
    """The registered operators of all slots.

    This class does not store the sizes of slots, because the slot table stores them. The caller
    passes the size of a slot.

    Args:
        page_bytes: the size of a page, in bytes.
    """

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._claims: dict[SlotKey, dict[str, Claim]] = defaultdict(dict)
        self._sums: dict[SlotKey, Fraction] = defaultdict(Fraction)

    def register(self, key: SlotKey, task_id: str, operators: Mapping[str, Fraction]) -> None:
        """Registers all operators. If an operator cannot be registered, registers no operator.

        If an operator is already registered with the same fraction, for this task or for the whole
        slot, its registration does not change.

        Args:
            key: the slot.
            task_id: the task that runs the operators; empty if the operators belong to the whole
                slot.
            operators: the fraction of each operator, by its id.

        Raises:
            AlreadyExists: an operator is registered with another fraction, or for another task.
            FailedPrecondition: MANAGED_MEMORY_EXCEEDED. The fractions would add up to more than 1.
            InvalidArgument: the slot would have too many operators.
        """
        if not operators:
            return
        known = self._claims.get(key, {})
        for operator, fraction in operators.items():
            if operator in known:
                _check_same(operator, fraction, task_id, known[operator])
        new = {name: fraction for name, fraction in operators.items() if name not in known}
        wanted = sum(new.values(), start=Fraction(0))
        available = 1 - self._sums.get(key, Fraction(0))
        if wanted > available:
            raise FailedPrecondition(
                f"operators {', '.join(sorted(new))[:200]} request {_shown(wanted)} of the managed "
                f"memory of slot {key.allocation_id}, but only {_shown(available)} is left; "
                "register smaller fractions, or wait for other tasks of the slot to end",
                reason=Reason.MANAGED_MEMORY_EXCEEDED,
                details={"asked": _shown(wanted), "available": _shown(available)},
            )
        if len(known) + len(new) > OPERATORS_MAX:
            raise InvalidArgument(
                "operators", len(known) + len(new), f"at most {OPERATORS_MAX} in one slot"
            )
        if new:
            self._claims[key].update({n: Claim(f, task_id) for n, f in new.items()})
            self._sums[key] += wanted

    def end_task(self, key: SlotKey, task_id: str) -> bool:
        """Frees the operators of a task. Returns True if the task had operators."""
        claims = self._claims.get(key, {})
        ended = [name for name, claim in claims.items() if claim.task_id == task_id]
        for name in ended:
            self._sums[key] -= claims.pop(name).fraction
        if not claims:
            self.end_slot(key)
        return bool(ended)

    def end_slot(self, key: SlotKey) -> None:
        """Frees all operators of a slot."""
        self._claims.pop(key, None)
        self._sums.pop(key, None)

    def claims(self, key: SlotKey) -> Mapping[str, Claim]:
        """Returns the operators of a slot."""
        return MappingProxyType(self._claims.get(key, {}))

    def quota(self, fraction: Fraction, managed_bytes: int) -> Quota:
        """Returns the quota of an operator with this fraction, in a slot with `managed_bytes` of
        managed memory.
        """
        size = compute_memory_size(fraction, managed_bytes)
        return Quota(size, compute_number_of_pages(fraction, managed_bytes, self.page_bytes))


def compute_memory_size(fraction: Fraction, managed_bytes: int) -> int:
    """Returns the bytes of a fraction, rounded down (Flink's `computeMemorySize`)."""
    return int(fraction * managed_bytes)


def compute_number_of_pages(fraction: Fraction, managed_bytes: int, page_bytes: int) -> int:
    """Returns the number of whole pages of a fraction (Flink's `computeNumberOfPages`)."""
    return compute_memory_size(fraction, managed_bytes) // page_bytes


def read_fraction(field: str, text: str) -> Fraction:
    """Parses an exact fraction.

    Args:
        field: the name of the field, for errors.
        text: the fraction as text, such as "3/4".

    Raises:
        InvalidArgument: the text is not a number above 0 and at most 1.
    """
    if _FRACTION.fullmatch(text) and text.isascii():
        try:
            fraction = Fraction(text)
        except ZeroDivisionError:
            fraction = Fraction(0)
        if 0 < fraction <= 1:
            return fraction
    raise InvalidArgument(field, text, FRACTION_EXPECTED)


def read_fractions(operators: Iterable[tuple[str, str]], field: str) -> dict[str, Fraction]:
    """Parses the fractions of operators. Operators without managed memory are left out.

    Args:
        operators: the id of each operator, and its fraction as text (empty: no managed memory).
        field: the path of the list in the request, for errors.

    Raises:
        InvalidArgument: a fraction is not valid.
    """
    return {
        name: read_fraction(f"{field}[{at}].fraction", text)
        for at, (name, text) in enumerate(operators)
        if text
    }


def _check_same(operator: str, fraction: Fraction, task_id: str, known: Claim) -> None:
    if fraction != known.fraction:
        raise AlreadyExists(
            f"operator {operator} is already registered with {_shown(known.fraction)} of the "
            f"slot's managed memory, not {_shown(fraction)}; register the same fraction, or wait "
            "until the task of the operator has ended",
            details={"operator_id": operator, "fraction": _shown(known.fraction)},
        )
    if known.task_id not in ("", task_id):
        raise AlreadyExists(
            f"operator {operator} runs in task {known.task_id} of this slot; wait until that task "
            "has ended",
            details={"operator_id": operator, "task_id": known.task_id},
        )


def _shown(fraction: Fraction) -> str:
    text = str(fraction)
    return text if len(text) <= 60 else f"about {float(fraction):.6g}"
