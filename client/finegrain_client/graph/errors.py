"""Defines the error for two cases: a job graph cannot be compiled, or a job file cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finegrain.errors import FinegrainError, InvalidArgument, Reason


class GraphError(InvalidArgument):
    """A job graph or a job file is not valid.

    Attributes:
        operators: names of the operators that the error concerns, in order.
        changes: changes of edges that would correct this error, as pairs (edge, exchange); empty if
            other changes are needed.
    """

    def __init__(
        self,
        message: str,
        *,
        operators: Sequence[str] = (),
        changes: Sequence[tuple[str, str]] = (),
        reason: Reason | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        shown: dict[str, object] = {**(details or {})}
        if operators:
            shown["operators"] = ", ".join(operators)
        if changes:
            shown["changes"] = ", ".join(f"{edge}: {exchange}" for edge, exchange in changes)
        # Do not call the constructor of `InvalidArgument`: it builds its message from one field and
        # its value, but most errors of a graph concern several operators.
        FinegrainError.__init__(self, message, reason=reason, details=shown)
        self.field = ""
        self.expected = ""
        self.operators = tuple(operators)
        self.changes = tuple(changes)
