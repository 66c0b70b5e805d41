"""Tests which parts of a log are run, who owns them, and on which nodes they can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.errors import InvalidArgument
from finegrain.resources import GIB, ResourceProfile
from resource_manager.simulator.nodes import Node, equal_gpus
from resource_manager.simulator.traces.gpu_cluster import gpus
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.node_lists import read_nodes
from tests.support.components import REPOSITORY

TRACES = REPOSITORY / "tests/data/traces"


def log(*jobs: TraceJob) -> Workload:
    return Workload("log", "swf", jobs, owner_keys=("user", "queue"))


def one(name: str, submit_ms: int = 0, **more: object) -> TraceJob:
    defaults: dict[str, object] = {"run_ms": 1_000, "count": 1, "profile": ResourceProfile(1_000)}
    return TraceJob(name, submit_ms, **(defaults | more))  # type: ignore[arg-type]


def test_a_part_of_a_log_begins_at_zero_and_may_come_faster() -> None:
    workload = log(*(one(str(number), 5_000 + number * 1_000) for number in range(10)))

    part = workload.picked(limit=3, from_ms=2_000, until_ms=9_000, speedup=2)

    assert [(each.name, each.submit_ms) for each in part.jobs] == [
        ("2", 0),
        ("3", 500),
        ("4", 1000),
    ]
    assert [each.name for each in workload.picked(until_ms=2_000).jobs] == ["0", "1"]


def test_jobs_come_in_the_order_of_their_arrival() -> None:
    workload = log(one("late", 9), one("early", 3), one("too", 3))
    assert [each.name for each in workload.picked().jobs] == ["early", "too", "late"]


def test_a_part_without_jobs_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a log with jobs in the requested interval"):
        log(one("a")).picked(from_ms=1)


def test_what_no_cluster_lives_through_is_refused() -> None:
    workload = log(one("a"), one("b", 1_000_000))
    assert workload.picked(speedup=0.001).jobs[1].submit_ms == 1_000_000_000
    with pytest.raises(InvalidArgument, match="within 100 years"):
        workload.picked(speedup=1e-300)
    with pytest.raises(InvalidArgument, match="parts of job b is 1000001"):
        log(one("a"), one("b", count=1_000_001)).picked()


def test_a_name_that_a_log_has_several_times_is_numbered() -> None:
    workload = log(one("7"), one("7", 1), one("8", 2), one("7", 3))
    assert [each.name for each in workload.picked().jobs] == ["7", "7#2", "8", "7#3"]


def test_owners_become_groups_with_names_that_groups_may_have() -> None:
    workload = log()
    job = one("a", owners={"user": "Müller & Sohn", "queue": ""})

    assert workload.group_of(job, "user") == "user-m-ller-sohn"
    assert workload.group_of(job, "queue") == "default"
    assert workload.group_of(job, "none") == "default"
    assert len(workload.group_of(one("b", owners={"user": "x" * 99}), "user")) == 63
    with pytest.raises(InvalidArgument, match="--group-by is 'team'; expected one of user, queue"):
        workload.group_of(job, "team")


def test_what_no_node_has_is_not_asked_for_and_noted() -> None:
    profile = ResourceProfile(1_000, GIB, extended=(("disk", 5), ("nic", 1)), devices=gpus(1, 500))
    nodes = [Node("n", {"cpu_milli": 4_000, "extended.nic": 1}, devices=equal_gpus(1))]

    fitted = log(one("a", profile=profile), one("b")).fitted(nodes)

    expected = ResourceProfile(1_000, extended=(("nic", 1),), devices=gpus(1, 500))
    assert fitted.jobs[0].profile == expected
    without = log(one("a", profile=profile)).fitted([Node("n", {"cpu_milli": 4_000})])
    assert without.jobs[0].profile == ResourceProfile(1_000)
    assert fitted.notes == (
        "disk is not modeled: no node has any; 1 jobs request it",
        "memory is not modeled: no node has any; 1 jobs request it",
    )


def test_whole_nodes_are_all_cpus_of_the_smallest_that_will_do() -> None:
    nodes = read_nodes("2x80cpu@cluster=big,2x12cpu@cluster=small,1x99cpu")
    labels = (("cluster", "big"),)
    wanted = [
        one("big", profile=ResourceProfile(8_000), labels=labels, whole_nodes=True),
        one("any", profile=ResourceProfile(13_000), whole_nodes=True),
        one("none", profile=ResourceProfile(100_000), whole_nodes=True),
    ]

    fitted = log(*wanted).fitted(nodes)

    assert [job.profile.cpu_milli for job in fitted.jobs] == [80_000, 80_000, 100_000]


def test_nodes_can_be_said_in_words() -> None:
    nodes = read_nodes("2x96cpu:768G:8gpu:rdma=100*1.5@model=G2@zone=a, 500mcpu")

    assert nodes[1] == Node(
        "node-0001",
        {
            "cpu_milli": 96_000,
            "memory_bytes": 768 * GIB,
            "extended.rdma": 100,
        },
        (("model", "G2"), ("zone", "a")),
        1.5,
        equal_gpus(8, "G2"),
    )
    assert nodes[2] == Node("node-0002", {"cpu_milli": 500})


def test_nodes_can_be_listed_in_a_file(tmp_path: Path) -> None:
    listed = read_nodes(str(TRACES / "openb-nodes-cut.csv"))
    assert len(listed) == 59
    assert listed[-1].capacity["device.gpu-core"] == 200
    assert listed[-1].labels[0][0] == "model"
    assert not listed[0].devices.devices

    own = tmp_path / "nodes.csv"
    own.write_text("name,cpu_milli,speed,zone\na,4000,2,east\nb,500,0.5,\n")
    assert read_nodes(str(own)) == [
        Node("a", {"cpu_milli": 4_000}, (("zone", "east"),), 2.0),
        Node("b", {"cpu_milli": 500}, (), 0.5),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("128", "--nodes is '128'; expected kinds of nodes such as"),
        ("2x1cpu,,", "--nodes is ''; expected"),
        ("0x1cpu", "--nodes is '0 nodes'; expected 1 to"),
        ("9999999x1cpu", "at most 100000 nodes"),
        ("1cpu:9Q", "--nodes is '9Q'; expected a size"),
        ("1cpu:disk=x", "--nodes is 'disk=x'; expected a whole number"),
        ("1cpu*0", "a speed above 0"),
        ("1cpu@zone", "KEY=VALUE"),
        ("1.2345cpu", "a whole number of thousandths"),
    ],
)
def test_words_that_are_no_nodes_are_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_nodes(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ("a,4000,fast", "nodes.csv, line 3, speed is 'fast'; expected a number above 0"),
        ("a,4000,-1", "line 3, speed is '-1'"),
        ("a,many,1", "line 3, cpu_milli is 'many'"),
        (",4000,1", "line 3 is ''; expected a name"),
        ("first,4000,1", "line 3, name is 'first'; expected a name that no other node has"),
    ],
)
def test_lists_that_are_no_nodes_are_refused(tmp_path: Path, record: str, told: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(f"name,cpu_milli,speed\nfirst,1,1\n{record}\n")
    with pytest.raises(InvalidArgument) as caught:
        read_nodes(str(path))
    assert told in str(caught.value)
