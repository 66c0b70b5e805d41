"""Keeps the limits of users, and the amounts that the jobs of each limited user use.

A user is the identity that owns jobs, for example "user/alice". The slots of all its jobs together
must not exceed the user's maximum, even if the jobs are in different groups. The limits of
`ALL_USERS` apply to each user without separate limits, but not to administrators.

A limit of "jobs" or "requests" is checked when a job or a request arrives. All other limits are
quotas (`quotas.py`): a request that exceeds a quota waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from finegrain.resources import Amounts, decrease, increase
from resource_manager.engine.fairness.quotas import counted
from resource_manager.engine.fairness.siblings import Flow

ALL_USERS = "*"
"""This name stands for all users, both in the rights of a group and in the limits of users."""

JOBS, REQUESTS = "jobs", "requests"
"""The names of two limits: the number of live jobs, and the number of requests that have not ended.
A call that exceeds such a limit is refused.
"""

_USER = "user/"

_NO_LIMITS: Amounts = {}


class Users:
    """The limits of users, and a flow for each limited user with live jobs. Such a flow is not part
    of the fairness tree: only its attributes `maximum`, `used` and `running` are used.

    Attributes:
        limits: the configured limits, by identity or `ALL_USERS`.
        flows: the flows of limited users with live jobs, by identity.
    """

    def __init__(self, freed: dict[str, None]) -> None:
        self._freed = freed
        self._jobs: dict[str, dict[str, Flow]] = {}
        self.limits: dict[str, Amounts] = {}
        self.flows: dict[str, Flow] = {}

    def __iter__(self) -> Iterator[str]:
        """Yields the identities that have limits or live jobs."""
        return iter(sorted({*self.limits, *self._jobs}))

    def limits_of(self, owner: str) -> Amounts:
        """Returns the limits that apply to the owner of jobs."""
        known = self.limits.get(owner)
        if known is not None:
            return known
        return self.limits.get(ALL_USERS, _NO_LIMITS) if owner.startswith(_USER) else _NO_LIMITS

    def jobs_of(self, owner: str) -> Mapping[str, Flow]:
        """Returns the flows of an owner's live jobs, by job id."""
        return self._jobs.get(owner, {})

    def add_job(self, owner: str, job: Flow) -> None:
        """Adds a live job of an owner."""
        job.owner = owner
        jobs = self._jobs.setdefault(owner, {})
        jobs[job.name] = job
        if len(jobs) == 1:
            self._refresh(owner)
        else:  # the other jobs do not change, and there can be many of them
            job.user = self.flows.get(owner)

    def remove_job(self, job: Flow) -> None:
        """Removes a job. The job must have no requests and no slots."""
        jobs = self._jobs[job.owner]
        del jobs[job.name]
        if not jobs:
            del self._jobs[job.owner]
            self.flows.pop(job.owner, None)

    def set_limits(self, owner: str, limits: Amounts | None) -> None:
        """Sets the limits of an identity or of `ALL_USERS`. If `limits` is None, the identity has
        no separate limits any more.
        """
        if limits is None:
            self.limits.pop(owner, None)
        else:
            self.limits[owner] = limits
        for each in list(self._jobs) if owner == ALL_USERS else [owner]:
            self._refresh(each)

    def _refresh(self, owner: str) -> None:
        """Makes, changes or removes the flow of an owner."""
        jobs = self.jobs_of(owner)
        limits = self.limits_of(owner)
        maximum = {name: most for name, most in limits.items() if name not in (JOBS, REQUESTS)}
        flow = self.flows.get(owner)
        if flow is None and maximum and jobs:
            flow = self.flows[owner] = Flow(id=owner, name=owner)
            for job in jobs.values():
                increase(flow.used, counted(job.used))
                flow.running += job.running
        elif flow is not None and not maximum:
            del self.flows[owner]
            self._freed[owner] = None
            flow = None
        if flow is not None and flow.maximum != maximum:
            flow.maximum = maximum
            # The maximum is possibly higher now, so blocked requests are checked again.
            self._freed[owner] = None
        for job in jobs.values():
            job.user = flow

    def use(self, job: Flow, amounts: Amounts, count: int) -> None:
        """Counts slots of a job that were placed.

        Args:
            job: the flow of the job.
            amounts: the amounts of one slot, in the form of `counted`.
            count: the number of slots.
        """
        if (user := job.user) is not None:
            user.running += count
            for name, amount in amounts.items():
                user.used[name] = user.used.get(name, 0) + amount * count

    def grow(self, job: Flow, amounts: Amounts, count: int = 0) -> None:
        """Counts the amounts of some slots of a job. If `count` is 0, `amounts` is the new size of
        a slot that was resized, and the caller has already released the old amounts. Otherwise
        `amounts` is the sum of the amounts of `count` new slots.
        """
        if job.user is not None:
            job.user.running += count
            increase(job.user.used, amounts)

    def release(self, job: Flow, amounts: Amounts, count: int = 1) -> None:
        """Subtracts the amounts of a slot of a job. If `count` is 1, the slot was removed. If
        `count` is 0, the slot gets another size.
        """
        if (user := job.user) is not None:
            user.running -= count
            decrease(user.used, amounts)
            self._freed[user.id] = None
