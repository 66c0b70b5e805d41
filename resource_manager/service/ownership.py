"""Checks that a caller owns a job: the caller must send the secret that RegisterJob returned.

The secret is computed and not stored. The same job id and request id always give the same secret,
so a repeated registration returns the same answer. The state contains only hashes.
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
    """Computes and checks job secrets.

    Call `unlock` first, when this process has become the leader.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._key = b""
        self._hashes: OrderedDict[str, str] = OrderedDict()

    async def unlock(self) -> None:
        """Reads the cluster's 256-bit key. Waits while the database cannot be reached.

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
            Unavailable: `unlock` has not completed yet.
        """
        if not self._key:
            raise Unavailable("the resource manager is starting; try again")
        text = f"{job_id}|{request_id}".encode()  # unambiguous, because job ids contain no "|"
        digest = hmac.new(self._key, text, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def remember(self, job_id: str, secret_sha256: str) -> None:
        """Caches the hash of a job's secret. A newer registration of the same id replaces it."""
        self._hashes[job_id] = secret_sha256
        self._hashes.move_to_end(job_id)
        if len(self._hashes) > CACHED_JOBS_MAX:
            self._hashes.popitem(last=False)

    async def check(self, job_id: str) -> None:
        """Checks that the caller owns the job.

        It reads the state only if the cached hash does not match.

        Raises:
            NotFound: the job is unknown.
            PermissionDenied: the caller sent no secret, or the secret of another job.
        """
        caller = current_caller()
        known = self._hashes.get(job_id)
        # This is the usual case. It needs no read in the writer's queues.
        if known is not None and caller.owns(known):
            return
        known = await self._runner.read(
            lambda state: known_job(state.jobs, job_id).secret_sha256, owner=caller.peer
        )
        if not caller.owns(known):
            raise PermissionDenied(
                f"the call does not have the secret of job {job_id}; send the secret that "
                "RegisterJob returned as metadata finegrain-job-secret",
                reason=Reason.JOB_SECRET_WRONG,
                details={"job_id": job_id},
            )
        # The hash is cached only for owners, so that other callers cannot remove jobs from the
        # cache.
        self.remember(job_id, known)
