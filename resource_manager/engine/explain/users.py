"""Builds the views of users. A view has the limits of a user, and the resources that the user's
jobs use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.resources import increase
from resource_manager.engine.fairness.quotas import counted
from resource_manager.engine.fairness.users import Users
from resource_manager.engine.model.entities import Job


@dataclass(frozen=True, slots=True)
class UserView:
    """The limits of one user, and the resources that its jobs use. The fields are those of
    UserStatus in the protocol.
    """

    user: str
    own_limits: bool
    maximum: Mapping[str, int]
    used: Mapping[str, int]
    slots: int
    jobs: int
    requests: int


def user_views(users: Users, jobs: Mapping[str, Job]) -> list[UserView]:
    """Returns the views of all users that have limits or live jobs, sorted by name. The cost is
    linear in the number of live jobs.

    Args:
        users: the limits of users.
        jobs: all jobs.
    """
    return [user_view(users, jobs, user) for user in users]


def user_view(users: Users, jobs: Mapping[str, Job], user: str) -> UserView:
    """Returns the view of one user.

    Args:
        users: the limits of users.
        jobs: all jobs.
        user: the identity, or `ALL_USERS`.
    """
    flows = users.jobs_of(user)
    used: dict[str, int] = {}
    for flow in flows.values():
        increase(used, counted(flow.used))
    return UserView(
        user=user,
        own_limits=user in users.limits,
        maximum=dict(users.limits_of(user)),
        used=used,
        slots=sum(flow.running for flow in flows.values()),
        jobs=len(flows),
        requests=sum(jobs[job_id].live_requests for job_id in flows),
    )
