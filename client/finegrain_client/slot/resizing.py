"""Changing what a slot consists of: how a change is said, and when it is done.

Decides how a change that names some amounts becomes the whole size that the protocol wants, and
what the news of a slot mean for whoever waits for a change of it. Refuses to know who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from finegrain.errors import InvalidArgument, Reason
from finegrain.resources import AMOUNT_MAX, ResourceProfile, extended_items
from finegrain.v1 import cluster_pb2, resources_pb2
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain_client.connection import Connection
from finegrain_client.decoding import read
from finegrain_client.errors import ResizeRefused
from finegrain_client.types.status import RequestStatus, SlotStatus

TRIES_MAX = 5
"""Times that a change is said anew because somebody else had another one in between."""

FORGOTTEN = "older books were restored, which know nothing of it; ask again"
"""Why nobody waits for a change any more that the RM had acknowledged."""

_PARTS = {
    "cpu_milli": "cpu_milli",
    "memory_bytes": "task_heap_memory_bytes",
    "task_off_heap_memory_bytes": "task_off_heap_memory_bytes",
    "managed_memory_bytes": "managed_memory_bytes",
    "network_memory_bytes": "network_memory_bytes",
}
"""What a change calls the parts of a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """The amounts that are to change; what is None stays as it is.

    Attributes:
        memory_bytes: memory for the task's own objects, as in `SlotSpec`; the other parts stay.
        extended: countable resources by name; 0 takes one away, others stay.
        cpu_limit_milli: a higher cap than what is booked; 0: none. Where it is not named, a cap
            that was higher stays as long as it is not below what is booked then.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    task_off_heap_memory_bytes: int | None = None
    managed_memory_bytes: int | None = None
    network_memory_bytes: int | None = None
    extended: Mapping[str, int] | None = None
    cpu_limit_milli: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            amounts = value if isinstance(value, Mapping) else {"": value}
            for name, amount in amounts.items():
                if amount is None or (type(amount) is int and 0 <= amount <= AMOUNT_MAX):
                    continue
                where = f"{each.name}[{name!r}]" if name else each.name
                expected = f"an integer from 0 to {AMOUNT_MAX} (half a core is cpu_milli=500)"
                raise InvalidArgument(where, amount, expected)
        if all(getattr(self, each.name) is None for each in fields(self)):
            raise InvalidArgument("resize", "no amount", "at least one amount that is to change")

    def applied_to(
        self, profile: ResourceProfile, cpu_limit_milli: int
    ) -> tuple[ResourceProfile, int]:
        """The whole size, and the CPU cap, that come of this one."""
        named = {
            part: value
            for name, part in _PARTS.items()
            if (value := getattr(self, name)) is not None
        }
        extended = dict(profile.extended) | dict(self.extended or {})
        whole = replace(profile, **named, extended=extended_items(extended))
        limit = self.cpu_limit_milli
        if limit is None:
            had_one = cpu_limit_milli > profile.cpu_milli
            limit = cpu_limit_milli if had_one else 0
            limit = max(limit, whole.cpu_milli)
        return whole, limit or whole.cpu_milli

    def is_met_by(self, status: SlotStatus) -> bool:
        """True if the slot is like that already."""
        size = status.profile, status.cpu_limit_milli
        return self.applied_to(*size) == size

    def target(self, status: SlotStatus) -> tuple[ResourceProfile, int]:
        """Returns the whole size to request, given what the slot is, or is becoming."""
        if status.resizes:
            newest = status.resizes[-1]
            return self.applied_to(newest.profile, newest.cpu_limit_milli)
        return self.applied_to(status.profile, status.cpu_limit_milli)


def profile_message(profile: ResourceProfile) -> resources_pb2.ResourceProfile:
    """A profile as the protocol has it."""
    parts = {part: getattr(profile, part) for part in _PARTS.values()}
    return resources_pb2.ResourceProfile(**parts, extended=dict(profile.extended))


def cap_message(profile: ResourceProfile, cpu_limit_milli: int) -> int:
    """A CPU cap as the protocol has it: 0 where it is what is booked."""
    return 0 if cpu_limit_milli == profile.cpu_milli else cpu_limit_milli


def when_in_use(*, wait_for_use: bool) -> rm.WhenInUse.ValueType:
    """What is to become of a size below what is in use."""
    return rm.WHEN_IN_USE_WAIT if wait_for_use else rm.WHEN_IN_USE_REFUSE


def under_way(status: SlotStatus, resize_number: int) -> bool:
    """True if this change has no outcome yet."""
    return any(each.resize_number == resize_number for each in status.resizes)


def outcome(
    status: SlotStatus, change: SizeChange, resize_number: int, reason: str, message: str
) -> SlotStatus | ResizeRefused | None:
    """What a state of the slot says about a change: done, refused, or None: nothing yet.

    Args:
        status: the slot.
        change: what was asked for.
        resize_number: number of that.
        reason: of the event that told the state, "RESIZE_REFUSED" for example.
        message: likewise, for people.
    """
    if status.resize_number < resize_number or under_way(status, resize_number):
        return None
    if change.is_met_by(status):
        return status
    if reason == Reason.RESIZE_REFUSED and message:
        return ResizeRefused(status, resize_number, message)
    why = "another change took its place, or it was refused while nobody was told"
    return ResizeRefused(status, resize_number, why)


async def request_of(connection: Connection, allocation_id: str) -> RequestStatus | None:
    """A request that lives, with its slot, as the RM has it; None: there is none.

    Raises:
        FinegrainError: the RM could not be asked.
    """
    message = cluster_pb2.ListRequestsRequest(allocation_ids=[allocation_id])
    answer = await connection.call_cluster(
        lambda cluster, timeout_s: cluster.ListRequests(message, timeout=timeout_s)
    )
    for each in answer.requests:
        if each.allocation_id == allocation_id:
            return read(RequestStatus, each)
    return None
