"""Whose job is it: until roles come, whoever holds the secret that RegisterJob returned.

The secret is derived, not stored: the same job id and request id give the same secret again, so
that a repeated registration is the same call. The books keep hashes only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections import OrderedDict

from finegrain.errors import PermissionDenied, Reason, Unavailable
from finegrain.rpc.access import current_caller
from resource_manager.engine.lifecycle.known import known_job
from resource_manager.service.runner import Runner
from resource_manager.storage.store import StoreAway

CACHED_JOBS_MAX = 100_000
AWAY_PAUSE_S = 0.2


class JobSecrets:
    """Makes and checks job secrets.

    `unlock` comes first, once this process leads.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._key = b""
        self._hashes: OrderedDict[str, str] = OrderedDict()

    async def unlock(self) -> None:
        """Reads the 256 secret bits of this cluster; waits for a database that goes away meanwhile.

        Raises:
            StoreError: it cannot be read.
        """
        while True:
            try:
                salt = await self._runner.in_store(lambda store: store.meta("cluster_salt"))
            except StoreAway:
                await asyncio.sleep(AWAY_PAUSE_S)
            else:
                self._key = bytes.fromhex(salt or "")
                return

    def derive(self, job_id: str, request_id: str) -> str:
        """The secret of a job.

        Raises:
            Unavailable: before `unlock`.
        """
        if not self._key:
            raise Unavailable("the resource manager is starting; try again")
        text = f"{job_id}|{request_id}".encode()  # ids hold no bar: the two cannot be confused
        digest = hmac.new(self._key, text, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def remember(self, job_id: str, secret_sha256: str) -> None:
        """Keeps the hash at hand; the newest registration of an id holds."""
        self._hashes[job_id] = secret_sha256
        self._hashes.move_to_end(job_id)
        if len(self._hashes) > CACHED_JOBS_MAX:
            self._hashes.popitem(last=False)

    async def check(self, job_id: str) -> None:
        """Returns if the caller owns the job.

        Raises:
            NotFound: no such job.
            PermissionDenied: the caller shows no secret or another one.
        """
        caller = current_caller()
        known = self._hashes.get(job_id)
        if known is not None and caller.owns(known):
            return
        known = await self._runner.read(
            lambda state: known_job(state.jobs, job_id).secret_sha256, owner=caller.peer
        )
        if not caller.owns(known):
            raise PermissionDenied(
                f"the call does not carry the secret of job {job_id}; send what RegisterJob "
                "returned as metadata finegrain-job-secret",
                reason=Reason.JOB_SECRET_WRONG,
                details={"job_id": job_id},
            )
        self.remember(job_id, known)
