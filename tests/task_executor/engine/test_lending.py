"""Managed memory that is lent: the sum of the limits is never more than the slot has, and lent
memory comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from task_executor.engine.lending import Lending, PoolKey

SORT, JOIN = PoolKey("1", "sort"), PoolKey("2", "join")


def two_pools() -> Lending:
    """Returns a slot of 100 bytes, of which two pools have half each."""
    lending = Lending(deadline_s=2)
    for key in (SORT, JOIN):
        lending.join(key, 50, 50, borrows=True)
    lending.changed(100, {SORT: 50, JOIN: 50}, now=0)
    return lending


def limits(lending: Lending) -> tuple[int, int]:
    return lending.limit(SORT), lending.limit(JOIN)


def test_what_one_pool_does_not_use_is_lent_and_comes_back_when_it_asks() -> None:
    """The example of the module."""
    lending = two_pools()
    lending.report(SORT, wanted=10, kept=50, now=0)
    assert limits(lending) == (50, 50)  # no pool wants more, so no limit is lowered
    lending.report(JOIN, wanted=80, kept=50, now=0)
    assert limits(lending) == (20, 50)  # sort has not confirmed
    lending.report(SORT, wanted=10, kept=20, now=0)
    assert limits(lending) == (20, 80)
    lending.report(SORT, wanted=40, kept=20, now=5)
    assert limits(lending) == (20, 60)
    assert (lending.revoked(JOIN), lending.overdue(6), lending.overdue(7)) == (20, [], [JOIN])
    lending.report(JOIN, wanted=80, kept=60, now=6)
    assert limits(lending) == (40, 60)
    assert lending.next_deadline() is None


def test_memory_that_no_operator_has_is_lent_first() -> None:
    lending = two_pools()
    lending.changed(130, {SORT: 50, JOIN: 50}, now=0)
    lending.report(SORT, wanted=0, kept=50, now=0)
    lending.report(JOIN, wanted=75, kept=50, now=0)
    assert limits(lending) == (50, 75)
    lending.changed(100, {SORT: 50, JOIN: 50}, now=1)  # a new operator
    assert limits(lending) == (25, 75)
    assert lending.revoked(SORT) == 25
    assert lending.revoked(JOIN) == 0


def test_a_pool_that_cannot_borrow_keeps_to_its_quota() -> None:
    lending = Lending(deadline_s=2)
    lending.join(SORT, 50, 50, borrows=False)
    lending.changed(100, {SORT: 50}, now=0)
    lending.report(SORT, wanted=80, kept=50, now=0)
    assert lending.limit(SORT) == 50


def test_the_memory_of_a_task_that_has_ended_is_free() -> None:
    lending = two_pools()
    lending.report(JOIN, wanted=100, kept=50, now=0)
    lending.changed(100, {JOIN: 50}, now=1)
    assert lending.limit(JOIN) == 100


@dataclass
class Model:
    """A pool as its task sees it: messages of the executor arrive late, but in order."""

    quota: int
    limit: int
    used: int = 0
    wanted: int = 0
    received: list[int] = field(default_factory=list)


class Pools(RuleBasedStateMachine):
    """Three pools want, use and give back random amounts, within the limits that they know."""

    @initialize(
        quotas=st.lists(st.integers(1, 40), min_size=3, max_size=3), extra=st.integers(0, 9)
    )
    def start(self, quotas: list[int], extra: int) -> None:
        self.lending = Lending(deadline_s=1)
        self.keys = [PoolKey(str(at), "operator") for at in range(3)]
        self.room = sum(quotas) + extra
        self.models = {
            key: Model(quota, quota, wanted=quota)
            for key, quota in zip(self.keys, quotas, strict=True)
        }
        for key, model in self.models.items():
            self.lending.join(key, model.quota, model.quota, borrows=True)
        self.lending.changed(self.room, dict(zip(self.keys, quotas, strict=True)), now=0)
        self.known = {key: self.lending.limit(key) for key in self.keys}

    def push(self) -> None:
        """The executor sends limits that have changed."""
        for key, model in self.models.items():
            if self.lending.limit(key) != self.known[key]:
                self.known[key] = self.lending.limit(key)
                model.received.append(self.known[key])

    @rule(at=st.integers(0, 2), amount=st.integers(0, 150))
    def wants(self, at: int, amount: int) -> None:
        self.models[self.keys[at]].wanted = amount
        self.reports(at)

    @rule(at=st.integers(0, 2))
    def reports(self, at: int) -> None:
        model = self.models[self.keys[at]]
        kept = max(model.limit, model.used)
        self.lending.report(self.keys[at], model.wanted, kept, now=0)
        self.push()

    @rule(at=st.integers(0, 2))
    def receives(self, at: int) -> None:
        model = self.models[self.keys[at]]
        if model.received:
            model.limit = model.received.pop(0)

    @rule(at=st.integers(0, 2), amount=st.integers(0, 150))
    def uses(self, at: int, amount: int) -> None:
        """A pool uses pages up to its limit. If the limit was lowered below its use, it keeps what
        it uses.
        """
        model = self.models[self.keys[at]]
        model.used = amount if amount <= model.limit else min(model.used, amount)

    @rule()
    @precondition(lambda self: hasattr(self, "models"))
    def all_settle(self) -> None:
        """All messages arrive, and all pools give back what they must. Then each pool has what it
        wants, up to its quota.
        """
        for _ in range(8):
            for at, model in enumerate(self.models.values()):
                while model.received:
                    model.limit = model.received.pop(0)
                model.used = min(model.used, model.limit)
                self.reports(at)
        for key, model in self.models.items():
            assert self.lending.limit(key) >= min(model.wanted, model.quota)
            assert self.lending.revoked(key) == 0
        wanted = sum(model.wanted for model in self.models.values())
        given = sum(min(self.lending.limit(k), m.wanted) for k, m in self.models.items())
        assert given == min(wanted, self.room)  # no memory that a pool wants is idle

    @invariant()
    def the_slot_is_never_exceeded(self) -> None:
        if hasattr(self, "models"):
            assert sum(each.used for each in self.models.values()) <= self.room
            assert sum(map(self.lending.limit, self.keys)) <= self.room


TestPools = Pools.TestCase
