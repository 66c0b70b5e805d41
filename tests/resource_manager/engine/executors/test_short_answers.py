"""Tests that an answer in short changes the same as an answer with a full report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.errors import InvalidArgument
from finegrain.values.isolation import Isolation
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.model.events import CommandAnswered, ExecutorRegistered
from tests.support.engine_cluster import EngineCluster, FakeExecutor

ONE, TWO = ("one", 1), ("two", 1)


@pytest.fixture
def cluster() -> EngineCluster:
    """A cluster with one host. Tests deliver its commands themselves."""
    made = EngineCluster.settled()
    made.auto_settle = False
    made.host("host-a")
    return made


def executed(cluster: EngineCluster, executor: FakeExecutor) -> CommandAnswered:
    """Executes the next command; returns its answer, which must be in short."""
    sent = cluster.next_command(executor.executor_id)
    cluster.wire.remove(sent)
    answer = executor.execute(sent.command, cluster.at, sent.rm_epoch)
    assert isinstance(answer, CommandAnswered)
    assert (answer.report.as_ordered, answer.report.slots, answer.outcomes) == (True, (), ())
    return answer


def granted(cluster: EngineCluster, *names: str) -> FakeExecutor:
    executor = cluster.executors["host-a"]
    for name in names:
        cluster.submit(name)
        cluster.batch(executed(cluster, executor))
    return executor


def test_a_slot_is_granted_with_the_isolation_of_the_answer(cluster: EngineCluster) -> None:
    granted(cluster, "one", "two")
    host = cluster.state.hosts["host-a"]
    assert cluster.running() == ["one", "two"]
    assert cluster.slot("two").isolation == Isolation(driver="none")
    assert host.reported == {ONE: SlotState.ALLOCATED, TWO: SlotState.ALLOCATED}
    assert host.unreported == {}
    cluster.check()


def test_a_freed_slot_is_deleted_and_others_stay(cluster: EngineCluster) -> None:
    executor = granted(cluster, "one", "two")
    cluster.release("one")
    assert cluster.free_cpu() == 2_000
    cluster.batch(executed(cluster, executor))
    assert cluster.running() == ["two"]
    assert cluster.state.hosts["host-a"].reported == {TWO: SlotState.ALLOCATED}
    assert cluster.free_cpu() == 3_000
    cluster.check()


def test_a_slot_that_was_released_before_the_answer_is_freed(cluster: EngineCluster) -> None:
    executor = cluster.executors["host-a"]
    cluster.submit("one")
    answer = executed(cluster, executor)
    cluster.cancel("one")
    cluster.batch(answer)
    assert ONE in executor.slots
    cluster.batch(executed(cluster, executor))
    assert executor.slots == {}
    assert cluster.state.hosts["host-a"].slots == {}
    cluster.check()


def test_an_answer_that_a_report_has_overtaken_changes_nothing(cluster: EngineCluster) -> None:
    executor = granted(cluster, "one")
    cluster.submit("two")
    answer = executed(cluster, executor)
    cluster.report(executor)
    assert cluster.running() == ["one", "two"]
    executor.end(TWO, "SLOT_BROKEN")
    cluster.report(executor)
    cluster.batch(answer)
    assert cluster.running() == ["one"]
    assert cluster.state.hosts["host-a"].in_flight is None
    cluster.check()


def test_a_report_that_crosses_the_command_makes_the_answer_complete(
    cluster: EngineCluster,
) -> None:
    executor = granted(cluster, "one")
    cluster.submit("two")
    crossing = cluster.report_of(executor)
    sent = cluster.next_command("host-a")
    answer = executor.execute(sent.command, cluster.at, sent.rm_epoch)
    assert isinstance(answer, CommandAnswered)
    assert (answer.report.as_ordered, len(answer.report.slots)) == (False, 2)
    cluster.deliver(sent)
    cluster.report(executor, crossing)
    assert cluster.running() == ["one", "two"]
    cluster.check()


def test_an_answer_with_an_unknown_base_is_not_believed(cluster: EngineCluster) -> None:
    executor = granted(cluster, "one")
    cluster.submit("two")
    answer = executed(cluster, executor)
    wrong = replace(answer.report, base_report_number=answer.report.base_report_number - 1)
    cluster.batch(replace(answer, report=wrong))
    host = cluster.state.hosts["host-a"]
    assert host.executor.state is ExecutorState.UNCONFIRMED
    assert not cluster.is_granted("two")
    cluster.register(executor)
    assert cluster.is_granted("two")
    cluster.check()


def test_only_an_answer_can_be_in_short(cluster: EngineCluster) -> None:
    executor = granted(cluster, "one")
    sent = cluster.report_of(executor)
    base = cluster.state.hosts["host-a"].executor.report_number
    short = replace(sent.report, slots=(), as_ordered=True, base_report_number=base)
    answer = cluster.batch(replace(sent, report=short))
    assert answer.send_full_report
    assert cluster.is_granted("one")
    registration = ExecutorRegistered(cluster.at, executor.registration(), short)
    with pytest.raises(InvalidArgument, match="as_ordered True'; expected a full state"):
        cluster.batch(registration)


def test_slots_without_an_owner_stay_unowned(cluster: EngineCluster) -> None:
    executor = granted(cluster, "one")
    stray = replace(executor.slots[ONE], allocation_id="stray")
    executor.slots["stray", 1] = stray
    cluster.batch(cluster.report_of(executor))
    cluster.submit("two")
    cluster.batch(executed(cluster, executor))
    assert cluster.state.hosts["host-a"].unowned == (("stray", 1),)
    cluster.report(executor)
    assert sorted(executor.slots) == [ONE, TWO]
