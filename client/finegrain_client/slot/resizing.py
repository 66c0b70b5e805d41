"""Computes resizes of a slot: the change to make, and its outcome.

A `SizeChange` names some amounts, but the protocol needs the whole size, which this module
computes. This module also derives from each reported state of the slot whether a change is done or
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from finegrain.devices.names import resized_requests
from finegrain.devices.parking import has_gpus, without_gpus
from finegrain.devices.request import DeviceRequest
from finegrain.errors import InvalidArgument, Reason
from finegrain.resources import ResourceProfile, extended_items
from finegrain.rpc.wire_devices import requests_to_proto
from finegrain.v1 import cluster_pb2, resources_pb2
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.values.bounds import AMOUNT_MAX
from finegrain_client.connection import Connection
from finegrain_client.decoding import read
from finegrain_client.errors import ResizeRefused
from finegrain_client.types.status import RequestStatus, SlotStatus

TRIES_MAX = 5
"""Maximum number of tries of a change. A try fails if another client has requested a change
meanwhile.
"""

FORGOTTEN = (
    "the resource manager's database was restored from a backup that does not contain it; request "
    "it again"
)
"""Text of the error if the resource manager has acknowledged a change and does not know this change
any more.
"""

_PARTS = {
    "cpu_milli": "cpu_milli",
    "memory_bytes": "task_heap_memory_bytes",
    "task_off_heap_memory_bytes": "task_off_heap_memory_bytes",
    "managed_memory_bytes": "managed_memory_bytes",
    "network_memory_bytes": "network_memory_bytes",
}
"""Maps each field of `SizeChange` to the field of `ResourceProfile`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """The amounts to change. An amount that is None stays unchanged.

    Attributes:
        cpu_milli: guaranteed CPU in thousandths of a core.
        memory_bytes: task heap memory, as in `SlotSpec`. The other parts of memory stay unchanged.
        extended: countable resources by name. 0 removes a resource. Resources that are not named
            stay unchanged.
        devices: new amounts of the slot's devices, by name of the resource, as in `SlotSpec`.
            Amounts that are not named stay unchanged. `gpu` sets `gpu-core` and `gpu-memory-ratio`.
            An amount is the sum over all devices of the slot. The slot keeps its devices.
        cpu_limit_milli: CPU limit above the guaranteed CPU; 0 means that it is equal to the
            guaranteed CPU. With None, a limit above the old guaranteed CPU stays, but is raised to
            the new guaranteed CPU if the new guaranteed CPU is higher.
        device_requests: all devices that the slot has after the change. Only `parking_change` sets
            this.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    task_off_heap_memory_bytes: int | None = None
    managed_memory_bytes: int | None = None
    network_memory_bytes: int | None = None
    extended: Mapping[str, int] | None = None
    devices: Mapping[str, int] | None = None
    cpu_limit_milli: int | None = None
    device_requests: tuple[DeviceRequest, ...] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "device_requests":
                continue
            amounts = value if isinstance(value, Mapping) else {"": value}
            for name, amount in amounts.items():
                if amount is None or (type(amount) is int and 0 <= amount <= AMOUNT_MAX):
                    continue
                where = f"{each.name}[{name!r}]" if name else each.name
                expected = f"an integer from 0 to {AMOUNT_MAX} (half a core is cpu_milli=500)"
                raise InvalidArgument(where, amount, expected)
        if all(getattr(self, each.name) is None for each in fields(self)):
            raise InvalidArgument("resize", "no amount", "at least one amount to change")

    def applied_to(
        self, profile: ResourceProfile, cpu_limit_milli: int
    ) -> tuple[ResourceProfile, int]:
        """Returns the whole size and CPU limit that result from the given size and limit."""
        named = {
            part: value
            for name, part in _PARTS.items()
            if (value := getattr(self, name)) is not None
        }
        extended = dict(profile.extended) | dict(self.extended or {})
        whole = replace(
            profile,
            **named,
            extended=extended_items(extended),
            devices=self._devices(profile.devices),
        )
        limit = self.cpu_limit_milli
        if limit is None:
            # If the limit equals the guaranteed CPU, no limit was set, so let the limit follow the
            # guaranteed CPU.
            had_one = cpu_limit_milli > profile.cpu_milli
            limit = cpu_limit_milli if had_one else 0
            # Raise the limit, because a limit below the new guaranteed CPU would be rejected.
            limit = max(limit, whole.cpu_milli)
        return whole, limit or whole.cpu_milli

    @property
    def parks(self) -> bool:
        """True if the slot gives up its GPUs."""
        return self.device_requests is not None and not has_gpus(self.device_requests)

    def _devices(self, has: tuple[DeviceRequest, ...]) -> tuple[DeviceRequest, ...]:
        if self.device_requests is not None:
            return self.device_requests
        return has if self.devices is None else resized_requests(has, self.devices)

    def is_met_by(self, status: SlotStatus) -> bool:
        """True if the slot already has the requested amounts."""
        size = status.profile, status.cpu_limit_milli
        return self.applied_to(*size) == size

    def target(self, status: SlotStatus) -> tuple[ResourceProfile, int]:
        """Returns the whole size to request, based on the newest pending or the current size."""
        if status.resizes:
            # A new change replaces the pending change. Start from the pending size, to keep the
            # amounts of the pending change.
            newest = status.resizes[-1]
            return self.applied_to(newest.profile, newest.cpu_limit_milli)
        return self.applied_to(status.profile, status.cpu_limit_milli)


async def parking_change(connection: Connection, allocation_id: str, *, park: bool) -> SizeChange:
    """Returns the change that parks or unparks a slot.

    Args:
        connection: connection to the cluster.
        allocation_id: the slot.
        park: True if the slot must give up its GPUs. False if the slot must get GPUs again.

    Raises:
        InvalidArgument: the request of the slot has no GPUs.
        FinegrainError: the call to the resource manager failed.
    """
    request = await request_of(connection, allocation_id)
    devices = request.profile.devices if request is not None and request.profile else ()
    if request is not None and not has_gpus(devices):
        raise InvalidArgument("slot", allocation_id, "a slot with GPUs; this one has none")
    slot = request.slot if request is not None else None
    if slot is not None:
        devices = tuple(_at_present(each, slot) for each in devices)
    return SizeChange(device_requests=without_gpus(devices) if park else devices)


def _at_present(request: DeviceRequest, slot: SlotStatus) -> DeviceRequest:
    """Returns a request for devices with the amounts that the slot has, or had when it was parked.

    If the slot was resized, these amounts differ from the amounts of the request.
    """
    newest = slot.resizes[-1].profile if slot.resizes else slot.profile
    now = next((each for each in newest.devices if each.type == request.type), None)
    if now is not None:
        return replace(request, amounts=now.amounts)
    gave_up = slot.assignment.parked_devices if slot.assignment is not None else ()
    for share in gave_up:
        amounts = dict(share.amounts)
        if share.type == request.type and all(name in amounts for name, _ in request.amounts):
            had = tuple((name, amounts[name]) for name, _ in request.amounts)
            return replace(request, amounts=had)
    return request


def profile_message(profile: ResourceProfile) -> resources_pb2.ResourceProfile:
    """Returns a profile as a protocol message."""
    parts = {part: getattr(profile, part) for part in _PARTS.values()}
    message = resources_pb2.ResourceProfile(
        **parts,
        extended=dict(profile.extended),
        require_isolation=profile.required_isolation,
    )
    requests_to_proto(profile.devices, message)
    return message


def cap_message(profile: ResourceProfile, cpu_limit_milli: int) -> int:
    """Returns a CPU limit in the form of the protocol: 0 if it equals the guaranteed CPU."""
    return 0 if cpu_limit_milli == profile.cpu_milli else cpu_limit_milli


def when_in_use(*, wait_for_use: bool) -> rm.WhenInUse.ValueType:
    """Returns the action of the executor if the new size is below the current use: wait or
    refuse.
    """
    return rm.WHEN_IN_USE_WAIT if wait_for_use else rm.WHEN_IN_USE_REFUSE


def under_way(status: SlotStatus, resize_number: int) -> bool:
    """True if the change with this number is still pending."""
    return any(each.resize_number == resize_number for each in status.resizes)


def outcome(
    status: SlotStatus, change: SizeChange, resize_number: int, reason: str, message: str
) -> SlotStatus | ResizeRefused | None:
    """Derives the outcome of a change from a state of the slot.

    Args:
        status: the reported state of the slot.
        change: the requested change.
        resize_number: number of the change.
        reason: reason of the event that reported the state, for example "RESIZE_REFUSED".
        message: message of the event, for people.

    Returns:
        The slot's status if the change is done. An error if the change was refused. None if the
        change is pending.
    """
    # There is no outcome yet if the status is older than the change, or if the change is pending.
    if status.resize_number < resize_number or under_way(status, resize_number):
        return None
    if change.is_met_by(status):
        return status
    if reason == Reason.RESIZE_REFUSED and message:
        return ResizeRefused(status, resize_number, message)
    why = "another resize replaced it, or it was refused while this client was not connected"
    return ResizeRefused(status, resize_number, why)


async def request_of(connection: Connection, allocation_id: str) -> RequestStatus | None:
    """Reads an active request and its slot from the resource manager. Returns None if there is no
    such request.

    Raises:
        FinegrainError: the call to the resource manager failed.
    """
    message = cluster_pb2.ListRequestsRequest(allocation_ids=[allocation_id])
    answer = await connection.call_cluster(
        lambda cluster, timeout_s: cluster.ListRequests(message, timeout=timeout_s)
    )
    for each in answer.requests:
        if each.allocation_id == allocation_id:
            return read(RequestStatus, each)
    return None
