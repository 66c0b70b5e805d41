"""The executor's slot table: which slots may exist, what they use, and when it becomes available
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from finegrain.cpuset import CpuSet
from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    IllegalTransition,
    InvalidArgument,
    InvariantBroken,
    Reason,
)
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.isolation import NOTHING_REPORTED, Isolation
from task_executor.engine.slot_table import HostShare, Outcome, SlotTable
from task_executor.engine.slots import CarveState, Slot, SlotKey, SlotSpec
from tests.support.properties import examples

TOTAL = {"cpu_milli": 4000, "memory_bytes": 1024 * MIB, "extended.license-x": 2}


def table(total: dict[str, int] | None = None, slots_max: int = 0) -> SlotTable:
    return SlotTable(HostShare(total or TOTAL, CpuSet.parse("0-3"), slots_max))


def spec(
    allocation_id: str = "a", generation: int = 1, *, cpu: int = 1000, mib: int = 256, **more: Any
) -> SlotSpec:
    extended = more.pop("extended", ())
    profile = ResourceProfile(cpu, task_heap_memory_bytes=mib * MIB, extended=extended)
    usual: dict[str, Any] = {"job_id": "job", "cpu_limit_milli": cpu, "pids_max": 100}
    return SlotSpec(allocation_id, generation, profile=profile, **(usual | more))


def order(books: SlotTable, *specs: SlotSpec) -> list[Outcome]:
    outcomes = books.allocate(specs)
    books.check_invariants()
    return outcomes


def carve(books: SlotTable, *specs: SlotSpec) -> None:
    for outcome in order(books, *specs):
        assert outcome.error is None, outcome.error
        books.carved(outcome.key, Isolation(driver="v1"), 1)


def refusal(outcome: Outcome) -> FinegrainError:
    assert outcome.slot is None
    assert outcome.error is not None
    return outcome.error


def test_an_empty_table_offers_everything() -> None:
    assert table().available() == TOTAL


def test_an_ordered_slot_is_booked_at_once_and_shown_when_it_is_carved() -> None:
    books = table()
    (outcome,) = order(books, spec(extended=(("license-x", 2),)))
    assert outcome.must_carve
    assert books.available() == {"cpu_milli": 3000, "memory_bytes": 768 * MIB}
    assert books.visible() == ()
    books.carved(outcome.key, Isolation(driver="v1"), 5)
    (shown,) = books.visible()
    assert (shown.state, shown.allocated_time_ms) == (CarveState.ALLOCATED, 5)


def test_a_carve_that_failed_leaves_nothing_booked() -> None:
    books = table()
    (outcome,) = order(books, spec())
    books.carve_failed(outcome.key)
    assert books.available() == TOTAL
    assert not len(books)


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    books = table()
    carve(books, spec(cpu=3000))
    error = refusal(order(books, spec("b", cpu=1500))[0])
    assert error.reason is Reason.INSUFFICIENT_RESOURCES
    assert error.details == {
        "asked.cpu_milli": "1500",
        "available.cpu_milli": "1000",
        "total.cpu_milli": "4000",
    }


def test_of_a_batch_what_fits_is_granted_and_the_rest_refused() -> None:
    books = table()
    first, second, third = order(books, spec("a", cpu=3000), spec("b", cpu=3000), spec("c"))
    assert (first.error, third.error) == (None, None)
    assert refusal(second).reason is Reason.INSUFFICIENT_RESOURCES


def test_a_slot_that_is_being_freed_stays_booked_until_it_is_gone() -> None:
    books = table()
    carve(books, spec(cpu=4000))
    books.begin_free(SlotKey("a", 1))
    assert refusal(order(books, spec("b"))[0]).reason is Reason.INSUFFICIENT_RESOURCES
    books.freed(SlotKey("a", 1))
    assert order(books, spec("b"))[0].error is None


def test_the_same_order_again_is_the_same_slot() -> None:
    books = table()
    carve(books, spec())
    (again,) = order(books, spec())
    assert again.slot is books.get(SlotKey("a", 1))
    assert not again.must_carve
    assert books.available()["cpu_milli"] == 3000


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(spec(cpu=1001), id="another size"),
        pytest.param(spec(job_id="other"), id="another job"),
        pytest.param(spec(cpus="0"), id="other cpus"),
    ],
)
def test_the_same_id_with_other_content_is_a_conflict(other: SlotSpec) -> None:
    books = table()
    carve(books, spec())
    assert isinstance(refusal(order(books, other)[0]), AlreadyExists)


def test_a_lower_generation_is_over_and_a_higher_one_stands_beside_the_old() -> None:
    books = table()
    carve(books, spec(generation=2))
    error = refusal(order(books, spec(generation=1))[0])
    assert error.reason is Reason.STALE_GENERATION
    books.begin_free(SlotKey("a", 2))
    carve(books, spec(generation=3))
    assert books.available()["cpu_milli"] == 2000
    latest = books.latest("a")
    assert latest is not None
    assert latest.spec.generation == 3


def test_the_same_order_while_it_is_being_freed_is_refused() -> None:
    books = table()
    carve(books, spec())
    books.begin_free(SlotKey("a", 1))
    assert isinstance(refusal(order(books, spec())[0]), FailedPrecondition)


def test_more_slots_than_the_limit_are_refused() -> None:
    books = table(slots_max=2)
    _, _, third = order(books, spec("a"), spec("b"), spec("c"))
    assert refusal(third).reason is Reason.SLOT_LIMIT


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        pytest.param(spec(cpu=0), "profile.cpu_milli", id="no cpu"),
        pytest.param(spec(mib=0), "memory_bytes", id="no memory"),
        pytest.param(spec(cpu_limit_milli=999), "cpu_limit_milli", id="a cap below the booking"),
        pytest.param(spec(cpus="3-4"), "cpus", id="cpus that are not ours"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(bad: SlotSpec, field: str) -> None:
    error = refusal(order(table(), bad)[0])
    assert isinstance(error, InvalidArgument)
    assert error.field == field


def test_a_slot_without_cpus_of_its_own_runs_on_the_shared_pool() -> None:
    books = table()
    assert str(books.cpus.binding_of(spec()).cpus) == "0-3"
    assert str(books.cpus.binding_of(spec(cpus="1")).cpus) == "1"


def test_pools_that_are_declared_apart_are_booked_apart() -> None:
    books = table({"cpu_milli": 1000, "task_heap_memory_bytes": 64 * MIB})
    carve(books, spec(cpu=100, mib=64))
    error = refusal(order(books, spec("b", cpu=100, mib=1))[0])
    assert "task_heap_memory_bytes" in error.message


def test_what_remains_of_unknown_slots_is_withheld_and_all_of_what_is_not_known_of_them() -> None:
    books = table({"cpu_milli": 4_000, "memory_bytes": 1024 * MIB, "extended.license": 2})
    before = books.version
    books.withhold(SlotKey("old", 1), {"cpu_milli": 1_000, "memory_bytes": 256 * MIB})
    left = {"cpu_milli": 3_000, "memory_bytes": 768 * MIB}
    assert books.available() == books.available_beside(()) == left
    assert books.version > before
    books.release_withheld(SlotKey("old", 1))
    books.release_withheld(SlotKey("old", 1))
    assert books.available() == books.share.total


def test_freeing_what_does_not_exist_is_done() -> None:
    books = table()
    assert books.begin_free(SlotKey("a", 1)) is None
    carve(books, spec(generation=2))
    assert books.begin_free(SlotKey("a", 1)) is None
    assert books.get(SlotKey("a", 2)) is not None


def test_an_order_of_the_rm_replaces_our_own_reason_to_free() -> None:
    books = table()
    carve(books, spec())
    key = SlotKey("a", 1)
    books.begin_free(key, end_reason="ORPHANED")
    books.begin_free(key)
    assert books.freed(key).end_reason == ""


TRANSITIONS: dict[str, Callable[[SlotTable, SlotKey], object]] = {
    "freed without being taken down": lambda books, key: books.freed(key),
    "a carve that failed afterwards": lambda books, key: books.carve_failed(key),
    "carved twice": lambda books, key: books.carved(key, NOTHING_REPORTED, 0),
    "adopted twice": lambda books, _key: books.adopt(Slot(spec(), CarveState.ALLOCATED)),
}


@pytest.mark.parametrize("move", TRANSITIONS.values(), ids=TRANSITIONS)
def test_moves_that_no_table_lists_are_errors_with_a_name(
    move: Callable[[SlotTable, SlotKey], object],
) -> None:
    books = table()
    carve(books, spec())
    with pytest.raises(IllegalTransition, match="slot a generation 1 cannot go from ALLOCATED"):
        move(books, SlotKey("a", 1))


def test_adopted_slots_count_even_beyond_a_total_that_shrank() -> None:
    books = table()
    books.adopt(Slot(spec(cpu=6000), CarveState.ALLOCATED))
    assert books.available()["cpu_milli"] == -2000
    assert "cpu_milli" not in books.available_beside(books.visible())
    assert refusal(order(books, spec("b", cpu=10))[0]).reason is Reason.INSUFFICIENT_RESOURCES


def test_books_that_contradict_their_slots_are_noticed() -> None:
    books = table()
    carve(books, spec())
    books._booked["cpu_milli"] = 1
    with pytest.raises(InvariantBroken):
        books.check_invariants()


class Books(RuleBasedStateMachine):
    """Random orders and ends: the sums of amounts are always right, and no amount is promised
    twice.
    """

    ids = st.sampled_from("abcde")
    generations = st.integers(1, 3)

    def __init__(self) -> None:
        super().__init__()
        self.books = table(slots_max=6)
        self.version = 0

    @rule(batch=st.lists(st.tuples(ids, generations, st.integers(1, 2500)), max_size=4))
    def ordered(self, batch: list[tuple[str, int, int]]) -> None:
        before = dict(self.books._slots)
        outcomes = self.books.allocate(
            [spec(i, g, cpu=cpu, mib=cpu // 4 + 1) for i, g, cpu in batch]
        )
        for outcome in outcomes:
            assert (outcome.slot is None) != (outcome.error is None)
            if outcome.error is not None:
                assert self.books.get(outcome.key) is before.get(outcome.key) or any(
                    other.key == outcome.key and other.slot for other in outcomes
                )

    @rule(i=ids, g=generations, works=st.booleans())
    def carving_ends(self, i: str, g: int, works: bool) -> None:
        slot = self.books.get(SlotKey(i, g))
        if slot is not None and slot.state is CarveState.CARVING:
            if works:
                self.books.carved(slot.key, NOTHING_REPORTED, 1)
            else:
                self.books.carve_failed(slot.key)

    @rule(i=ids, g=generations)
    def to_be_freed(self, i: str, g: int) -> None:
        before = self.books.allocated()
        self.books.begin_free(SlotKey(i, g))
        assert self.books.allocated() == before

    @rule(i=ids, g=generations)
    def gone(self, i: str, g: int) -> None:
        slot = self.books.get(SlotKey(i, g))
        if slot is not None and slot.state is CarveState.FREEING:
            self.books.freed(slot.key)
            assert self.books.get(slot.key) is None

    @rule(i=ids, g=generations)
    def lost_by_the_host(self, i: str, g: int) -> None:
        slot = self.books.get(SlotKey(i, g))
        if slot is not None and slot.state is not CarveState.CARVING:
            self.books.vanished(slot.key)

    @rule(i=ids, g=generations, number=st.integers(1, 6), cpu=st.integers(1, 2500))
    def another_size(self, i: str, g: int, number: int, cpu: int) -> None:
        before = self.books.get(SlotKey(i, g))
        profile = ResourceProfile(cpu, task_heap_memory_bytes=(2500 - cpu) // 4 * MIB + MIB)
        outcome = self.books.resize(SlotKey(i, g), number, profile, cpu)
        if outcome.error is not None:
            assert self.books.get(SlotKey(i, g)) is before
        elif outcome.slot is not before:
            assert before is not None
            assert outcome.slot is not None
            assert outcome.slot.spec == before.spec

    @rule(i=ids, g=generations, works=st.booleans())
    def another_size_settled(self, i: str, g: int, works: bool) -> None:
        slot = self.books.get(SlotKey(i, g))
        if slot is not None and slot.becoming is not None:
            if works:
                assert self.books.resized(slot.key).spec == slot.becoming
            else:
                assert self.books.resize_failed(slot.key).spec == slot.spec

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        self.books.check_invariants()
        assert all(amount >= 0 for amount in self.books.available().values())
        assert len(self.books) <= 6

    @invariant()
    def versions_only_rise(self) -> None:
        assert self.books.version >= self.version
        self.version = self.books.version


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(60), stateful_step_count=40)
