"""Tests of previews: they agree with what the scheduler then does, and change nothing."""

from __future__ import annotations

import pytest

from finegrain.devices.names import device_requests
from finegrain.errors import NotFound
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.preview import Preview, Previews
from resource_manager.engine.model.entities import RequestSpec
from tests.support.devices import gpu_host
from tests.support.engine_cluster import EngineCluster


def request(name: str, **resources: int) -> RequestSpec:
    return RequestSpec(name, ResourceProfile(100, 8 * MIB, devices=device_requests(resources)))


def places(found: Preview) -> dict[str, str]:
    return {each.slot.allocation_id: each.other_executor_id for each in found.slots}


def test_a_cordon_concerns_the_slots_that_have_the_device() -> None:
    cluster = EngineCluster.settled(gpu_host("a", gpus=2))
    cluster.submit(request("first", gpu=100), request("second", gpu=100), request("plain"))
    cluster.register(gpu_host("b", gpus=1))
    cluster.check()
    previews = Previews(cluster.state)
    users = [set(places(previews.cordon("a", name))) for name in ("gpu0", "gpu1")]
    assert sorted(map(sorted, users)) == [["first"], ["second"]]
    (name,) = users[0]
    assert places(previews.cordon("a", "gpu0")) == {name: "b"}
    with pytest.raises(NotFound):
        previews.cordon("a", "gpu7")
    cluster.check()


def test_a_cordon_says_which_slots_of_the_host_it_does_not_concern() -> None:
    """A slot with several devices counts once, and a slot that ends does not count."""
    cluster = EngineCluster.settled(gpu_host("a", gpus=4))
    cluster.submit(request("pair", gpu=200), request("first", gpu=60), request("second", gpu=60))
    cluster.submit(request("plain"), request("other-plain"))
    cluster.check()
    previews = Previews(cluster.state)
    found = {name: previews.cordon("a", name) for name in ("gpu0", "gpu1", "gpu2", "gpu3")}
    counts = {
        "+".join(places(each)): (each.on_other_devices, each.without_devices)
        for each in found.values()
    }
    assert counts == {"pair": (2, 2), "first": (2, 2), "second": (2, 2)}
    drained = previews.drain("a")
    assert (drained.on_other_devices, drained.without_devices) == (0, 0)
    cluster.check()


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
def test_as_many_slots_as_a_drain_announces_are_placed_elsewhere(gpus: int) -> None:
    cluster = EngineCluster.settled(gpu_host("a", gpus=4))
    names = [f"s-{number}" for number in range(4)]
    cluster.submit(*(request(each, gpu=60) for each in names))
    others = [gpu_host(f"b-{number}", gpus=1) for number in range(gpus)]
    for each in others:
        cluster.register(each)
    cluster.check()
    found = [places(Previews(cluster.state).drain("a")) for _ in range(2)]
    assert found[0] == found[1]  # a preview changes nothing
    hosts = [each for each in found[0].values() if each]
    assert sorted(hosts) == sorted(each.executor_id for each in others)
    cluster.check()
    cluster.drain("a")
    cluster.submit(*(request(f"again-{each}", gpu=60) for each in names))
    assert sum(cluster.is_granted(f"again-{each}") for each in names) == len(hosts)
