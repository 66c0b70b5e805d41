"""Decides which identities are allowed to register jobs in a resource group, and changes these
rights.

A right for a group includes all groups below it. Administrators (role `operator`) are allowed to
use every group. If a right is revoked, no job ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from finegrain.errors import InvalidArgument, PermissionDenied, Reason, ResourceExhausted
from finegrain.identity import Identity, Role
from resource_manager.engine.fairness.groups import above
from resource_manager.engine.fairness.users import ALL_USERS
from resource_manager.engine.jobs.groups import known_group
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Group
from resource_manager.engine.model.events import GroupUsersChanged

RIGHTS_MAX = 20_000
"""The largest number of rights in all groups together. There is a limit because each list of groups
contains all rights.
"""

_NAMED_MAX = 20
"""An error names at most this many groups."""

_MESSAGE_LENGTH_MAX = 500

_ADMINISTRATOR = f"{Role.OPERATOR}/"
_ANY_CLUSTER = "any"  # identities are written without the name of the cluster


def check_may_use(groups: Mapping[str, Group], name: str, identity: str) -> None:
    """Checks that an identity is allowed to register jobs in a group.

    Args:
        groups: all groups.
        name: the group.
        identity: the identity, for example "user/alice".

    Raises:
        PermissionDenied: GROUP_NOT_ALLOWED. The message names the command with which an
            administrator can give this right.
    """
    if _may_use(groups, name, identity):
        return
    usable = sorted(each for each in groups if _may_use(groups, each, identity))
    more = f" and {len(usable) - _NAMED_MAX} more" if len(usable) > _NAMED_MAX else ""
    found = f"the groups {', '.join(usable[:_NAMED_MAX])}{more}" if usable else "no group"
    raise PermissionDenied(
        f"{identity} may not use the resource group {name}, but {found}; an administrator can allow"
        f" it with finegrain groups allow {name} {identity}",
        reason=Reason.GROUP_NOT_ALLOWED,
        details={"group": name, "identity": identity},
    )


def _may_use(groups: Mapping[str, Group], name: str, identity: str) -> bool:
    return identity.startswith(_ADMINISTRATOR) or any(
        identity in group.users or ALL_USERS in group.users for group in above(groups, name)
    )


def change_group_users(
    groups: dict[str, Group], changes: ChangeTracker, journal: Journal, event: GroupUsersChanged
) -> Group:
    """Changes which users are allowed to use a group. Repeating the same call changes nothing.

    Args:
        groups: all groups.
        changes: the object that receives the row to store.
        journal: the object that receives the cluster event.
        event: the change.

    Raises:
        NotFound: no group has this name.
        InvalidArgument: an entry is no user.
        ResourceExhausted: the groups would have too many rights.
    """
    group = known_group(groups, event.name)
    _check_users("allow", event.allow)
    users = tuple(sorted((set(group.users) | set(event.allow)) - set(event.revoke)))
    total = sum(len(each.users) for each in groups.values()) - len(group.users) + len(users)
    if total > RIGHTS_MAX and len(users) > len(group.users):
        raise ResourceExhausted(
            f"the groups would have {total} rights of users, but at most {RIGHTS_MAX} are allowed;"
            " revoke some first, or allow all users",
            details={"rights": total, "rights_max": RIGHTS_MAX},
        )
    if users == group.users:
        return group
    changed = replace(group, users=users)
    groups[group.name] = changed
    changes.group(changed)
    added, removed = set(users) - set(group.users), set(group.users) - set(users)
    parts = [f"allowed {', '.join(sorted(added))}"] if added else []
    parts += [f"revoked {', '.join(sorted(removed))}"] if removed else []
    journal.cluster_event(
        "group_users_changed", message=f"{group.name}: {'; '.join(parts)}"[:_MESSAGE_LENGTH_MAX]
    )
    return changed


def _check_users(field: str, users: Iterable[str]) -> None:
    expected = f"user/NAME, or {ALL_USERS} for all users; administrators may use every group"
    for user in users:
        if user == ALL_USERS:
            continue
        try:
            role = Identity.from_text(_ANY_CLUSTER, user).role
        except InvalidArgument:
            raise InvalidArgument(field, user, expected) from None
        if role is not Role.USER:
            raise InvalidArgument(field, user, expected)
