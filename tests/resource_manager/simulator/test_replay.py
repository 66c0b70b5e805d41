"""Replays whole logs, shortened, through the real engine."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from finegrain.errors import InvalidArgument
from finegrain.resources import ResourceProfile
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.simulator.plan import Effort
from resource_manager.simulator.replay import PROGRESS_EVERY, Outcome, Plan, replay
from resource_manager.simulator.traces.formats import read_workload
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.node_lists import read_nodes
from tests.support.components import REPOSITORY

TRACES = REPOSITORY / "tests/data/traces"
NASA = TRACES / "nasa-ipsc-1993-first-500.swf.gz"


def small(*jobs: tuple[str, int, int, int, str]) -> Workload:
    """Jobs by name, arrival, run time, parts and user."""
    return Workload(
        "small",
        "swf",
        tuple(
            TraceJob(name, submit, run, count, ResourceProfile(1_000), {"user": user})
            for name, submit, run, count, user in jobs
        ),
        owner_keys=("user",),
    )


def told(outcome: Outcome) -> dict[str, object]:
    """Returns all of an outcome except its duration."""
    return asdict(replace(outcome, effort=Effort()))


def test_a_log_worked_out_by_hand() -> None:
    log = small(
        ("wide", 0, 20_000, 2, "a"),
        ("first", 5_000, 10_000, 1, "b"),
        ("second", 5_000, 40_000, 1, "b"),
    )

    outcome = replay(log, read_nodes("2x1cpu"), Plan())

    assert (outcome.jobs, outcome.unserved, outcome.rejected) == (3, 0, {})
    assert outcome.waits_ms == (0, 15_000, 15_000)
    assert (outcome.wait.mean, outcome.wait.most) == (10_000, 15_000)
    assert outcome.slowdown.most == 2.5
    assert outcome.makespan_ms == 60_000
    assert outcome.utilisation == (2 * 20 + 10 + 40) / (2 * 60)
    assert (outcome.waiting_time_ms, outcome.utilisation_while_waiting) == (15_000, 1)
    assert [(each.name, each.jobs, each.wait.mean) for each in outcome.groups] == [
        ("user-a", 1, 0),
        ("user-b", 2, 15_000),
    ]
    assert outcome.groups[1].account.received == 25  # half of the cluster per slot
    assert (outcome.idle_checks, outcome.idle_moments) == (5, 0)


def test_parts_of_a_job_start_together_unless_it_is_moldable() -> None:
    log = small(("long", 0, 30_000, 1, "a"), ("wide", 1_000, 10_000, 2, "a"))

    rigid = replay(log, read_nodes("2x1cpu"), Plan())
    moldable = replay(log, read_nodes("2x1cpu"), Plan(moldable=True))

    assert rigid.waits_ms == (0, 29_000)
    assert moldable.waits_ms == (0, 0)
    assert moldable.makespan_ms == 30_000


def test_what_the_nodes_could_never_serve_is_rejected() -> None:
    log = small(("wide", 0, 10_000, 3, "a"), ("narrow", 0, 10_000, 1, "a"))

    outcome = replay(log, read_nodes("2x1cpu"), Plan())

    assert (outcome.jobs, outcome.rejected) == (1, {"INFEASIBLE_NEVER": 1})


def test_groups_are_those_that_are_asked_for() -> None:
    workload = read_workload(NASA).picked(limit=30)
    nodes = read_nodes("128x1cpu")

    by_group = replay(workload, nodes, Plan(group_by="group", weights={"group-1": 3}))
    together = replay(workload, nodes, Plan(group_by="none"))

    assert [(each.name, each.weight) for each in by_group.groups] == [
        ("group-1", 3),
        ("group-2", 1),
    ]
    assert [each.name for each in together.groups] == ["default"]
    with pytest.raises(InvalidArgument, match="--weights is 'user-999'; expected a resource group"):
        replay(workload, nodes, Plan(weights={"user-999": 2}))


@pytest.mark.parametrize("order", ["fair", "arrival"])
@pytest.mark.parametrize(
    ("file", "nodes", "speedup"),
    [
        ("nasa-ipsc-1993-first-500.swf.gz", "128x1cpu", 4),
        ("wagap-2013-cut.csv", "", 3),
        ("openb-pods-cut.csv", str(TRACES / "openb-nodes-cut.csv"), 1),
        ("dlrm-instances-cut.csv", "40x96cpu:768G:8gpu:rdma=100:disk_gib=8000", 1),
    ],
)
def test_every_log_runs_to_its_end_with_nothing_idle_beside_work_that_fits(
    file: str, nodes: str, speedup: float, order: str
) -> None:
    workload = read_workload(TRACES / file).picked(limit=70, speedup=speedup)
    settings = EngineSettings(fairness=Fairness(order=order))  # type: ignore[arg-type]

    outcome = replay(workload, read_nodes(nodes or workload.nodes), Plan(settings))

    assert outcome.jobs + sum(outcome.rejected.values()) == len(workload.jobs)
    assert outcome.jobs > 0.9 * len(workload.jobs)
    assert outcome.idle_findings == ()
    assert outcome.idle_checks > 70
    assert 0 < outcome.utilisation <= 1


def test_the_same_log_gives_the_same_outcome() -> None:
    workload = read_workload(NASA).picked(limit=40, speedup=4)
    nodes = read_nodes("128x1cpu")
    assert told(replay(workload, nodes, Plan())) == told(replay(workload, nodes, Plan()))


def test_progress_is_told_now_and_then() -> None:
    seen: list[tuple[int, int]] = []
    log = small(*((str(number), number * 10, 5, 1, "a") for number in range(PROGRESS_EVERY)))

    replay(log, read_nodes("1cpu"), Plan(), lambda over, jobs: seen.append((over, jobs)))

    assert len(seen) == 2 * PROGRESS_EVERY // PROGRESS_EVERY
    assert seen[-1] == (PROGRESS_EVERY, PROGRESS_EVERY)
