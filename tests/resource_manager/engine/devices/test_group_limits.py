"""Tests of groups whose devices are limited."""

from __future__ import annotations

import pytest

from finegrain.devices.names import device_requests
from finegrain.errors import InvalidArgument
from finegrain.resources import MIB, ResourceProfile
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import GroupSet
from resource_manager.service.wire.groups import group_set_event
from tests.support.devices import gpu_host
from tests.support.engine_cluster import EngineCluster


def test_a_maximum_of_gpus_holds_until_it_is_raised() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=4))
    cluster.apply(GroupSet(cluster.at, "default", maximum={"device.gpu-core": 150}))
    half = ResourceProfile(100, 8 * MIB, devices=device_requests({"gpu": 50}))
    names = [f"r{at}" for at in range(4)]
    cluster.submit(*(RequestSpec(name, half) for name in names))
    assert [cluster.is_granted(name) for name in names] == [True, True, True, False]
    found = explain(cluster.state, "r3")
    assert found.primary_reason == "WAITING_GROUP_LIMIT"
    assert (
        "group default has 150 of at most 150 gpu-core, but the request needs 50" in found.summary
    )
    cluster.apply(GroupSet(cluster.at, "default", maximum={"device.gpu-core": 200}))
    assert cluster.is_granted("r3")
    cluster.check()


@pytest.mark.parametrize("name", ["device.gpu", "device.gpu.shared", "device.", "device.A b"])
def test_a_limit_that_would_never_apply_is_refused(name: str) -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    request = cluster_pb2.SetGroupRequest(name="default", maximum={name: 100})
    with pytest.raises(InvalidArgument, match=r"device\. and gpu-core, gpu-memory"):
        group_set_event(request, cluster.at)
