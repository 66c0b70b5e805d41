"""An administrator that creates, changes, limits and deletes resource groups during the simulation.

It repeats a call until it is answered, like the command line. It relies on every answer being
durable.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import FinegrainError, Reason, Unavailable
from finegrain.resources import MIB
from resource_manager.engine.model.entities import Group
from resource_manager.engine.model.events import GroupDeleted, GroupSet
from tests.simulation.manager import Manager
from tests.simulation.network import Loop, Network, Node, Unreached

if TYPE_CHECKING:
    from tests.simulation.checks import Checks

CALL_WAIT_MS = 1_500

DELIVERED = ("default", "low", "medium", "high", "critical")
MADE = ("nightly", "night.1", "night.2", "tests", "dept")
NAMES = (*DELIVERED, *MADE)

WEIGHTS = (0.5, 1.0, 1.0, 4.0, 16.0)
PARENTS = ("", "", "dept", "nightly", "low")
MOST = (("cpu_milli", 2_000), ("slots", 6), ("memory_bytes", 600 * MIB), ("cpu_milli", 0))
LEAST = (("cpu_milli", 1_000), ("slots", 3), ("memory_bytes", 256 * MIB))

REFUSALS = frozenset({Reason.GROUP_UNKNOWN, Reason.GROUP_IN_USE, Reason.INVALID_ARGUMENT})
"""Errors that an administrator may get."""


class GroupOperator(Node):
    """An administrator with at most one call in flight."""

    def __init__(
        self,
        loop: Loop,
        rng: Random,
        network: Network,
        managers: list[Manager],
        checks: Checks,
        log: Callable[[str], None],
    ) -> None:
        super().__init__("operator", loop, up=True, life=1)
        self.rng, self.network, self.managers = rng, network, managers
        self.checks, self.log = checks, log
        self.leaving = False
        self._limited: set[tuple[str, str, str]] = set()  # limits that were requested

    def act(self) -> None:
        """Makes a random call; repeats this until the administrator leaves."""
        if self.leaving:
            return
        what, name = self.rng.random(), self.rng.choice(NAMES)
        if what < 0.2:
            self._delete(name)
        elif what < 0.5 and self._limited:
            self._set(*self._unlimited())
        else:
            self._set(name, self._change(name))

    def _next(self) -> None:
        self.after(self.rng.randint(100, 1_200), self.act)

    def _change(self, name: str) -> dict[str, Any]:
        rng = self.rng
        match rng.choice(("weight", "maximum", "maximum", "minimum", "minimum", "parent")):
            case "weight":
                return {"weight": rng.choice(WEIGHTS)}
            case "parent":
                return {"parent": rng.choice(PARENTS)}
            case limit:
                dimension, amount = rng.choice(MOST if limit == "maximum" else LEAST)
                self._limited.add((name, limit, dimension))
                return {limit: {dimension: amount}}

    def _unlimited(self) -> tuple[str, dict[str, Any]]:
        name, limit, dimension = self.rng.choice(sorted(self._limited))
        self._limited.remove((name, limit, dimension))
        return name, {limit: {dimension: None}}

    def _set(self, name: str, changes: dict[str, Any]) -> None:
        self.log(f"operator sets group {name}: {changes}")

        def done(group: Group) -> None:
            self.checks.require(self.checks.fair.group_is_set(group))

        self._until_answered(lambda at: GroupSet(at, name, **changes), done)

    def _delete(self, name: str) -> None:
        before = self.checks.fair.deletions(name)
        self.log(f"operator strikes group {name}")

        def done(_nothing: None) -> None:
            self.checks.require(self.checks.fair.group_is_deleted(name, before))

        self._until_answered(lambda at: GroupDeleted(at, name), done)

    def _until_answered(self, make: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        def take(result: Any) -> None:
            if isinstance(result, FinegrainError) and result.reason in REFUSALS:
                self.log(f"operator is refused: {result}")
                self._next()
            elif isinstance(result, Unreached | Unavailable):
                self.managers = [*self.managers[1:], self.managers[0]]
                self.after(self.rng.randint(20, 400), attempt)
            elif isinstance(result, Exception):
                self.checks.require([f"operator is refused: {result}"])
            else:
                done(result)
                self._next()

        def attempt() -> None:
            manager = self.managers[0]
            self.network.call(
                self, manager, lambda reply: manager.submit(make, reply), take, CALL_WAIT_MS
            )

        attempt()
