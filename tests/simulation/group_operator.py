"""An administrator that creates, changes, limits and deletes resource groups during the simulation.

It repeats a call until it is answered, like the command line. It relies on every answer being
durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import FinegrainError, Reason, Unavailable
from finegrain.resources import MIB
from finegrain.values.group_rules import GroupRule
from resource_manager.engine.model.entities import Group
from resource_manager.engine.model.events import (
    GroupDeleted,
    GroupRulesChanged,
    GroupSet,
    GroupUsersChanged,
    UserLimitsDeleted,
    UserLimitsSet,
)
from tests.simulation.job_specs import USERS
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

USERS_SHARE = 0.5
"""How often it changes limits, rights and rules, if there are several users."""

USER_CHANGES = (
    "limit",
    "limit",
    "free",
    "free",
    "delete",
    *["rule"] * 4,
    "remove",
    "allow",
    "allow",
)
USER_LIMITS = (
    ("slots", 3),
    ("cpu_milli", 1_500),
    ("memory_bytes", 600 * MIB),
    ("jobs", 2),
    ("requests", 12),
    ("slots", 0),
)
RULES = (
    GroupRule(0, job="job-0*"),
    GroupRule(0, job="job-?[24680]"),
    GroupRule(0, user="user/a*"),
    GroupRule(0, user="user/*", labels=(("team", "*"),)),
    GroupRule(0, labels=(("team", "ml"),)),
)

REFUSALS = frozenset(
    {
        Reason.GROUP_UNKNOWN,
        Reason.GROUP_IN_USE,
        Reason.INVALID_ARGUMENT,
        Reason.ALREADY_EXISTS,
        Reason.IDENTITY_UNKNOWN,
    }
)
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
        user_rng: Random | None = None,
    ) -> None:
        super().__init__("operator", loop, up=True, life=1)
        self._user_rng = user_rng  # None: it changes groups only
        self.rng, self.network, self.managers = rng, network, managers
        self.checks, self.log = checks, log
        self.leaving = False
        self._limited: set[tuple[str, str, str]] = set()  # limits that were requested
        self._user_limits: set[tuple[str, str]] = set()

    def act(self) -> None:
        """Makes a random call; repeats this until the administrator leaves."""
        if self.leaving:
            return None
        if self._user_rng is not None and self._user_rng.random() < USERS_SHARE:
            return self._change_users(self._user_rng)
        what, name = self.rng.random(), self.rng.choice(NAMES)
        if what < 0.2:
            self._delete(name)
        elif what < 0.5 and self._limited:
            self._set(*self._unlimited())
        else:
            self._set(name, self._change(name))
        return None

    def _change_users(self, rng: Random) -> None:
        """Changes limits of users, rights of users, or rules of groups."""
        group, user = rng.choice(DELIVERED), rng.choice(("*", *USERS, "operator/ann"))
        what = rng.choice(USER_CHANGES)
        match what:
            case "limit":
                name, most = rng.choice(USER_LIMITS)
                self._user_limits.add((user, name))
                limit: dict[str, int | None] = {name: most}
                self._ask(lambda at: UserLimitsSet(at, user, limit), f"{user}: {limit}")
            case "free" if self._user_limits:
                user, name = rng.choice(sorted(self._user_limits))
                self._user_limits.remove((user, name))
                self._ask(lambda at: UserLimitsSet(at, user, {name: None}), f"{user}: no {name}")
            case "delete":
                self._ask(lambda at: UserLimitsDeleted(at, user), f"{user}: no limits")
            case "rule":
                rule = replace(rng.choice(RULES), order=rng.choice((0, 0, 5, 25, 45)))
                self._ask(lambda at: GroupRulesChanged(at, group, (rule,)), f"{group}: {rule}")
            case "remove":
                order = rng.choice((5, 10, 20, 25, 30, 45))
                self._ask(
                    lambda at: GroupRulesChanged(at, group, remove=(order,)),
                    f"{group}: without rule {order}",
                )
            case _:
                allowed = rng.choice(("*", *USERS))
                self._ask(
                    lambda at: GroupUsersChanged(at, group, (allowed,)), f"{group}: for {allowed}"
                )

    def _ask(self, make: Callable[[Any], Any], text: str) -> None:
        self.log(f"operator changes {text}")
        self._until_answered(make, lambda _answer: None)

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
