"""Tests that a refused order is retried at the end of its backoff, without another event."""

from __future__ import annotations

import pytest

from finegrain.values.states import GangPlacement
from tests.support.engine_cluster import LSR, EngineCluster, numa_host

LABELS = (("disk", "ssd"),)


def ask(cluster: EngineCluster, kind: str) -> list[str]:
    """Submits work of one kind; returns the names of its slots."""
    match kind:
        case "range":
            cluster.submit_range("r", 2)
            return ["r.0", "r.1"]
        case "gang":
            cluster.submit_gang("g", [1_000, 1_000], GangPlacement.ANYWHERE)
            return ["g-0", "g-1"]
        case "gang of one label":
            cluster.submit_gang("g", [1_000, 1_000], GangPlacement.SAME_LABEL, "disk")
            return ["g-0", "g-1"]
        case "labelled":
            cluster.submit("r", required_labels=LABELS)
        case "pinned":
            cluster.submit("r", policy=LSR)
        case _:
            cluster.submit("r")
    return ["r"]


@pytest.mark.parametrize(
    ("kind", "pause_s"),
    [  # each refused slot doubles the backoff
        ("plain", 1),
        ("labelled", 1),
        ("pinned", 1),
        ("range", 2),
        ("gang", 2),
        ("gang of one label", 2),
    ],
)
def test_whatever_was_refused_is_tried_again_when_the_pause_ends(kind: str, pause_s: int) -> None:
    cluster = EngineCluster.settled()
    executor = numa_host("host-a", labels=LABELS)
    cluster.register(executor)
    executor.broken |= {"r", "r.0", "r.1", "g-0", "g-1"}
    names = ask(cluster, kind)
    assert cluster.running() == []
    executor.broken.clear()
    cluster.wait(1_000 * pause_s - 1)
    assert cluster.running() == []
    cluster.wait(1)
    assert sorted(cluster.running()) == names


def test_of_two_pauses_on_one_executor_each_ends_at_its_time() -> None:
    """The first backoff ends with another refusal, and its next one is longer than the second."""
    cluster = EngineCluster.settled()
    executor = cluster.host("host-a")
    executor.broken |= {"one", "two"}
    cluster.submit("one", cpu_milli=1_000)
    cluster.wait(400)
    cluster.submit("two", cpu_milli=2_000)
    executor.broken.remove("two")
    cluster.wait(600)
    assert cluster.running() == []
    cluster.wait(399)
    assert cluster.running() == []
    cluster.wait(1)
    assert cluster.running() == ["two"]


def test_a_pause_ends_between_an_earlier_one_of_a_cancelled_request_and_a_later_one() -> None:
    cluster = EngineCluster.settled()
    executor = cluster.host("host-a")
    executor.broken |= {"one", "two", "three"}
    cluster.submit("one", cpu_milli=1_000)
    cluster.wait(400)
    cluster.submit("two", cpu_milli=2_000)
    cluster.wait(300)
    cluster.submit("three", cpu_milli=3_000)
    executor.broken -= {"one", "two"}
    cluster.cancel("one")
    cluster.wait(300)
    assert cluster.running() == []
    cluster.wait(400)
    assert cluster.running() == ["two"]
