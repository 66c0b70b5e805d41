"""Tests of how many more slots of a class fit."""

from __future__ import annotations

import pytest

from finegrain.devices.names import device_requests
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain import more_fit
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from tests.support.devices import gpu_host
from tests.support.engine_cluster import EngineCluster


def request(name: str, **resources: int) -> RequestSpec:
    return RequestSpec(name, ResourceProfile(100, 8 * MIB, devices=device_requests(resources)))


@pytest.mark.parametrize(
    ("amounts", "more"),
    [({"gpu": 50}, 7), ({"gpu": 60}, 3), ({"gpu": 200}, 1), ({}, None)],
    ids=["halves", "no two on one", "pairs", "amounts only"],
)
def test_exactly_as_many_more_fit_as_are_placed(amounts: dict[str, int], more: int | None) -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=4))
    cluster.submit(request("first", **amounts))
    number = explain(cluster.state, "first").more_fit
    assert more in (None, number)
    assert number > 0
    names = [f"more-{at}" for at in range(number)]
    cluster.submit(*(request(each, **amounts) for each in names))
    assert all(cluster.is_granted(each) for each in names)
    cluster.submit(request("waits", **amounts))
    found = explain(cluster.state, "waits")
    assert (found.more_fit, found.executors[0].more_fit) == (0, 0)
    cluster.release("first")
    cluster.check()


def test_counting_changes_nothing_and_names_the_executor() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.submit(request("first", gpu=100))
    assert [explain(cluster.state, "first").more_fit for _ in range(2)] == [1, 1]
    cluster.submit(request("pair", gpu=200))
    assert explain(cluster.state, "pair").more_fit == 0
    assert explain(cluster.state, "first").more_fit == 1
    cluster.check()


def test_a_long_count_ends_early_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = EngineCluster.settled(gpu_host("a", gpus=4), gpu_host("b", gpus=4))
    cluster.submit(request("first", gpu=50))
    found = explain(cluster.state, "first")
    assert (found.more_fit, found.more_may_fit) == (15, False)
    found = explain(cluster.state, "first", "b")
    assert (found.more_fit, found.more_may_fit) == (8, False)
    monkeypatch.setattr(more_fit, "CHOSEN_MAX", 5)
    found = explain(cluster.state, "first", "b")
    assert (found.more_fit, found.more_may_fit) == (5, True)
    cluster.submit(request("second", gpu=50))
    found = explain(cluster.state, "first")
    assert (found.more_fit, found.more_may_fit) == (5, True)
