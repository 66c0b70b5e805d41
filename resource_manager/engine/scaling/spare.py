"""Computes the capacity that can be given back to providers."""

from __future__ import annotations

from finegrain.resources import Amounts
from resource_manager.engine.state import State


class Spare:
    """The capacity that can be given back without going below the configured minimum."""

    def __init__(self, state: State) -> None:
        self._least = state.settings.provisioning.total_min
        self._rest = state.provision_moves.retained_total() if self._least else {}

    def has(self, total: Amounts) -> bool:
        """Returns whether an executor with the amounts `total` can be given back.

        Only the dimensions of `total` are compared, because other dimensions can already be below
        the minimum.
        """
        return all(
            self._rest.get(name, 0) - total[name] >= amount
            for name, amount in self._least.items()
            if total.get(name, 0)
        )

    def give(self, total: Amounts) -> None:
        """Subtracts the amounts of an executor that is given back."""
        self._rest = {name: left - total.get(name, 0) for name, left in self._rest.items()}
