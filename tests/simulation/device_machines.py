"""Devices of simulated hosts, and requests for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from random import Random

from finegrain.devices.device import (
    GPU,
    RDMA,
    WHOLE,
    Device,
    DeviceLink,
    HostDevices,
    Partition,
    VirtualFunction,
)
from finegrain.devices.names import device_requests
from finegrain.devices.parking import ANY_GPU, SAME_GPU
from finegrain.devices.request import DeviceRequest
from finegrain.resources import DEVICE_PREFIX, GIB, MIB, Amounts, ResourceProfile, total_of_devices
from resource_manager.engine.model.entities import RequestSpec
from tests.support.devices import made_up

MIG = "mig-1g.10gb"
GPU_MEMORY_BYTES = 8 * GIB
WITHOUT_DEVICES = 0.15
WITH_REQUEST = 0.7

RESOURCES: tuple[dict[str, int], ...] = (
    {"gpu": 50},
    {"gpu": 50},
    {"gpu": 30},
    {"gpu": 100},
    {"gpu": 100},
    {"gpu": 200},
    {"gpu": 400},
    {"gpu-core": 30, "gpu-memory": 2 * GIB},
    {"gpu-core": 100},
    {"gpu-core": 20},
    {"gpu-memory-ratio": 60},
    {"gpu.shared": 2, "gpu-memory-ratio": 100},
    {"gpu": 100, "rdma": 100},
    {"gpu": 50, "rdma": 10},
    {"rdma": 1},
    {MIG: 100},
)
SHARES = (
    (("gpu-core", 20),),
    (("gpu-core", 30), ("gpu-memory-ratio", 30)),
    (("gpu-core", 70), ("gpu-memory", 3 * GIB)),
    (("gpu-core", 100), ("gpu-memory-ratio", 100)),
    (("gpu-memory", 9 * GIB),),  # more than a GPU has
)
"""Shares of each GPU that slots may have after a resize."""

SLOT = ResourceProfile(250, 64 * MIB)
"""Small in all other dimensions, so that devices decide."""


def some_devices(rng: Random, name: str, nodes: int) -> HostDevices:
    """Draws the devices of a host: GPUs, NICs, and instances of a GPU in MIG mode.

    Args:
        rng: source of randomness.
        name: name of the host. UUIDs begin with this name.
        nodes: number of its NUMA nodes.
    """
    if rng.random() < WITHOUT_DEVICES:
        return HostDevices()
    gpus, nics = rng.choice((1, 1, 2, 2, 3, 4)), rng.choice((0, 0, 1, 2))
    made = made_up(
        gpus,
        nodes=nodes,
        memory_bytes=GPU_MEMORY_BYTES,
        nics=nics,
        in_pairs=rng.random() < 0.5,
    )
    devices = [replace(each, uuid=f"{name}-{each.uuid}") for each in made.devices]
    if rng.random() < 0.5:
        devices = [_with_functions(each) if each.type == RDMA else each for each in devices]
    if rng.random() < 0.25:
        devices += [
            Device(MIG, f"{name}-MIG-{at}", at, ((MIG, WHOLE),), numa_node=0, whole_only=True)
            for at in range(2)
        ]
    links = [
        DeviceLink(f"{name}-{each.first_uuid}", f"{name}-{each.second_uuid}", each.lanes)
        for each in made.links
    ]
    pairs = gpus >= 2 and rng.random() < 0.2
    partitions = tuple(Partition((at, at + 1)) for at in range(0, gpus - 1, 2)) if pairs else ()
    only = pairs and rng.random() < 0.5
    return HostDevices(tuple(devices), tuple(links), partitions, only)


def _with_functions(nic: Device) -> Device:
    functions = tuple(VirtualFunction(f"{nic.uuid}-vf{at}") for at in range(2))
    return replace(nic, functions=functions)


def with_parking(rng: Random, host: HostDevices) -> HostDevices:
    """Returns the devices. Each now says how slots on its GPUs can be parked."""
    mode = rng.choice((SAME_GPU, ANY_GPU))
    return replace(
        host,
        devices=tuple(
            replace(each, parking=mode) if each.type == GPU else each for each in host.devices
        ),
    )


def renumbered(rng: Random, host: HostDevices) -> HostDevices:
    """Returns the devices under other minor numbers. Partitions follow the GPUs."""
    minors = rng.sample(range(len(host.devices) + 1), len(host.devices))
    changed = tuple(replace(each, minor=at) for each, at in zip(host.devices, minors, strict=True))
    minor_of = {
        old.minor: new.minor
        for old, new in zip(host.devices, changed, strict=True)
        if old.type == GPU
    }
    partitions = tuple(
        replace(each, minors=tuple(minor_of[at] for at in each.minors)) for each in host.partitions
    )
    return replace(host, devices=changed, partitions=partitions)


def detected(
    host: HostDevices, absent: Collection[str], problems: Mapping[str, str]
) -> HostDevices:
    """Returns what an executor finds: devices by UUID may be absent, or have problems."""
    devices = tuple(
        replace(each, problem=problems.get(each.uuid, ""))
        for each in host.devices
        if each.uuid not in absent
    )
    return replace(host, devices=devices)


def total_with(total: Amounts, host: HostDevices) -> dict[str, int]:
    """Returns a host's total with these devices, instead of those that it had."""
    others = {name: each for name, each in total.items() if not name.startswith(DEVICE_PREFIX)}
    return others | total_of_devices(host.devices)


def with_devices(rng: Random, spec: RequestSpec) -> RequestSpec:
    """Returns the request, with or without devices."""
    if spec.profile is None or rng.random() > WITH_REQUEST:
        return spec
    requests = device_requests(rng.choice(RESOURCES))
    near = rng.random()
    requests = tuple(
        _near_gpus(each, near) if len(requests) > 1 and each.type == RDMA else each
        for each in requests
    )
    if rng.random() < 0.3:
        requests = tuple(
            replace(each, functions=()) if each.type == RDMA else each for each in requests
        )
    # Slots with dedicated cpus do not change.
    plain = spec.cpu_policy.qos.is_pinned or spec.cpu_limit_milli
    base = spec.profile if plain else SLOT
    return replace(
        spec,
        profile=replace(base, devices=requests),
        restart_on_device_loss=rng.random() < 0.5,
    )


def with_other_shares(
    rng: Random, requests: tuple[DeviceRequest, ...]
) -> tuple[DeviceRequest, ...]:
    """Returns another share of a slot's devices, for a resize."""
    # Compute alone cannot be spread over several GPUs.
    return tuple(
        replace(each, amounts=rng.choice(SHARES[each.count > 1 :])) if each.type == GPU else each
        for each in requests
    )


def _near_gpus(request: DeviceRequest, chance: float) -> DeviceRequest:
    required = chance < 0.3
    return replace(request, near=GPU, near_required=required, per_group=chance < 0.6)
