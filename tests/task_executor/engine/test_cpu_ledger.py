"""The executor's cpu ledger: which cpus are dedicated to slots, and where all other slots run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import HostPolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.isolation import NOTHING_REPORTED
from task_executor.engine.cpu_ledger import CpuBinding, HostCpus
from task_executor.engine.slot_table import HostShare, Outcome, SlotTable
from task_executor.engine.slots import CarveState, Slot, SlotKey, SlotSpec
from tests.support.properties import examples

TWO_NODES = ((PoolName(0, 0), CpuSet.parse("0-3")), (PoolName(1, 1), CpuSet.parse("4-7")))
LSE, LSR, LS, BE = QosClass.LSE, QosClass.LSR, QosClass.LS, QosClass.BE


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def table(**changes: Any) -> SlotTable:
    """Makes a table of eight cpus on two nodes; cpu 0 is reserved, but shared."""
    usual: dict[str, Any] = {
        "slot_cpus": cpus("1-7"),
        "reserved": cpus("0"),
        "pools": TWO_NODES,
        "memory_nodes": cpus("0-1"),
        "policy": HostPolicy(reserved_cpus=cpus("0"), reserved_strict=False),
    }
    host = HostCpus(**(usual | changes))
    total = {"cpu_milli": 7000, "best_effort_cpu_milli": 7000, "memory_bytes": 1024 * MIB}
    return SlotTable(HostShare(total, cpus("0-7"), 0, host))


def spec(name: str, assignment: CpuAssignment | None = None, cpu: int = 0) -> SlotSpec:
    own = assignment.cpus if assignment else EMPTY
    cpu = cpu or 1000 * len(own) or 500
    return SlotSpec(
        name,
        1,
        "job",
        ResourceProfile(cpu, task_heap_memory_bytes=MIB),
        cpu_limit_milli=cpu,
        pids_max=10,
        cpus=str(own),
        assignment=assignment,
    )


def pinned(name: str, own: str, qos: QosClass = LSR, cpu: int = 0) -> SlotSpec:
    return spec(name, CpuAssignment(qos, cpus(own)), cpu)


def order(books: SlotTable, one: SlotSpec) -> Outcome:
    (outcome,) = books.allocate([one])
    books.check_invariants()
    return outcome


def carve(books: SlotTable, *specs: SlotSpec) -> None:
    for one in specs:
        outcome = order(books, one)
        assert outcome.error is None, outcome.error
        books.carved(one.key, NOTHING_REPORTED, 1)


def refusal(books: SlotTable, one: SlotSpec) -> FinegrainError:
    before = books.cpus.version, len(books)
    error = order(books, one).error
    assert error is not None
    assert (books.cpus.version, len(books)) == before
    return error


def where(books: SlotTable, name: str) -> str:
    slot = books.get(SlotKey(name, 1))
    assert slot is not None
    return str(books.cpus.binding_of(slot.spec).cpus)


def end(books: SlotTable, name: str) -> None:
    books.begin_free(SlotKey(name, 1))
    books.freed(SlotKey(name, 1))
    books.check_invariants()


# -- pools ---------------------------------------------------------------------------------------


def test_a_pinned_slot_takes_its_cpus_from_the_pools_from_the_order_on() -> None:
    books = table()
    carve(books, spec("plain"), spec("idle", CpuAssignment(BE)))
    assert (where(books, "plain"), where(books, "idle")) == ("0-7", "0-7")
    order(books, pinned("lsr", "2-3"))
    assert (where(books, "plain"), where(books, "idle"), where(books, "lsr")) == (
        "0-1,4-7",
        "0-7",
        "2-3",
    )
    order(books, pinned("lse", "4-5", LSE))
    assert (where(books, "plain"), where(books, "idle")) == ("0-1,6-7", "0-3,6-7")


def test_cpus_come_back_when_nothing_of_the_slot_is_left_and_not_before() -> None:
    books = table()
    carve(books, spec("plain"), pinned("own", "2-3"))
    books.begin_free(SlotKey("own", 1))
    assert where(books, "plain") == "0-1,4-7"
    books.freed(SlotKey("own", 1))
    assert where(books, "plain") == "0-7"


def test_one_that_could_not_be_carved_leaves_the_pools_as_they_were() -> None:
    books = table()
    carve(books, spec("plain"))
    order(books, pinned("own", "2-3"))
    books.carve_failed(SlotKey("own", 1))
    assert where(books, "plain") == "0-7"


def test_a_slot_that_is_bound_to_pools_runs_in_those() -> None:
    books = table()
    near = CpuAssignment(LS, pools=(PoolName(1, 1),), memory_nodes=cpus("1"))
    carve(books, spec("near", near), pinned("own", "5", LSR))
    slot = books.get(SlotKey("near", 1))
    assert slot is not None
    assert books.cpus.binding_of(slot.spec) == CpuBinding(cpus("4,6-7"), cpus("1"))


def test_strict_reserves_are_in_no_pool_and_others_are_in_all() -> None:
    books = table(policy=HostPolicy(reserved_cpus=cpus("0"), reserved_strict=True))
    carve(books, spec("plain"))
    assert where(books, "plain") == "1-7"
    shared = HostPolicy(reserved_cpus=cpus("6-7"), reserved_strict=False)
    assert books.update_conditions(operator_policy=shared, policy_number=1)
    assert where(books, "plain") == "1-7"
    unsaid = HostPolicy(reserved_cpus=cpus("6-7"))  # as configured
    assert books.update_conditions(operator_policy=unsaid, policy_number=2)
    assert where(books, "plain") == "1-5"


def test_what_a_kubelet_has_or_does_not_run_is_in_no_pool() -> None:
    books = table()
    carve(books, spec("plain"), spec("idle", CpuAssignment(BE)), pinned("own", "6-7"))
    books.update_conditions(kubelet_cpus=cpus("1"), offline=cpus("4,7"))
    assert (where(books, "plain"), where(books, "idle")) == ("0,2-3,5", "0,2-3,5-6")
    assert where(books, "own") == "6"


def test_best_effort_is_squeezed_and_nobody_else() -> None:
    books = table()
    carve(books, spec("plain"), spec("idle", CpuAssignment(BE)), pinned("own", "2-3"))
    books.update_conditions(squeezed=cpus("3-4"))
    assert (where(books, "plain"), where(books, "idle")) == ("0-1,4-7", "3-4")
    books.update_conditions(squeezed=cpus("9"))  # no cpu of its pool: it keeps two cpus of the pool
    assert where(books, "idle") == "0-1"


def test_isolated_cpus_are_pinned_and_never_shared() -> None:
    books = table(isolated=cpus("7"))
    carve(books, spec("plain"), pinned("own", "7"))
    assert (where(books, "plain"), where(books, "own")) == ("0-6", "7")


# -- orders --------------------------------------------------------------------------------------


def test_a_cpu_is_never_two_slots_own_not_even_of_one_that_is_going() -> None:
    books = table()
    carve(books, pinned("own", "2-3"))
    books.begin_free(SlotKey("own", 1))
    error = refusal(books, pinned("late", "3-4"))
    assert error.reason is Reason.CPUS_UNAVAILABLE
    assert error.details == {"asked.cpus": "3-4", "held.cpus": "3"}
    assert "3 of slot own" in error.message
    books.freed(SlotKey("own", 1))
    carve(books, pinned("late", "3-4"))


@pytest.mark.parametrize(
    ("conditions", "details"),
    [
        ({"offline": cpus("2")}, {"offline.cpus": "2"}),
        ({"kubelet_cpus": cpus("2,5")}, {"a kubelet's.cpus": "2"}),
        ({"kubelet_policy": HostPolicy(reserved_cpus=cpus("3"))}, {"reserved.cpus": "3"}),
        ({"operator_policy": HostPolicy(reserved_cpus=cpus("2-3"))}, {"reserved.cpus": "2-3"}),
    ],
)
def test_what_others_have_a_say_over_is_no_slots_own(
    conditions: dict[str, Any], details: dict[str, str]
) -> None:
    books = table()
    books.update_conditions(**conditions)
    error = refusal(books, pinned("own", "2-3"))
    assert error.reason is Reason.CPUS_UNAVAILABLE
    assert error.details == details | {"asked.cpus": "2-3"}


def test_nobody_takes_the_last_cpu_of_those_who_share() -> None:
    books = table()
    idle = CpuAssignment(BE, pools=(PoolName(1, 1),))
    carve(books, spec("idle", idle), pinned("own", "4-5", LSE))
    error = refusal(books, pinned("greedy", "6-7", LSE))
    assert error.reason is Reason.CPUS_UNAVAILABLE
    assert error.details == {"asked.cpus": "6-7", "last.cpus": "6-7"}
    assert "class BE in package 1 node 1" in error.message
    carve(books, pinned("kind", "6-7", LSR))  # which it shares with best-effort
    assert where(books, "idle") == "6-7"


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (pinned("x", "2-3", cpu=1500), "assignment.cpus"),
        (pinned("x", "2-3", cpu=3000), "assignment.cpus"),
        (spec("x", CpuAssignment(LSR), 1000), "assignment.cpus"),
        (spec("x", CpuAssignment(LS, cpus("2")), 1000), "assignment.cpus"),
        (pinned("x", "0-1"), "assignment.cpus"),
        (pinned("x", "7-8"), "assignment.cpus"),
        (spec("x", CpuAssignment(memory_nodes=cpus("2"))), "assignment.memory_nodes"),
        (spec("x", CpuAssignment(pools=(PoolName(0, 1),))), "assignment.pools"),
    ],
    ids=["half a cpu", "too few", "none", "a shared class", "reserved", "beyond", "node", "pool"],
)
def test_an_assignment_that_makes_no_sense_here_is_refused(bad: SlotSpec, field: str) -> None:
    error = refusal(table(), bad)
    assert isinstance(error, InvalidArgument)
    assert error.field == field


def test_a_cap_above_its_own_cpus_is_refused() -> None:
    wanted = pinned("own", "2-3")
    error = refusal(
        table(),
        SlotSpec(**{n: getattr(wanted, n) for n in wanted.__slots__} | {"cpu_limit_milli": 2500}),
    )
    assert isinstance(error, InvalidArgument)
    assert error.field == "cpu_limit_milli"


def test_best_effort_books_a_capacity_of_its_own() -> None:
    books = table()
    carve(books, pinned("own", "1-7"), spec("idle", CpuAssignment(BE), 7000))
    assert books.available() == {"memory_bytes": 1022 * MIB}
    error = refusal(books, spec("more", CpuAssignment(BE), 1000))
    assert error.details["asked.best_effort_cpu_milli"] == "1000"
    assert error.details["total.best_effort_cpu_milli"] == "7000"


def test_a_slot_for_which_no_cpu_is_left_is_refused() -> None:
    books = table(reserved=EMPTY, policy=HostPolicy(), pools=())
    carve(books, pinned("own", "1-7", LSE))
    error = refusal(books, spec("idle", CpuAssignment(BE)))
    assert error.reason is Reason.CPUS_UNAVAILABLE
    assert "class BE" in error.message


def test_remains_of_a_slot_that_no_book_knows_keep_their_cpus() -> None:
    books = table()
    carve(books, spec("plain"))
    books.withhold(SlotKey("x", 1), {"cpu_milli": 2000, "best_effort_cpu_milli": 0}, cpus("2-3"))
    assert where(books, "plain") == "0-1,4-7"
    assert books.available()["best_effort_cpu_milli"] == 7000
    books.release_withheld(SlotKey("x", 1))
    assert where(books, "plain") == "0-7"


# -- changes of size -------------------------------------------------------------------------------


def resize(books: SlotTable, name: str, number: int, own: str, qos: QosClass = LSR) -> Outcome:
    amount = 1000 * len(cpus(own))
    outcome = books.resize(
        SlotKey(name, 1),
        number,
        ResourceProfile(amount, task_heap_memory_bytes=MIB),
        amount,
        CpuAssignment(qos, cpus(own)),
    )
    books.check_invariants()
    return outcome


def test_while_a_slot_changes_its_size_both_its_old_and_its_new_cpus_are_its_own() -> None:
    books = table()
    carve(books, spec("plain"), pinned("own", "2-3"))
    assert resize(books, "own", 1, "3-5").error is None
    assert (where(books, "own"), where(books, "plain")) == ("2-3", "0-1,6-7")
    assert refusal(books, pinned("late", "2")).details["held.cpus"] == "2"
    books.resized(SlotKey("own", 1))
    assert (where(books, "own"), where(books, "plain")) == ("3-5", "0-2,6-7")
    assert resize(books, "own", 2, "3").error is None
    books.resize_failed(SlotKey("own", 1))
    assert (where(books, "own"), where(books, "plain")) == ("3-5", "0-2,6-7")


def test_a_slot_that_changes_its_cpus_leaves_one_to_the_others_at_any_moment() -> None:
    """During the change the slot has its old and its new cpus, so the other slots would have none.
    Before and after the change, they would have some.
    """
    books = table(policy=HostPolicy(reserved_cpus=cpus("0"), reserved_strict=True))
    carve(books, spec("plain"), pinned("big", "3-7"), pinned("own", "2"))
    outcome = resize(books, "own", 1, "1")
    assert outcome.error is not None
    assert outcome.error.details["last.cpus"] == "1"
    assert where(books, "plain") == "1"


def test_a_slot_grows_into_no_cpu_of_another_and_keeps_its_class() -> None:
    books = table()
    carve(books, pinned("own", "2-3"), pinned("other", "4"))
    outcome = resize(books, "own", 1, "2-4")
    assert outcome.error is not None
    assert outcome.error.details == {"asked.cpus": "2-4", "held.cpus": "4"}
    outcome = resize(books, "own", 1, "2-3", LSE)
    assert isinstance(outcome.error, InvalidArgument)
    assert where(books, "own") == "2-3"


def test_what_a_slot_has_it_keeps_though_it_is_reserved_since() -> None:
    books = table()
    carve(books, pinned("own", "2-3"))
    books.update_conditions(operator_policy=HostPolicy(reserved_cpus=cpus("2-4")), policy_number=1)
    assert where(books, "own") == "2-3"
    assert resize(books, "own", 1, "2-4").error is not None
    assert resize(books, "own", 1, "2-3,5").error is None


def test_a_plain_slot_changes_its_size_where_it_is() -> None:
    books = table()
    near = CpuAssignment(LS, numa=(NodeShare(1, (("cpu_milli", 500),)),), pools=(PoolName(1, 1),))
    carve(books, spec("near", near))
    profile = ResourceProfile(900, task_heap_memory_bytes=MIB)
    outcome = books.resize(SlotKey("near", 1), 1, profile, 900)
    assert outcome.slot is not None
    assert outcome.slot.becoming is not None
    assert outcome.slot.becoming.assignment == near


# -- kept ------------------------------------------------------------------------------------------


def test_an_adopted_slot_with_cpus_of_its_own_has_those_of_both_sizes() -> None:
    own = Slot(pinned("own", "2-3"), CarveState.ALLOCATED, becoming=pinned("own", "2-4"))
    books = table()
    books.adopt(own)
    assert str(books.cpus.pinned) == "2-4"


def test_conditions_that_move_nobody_are_told_and_move_nobody() -> None:
    books = table()
    version, places = books.version, books.cpus.version
    assert books.update_conditions(notes=("a cpu is warm",))
    assert not books.update_conditions(notes=("a cpu is warm",))
    assert (books.version, books.cpus.version) == (version + 1, places)


CPU_SETS = st.sets(st.integers(1, 7), min_size=1, max_size=3).map(CpuSet)


class Orders(RuleBasedStateMachine):
    """After any orders, changes and ends, dedicated cpus are not shared, and each slot has a
    cpu.
    """

    def __init__(self) -> None:
        super().__init__()
        self.books = table()
        self.number = 0

    @rule(own=CPU_SETS, qos=st.sampled_from([LSE, LSR]))
    def order_pinned(self, own: CpuSet, qos: QosClass) -> None:
        self._order(CpuAssignment(qos, own))

    @rule(qos=st.sampled_from([LS, BE]), pools=st.sampled_from([(), (PoolName(1, 1),)]))
    def order_shared(self, qos: QosClass, pools: tuple[PoolName, ...]) -> None:
        self._order(CpuAssignment(qos, pools=pools))

    def _order(self, assignment: CpuAssignment) -> None:
        self.number += 1
        wanted = spec(str(self.number), assignment)
        (outcome,) = self.books.allocate([wanted])
        if outcome.error is None:
            self.books.carved(wanted.key, NOTHING_REPORTED, 1)

    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        if slots := list(self.books):
            end(self.books, data.draw(st.sampled_from(slots)).spec.allocation_id)

    @rule(data=st.data(), own=CPU_SETS, works=st.booleans())
    def resize_one(self, data: st.DataObject, own: CpuSet, works: bool) -> None:
        if slots := [slot for slot in self.books if slot.spec.is_pinned]:
            slot = data.draw(st.sampled_from(slots))
            assert slot.spec.assignment
            name, qos = slot.spec.allocation_id, slot.spec.assignment.qos
            number = slot.spec.resize_number + 1
            if resize(self.books, name, number, str(own), qos).error is None:
                self.everyone_has_a_cpu()
                (self.books.resized if works else self.books.resize_failed)(slot.key)

    @invariant()
    def everyone_has_a_cpu(self) -> None:
        self.books.check_invariants()
        own: dict[str, CpuSet] = {}
        for slot in self.books:
            place = self.books.cpus.binding_of(slot.spec)
            assert place.cpus
            if slot.spec.is_pinned:
                own[slot.spec.allocation_id] = place.cpus
        for slot in self.books:
            if slot.spec.is_pinned:
                continue
            cpus_ = self.books.cpus.binding_of(slot.spec).cpus
            for name, theirs in own.items():
                holder = self.books.get(SlotKey(name, 1))
                assert holder is not None
                assert holder.spec.assignment is not None
                shares = slot.spec.is_best_effort and holder.spec.assignment.qos is LSR
                assert shares or cpus_.isdisjoint(theirs)


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=examples(30), stateful_step_count=25)
