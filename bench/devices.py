"""Measures the placement of slots with GPUs, and how fast a gang that cannot fit is refused.

    python -m bench.devices [--hosts 500] [--gpus 8] [--profile]

Every host has the same GPUs, and a NIC for each pair of GPUs; 16 hosts are a rack. The benchmark
uses no database and no network, and prints the CPU time of this process.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time

from bench.pinned import AT, announced, topology
from finegrain.devices.device import GPU, RDMA, Device, HostDevices
from finegrain.devices.names import device_requests
from finegrain.resources import GIB, MIB, ResourceProfile, total_of_devices
from finegrain.values.states import GangPlacement
from resource_manager.engine.model.entities import GangSpec, Registration, RequestSpec
from resource_manager.engine.model.events import (
    Decide,
    Event,
    ExecutorRegistered,
    JobRegistered,
    RequestsSubmitted,
)
from resource_manager.engine.model.reported import Report
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import fresh
from resource_manager.engine.state import State
from resource_manager.engine.step import step

HOSTS_PER_RACK = 16


def host_devices(gpus: int) -> HostDevices:
    """Returns GPUs with 80 GiB each, half of them on each NUMA node."""
    whole = (("gpu-core", 100), ("gpu-memory", 80 * GIB), ("gpu-memory-ratio", 100))
    cards = [
        Device(GPU, f"GPU-{at}", at, whole, numa_node=at * 2 // gpus, pcie_group=f"p{at // 2}")
        for at in range(gpus)
    ]
    nics = [
        Device(RDMA, f"nic-{at}", at, ((RDMA, 100),), numa_node=at * 4 // gpus, pcie_group=f"p{at}")
        for at in range(gpus // 2)
    ]
    return HostDevices((*cards, *nics))


def described(devices: HostDevices) -> str:
    """Returns a topology with devices, as the text that a registration stores."""
    data = json.loads(topology())
    data["devices"] = [
        {
            "kind": each.type,
            "uuid": each.uuid,
            "minor": each.minor,
            "capacity": dict(each.capacity),
            "numa_node_id": each.numa_node,
            "pcie_group": each.pcie_group,
        }
        for each in devices.devices
    ]
    return json.dumps(data)


class DeviceBench:
    """Runs the engine of a resource manager whose hosts have GPUs."""

    def __init__(self, hosts: int, gpus: int) -> None:
        self.state: State = fresh(EngineSettings(), 1, AT)
        devices = host_devices(gpus)
        text = described(devices)
        total = {"cpu_milli": 32_000, "memory_bytes": 128 * GIB}
        total |= total_of_devices(devices.devices)
        for number in range(hosts):
            registration = Registration(
                executor_id=f"host-{number:04}",
                instance_id=f"instance-{number}",
                address=f"host-{number}:1",
                total=total,
                reserved={},
                default_profile=ResourceProfile(1_000, GIB),
                labels=(("rack", f"r{number // HOSTS_PER_RACK}"),),
                topology=text,
                host_cpus=announced(strict=False),
            )
            self.apply(ExecutorRegistered(AT, registration, Report(1, 0, 0, available=total)))
        self.apply(JobRegistered(AT, "job", "job", "default", None, "s", "r"))

    def apply(self, *events: Event) -> float:
        """Applies events and decides until no work is left; returns the CPU time in ms."""
        started = time.process_time()
        for event in events:
            step(self.state, event)
        while True:
            step(self.state, Decide(AT))
            self.state.changes.take()
            if not self.state.unfinished:
                return (time.process_time() - started) * 1e3


def spec(name: str, gpu_percent: int, gang: str = "") -> RequestSpec:
    devices = device_requests({"gpu": gpu_percent})
    profile = ResourceProfile(1_000, 256 * MIB, devices=devices)
    return RequestSpec(name, profile, gang_id=gang, allow_pending=True)


def run(hosts: int, gpus: int) -> None:
    print(f"{hosts} hosts with {gpus} GPUs")
    count = hosts * gpus
    for title, each, number in (
        ("whole GPUs, one each", 100, count),
        ("halves of GPUs", 50, count),
        ("pairs of GPUs", 200, count // 2),
    ):
        bench = DeviceBench(hosts, gpus)
        requests = tuple(spec(f"s{at}", each) for at in range(number))
        ms = bench.apply(RequestsSubmitted(AT, "job", requests))
        placed = len(bench.state.slots)
        print(f"  {title:<44}{ms:>9.0f} ms  {placed} slots, {ms / placed * 1e3:.0f} us each")
    bench = DeviceBench(hosts, gpus)
    # Place slots on every host, so that no rack has enough free GPUs.
    fill = tuple(spec(f"s{at}", 100) for at in range(hosts * (gpus - 4)))
    bench.apply(RequestsSubmitted(AT, "job", fill))
    members = tuple(spec(f"g{at}", 100 * gpus, gang="gang") for at in range(80 // gpus))
    gang = GangSpec("gang", GangPlacement.SAME_LABEL, "rack")
    ms = bench.apply(RequestsSubmitted(AT, "job", members, gangs=(gang,)))
    print(f"  refusal of a gang with 80 GPUs in one rack{ms:>6.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.devices")
    parser.add_argument("--hosts", type=int, default=500)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="print a profile")
    options = parser.parse_args()
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    run(options.hosts, options.gpus)
    if options.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
