"""Tests of resizes that the stories in `tests/scenarios/resizes` do not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.errors import FailedPrecondition
from finegrain.resources import GIB, MIB, Amounts, ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import RequestState
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.lifecycle.journal import slot_to_dict
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import CommandAnswered
from resource_manager.engine.model.settings import EngineSettings
from tests.support.engine_cluster import EngineCluster, FakeExecutor

ROOMY = {"cpu_milli": 4_000, "memory_bytes": 4 * GIB}


def size(cpu_milli: int, mib: int = 1_024) -> ResourceProfile:
    return ResourceProfile(cpu_milli, mib * MIB)


def cluster_with(*names: str, total: Amounts = ROOMY, cpu: int = 1_000) -> EngineCluster:
    """One host with a granted slot for each name."""
    cluster = EngineCluster(FakeExecutor("host-a", total, size(100, 64)))
    cluster.submit(*names, profile=size(cpu, 256))
    cluster.deliver_all()
    return cluster


def test_growth_that_no_state_contains_yet_is_taken_off_what_the_executor_said_it_has() -> None:
    cluster = cluster_with("r")
    executor = cluster.executors["host-a"]
    executor.hidden = {"cpu_milli": 1_000}
    cluster.report(executor)
    assert cluster.free_cpu() == 2_000
    cluster.resize("r", size(2_500, 256))
    assert cluster.free_cpu() == 500  # less than without this resize
    held = cluster.report_of(executor)
    cluster.report(executor, held)  # the report was sent before the command arrived
    assert cluster.free_cpu() == 500
    cluster.deliver_all()
    assert cluster.free_cpu() == 500
    cluster.resize("r", size(500, 256))
    assert cluster.free_cpu() == 500
    cluster.deliver_all()
    assert cluster.free_cpu() == 2_500


def test_a_slot_that_grows_and_is_gone_leaves_nothing_booked() -> None:
    cluster = cluster_with("r")
    cluster.resize("r", size(3_000, 256))
    cluster.release("r")
    cluster.deliver_all()
    host = cluster.state.hosts["host-a"]
    assert host.booked == host.unreported == {}
    cluster.check()


def test_an_offer_says_what_is_enforced_and_what_is_under_way() -> None:
    cluster = cluster_with("r", "full", cpu=2_000)
    slot = cluster.state.slots["r", 1]
    assert "resizes" not in slot_to_dict(slot, "")
    cluster.resize("r", size(1_000, 512))
    cluster.resize("r", size(3_000, 256))
    data = slot_to_dict(slot, "")
    assert data["profile"] == size(2_000, 256).to_dict()
    assert data["resize_number"] == 2
    assert data["resizes"] == [
        {
            "resize_number": 1,
            "profile": size(1_000, 512).to_dict(),
            "memory_bytes": 512 * MIB,
            "cpu_limit_milli": 1_000,
            "state": "ORDERED",
        },
        {
            "resize_number": 2,
            "profile": size(3_000, 256).to_dict(),
            "memory_bytes": 256 * MIB,
            "cpu_limit_milli": 3_000,
            "state": "WAITING",
        },
    ]


def test_the_job_master_is_told_what_else_changed_with_the_size() -> None:
    cluster = cluster_with("r")
    executor = cluster.executors["host-a"]
    slot = cluster.state.slots["r", 1]
    cluster.resize("r", size(2_000, 256))
    executor.execute(cluster.wire.pop().command, cluster.at, 1)
    carved = executor.slots["r", 1]
    bound = Isolation("cpus", driver="none")
    executor.slots["r", 1] = replace(carved, cpus="2-3", isolation=bound)
    cluster.report(executor)
    assert (slot.cpus, slot.isolation) == ("2-3", bound)
    (told,) = [e for e in cluster.store.job_events["job"] if e.reason == "RESIZED"]
    assert told.slot is not None
    assert (told.slot["cpus"], told.slot["isolation"]) == ("2-3", {"cpu": "cpus", "driver": "none"})
    cluster.restart_rm()
    assert cluster.state.slots["r", 1].cpus == "2-3"


def test_a_size_beyond_the_executor_is_refused_with_numbers_for_programs() -> None:
    cluster = cluster_with("r")
    with pytest.raises(FailedPrecondition) as refused:
        cluster.resize("r", size(4_001, 256))
    assert refused.value.reason == "INFEASIBLE_NEVER"
    assert refused.value.details == {"cpu_milli_asked": "4001", "cpu_milli_total": "4000"}
    assert cluster.state.slots["r", 1].resize_number == 0


def test_each_memory_pool_of_its_own_is_looked_at_by_itself() -> None:
    total = {
        "cpu_milli": 4_000,
        "task_heap_memory_bytes": GIB,
        "managed_memory_bytes": 512 * MIB,
    }
    cluster = cluster_with("r", "s", total=total)
    shifted = ResourceProfile(1_000, 128 * MIB, managed_memory_bytes=128 * MIB)
    cluster.resize("r", shifted)
    booked = cluster.state.hosts["host-a"].booked
    assert booked["task_heap_memory_bytes"] == 512 * MIB  # until it is confirmed
    assert booked["managed_memory_bytes"] == 128 * MIB
    cluster.deliver_all()
    assert cluster.state.hosts["host-a"].booked["task_heap_memory_bytes"] == 384 * MIB
    cluster.resize("s", ResourceProfile(1_000, 256 * MIB, managed_memory_bytes=448 * MIB))
    (change,) = explain(cluster.state, "s").resizes
    assert [(d.dimension, d.asked, d.free) for d in change.dimensions] == [
        ("managed_memory_bytes", 448 * MIB, 384 * MIB)
    ]
    assert "or without r/1" in change.summary


def test_explaining_names_few_of_many_slots_that_are_in_the_way() -> None:
    names = [f"s{number}" for number in range(8)]
    cluster = cluster_with("r", *names, cpu=400)
    cluster.resize("r", size(4_000, 256))
    (change,) = explain(cluster.state, "r").resizes
    assert change.summary.endswith("or without s0/1, s1/1, s2/1, s3/1, s4/1 and 3 more")


def test_many_slots_that_wait_for_the_same_room_get_it_in_the_order_in_which_they_asked() -> None:
    names = [f"r{number}" for number in range(9)]
    cluster = cluster_with(*names, "full", cpu=400)
    for name in reversed(names):
        cluster.resize(name, size(600, 256))
    assert not any(slot.ordered for slot in cluster.state.slots.values())
    cluster.release("full")
    cluster.deliver_all()
    grown = [name for (name, _), slot in cluster.state.slots.items() if slot.resize_number]
    assert len(grown) == 9
    assert {n for (n, _), s in cluster.state.slots.items() if s.profile.cpu_milli == 600} == {
        "r8",
        "r7",
    }
    cluster.check()


def test_tries_of_slots_that_wait_are_counted_like_those_of_shapes() -> None:
    names = [f"r{number}" for number in range(4)]
    cluster = cluster_with(*names, cpu=1_000)
    cluster.state.settings = EngineSettings(classes_tried_max=3)
    for name in names:
        cluster.resize(name, size(2_500, 256))
    late = RequestSpec("late", size(500, 64), allow_pending=True)
    cluster.submit(late)
    cluster.release("r0")
    cluster.deliver_all()
    decisions = 0
    while cluster.state.unfinished:
        cluster.batch()
        decisions += 1
    assert decisions <= 1
    assert cluster.state_of("late") is RequestState.ALLOCATING


def test_a_change_that_ended_is_not_mistaken_for_one_that_is_asked_again() -> None:
    cluster = cluster_with("r")
    executor = cluster.executors["host-a"]
    executor.used["r"] = 200 * MIB
    cluster.resize("r", size(1_000, 128), number=1)
    cluster.deliver_all()
    assert cluster.state.slots["r", 1].profile == size(1_000, 256)
    with pytest.raises(FailedPrecondition) as refused:
        cluster.resize("r", size(1_000, 128), number=1)
    assert refused.value.reason == "STALE_RESIZE"
    assert refused.value.details["resize_number"] == "1"
    executor.used["r"] = 0
    cluster.resize("r", size(1_000, 128), number=2)
    cluster.deliver_all()
    assert cluster.state.slots["r", 1].profile == size(1_000, 128)


@pytest.mark.parametrize("behind", ["nothing", "one that waits", "one that is ordered"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_size_that_the_books_do_not_expect_is_believed(number: int, behind: str) -> None:
    """After a crash with a full disk, an executor may report an unexpected size.

    It may execute a resize that it refused, or revert one that it confirmed.
    """
    cluster = cluster_with("r", "s")
    executor = cluster.executors["host-a"]
    slot = cluster.state.slots["r", 1]
    cluster.resize("r", size(1_500, 256))
    cluster.deliver_all()
    executor.broken.add("r")
    cluster.resize("r", size(1_600, 256))
    cluster.deliver_all()
    executor.broken.clear()
    assert (slot.profile, slot.resize_number) == (size(1_500, 256), 2)
    if behind != "nothing":
        cluster.resize("r", size(4_000 if behind == "one that waits" else 2_000, 256))
    other = size(1_250, 256)
    executor.slots["r", 1] = replace(
        executor.slots["r", 1], profile=other, cpu_limit_milli=1_250, resize_number=number
    )
    cluster.report(executor)
    assert (slot.profile, slot.cpu_limit_milli) == (other, 1_250)
    assert slot.resize_number == (2 if behind == "nothing" else 3)
    booked = 2_000 if behind == "one that is ordered" else 1_250
    assert cluster.state.hosts["host-a"].booked["cpu_milli"] == 1_000 + booked
    cluster.check()
    told = cluster.store.job_events["job"][-1]
    assert (told.reason, told.slot and told.slot["profile"]) == ("RESIZED", other.to_dict())
    cluster.release("s")
    cluster.deliver_all()
    expected = {"nothing": 1_250, "one that waits": 4_000, "one that is ordered": 2_000}
    assert slot.profile.cpu_milli == expected[behind]
    cluster.restart_rm()
    assert cluster.state.slots["r", 1].profile == slot.profile


def test_an_order_that_the_executor_finds_unsound_is_not_repeated() -> None:
    cluster = cluster_with("r")
    executor = cluster.executors["host-a"]
    executor.broken.add("r")
    cluster.resize("r", size(2_000, 256))
    answer = executor.execute(cluster.wire.pop().command, cluster.at, 1)
    assert isinstance(answer, CommandAnswered)
    unsound = ItemOutcome("r", "INVALID_ARGUMENT", "cpus is '7'; expected cpus out of 0-3")
    cluster.batch(replace(answer, outcomes=(unsound,)))
    slot = cluster.state.slots["r", 1]
    assert (slot.ordered, slot.wanted) == (None, None)
    told = cluster.store.job_events["job"][-1]
    assert told.reason == "RESIZE_REFUSED"
    assert told.message.endswith(unsound.message)
