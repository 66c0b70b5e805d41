"""Converts the names of device resources in a request to device requests.

A request names resources: `gpu: 50` or `gpu-core: 60, gpu-memory: 4 GiB`. `device_requests` checks
these names and amounts. For each type of device, the function returns a `DeviceRequest` with the
number of devices and the amounts of each device.

Examples, in hundredths of a device unless noted:

    gpu 50                               half of one GPU: half of its compute and memory
    gpu 200, nvidia.com/gpu 2            two whole GPUs
    gpu-core 60, gpu-memory 4 GiB        one GPU: 60 % of the compute, 4 GiB of the memory
    gpu.shared 2, gpu-memory-ratio 100   two GPUs, half of the memory of each
    rdma 100, fpga 200                   one RDMA NIC, two FPGAs

Source: `ValidateDeviceRequest` of Koordinator's deviceshare. There are two differences from
Koordinator. If a request names only `gpu-core`, the memory is not limited. If the dimensions of a
request mean different numbers of GPUs, the request is rejected, because no host could ever serve
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from finegrain.devices.device import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    WHOLE,
    pairs,
)
from finegrain.devices.request import DeviceRequest
from finegrain.errors import InvalidArgument
from finegrain.units import format_bytes_exactly

GPU_SHARED: Final = "gpu.shared"
"""Number of GPUs over which the request spreads its other amounts."""

NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"

VENDOR_COUNTS: Final = {"nvidia.com/gpu": "nvidia", "amd.com/gpu": "amd", "dcu.com/gpu": "hygon"}
"""Names that count whole GPUs, with the vendor of these GPUs."""

MIG_PREFIX: Final = "mig-"
DEVICES_MAX: Final = 1_024
"""Maximum number of devices of one type in a request."""

_DOMAINS: Final = ("kubernetes.io/", "koordinator.sh/", "finegrain.io/")
_NVIDIA_MIG: Final = "nvidia.com/" + MIG_PREFIX
_TYPE: Final = re.compile(r"[a-z][a-z0-9_.-]{0,62}(/[a-z0-9][a-z0-9_.-]{0,62})?", re.ASCII)

_GPU_NAMES: Final = frozenset(
    {GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, NPU_CORE, NPU_CPU, NPU_DVPP}
) | frozenset(VENDOR_COUNTS)

_COMBINATIONS: Final = frozenset(
    {
        frozenset({GPU_CORE}),
        frozenset({GPU_MEMORY}),
        frozenset({GPU_MEMORY_RATIO}),
        frozenset({GPU_CORE, GPU_MEMORY}),
        frozenset({GPU_CORE, GPU_MEMORY_RATIO}),
        frozenset({NPU_CORE, GPU_MEMORY_RATIO}),
        frozenset({GPU_SHARED, GPU_MEMORY}),
        frozenset({GPU_SHARED, GPU_MEMORY_RATIO}),
        frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY}),
        frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO}),
        frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY}),
        frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY}),
    }
)
_ALLOWED: Final = (
    "gpu alone, or gpu-core, gpu-memory, gpu-memory-ratio, or gpu-core with one of the other two;"
    " gpu.shared may be added to a request with memory"
)


def device_requests(
    resources: Mapping[str, int], field: str = "devices"
) -> tuple[DeviceRequest, ...]:
    """Returns the device requests for the named resources, sorted by type.

    Args:
        resources: amounts by name: hundredths of a device, `gpu-memory` in bytes, names such as
            `nvidia.com/gpu` in whole devices. Zeros count as absent.
        field: path of `resources`, for errors.

    Raises:
        InvalidArgument: a name or amount is not allowed. Or no host could ever serve the request.
    """
    by_type: dict[str, dict[str, int]] = {}
    for name, given in resources.items():
        amount = given
        if amount < 0:
            raise InvalidArgument(f"{field}[{name}]", amount, "0 or more")
        if amount:
            known = _without_domain(name)
            # The amount is a number of instances, as for whole GPUs, and not in hundredths.
            if name.startswith(_NVIDIA_MIG):
                amount *= WHOLE
            type_ = GPU if known in _GPU_NAMES else known
            by_type.setdefault(type_, {})[known] = amount
    return tuple(
        _gpus(named, field) if type_ == GPU else _others(type_, named[type_], field)
        for type_, named in sorted(by_type.items())
    )


def resized_requests(
    has: Iterable[DeviceRequest], resources: Mapping[str, int], field: str = "devices"
) -> tuple[DeviceRequest, ...]:
    """Returns the device requests of a slot after a resize, sorted by type.

    The slot keeps its devices. A type or dimension that `resources` does not name stays unchanged.
    `gpu` sets compute and memory. Bytes of memory replace a ratio of memory, and a ratio replaces
    bytes. As in `device_requests`, an amount is the sum over all devices of the slot.

    Args:
        has: the present device requests of the slot.
        resources: new amounts by name.
        field: path of `resources`, for errors.

    Raises:
        InvalidArgument: a name or amount is not allowed.
    """
    named: dict[str, dict[str, int]] = {}
    for name, amount in resources.items():
        known = _without_domain(name)
        named.setdefault(GPU if known in _GPU_NAMES else known, {})[name] = amount
    found = {}
    for request in has:
        asked = named.pop(request.type, None)
        found[request.type] = request
        if asked is None:
            continue
        whole = _merged(request, asked) if request.type == GPU else asked
        for each in device_requests(whole, field):
            # The slot cannot get another number of devices. If the number changes, return the new
            # request unchanged. The resource manager then rejects it with an error.
            kept = each.count == request.count
            found[request.type] = replace(request, amounts=each.amounts) if kept else each
    others = {name: each for its in named.values() for name, each in its.items()}
    found |= {each.type: each for each in device_requests(others, field)}
    return tuple(found[type_] for type_ in sorted(found))


def _merged(request: DeviceRequest, asked: Mapping[str, int]) -> dict[str, int]:
    """Returns the amounts of a slot's GPUs, in which the new amounts replace present amounts."""
    known = {_without_domain(name): amount for name, amount in asked.items()}
    if not known.keys() <= {GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO}:
        return dict(asked)
    kept = dict(request.totals)
    for one, other in ((GPU_MEMORY, GPU_MEMORY_RATIO), (GPU_MEMORY_RATIO, GPU_MEMORY)):
        if one in known and other not in known:
            kept.pop(other, None)
    merged = kept | known
    spread = request.count > 1 and (GPU_MEMORY in merged or GPU_MEMORY_RATIO in merged)
    return merged | {GPU_SHARED: request.count} if spread else merged


def is_dimension(name: str) -> bool:
    """Returns True if slots can book amounts of this name: a type of device, or a dimension of
    GPUs.
    """
    if name in (GPU, GPU_SHARED, *VENDOR_COUNTS):
        return False
    return bool(_TYPE.fullmatch(name))


def near_gpus(requests: Iterable[DeviceRequest]) -> tuple[str, ...]:
    """Returns the types of devices that are chosen near to the GPUs of a request by default."""
    types = {request.type for request in requests}
    return (RDMA,) if {GPU, RDMA} <= types else ()


def _without_domain(name: str) -> str:
    # Remove the domain, which only names the vendor. Keep the profile of a MIG instance, because
    # each profile is a separate type of device.
    if name.startswith(_NVIDIA_MIG):
        return name.removeprefix("nvidia.com/")
    for domain in _DOMAINS:
        if name.startswith(domain):
            return name.removeprefix(domain)
    return name


def _others(type_: str, amount: int, field: str) -> DeviceRequest:
    where = f"{field}[{type_}]"
    if not _TYPE.fullmatch(type_):
        raise InvalidArgument(
            f"{field} of a device type",
            type_,
            "lower-case letters, digits, and _ . - /, beginning with a letter",
        )
    _check_unit(where, amount)
    if type_.startswith(MIG_PREFIX) and amount % WHOLE:
        expected = f"a multiple of {WHOLE}: a slot gets only whole MIG instances"
        raise InvalidArgument(where, amount, expected)
    count = max(amount // WHOLE, 1)
    return DeviceRequest(type_, count, ((type_, amount // count),))


def _check_unit(field: str, amount: int) -> None:
    if amount > WHOLE and amount % WHOLE:
        below = amount // WHOLE * WHOLE
        raise InvalidArgument(
            field,
            amount,
            f"at most {WHOLE} (a share of one device) or a multiple of it; the nearest are {below}"
            f" and {below + WHOLE}",
        )
    if amount > DEVICES_MAX * WHOLE:
        raise InvalidArgument(field, amount, f"at most {DEVICES_MAX} devices")


def _gpus(named: dict[str, int], field: str) -> DeviceRequest:
    names, vendor = frozenset(named), ""
    where = f"{field}[{', '.join(sorted(named))}]"
    counts = names & frozenset(VENDOR_COUNTS)
    if len(names) == 1 and (counts or GPU in names):
        (name,) = names
        amount = named[name] * WHOLE if counts else named[name]
        _check_unit(f"{field}[{name}]", amount)
        vendor = VENDOR_COUNTS.get(name, "")
        count = max(amount // WHOLE, 1)
        share = amount // count
        return DeviceRequest(
            GPU, count, pairs({GPU_CORE: share, GPU_MEMORY_RATIO: share}), vendor=vendor
        )
    if names not in _COMBINATIONS:
        raise InvalidArgument(where, _shown(named), _ALLOWED)
    shared = named.get(GPU_SHARED, 0)
    count = _count_over(named, shared, field) if shared else _count_of(named, field)
    amounts = {name: amount // count for name, amount in named.items() if name != GPU_SHARED}
    if not all(amounts.values()):
        raise InvalidArgument(
            where, _shown(named), f"at least 1 of each resource per GPU ({count} GPUs)"
        )
    return DeviceRequest(GPU, count, pairs(amounts))


def _count_over(named: dict[str, int], shared: int, field: str) -> int:
    """Returns the number of GPUs over which a request spreads its amounts."""
    if shared > DEVICES_MAX:
        raise InvalidArgument(f"{field}[{GPU_SHARED}]", shared, f"at most {DEVICES_MAX} GPUs")
    if NPU_CORE in named:
        if shared > 1:
            raise InvalidArgument(f"{field}[{GPU_SHARED}]", shared, "1 with slices of an NPU")
        if named.get(NPU_DVPP, 0) > WHOLE:
            raise InvalidArgument(f"{field}[{NPU_DVPP}]", named[NPU_DVPP], f"at most {WHOLE}")
    for name in (GPU_CORE, GPU_MEMORY_RATIO):
        amount = named.get(name, 0)
        if amount % shared or amount > WHOLE * shared:
            nearest = min(max(-(-amount // shared), 1), WHOLE) * shared
            raise InvalidArgument(
                f"{field}[{name}]",
                amount,
                f"a multiple of {GPU_SHARED} ({shared}), at most {WHOLE} for each GPU; the nearest"
                f" is {nearest}",
            )
    return shared


def _count_of(named: dict[str, int], field: str) -> int:
    """Returns the number of GPUs that the amounts mean.

    Raises:
        InvalidArgument: the amounts mean different numbers of GPUs.
    """
    core, ratio = named.get(GPU_CORE, 0), named.get(GPU_MEMORY_RATIO, 0)
    for name in (GPU_CORE, GPU_MEMORY_RATIO):
        _check_unit(f"{field}[{name}]", named.get(name, 0))
    by_core, by_ratio = max(core // WHOLE, 1), max(ratio // WHOLE, 1)
    if GPU_MEMORY in named and by_core > 1:
        memory = format_bytes_exactly(named[GPU_MEMORY])
        raise InvalidArgument(
            f"{field}[{GPU_CORE}]",
            core,
            f"at most {WHOLE} with {GPU_MEMORY} {memory}, which is on one GPU; for {by_core} GPUs"
            f" with that much together, add {GPU_SHARED} {by_core}",
        )
    if core and ratio and by_core != by_ratio:
        count = max(by_core, by_ratio)
        raise InvalidArgument(
            f"{field}[{GPU_CORE}, {GPU_MEMORY_RATIO}]",
            f"{core}, {ratio}",
            f"the same number of GPUs in both; the nearest is {GPU_CORE} {count * WHOLE} and"
            f" {GPU_MEMORY_RATIO} {count * WHOLE}, or {GPU_SHARED} {count} for parts of {count}"
            " GPUs",
        )
    return by_ratio if ratio else by_core


def _shown(named: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(named.items()))
