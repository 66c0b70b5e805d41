"""Makes the refusals of hosts that cannot give a slot its devices: a code, numbers, and a sentence
for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from finegrain.devices.device import GPU, GPU_MEMORY, WHOLE
from finegrain.devices.request import DeviceRequest
from finegrain.units import format_bytes_exactly
from resource_manager.engine.devices.layout import DeviceLayout
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.model.host_refusal import HostBlocker, HostRefusal


class DeviceBlocker(HostBlocker):
    """The reason why a host refuses a slot. Reasons of the first group do not change while request
    and host are the same. Reasons of the second group can disappear when other slots end or devices
    recover.
    """

    # the host has no devices of the type that meet the conditions
    NO_SUCH_DEVICE = "NO_SUCH_DEVICE"
    # too few devices would be large enough even if all devices were free
    DEVICE_TOO_SMALL = "DEVICE_TOO_SMALL"
    PARTITION_UNSUPPORTED = "PARTITION_UNSUPPORTED"  # no partition has this number of GPUs

    DEVICE_NOT_ENOUGH = "DEVICE_NOT_ENOUGH"  # too few devices have enough free capacity
    # too few devices get new slots, because devices are unhealthy or cordoned
    DEVICE_UNUSABLE = "DEVICE_UNUSABLE"
    # too few devices get new slots, because pods or processes outside slots use them
    FOREIGN_USE = "FOREIGN_USE"
    # there are no free devices at the PCIe groups of the slot's other devices
    DEVICES_NOT_NEAR = "DEVICES_NOT_NEAR"
    DEVICES_SPREAD = "DEVICES_SPREAD"  # the free devices are not at one NUMA node or PCIe group
    PARTITION_IN_USE = "PARTITION_IN_USE"  # no partition is completely free

    @property
    def lasting(self) -> bool:
        """See `HostBlocker`."""
        return self in _LASTING


_LASTING = frozenset(
    (
        DeviceBlocker.NO_SUCH_DEVICE,
        DeviceBlocker.DEVICE_TOO_SMALL,
        DeviceBlocker.PARTITION_UNSUPPORTED,
    )
)


def shortage(
    ledger: DeviceLedger,
    request: DeviceRequest,
    allowed: Sequence[int],
    suited: Sequence[int],
) -> HostRefusal:
    """Returns the refusal for a request for which too few devices have enough free capacity. The
    text names the device that lacks the smallest part of the request.

    Args:
        ledger: the device ledger of the host.
        request: the requested devices.
        allowed: positions of the devices that meet the conditions of the request.
        suited: positions of the devices with enough free capacity.
    """
    layout = ledger.layout
    need = f"needs {_requested(request)}"
    if len(allowed) < request.count:
        count = len(allowed)
        has = f"{count or 'no'}{_kind(request, count)}"
        return HostRefusal(
            DeviceBlocker.NO_SUCH_DEVICE,
            f"{need}, but the host has {has}{_levels(layout, request)}",
            (("asked", request.count), ("there", len(allowed))),
        )
    amounts = dict(request.amounts)
    large = [
        at
        for at in allowed
        if all(amount <= layout.totals[at].get(name, 0) for name, amount in amounts.items())
        and not (layout.devices[at].whole_only and request.is_shared)
    ]
    numbers = (("asked", request.count), ("free", len(suited)))
    if len(large) < request.count:
        at = max(allowed, key=lambda each: (_covered(amounts, layout.totals[each]), -each))
        name = _scarcest(amounts, layout.totals[at])
        text = f"{layout.devices[at].name} has {_amount(name, layout.totals[at].get(name, 0))}"
        if not name:
            text = f"{layout.devices[at].name} can only be used whole"
        return HostRefusal(DeviceBlocker.DEVICE_TOO_SMALL, f"{need}, but {text}", numbers)
    usable = [at for at in large if not ledger.problem(at)]
    if len(usable) < request.count:
        bad = next(at for at in large if ledger.problem(at))
        is_foreign = ledger.is_foreign(bad)
        return HostRefusal(
            DeviceBlocker.FOREIGN_USE if is_foreign else DeviceBlocker.DEVICE_UNUSABLE,
            f"{need}, but {len(usable)} may get new slots"
            f" ({layout.devices[bad].name}: {ledger.problem(bad)})",
            numbers,
        )
    short = [at for at in usable if at not in suited]
    # Enough devices have enough free amounts, so free virtual functions are missing.
    if not short or len(suited) >= request.count:
        text = f"{need} with a free virtual function each"
        return HostRefusal(DeviceBlocker.DEVICE_NOT_ENOUGH, f"{text}, but too few have one")
    at = max(short, key=lambda each: (_covered(amounts, ledger.free(each)), -each))
    free = ledger.free(at)
    name = _scarcest(amounts, free)
    lack = amounts.get(name, 0) - free.get(name, 0)
    there, total = (_number(name, each.get(name, 0)) for each in (free, layout.totals[at]))
    return HostRefusal(
        DeviceBlocker.DEVICE_NOT_ENOUGH,
        f"{need}, but {len(suited)} of {len(usable)} have enough free capacity;"
        f" {layout.devices[at].name} is nearest, short by {_amount(name, lack)}"
        f" (free {there}, total {total})",
        (*numbers, ("short by", lack)),
    )


def _covered(amounts: Mapping[str, int], has: Mapping[str, int]) -> int:
    """Returns the part of the requested amounts that a device has, in millionths. Of all
    dimensions, the dimension with the smallest part counts.
    """
    return min(
        (min(has.get(name, 0), amount) * 1_000_000 // amount for name, amount in amounts.items()),
        default=0,
    )


def _scarcest(amounts: Mapping[str, int], has: Mapping[str, int]) -> str:
    """Returns the dimension of which a device has the smallest part of the requested amount. The
    result is empty if the device has enough of each dimension.
    """
    short = [name for name, amount in amounts.items() if has.get(name, 0) < amount]
    return min(short, key=lambda name: has.get(name, 0) * 1_000_000 // amounts[name], default="")


def _requested(request: DeviceRequest) -> str:
    parts = [_amount(name, amount) for name, amount in request.amounts]
    whole = all(amount == WHOLE for name, amount in request.amounts if name != GPU_MEMORY)
    share = "" if whole and not request.is_shared else f" with {' and '.join(parts)}"
    each = " each" if share and request.count > 1 else ""
    number = 1 if request.every else request.count
    count = "every" if request.every else str(number)
    return f"{count}{_kind(request, number)}{share}{each}"


def _levels(layout: DeviceLayout, request: DeviceRequest) -> str:
    """Describes how strictly other devices of the host enforce the dimensions for which the request
    requires a level of enforcement. The result is empty if the request requires no level or the
    host has no other devices.
    """
    if not request.isolation:
        return ""
    others = [layout.devices[at] for at in layout.accepted(replace(request, isolation=()))]
    offered = [
        f"{name}: {' or '.join(sorted({request.level_on(each, name) for each in others}))}"
        for name, _ in request.isolation
    ]
    return f"; others have {', '.join(offered)}" if others else ""


def _kind(request: DeviceRequest, count: int) -> str:
    words = [word for word in (request.vendor, request.model) if word]
    chosen = [
        f"{rule.name} {'not ' if rule.excluded else ''}in {', '.join(rule.values)}"
        for rule in request.selector
    ]
    chosen += [f"{name} enforced by {level}" for name, level in request.isolation]
    where = f" with {' and '.join(chosen)}" if chosen else ""
    name = "GPU" if request.type == GPU else request.type
    if count != 1:
        name = "GPUs" if request.type == GPU else f"{request.type} devices"
    return f" {' '.join([*words, name])}{where}"


def _amount(name: str, amount: int) -> str:
    return f"{_number(name, amount)} {name}"


def _number(name: str, amount: int) -> str:
    return format_bytes_exactly(amount) if name == GPU_MEMORY else str(amount)
