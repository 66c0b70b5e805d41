"""Decodes administrators' changes of resource groups, and checks every field."""

from __future__ import annotations

from collections.abc import Mapping

from finegrain.devices.names import is_dimension
from finegrain.errors import InvalidArgument
from finegrain.resources import DEVICE_PREFIX, EXTENDED_PREFIX
from finegrain.rpc.wire import EXTENDED_NAME_PATTERN, labels_from_proto
from finegrain.texts import check_text
from finegrain.v1 import cluster_pb2
from finegrain.values.group_rules import GroupRule
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import (
    GroupRulesChanged,
    GroupSet,
    GroupUsersChanged,
    UserLimitsSet,
)

NO_LIMIT = -1
"""An amount that removes a limit."""

USERS_MAX = 1_000
"""Maximum number of users in one call."""

DIMENSIONS_MAX = 64
"""Maximum number of resources that one group can limit."""


RULES_MAX = 100
"""Maximum number of rules to add, and to remove, in one call."""

PATTERN_LENGTH_MAX = 200


def group_set_event(request: cluster_pb2.SetGroupRequest, at: Instant) -> GroupSet:
    """Decodes a SetGroup request. The engine makes the semantic checks.

    Raises:
        InvalidArgument: the limits are malformed.
    """
    return GroupSet(
        at,
        request.name,
        weight=request.weight if request.HasField("weight") else None,
        parent=request.parent if request.HasField("parent") else None,
        description=request.description if request.HasField("description") else None,
        minimum=_limits("minimum", request.minimum),
        maximum=_limits("maximum", request.maximum),
    )


def group_users_event(
    request: cluster_pb2.ChangeGroupUsersRequest, at: Instant
) -> GroupUsersChanged:
    """Decodes a ChangeGroupUsers request. The engine makes the semantic checks.

    Raises:
        InvalidArgument: there is no user, or there are too many users.
    """
    for field, users in (("allow", request.allow), ("revoke", request.revoke)):
        if len(users) > USERS_MAX:
            raise InvalidArgument(field, f"{len(users)} users", f"at most {USERS_MAX}")
    if not request.allow and not request.revoke:
        raise InvalidArgument("allow", "no user", "at least one user to allow or to revoke")
    return GroupUsersChanged(at, request.name, tuple(request.allow), tuple(request.revoke))


def group_rules_event(
    request: cluster_pb2.ChangeGroupRulesRequest, at: Instant
) -> GroupRulesChanged:
    """Decodes a ChangeGroupRules request. The engine makes the semantic checks.

    Raises:
        InvalidArgument: there is no rule, there are too many rules, or a pattern is malformed.
    """
    for field, items in (("add", request.add), ("remove", request.remove)):
        if len(items) > RULES_MAX:
            raise InvalidArgument(field, f"{len(items)} rules", f"at most {RULES_MAX}")
    if not request.add and not request.remove:
        raise InvalidArgument("add", "no rule", "at least one rule to add or to remove")
    add = tuple(_rule(each, f"add[{at}]") for at, each in enumerate(request.add))
    return GroupRulesChanged(at, request.name, add, tuple(request.remove))


def _rule(message: cluster_pb2.GroupRule, field: str) -> GroupRule:
    return GroupRule(
        message.order,
        check_text(f"{field}.job", message.job, longest=PATTERN_LENGTH_MAX, empty_ok=True),
        check_text(f"{field}.user", message.user, longest=PATTERN_LENGTH_MAX, empty_ok=True),
        labels_from_proto(message.labels, f"{field}.labels"),
    )


def user_limits_event(request: cluster_pb2.SetUserLimitsRequest, at: Instant) -> UserLimitsSet:
    """Decodes a SetUserLimits request. The engine makes the semantic checks.

    Raises:
        InvalidArgument: the limits are malformed.
    """
    return UserLimitsSet(at, request.user, _limits("maximum", request.maximum))


def _limits(field: str, given: Mapping[str, int]) -> dict[str, int | None]:
    if len(given) > DIMENSIONS_MAX:
        raise InvalidArgument(field, f"{len(given)} dimensions", f"at most {DIMENSIONS_MAX}")
    for name, amount in given.items():
        device = name.removeprefix(DEVICE_PREFIX)
        # Other names are rejected, because such a limit would never apply. For example, slots book
        # the compute and the memory of GPUs, not "gpu".
        if device != name and amount != NO_LIMIT and not is_dimension(device):
            expected = (
                f"{DEVICE_PREFIX} and gpu-core, gpu-memory, gpu-memory-ratio, or another type of"
                " devices"
            )
            raise InvalidArgument(f"{field} of a dimension", name, expected)
        resource = name.removeprefix(EXTENDED_PREFIX)
        # Administrators choose only the names of countable resources. The engine checks all other
        # names.
        if (
            resource != name
            and amount != NO_LIMIT
            and not EXTENDED_NAME_PATTERN.fullmatch(resource)
        ):
            expected = f"{EXTENDED_PREFIX} and a name that matches {EXTENDED_NAME_PATTERN.pattern}"
            raise InvalidArgument(f"{field} of a dimension", name, expected)
    return {name: None if amount == NO_LIMIT else amount for name, amount in given.items()}
