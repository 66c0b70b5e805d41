"""Tests of executors that report but cannot be dialed, beyond the stories."""

from __future__ import annotations

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.effects import ProbeExecutor, PublishClusterEvent
from resource_manager.engine.model.events import (
    CommandRefused,
    ExecutorProbed,
)
from tests.support.engine_cluster import FOREVER_MS, EngineCluster, FakeExecutor, host

SMALL = ResourceProfile(100, 64 * MIB)


def cluster_of(*hosts: str) -> EngineCluster:
    """Returns a cluster whose job waits for one slot, which is ordered at the first host."""
    cluster = EngineCluster(*map(host, hosts), lost_timeout_ms=FOREVER_MS)
    cluster.submit("r1", cpu_milli=100)
    return cluster


def host_of(cluster: EngineCluster, name: str = "host-a") -> Host:
    return cluster.state.hosts[name]


def make_unreachable(cluster: EngineCluster) -> FakeExecutor:
    executor = cluster.executors["host-a"]
    cluster.fail(cluster.wire[0])
    cluster.wait(10_000)
    assert cluster.report(executor).register_again
    cluster.wire.clear()
    cluster.register(executor)
    assert host_of(cluster).reach.unreachable
    return executor


def dialled_after(cluster: EngineCluster, count: int) -> list[int]:
    """Returns the delays before the next probes, in milliseconds."""
    pauses: list[int] = []
    before = cluster.now_ms
    while len(pauses) < count:
        cluster.wait(100)
        if any(isinstance(effect, ProbeExecutor) for effect in cluster.effects):
            pauses.append(cluster.now_ms - before)
            before = cluster.now_ms
    return pauses


def test_pauses_between_probes_double_up_to_a_limit() -> None:
    cluster = cluster_of("host-a")
    make_unreachable(cluster)
    seconds = [ms // 1_000 for ms in dialled_after(cluster, 8)]
    assert seconds == [1, 2, 4, 8, 16, 30, 30, 30]


def test_an_executor_that_answers_probes_and_no_commands_is_tried_less_and_less_often() -> None:
    cluster = cluster_of("host-a")
    for longest in (1, 4, 16):
        executor = make_unreachable(cluster)
        assert dialled_after(cluster, 1)[0] // 1_000 == longest
        address = executor.registration().address
        cluster.batch(ExecutorProbed(cluster.at, "host-a", address))
        assert host_of(cluster).eligible
    cluster.settle()
    assert host_of(cluster).reach.failures == 0


def test_a_single_late_delivery_voids_nothing() -> None:
    cluster = cluster_of("host-a")
    cluster.fail(cluster.wire[0])
    cluster.wait(9_000)
    assert not cluster.report(cluster.executors["host-a"]).register_again
    cluster.settle()
    assert cluster.is_granted("r1")
    cluster.wait(60_000)
    assert not cluster.report(cluster.executors["host-a"]).register_again


def test_a_slot_that_was_carved_although_no_answer_came_is_granted_by_the_registration() -> None:
    cluster = cluster_of("host-a", "host-b")
    cluster.deliver(cluster.wire[0], lose_answer=True)
    executor = cluster.executors["host-a"]
    cluster.wait(10_000)
    assert cluster.report(executor).register_again
    cluster.register(executor)
    request = cluster.state.requests["r1"]
    assert (request.state, request.generation) == (RequestState.GRANTED, 1)


def test_an_answer_about_another_address_says_nothing() -> None:
    cluster = cluster_of("host-a")
    make_unreachable(cluster)
    cluster.batch(ExecutorProbed(cluster.at, "host-a", "elsewhere:7000"))
    cluster.batch(ExecutorProbed(cluster.at, "nobody", "elsewhere:7000"))
    assert host_of(cluster).reach.unreachable


def test_the_latest_cause_is_shown() -> None:
    cluster = cluster_of("host-a")
    address = make_unreachable(cluster).registration().address
    cluster.batch(ExecutorProbed(cluster.at, "host-a", address, "no route to host"))
    assert host_of(cluster).reach.cause == "no route to host"


def test_an_executor_that_refuses_one_command_after_the_other_is_left_alone() -> None:
    """Otherwise two executors with one address would be asked to register forever."""
    cluster = cluster_of("host-a", "host-b")
    executor = cluster.executors["host-a"]
    refused = 0
    while not host_of(cluster).reach.unreachable:
        command = cluster.wire.pop(0).command
        numbers = (command.registration_number, command.command_number)
        cluster.batch(CommandRefused(cluster.at, "host-a", *numbers, "STALE_REGISTRATION"))
        refused += 1
        assert host_of(cluster).executor.state is ExecutorState.UNCONFIRMED
        told = [e.event for e in cluster.effects if isinstance(e, PublishClusterEvent)]
        cluster.register(executor)
    assert refused == cluster.settings.refused_commands_max
    assert "another executor" in told[-1].message
    cluster.settle()
    assert (
        cluster.state.slots["r1", cluster.state.requests["r1"].generation].executor_id == "host-b"
    )
    cluster.check()
