"""Random histories of a cluster with GPUs and NICs.

Slots, gangs, shares come and go, administrators cordon devices, hosts return with fewer devices or
other minor numbers, and the resource manager restarts. The invariants must hold, and no executor is
ever ordered to give out more of a device than it has.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from finegrain.cpu_policy import PLAIN, CpuPolicy, NumaPolicy, QosClass
from finegrain.devices.device import HostDevices
from finegrain.devices.names import device_requests
from finegrain.errors import NotFound
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned
from resource_manager.engine.model.settings import Fairness
from tests.support.devices import gpu_host, made_up, with_devices
from tests.support.engine_cluster import EngineCluster

STEPS = 120

REQUESTS = (
    {"gpu": 50},
    {"gpu": 100},
    {"gpu": 200},
    {"gpu": 400},
    {"gpu-core": 30, "gpu-memory": 20 << 30},
    {"gpu.shared": 2, "gpu-memory-ratio": 100},
    {"gpu": 100, "rdma": 100},
    {"rdma": 1},
    {"gpu-core": 20},
)
POLICIES = (
    PLAIN,
    CpuPolicy(QosClass.LSR),
    CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True),
)
WHOLE = {
    "host-a": made_up(4, nodes=2, nics=2, in_pairs=True),
    "host-b": made_up(8, nodes=2, nics=4),
}


class Life:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = EngineCluster.settled(
            gpu_host("host-a", 4, nics=2, in_pairs=True),
            gpu_host("host-b", 8, nics=4),
            strategy=self.random.choice(["pack", "spread", "balanced"]),
            fairness=Fairness(starvation_timeout_ms=2_000, starvation_placements=1),
        )
        self.made = 0

    def run(self) -> None:
        steps = (self.submit, self.submit, self.gang, self.release, self.release)
        rare = (self.cordon, self.uncordon, self.change_devices, self.restart)
        for _ in range(STEPS):
            self.random.choice(rare if self.random.random() < 0.2 else steps)()
            self.cluster.settle()
            self.cluster.check()
            self.check_devices()

    def spec(self, name: str) -> RequestSpec:
        requests = device_requests(self.random.choice(REQUESTS))
        if len(requests) > 1:
            required = self.random.random() < 0.5
            requests = tuple(
                replace(each, near="gpu", near_required=required, per_group=required)
                if each.type == "rdma"
                else each
                for each in requests
            )
        profile = ResourceProfile(1_000, 64 * MIB, devices=requests)
        return RequestSpec(name, profile, allow_pending=True, cpu_policy=self.policy())

    def policy(self) -> CpuPolicy:
        return self.random.choice(POLICIES)

    def submit(self) -> None:
        self.made += 1
        self.cluster.submit(self.spec(f"slot-{self.made}"))

    def gang(self) -> None:
        self.made += 1
        name = f"gang-{self.made}"
        members = [
            replace(self.spec(f"{name}-{number}"), gang_id=name)
            for number in range(self.random.randint(2, 4))
        ]
        placement = self.random.choice(
            [GangPlacement.ANYWHERE, GangPlacement.SAME_EXECUTOR, GangPlacement.SPREAD]
        )
        self.cluster.submit(*members, GangSpec(name, placement))

    def release(self) -> None:
        granted = [
            name
            for name, each in self.cluster.state.requests.items()
            if each.state is RequestState.GRANTED
        ]
        if granted:
            self.cluster.release(self.random.choice(granted))
        for name in self.cluster.waiting():
            assert explain(self.cluster.state, name).summary
            break

    def cordon(self) -> None:
        host, device = self.device()
        self.attempt(DeviceCordoned(self.cluster.at, host, device, "tried out"))

    def uncordon(self) -> None:
        host, device = self.device()
        self.attempt(DeviceUncordoned(self.cluster.at, host, device))

    def device(self) -> tuple[str, str]:
        name = self.random.choice(list(WHOLE))
        return name, self.random.choice(WHOLE[name].devices).uuid

    def attempt(self, event: DeviceCordoned | DeviceUncordoned) -> None:
        with suppress(NotFound):  # it has vanished
            self.cluster.apply(event)

    def change_devices(self) -> None:
        """Some devices vanish, or come back under other minor numbers."""
        name = self.random.choice(list(WHOLE))
        kept = [each for each in WHOLE[name].devices if self.random.random() < 0.8]
        minors = self.random.sample(range(100), len(kept))
        changed = tuple(replace(each, minor=at) for each, at in zip(kept, minors, strict=True))
        host = HostDevices(changed, WHOLE[name].links)
        self.cluster.register(with_devices(self.cluster.executors[name], host))

    def restart(self) -> None:
        self.cluster.restart()

    def check_devices(self) -> None:
        for name, executor in self.cluster.executors.items():
            used: dict[tuple[str, str], int] = {}
            for slot in executor.slots.values():
                for share in slot.assignment.devices if slot.assignment is not None else ():
                    for dimension, amount in share.amounts:
                        key = (share.uuid, dimension)
                        used[key] = used.get(key, 0) + amount
            for device in WHOLE[name].devices:
                for dimension, most in device.capacity:
                    assert used.get((device.uuid, dimension), 0) <= most


@pytest.mark.parametrize("seed", range(6))
def test_no_device_is_given_out_twice(seed: int) -> None:
    Life(seed).run()
