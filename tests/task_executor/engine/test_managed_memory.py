"""Managed memory: in any order of events, no more is promised than a slot has."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from finegrain.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from task_executor.engine.managed_memory import (
    OPERATORS_MAX,
    ManagedMemory,
    compute_memory_size,
    compute_number_of_pages,
    read_fraction,
    read_fractions,
)
from task_executor.engine.slots import SlotKey

KEY, OTHER = SlotKey("slot", 1), SlotKey("slot", 2)
OPERATORS = st.sampled_from(["sort", "join", "window", "sink"])
TASKS = st.sampled_from(["", "t1", "t2", "t3"])
FRACTIONS = st.fractions(min_value=0, max_value=1, max_denominator=12).filter(lambda f: f > 0)


class AnyOrder(RuleBasedStateMachine):
    """Registers operators, ends them, resizes and restarts, and compares with a plain record of
    what was accepted.
    """

    @initialize(page_bytes=st.sampled_from([4096, 32768]))
    def begin(self, page_bytes: int) -> None:
        self.memory = ManagedMemory(page_bytes)
        self.size = 1 << 20
        self.accepted: dict[str, tuple[Fraction, str]] = {}

    @rule(task=TASKS, wanted=st.dictionaries(OPERATORS, FRACTIONS, min_size=1))
    def register(self, task: str, wanted: dict[str, Fraction]) -> None:
        known = self.accepted
        clash = any(
            name in known and (known[name][0] != fraction or known[name][1] not in ("", task))
            for name, fraction in wanted.items()
        )
        new = {name: fraction for name, fraction in wanted.items() if name not in known}
        too_much = sum(new.values()) + sum(f for f, _ in known.values()) > 1
        try:
            self.memory.register(KEY, task, wanted)
        except AlreadyExists:
            assert clash
        except FailedPrecondition:
            assert too_much
            assert not clash
        else:
            assert not clash
            assert not too_much
            self.accepted |= {name: (fraction, task) for name, fraction in new.items()}

    @rule(task=TASKS.filter(bool))
    def end_task(self, task: str) -> None:
        self.memory.end_task(KEY, task)
        self.accepted = {n: each for n, each in self.accepted.items() if each[1] != task}

    @rule()
    def end_slot(self) -> None:
        self.memory.end_slot(KEY)
        self.accepted = {}

    @rule(size=st.integers(0, 1 << 24))
    def resize(self, size: int) -> None:
        self.size = size

    @rule()
    def restart(self) -> None:
        again = ManagedMemory(self.memory.page_bytes)
        for name, (fraction, task) in self.accepted.items():
            again.register(KEY, task, {name: fraction})
        self.memory = again

    @invariant()
    def never_more_than_there_is(self) -> None:
        claims = self.memory.claims(KEY)
        assert {n: (c.fraction, c.task_id) for n, c in claims.items()} == self.accepted
        quotas = [self.memory.quota(each.fraction, self.size) for each in claims.values()]
        assert sum(each.memory_bytes for each in quotas) <= self.size
        assert sum(each.pages for each in quotas) * self.memory.page_bytes <= self.size
        assert not self.memory.claims(OTHER)


def test_in_any_order_no_more_is_promised_than_there_is() -> None:
    run_state_machine_as_test(AnyOrder)


def test_both_forms_of_a_quota_round_down() -> None:
    assert compute_memory_size(Fraction(1, 3), 100) == 33
    assert compute_number_of_pages(Fraction(2, 3), 100 * 4096 + 5, 4096) == 66
    assert compute_number_of_pages(Fraction(1, 10**6), 100, 4096) == 0


@pytest.mark.parametrize(
    "text", ["0", "0/5", "1/0", "2", "-1/2", "", " 1/2", "1/2/3", "٣/٤", "nan"]
)
def test_what_is_no_fraction_of_a_whole_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="fraction"):
        read_fraction("fraction", text)


def test_fractions_are_exact_and_operators_without_one_have_none() -> None:
    found = read_fractions([("a", "1/3"), ("b", ""), ("c", "0.1")], "operators")
    assert found == {"a": Fraction(1, 3), "c": Fraction(1, 10)}
    with pytest.raises(InvalidArgument, match=r"operators\[1\]\.fraction"):
        read_fractions([("a", "1/3"), ("b", "3/2")], "operators")


def test_a_slot_has_a_limited_number_of_operators() -> None:
    memory = ManagedMemory(4096)
    share = Fraction(1, 2 * OPERATORS_MAX)
    memory.register(KEY, "t", {f"o{n}": share for n in range(OPERATORS_MAX)})
    with pytest.raises(InvalidArgument, match="at most 1000 in one slot"):
        memory.register(KEY, "t", {"more": share})
