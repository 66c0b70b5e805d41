"""Checks whether the devices of a host are suitable for a slot.

A sum of free capacity is not enough. Example: a host with four half-used GPUs has 200 hundredths of
a GPU free, but no slot can get a whole GPU. So this constraint checks each device, with the code
that chooses devices for slots (`devices/choose.py`). Another constraint, `CpusSuit`, checks whether
devices, cpus and memory can be on the same NUMA nodes, because `CpusSuit` assigns devices, cpus and
memory together.

This constraint tries three kinds of remedies with the same code: fewer devices, a smaller share, or
fewer conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from finegrain.devices.device import GPU_MEMORY, WHOLE, pairs
from finegrain.devices.request import DeviceRequest
from finegrain.resources import DEVICE_PREFIX, Amounts
from finegrain.values.explanations import Dimension
from resource_manager.engine.devices.choose import choose_devices
from resource_manager.engine.devices.layout import NO_LAYOUT
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.refusals import DeviceBlocker
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.texts import amounts_text
from resource_manager.engine.placement.constraint import (
    MILLION,
    NO_OBSTACLE,
    Blocker,
    Constraint,
    HostView,
    Obstacle,
    Remedy,
)

WHOLE_DEVICES = "whole."
"""Prefix of index columns: the number of devices on which a dimension is completely free."""

MOST_LEFT = "most."
"""Prefix of index columns: the largest free amount of a dimension on one device."""

FEWER_TRIED_MAX = 8
"""The largest number of lower device counts that are tried on one host."""

_WITHOUT_DEVICES = DeviceLedger(NO_LAYOUT)


class DevicesSuit(Constraint):
    """The host has suitable devices for a slot."""

    of_size = True
    costly = True
    has_columns = True
    column_prefixes = (WHOLE_DEVICES, MOST_LEFT)
    remedies_sought_on = 3

    def applies(self, request: ResourceRequest) -> bool:
        """See `Constraint`."""
        return bool(_devices(request))

    def needs(self, request: ResourceRequest, *, separate_pools: bool) -> dict[str, int]:
        """See `Constraint`."""
        found: dict[str, int] = {}
        for each in _devices(request):
            count = 1 if each.every else each.count
            for name, amount in each.amounts:
                # Each dimension has its own column, because a slot can use only the memory of a
                # GPU, and leave the compute of the GPU completely free.
                if amount == WHOLE and name != GPU_MEMORY:
                    found[WHOLE_DEVICES + name] = count
                else:
                    found[MOST_LEFT + name] = amount
        return found

    def offers(self, at: HostView) -> dict[str, int]:
        """See `Constraint`."""
        found: dict[str, int] = {}
        ledger = _ledger(at)
        for position in range(len(ledger.layout.devices)):
            for dimension, amount in ledger.free(position).items():
                most, whole = MOST_LEFT + dimension, WHOLE_DEVICES + dimension
                found[most] = max(found.get(most, 0), amount)
                if dimension != GPU_MEMORY:
                    found[whole] = found.get(whole, 0) + (amount >= WHOLE)
        return found

    def matters_on(self, host: Host, request: ResourceRequest) -> bool:
        """See `Constraint`."""
        return self.applies(request)

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        requests = _devices(request)
        if not requests:
            return NO_OBSTACLE
        found = choose_devices(_ledger(at), requests)
        if not isinstance(found, HostRefusal):
            return NO_OBSTACLE
        return (Obstacle(self, Blocker.DEVICES, not found.lasting, 1, host_refusal=found),)

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """See `Constraint`."""
        refusal = obstacle.host_refusal
        return f"{refusal.blocker}: {refusal.text}" if refusal is not None else ""

    def remedies(
        self, request: ResourceRequest, at: HostView, settings: EngineSettings
    ) -> Iterator[Remedy]:
        """Yields changes of the request. Each change is sufficient by itself."""
        ledger, requests = _ledger(at), _devices(request)
        for number, each in enumerate(requests):
            for changed, remedy in _changes(ledger, each):
                trial = (*requests[:number], changed, *requests[number + 1 :])
                if not isinstance(choose_devices(ledger, trial), HostRefusal):
                    yield remedy
                    break


DEVICES = DevicesSuit()


def is_about_devices(refusal: HostRefusal) -> bool:
    """Returns True if a host refused a slot because of the host's devices."""
    return isinstance(refusal.blocker, DeviceBlocker)


def _devices(request: ResourceRequest) -> tuple[DeviceRequest, ...]:
    return request.profile.devices if request.profile is not None else ()


def _ledger(at: HostView) -> DeviceLedger:
    ledger = at.cpus()
    return ledger.devices if ledger is not None else _WITHOUT_DEVICES


def _changes(
    ledger: DeviceLedger, request: DeviceRequest
) -> Iterator[tuple[DeviceRequest, Remedy]]:
    """Yields requests that are easier to serve, each with a remedy that describes the change. The
    smallest changes come first.
    """
    # Dropping a condition counts as a smaller change than lowering an amount.
    if request.near_required:
        text = f"if {request.type} devices were preferred near {request.near}, not required"
        yield replace(request, near_required=False), Remedy(1, text, relaxed=("near",))
    if request.scope:
        text = f"if its {request.type} devices need not be at one {request.scope}"
        yield replace(request, scope=""), Remedy(2, text, relaxed=("scope",))
    if request.isolation:
        names = " and ".join(name for name, _ in request.isolation)
        text = f"without the required level of enforcement of {names}"
        yield replace(request, isolation=()), Remedy(3, text, relaxed=("isolation",))
    if request.model or request.selector or request.vendor:
        free = replace(request, model="", selector=(), vendor="")
        yield free, Remedy(MILLION, f"with any {request.type}", relaxed=("device",))
    if request.is_shared and (smaller := _smaller_share(ledger, request)) is not None:
        yield smaller, _at_most(request, smaller)
    for count in range(request.count - 1, max(request.count - 1 - FEWER_TRIED_MAX, 0), -1):
        fewer = replace(request, count=count)
        yield fewer, _at_most(request, fewer)


def _smaller_share(ledger: DeviceLedger, request: DeviceRequest) -> DeviceRequest | None:
    """Finds the device on which the largest part of the request is free. Returns the request with
    its amounts lowered to the free capacity of this device. Returns None if no amount would be
    lower, or if an amount would become 0.
    """
    amounts = dict(request.amounts)

    def part(free: Mapping[str, int]) -> int:
        return min(min(free.get(name, 0), each) * MILLION // each for name, each in amounts.items())

    accepted = ledger.layout.accepted(request)
    best = max((ledger.free(at) for at in accepted), key=part, default={})
    left = {name: min(best.get(name, 0), each) for name, each in amounts.items()}
    if left == amounts or not all(left.values()):
        return None
    return replace(request, amounts=pairs(left))


def _at_most(request: DeviceRequest, smaller: DeviceRequest) -> Remedy:
    before, after = dict(request.totals), dict(smaller.totals)
    lower = tuple(
        Dimension(DEVICE_PREFIX + name, before[name], amount, amount, amount)
        for name, amount in after.items()
        if amount != before[name]
    )
    size = max((each.asked - each.free) * MILLION // each.asked for each in lower)
    if request.is_shared:
        text = amounts_text({each.dimension: each.free for each in lower})
    else:
        text = f"{after[lower[0].dimension.removeprefix(DEVICE_PREFIX)] // WHOLE} {request.type}"
    return Remedy(size, f"with at most {text}", lower)
