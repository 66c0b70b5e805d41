"""Proof of owning a job: the caller presents the secret that RegisterJob returned.

The secret is derived, not stored: the same job id and request id give the same secret again, so a
repeated registration returns the same answer. The state holds hashes only.
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
    """Derives and checks job secrets.

    Call `unlock` first, once this process leads.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._key = b""
        self._hashes: OrderedDict[str, str] = OrderedDict()

    async def unlock(self) -> None:
        """Reads the cluster's 256-bit key. Waits while the database is away.

        Raises:
            StoreError: the key cannot be read.
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
        """Returns the secret of a job: HMAC-SHA256 of both ids with the cluster's key.

        Raises:
            Unavailable: `unlock` has not ended yet.
        """
        if not self._key:
            raise Unavailable("the resource manager is starting; try again")
        text = f"{job_id}|{request_id}".encode()  # job ids have no "|": the two stay distinct
        digest = hmac.new(self._key, text, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def remember(self, job_id: str, secret_sha256: str) -> None:
        """Caches the hash of a job's secret. A newer registration of the same id replaces it."""
        self._hashes[job_id] = secret_sha256
        self._hashes.move_to_end(job_id)
        if len(self._hashes) > CACHED_JOBS_MAX:
            self._hashes.popitem(last=False)

    async def check(self, job_id: str) -> None:
        """Returns normally if the caller owns the job.

        Reads the state only when the cache does not match.

        Raises:
            NotFound: the job is unknown.
            PermissionDenied: the caller presents no secret, or another one.
        """
        caller = current_caller()
        known = self._hashes.get(job_id)
        # The usual case. It adds nothing to the writer's queues.
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
        # Remembered for owners only, so that strangers cannot push other jobs out of the cache.
        self.remember(job_id, known)
