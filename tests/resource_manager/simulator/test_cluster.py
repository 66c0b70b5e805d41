"""Tests of virtual time: when and where threads run, and that runs are reproducible."""

from __future__ import annotations

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.devices.device import DeviceShare
from finegrain.errors import InvariantBroken
from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.events import DrainRequested
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.log import by_group, by_job, cores
from resource_manager.simulator.nodes import Node, SimulatedExecutor, equal_gpus, equal_nodes


def ran(cluster: Cluster) -> list[tuple[str, int, str, int, int, int | None]]:
    return [(r.job_id, r.thread, r.node, r.lane, r.start_ms, r.end_ms) for r in cluster.log]


def test_threads_run_one_after_the_other_where_there_is_room() -> None:
    cluster = Cluster(equal_nodes(2))
    job = cluster.submit("job", [3_000, 1_000, 1_000])

    cluster.run()

    assert ran(cluster) == [
        ("job", 0, "node-000", 0, 0, 3_000),
        ("job", 1, "node-001", 0, 0, 1_000),
        ("job", 2, "node-001", 0, 1_000, 2_000),
    ]
    assert (job.first_start_ms, job.last_start_ms, job.end_ms) == (0, 1_000, 3_000)
    assert job.work_ms == 5_000


def test_a_node_shows_its_threads_on_the_lowest_lanes_that_are_free() -> None:
    cluster = Cluster(equal_nodes(1, cpus=2))
    cluster.submit("job", [4_000, 1_000, 1_000, 1_000])

    cluster.run()

    assert [(run.thread, run.lane) for run in cluster.log] == [(0, 0), (1, 1), (2, 1), (3, 1)]


def test_a_faster_node_takes_more_of_the_work() -> None:
    nodes = [Node("fast", {"cpu_milli": 1_000}, speed=3), Node("slow", {"cpu_milli": 1_000})]
    cluster = Cluster(nodes)
    cluster.submit("job", [3_000] * 8)

    cluster.run()

    assert [run.node for run in cluster.log].count("fast") == 6
    assert cluster.now_ms == 6_000


def test_what_ends_at_a_moment_makes_room_for_what_arrives_at_it() -> None:
    cluster = Cluster(equal_nodes(1))
    cluster.submit("first", [1_000])
    cluster.submit("second", [1_000], at_ms=1_000)

    cluster.run()

    assert [run.start_ms for run in cluster.log] == [0, 1_000]


def test_threads_of_a_gang_start_together_or_not_at_all() -> None:
    cluster = Cluster(equal_nodes(3))
    cluster.submit("narrow", [5_000])
    cluster.submit("wide", [1_000] * 3, gang=True, at_ms=1)

    cluster.run()

    assert [run.start_ms for run in cluster.log if run.job_id == "wide"] == [5_000] * 3


def test_a_thread_without_a_duration_is_over_at_once() -> None:
    cluster = Cluster(equal_nodes(1))
    cluster.submit("job", [0, 0, 7])

    cluster.run()

    assert [(run.start_ms, run.end_ms) for run in cluster.log] == [(0, 0), (0, 0), (0, 7)]


def test_what_no_node_could_ever_serve_is_rejected_with_its_reason() -> None:
    cluster = Cluster(equal_nodes(2))
    large = cluster.submit("large", [1], profile=ResourceProfile(2_000))
    wide = cluster.submit("wide", [1] * 3, gang=True)
    fits = cluster.submit("fits", [1])

    cluster.run()

    assert large.rejected.startswith("INFEASIBLE_NEVER")
    assert wide.rejected
    assert not fits.rejected
    assert [run.job_id for run in cluster.log] == ["fits"]


def test_a_run_can_stop_anywhere_and_go_on() -> None:
    whole, halves = Cluster(equal_nodes(2)), Cluster(equal_nodes(2))
    for cluster in (whole, halves):
        cluster.submit("job", [1_500, 700, 900, 1_100])
    whole.run()

    halves.run(until_ms=1_000)
    assert halves.now_ms == 1_000
    assert halves.waiting == 1
    assert [run.end_ms for run in halves.log] == [None, 700, None]
    halves.run()

    assert ran(halves) == ran(whole)


def test_a_job_may_be_ended_before_its_time() -> None:
    cluster = Cluster(equal_nodes(1))
    cluster.submit("long", [10_000] * 5)
    cluster.submit("next", [1_000], at_ms=1)
    cluster.end_job("long", 4_000)

    cluster.run()

    assert [(run.job_id, run.start_ms, run.end_ms) for run in cluster.log] == [
        ("long", 0, 4_000),
        ("next", 4_000, 5_000),
    ]
    assert cluster.waiting == 0


def test_anything_may_happen_at_a_moment() -> None:
    cluster = Cluster(equal_nodes(2))
    cluster.at_moment(500, lambda at: DrainRequested(at, "node-000"))
    cluster.submit("job", [1_000] * 4)

    cluster.run()

    assert [run.node for run in cluster.log] == ["node-000", "node-001", "node-001", "node-001"]


def test_books_stay_sound_and_forget_what_is_over() -> None:
    cluster = Cluster(equal_nodes(4, cpus=3, memory_bytes=GIB))
    for number in range(40):
        profile = ResourceProfile(1_000, GIB // 4)
        cluster.submit(
            f"job-{number}", [100 + number] * 5, profile=profile, gang=number % 3 == 0, at_ms=number
        )
    problems: list[str] = []
    cluster.on_settled.append(lambda each: problems.extend(check_invariants(each.state)))

    cluster.run()

    assert problems == []
    assert len(cluster.log) == 200
    assert not cluster.state.requests
    assert not cluster.state.jobs


def test_the_same_input_gives_the_same_run() -> None:
    def once() -> Cluster:
        cluster = Cluster(equal_nodes(7, cpus=2))
        for number in range(30):
            durations = [(number * 37 + thread * 11) % 900 + 1 for thread in range(9)]
            cluster.submit(f"job-{number}", durations, group=f"group-{number % 3}", at_ms=number)
        cluster.run()
        return cluster

    assert ran(once()) == ran(once())


def test_a_job_is_submitted_once_not_in_the_past_and_with_threads() -> None:
    cluster = Cluster(equal_nodes(1))
    cluster.submit("job", [1_000])
    cluster.run()

    for job_id, durations, at_ms in (("job", [1], 1_000), ("other", [1], 999), ("none", [], 1_000)):
        with pytest.raises(ValueError, match=job_id):
            cluster.submit(job_id, durations, at_ms=at_ms)


def test_what_runs_is_known_at_every_moment() -> None:
    cluster = Cluster(equal_nodes(2, cpus=4))
    cluster.submit("a", [2_000] * 2, group="left", profile=ResourceProfile(2_000))
    cluster.submit("b", [1_000] * 6, group="right")

    cluster.run()

    by_groups = cluster.log.running(by_group, cores)
    assert [by_groups["left"].at(ms) for ms in (0, 1_999, 2_000)] == [4, 4, 0]
    assert by_groups["right"].integral(0, 10_000) == 6_000
    waiting = cluster.log.waiting(by_job)
    assert waiting["b"].most() == 2
    assert "a" not in waiting


def slot(profile: ResourceProfile, *shares: DeviceShare) -> Slot:
    assignment = CpuAssignment(QosClass.LS, devices=shares)
    return Slot("x", 1, "job", "node-000", profile, 0, 0, assignment=assignment)


def test_an_executor_takes_no_order_that_cannot_be() -> None:
    """This checks the engine: a slot that does not fit is a bug, not a wait."""
    cluster = Cluster(equal_nodes(1))
    cluster.submit("job", [1_000])
    cluster.run(until_ms=0)
    executor = cluster.executors["node-000"]
    other = SimulatedExecutor(executor.node, registration_number=1, free={"cpu_milli": 1_000})
    assert other.free == {"cpu_milli": 1_000}
    with pytest.raises(InvariantBroken, match="lacks 1 of cpu_milli"):
        other._carve(slot(ResourceProfile(1_001)))
    node = Node("n", {"cpu_milli": 1_000}, devices=equal_gpus(1))
    share = DeviceShare("gpu", "GPU-0", 0, (("gpu-core", 101),))
    with pytest.raises(InvariantBroken, match="does not fit on"):
        SimulatedExecutor(node)._carve(slot(ResourceProfile(1_000), share))
