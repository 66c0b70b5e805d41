"""Decodes the gangs that a call declares, and checks their form.

`InvalidArgument` names the path of the field. The engine decides whether a gang fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finegrain.errors import InvalidArgument
from finegrain.ids import LABEL_KEY_PATTERN, check_id
from finegrain.rpc.mapping.fields import members_of
from finegrain.rpc.wire import duration_ms_from_proto
from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import GangPlacement
from resource_manager.engine.model.entities import EQUAL_IN_GANG, GangSpec, RequestSpec

_PLACEMENTS = members_of(GangPlacement, slots_pb2.GangPlacement.DESCRIPTOR) | {
    slots_pb2.GANG_PLACEMENT_UNSPECIFIED: GangPlacement.ANYWHERE
}


def gangs_of_call(
    messages: Sequence[slots_pb2.Gang],
    requests: Sequence[RequestSpec],
    repeated: Mapping[int, ItemOutcome],
    *,
    members_max: int,
) -> tuple[GangSpec, ...]:
    """Returns the gangs that a call declares.

    All members of a gang must be among the requests of the same call.

    Args:
        messages: the declared gangs.
        requests: all requests of the call, in the order sent.
        repeated: the refusals of requests that have the id of an earlier request of the call, by
            position.
        members_max: maximum number of members of a gang.

    Raises:
        InvalidArgument: a gang is malformed, is declared twice, or has too few or too many members
            in this call; or a request names a gang of which it cannot be a member.
    """
    # Most calls have no gang, and end here.
    if not messages and not any(request.gang_id for request in requests):
        return ()
    if len(messages) > len(requests):  # the number is checked first, because decoding costs more
        expected = "at most as many gangs as requests"
        raise InvalidArgument("gangs", f"{len(messages)} gangs", expected)
    gangs: dict[str, GangSpec] = {}
    places: dict[str, int] = {}
    for at, message in enumerate(messages):
        spec = _gang(message, f"gangs[{at}]")
        if spec.gang_id in gangs:
            expected = f"an id that gangs[{places[spec.gang_id]}].gang_id does not have"
            raise InvalidArgument(f"gangs[{at}].gang_id", spec.gang_id, expected)
        gangs[spec.gang_id], places[spec.gang_id] = spec, at
    members = _members(requests, gangs, repeated)
    for gang_id, at in places.items():
        count = len(members.get(gang_id, ()))
        if not 1 <= count <= members_max:
            raise InvalidArgument(
                f"gangs[{at}]",
                f"{gang_id} with {count} members",
                f"1 to {members_max} requests of this call with its gang_id",
            )
    return tuple(gangs.values())


def _gang(message: slots_pb2.Gang, field: str) -> GangSpec:
    gang_id = check_id(f"{field}.gang_id", message.gang_id)
    placement = _PLACEMENTS.get(message.placement)
    if placement is None:
        raise InvalidArgument(f"{field}.placement", message.placement, "a known GangPlacement")
    label = message.label
    if placement is not GangPlacement.SAME_LABEL:
        if label:
            expected = "empty, unless placement is GANG_PLACEMENT_SAME_LABEL"
            raise InvalidArgument(f"{field}.label", label, expected)
    elif not LABEL_KEY_PATTERN.fullmatch(label):
        expected = "the name of a label: 1 to 63 characters out of A-Z a-z 0-9 . _ / -"
        raise InvalidArgument(f"{field}.label", label, expected)
    timeout_ms = None
    if message.HasField("timeout"):
        timeout_ms = duration_ms_from_proto(message.timeout, f"{field}.timeout", smallest_ms=1)
    return GangSpec(gang_id, placement, label, timeout_ms)


def _members(
    requests: Sequence[RequestSpec],
    gangs: Mapping[str, GangSpec],
    repeated: Mapping[int, ItemOutcome],
) -> dict[str, list[int]]:
    """Returns the positions of the members, by gang."""
    members: dict[str, list[int]] = {}
    for at, request in enumerate(requests):
        gang_id = request.gang_id
        if not gang_id:
            continue
        field = f"requests[{at}]"
        if gang_id not in gangs:
            expected = "the gang_id of one of the gangs that this call declares"
            raise InvalidArgument(f"{field}.gang_id", gang_id, expected)
        if request.target_address:
            expected = (
                "empty for a member of a gang: executors do not offer slots of gangs directly"
            )
            raise InvalidArgument(f"{field}.target_address", request.target_address, expected)
        # A request with a repeated id is refused. The gang would be incomplete, so the whole call
        # is refused.
        if at in repeated:
            expected = "an id that no other request has: gangs are accepted only as a whole"
            raise InvalidArgument(f"{field}.allocation_id", request.allocation_id, expected)
        others = members.setdefault(gang_id, [])
        others.append(at)
        first = others[0]
        for name in EQUAL_IN_GANG:
            if (value := getattr(request, name)) != getattr(requests[first], name):
                expected = f"the same as in requests[{first}], which belongs to the same gang"
                raise InvalidArgument(f"{field}.{name}", value, expected)
    return members
