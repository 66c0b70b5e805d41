"""Renews the certificate of this executor while it runs.

The executor renews a valid certificate every day, by a call to the resource manager. For an expired
certificate, the executor calls the join port, and signs the request with the certificate's key.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from finegrain.certificates.authority import BACKDATED
from finegrain.certificates.joining import renew_expired
from finegrain.credentials import Credentials, write_credentials
from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from finegrain.rpc.own_certificate import OwnCertificate
from task_executor.membership import CREDENTIALS_FILE, read_join_record
from task_executor.service.manager_link import ManagerLink

RENEW_EVERY_S = 24 * 3600.0
CHECK_S = 300.0  # check often, because the clock can be set at any time
RETRY_S = 60.0
RETRY_EXPIRED_S = 10.0  # no server accepts an expired certificate, so try again soon

Clock = Callable[[], float]

log = get_logger(__name__)


class Renewal:
    """Renews the certificate until it is cancelled.

    Args:
        own: the certificate of this executor, which is replaced.
        link: the connection to the resource manager.
        state_dir: the state directory, whose credentials file is also replaced.
        now: a function that returns the time in seconds since 1970 (UTC).
    """

    def __init__(
        self, own: OwnCertificate, link: ManagerLink, state_dir: Path, now: Clock = time.time
    ) -> None:
        self._own = own
        self._link = link
        self._state_dir = state_dir
        self._now = now
        # Set if this executor and the RM trust different authorities.
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Renews until cancelled."""
        while True:
            wait_s = renewal_time(self._own.credentials) - self._now()
            if wait_s > 0 and not self._wanted.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), min(wait_s, CHECK_S))
                continue
            try:
                await self.renew()
            except FinegrainError as error:
                log.error("certificate_not_renewed", reason=error.reason.value, error=error.message)
                await asyncio.sleep(RETRY_EXPIRED_S if self._is_expired() else RETRY_S)

    def follow(self, authorities_sha256: str) -> None:
        """Renews the certificate soon if this executor and the RM trust different authorities.

        Args:
            authorities_sha256: the digest of the authorities that the RM trusts, from the RM's
                answer; empty: the answer has no digest.
        """
        if authorities_sha256 not in ("", self._own.credentials.authorities_sha256):
            self._wanted.set()

    async def renew(self) -> None:
        """Renews once.

        Raises:
            Unavailable: no resource manager can be reached.
            Unauthenticated: the certificate was denied, or has expired too long ago.
        """
        present = self._own.credentials
        if self._is_expired():
            addresses = read_join_record(self._state_dir).addresses
            fresh = await asyncio.to_thread(renew_expired, present, addresses)
        else:
            fresh = await self._link.renew()
        self._wanted.clear()
        self._own.replace(fresh)
        log.info("certificate_renewed", not_after=fresh.not_after)
        try:
            await asyncio.to_thread(write_credentials, self._state_dir / CREDENTIALS_FILE, fresh)
        except FinegrainError as error:  # until the next start, the certificate in memory is enough
            log.error("credentials_not_written", error=error.message)

    def _is_expired(self) -> bool:
        return self._now() > self._own.credentials.not_after


def renewal_time(credentials: Credentials) -> float:
    """Returns the time at which a certificate must be renewed: after a day, or after half of its
    validity if this is earlier.

    Args:
        credentials: the credentials with the certificate.

    Returns:
        The time in seconds since 1970 (UTC).
    """
    issued_s = credentials.not_before + BACKDATED.total_seconds()
    return issued_s + min(RENEW_EVERY_S, (credentials.not_after - issued_s) / 2)
