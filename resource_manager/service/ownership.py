"""Checks that a caller owns a job: the caller must have the identity that registered the job."""

from __future__ import annotations

from collections import OrderedDict

from finegrain.errors import PermissionDenied, Reason
from finegrain.rpc.access import current_caller
from resource_manager.engine.lifecycle.known import known_job
from resource_manager.service.runner import Runner

CACHED_JOBS_MAX = 100_000


class JobOwners:
    """Caches the owners of jobs, so that most checks need no read in the writer's queues."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._owners: OrderedDict[str, str] = OrderedDict()

    def remember(self, job_id: str, owner: str) -> None:
        """Caches the owner of a job. A newer registration of the same job id replaces the owner."""
        self._owners[job_id] = owner
        self._owners.move_to_end(job_id)
        if len(self._owners) > CACHED_JOBS_MAX:
            self._owners.popitem(last=False)

    async def check(self, job_id: str) -> None:
        """Checks that the caller owns the job.

        The state is read only if the cached owner does not match.

        Raises:
            NotFound: the job is unknown.
            PermissionDenied: the job has another owner.
        """
        caller = current_caller()
        known = self._owners.get(job_id)
        if known is not None and caller.owns(known):
            return
        known = await self._runner.read(
            lambda state: known_job(state.jobs, job_id).owner, owner=caller.peer
        )
        if not caller.owns(known):
            raise PermissionDenied(
                f"job {job_id} belongs to {known or 'no identity'}, and this call is from"
                f" {caller.name}; choose the credentials of the owner",
                reason=Reason.NOT_OWNER,
                details={"job_id": job_id, "identity": caller.name},
            )
        # Cache the owner only when the owner itself calls. Otherwise other callers could remove
        # jobs from the cache.
        self.remember(job_id, known)
