"""Sets and deletes the limits of users at an administrator's request."""

from __future__ import annotations

from finegrain.errors import InvalidArgument, NotFound, Reason, ResourceExhausted
from finegrain.identity import Identity
from resource_manager.engine.fairness.users import ALL_USERS, JOBS, REQUESTS, Users
from resource_manager.engine.jobs.groups import changed_limits
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import UserLimits
from resource_manager.engine.model.events import UserLimitsDeleted, UserLimitsSet
from resource_manager.engine.model.texts import amounts_text

LIMITED_MAX = 10_000
"""The largest number of users with separate limits."""

_ANY_CLUSTER = "any"  # identities are written without the name of the cluster


def set_user_limits(
    users: Users, changes: ChangeTracker, journal: Journal, event: UserLimitsSet
) -> None:
    """Sets limits of a user. A change never ends slots or jobs.

    Args:
        users: the limits of all users.
        changes: the object that receives the row to store.
        journal: the object that receives the cluster event.
        event: the change.

    Raises:
        InvalidArgument: the user or a limit is not valid.
        ResourceExhausted: too many users have separate limits.
    """
    user = event.user
    if user != ALL_USERS:
        expected = f"an identity that can own jobs, for example user/alice, or {ALL_USERS}"
        try:
            owns_jobs = Identity.from_text(_ANY_CLUSTER, user).role in ("user", "operator")
        except InvalidArgument:
            owns_jobs = False
        if not owns_jobs:
            raise InvalidArgument("user", user, expected)
    known = users.limits.get(user)
    if known is None and len(users.limits) >= LIMITED_MAX:
        raise ResourceExhausted(
            f"{len(users.limits)} users have own limits, but at most {LIMITED_MAX} may have; delete"
            " some first",
            details={"users": len(users.limits), "users_max": LIMITED_MAX},
        )
    maximum = changed_limits("maximum", known or {}, event.maximum, JOBS, REQUESTS)
    if maximum == known:
        return
    users.set_limits(user, maximum)
    changes.user_limits(UserLimits(user, maximum))
    text = amounts_text(maximum) if maximum else "none"
    journal.cluster_event("user_limits_set", message=f"{user}: {text}")


def delete_user_limits(
    users: Users, changes: ChangeTracker, journal: Journal, event: UserLimitsDeleted
) -> None:
    """Deletes the separate limits of a user. From then on, the limits of "*" apply to this user.

    Args:
        users: the limits of all users.
        changes: the object that receives the row to delete.
        journal: the object that receives the cluster event.
        event: the deletion.

    Raises:
        NotFound: the user has no separate limits.
    """
    if event.user not in users.limits:
        raise NotFound(
            f"{event.user} has no own limits; finegrain users shows the limits of users",
            reason=Reason.IDENTITY_UNKNOWN,
            details={"user": event.user},
        )
    users.set_limits(event.user, None)
    changes.delete_user_limits(event.user)
    journal.cluster_event("user_limits_deleted", message=event.user)
