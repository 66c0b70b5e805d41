"""Renews the certificate of a client in the background, after half of its validity.

The key stays the same. So a renewal needs no library for cryptography. If several programs use one
credentials file, the first program renews the certificate, and the other programs read the new
file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from finegrain.credentials import Credentials, read_credentials, write_credentials
from finegrain.errors import FinegrainError, Reason, Unauthenticated
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1.identity_pb2 import IssuedCertificate

LOOK_INTERVAL_S = 3_600.0
"""Longest wait in seconds before the clock is read again. Longer waits are not exact, because a
host that sleeps delays timers.
"""
BACKDATED_S = 7_200.0
"""A certificate is valid from this number of seconds before its issue, for hosts whose clocks are
slow.
"""
STOPPING_S = 2.0
"""`stop` waits for at most this time, in seconds, for a renewal that has begun."""

log = logging.getLogger("finegrain_client")


class Renewal:
    """Keeps one certificate valid.

    Args:
        own: the certificate of the client, which is replaced.
        file: the credentials file, which is also replaced; None if there is no file.
        ask: a function that requests the next certificate from the resource manager.
        now: a function that returns the time in seconds since 1970 (UTC).
    """

    def __init__(
        self,
        own: OwnCertificate,
        file: Path | None,
        ask: Callable[[], Awaitable[IssuedCertificate]],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._own = own
        self._file = file
        self._ask = ask
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    def check_valid(self) -> None:
        """Checks that the certificate is valid. If the file contains a newer certificate, first
        switches to this certificate.

        Raises:
            Unauthenticated: the certificate is not valid.
        """
        if self._own.credentials.problem_at(self._now()):
            self._take_newer(self._read())
        self._own.check_valid()

    def start(self) -> None:
        """Starts the renewals. If they were already started, the call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stops the renewals. Waits for a renewal in progress, because otherwise short programs
        would never complete a renewal.
        """
        task, self._task = self._task, None
        if task is None:
            return
        if (renewing := self._renewing) is not None:
            await asyncio.wait({renewing}, timeout=STOPPING_S)
            renewing.cancel()
        task.cancel()
        await asyncio.wait({task})

    @property
    def due_s(self) -> float:
        """The time of the next renewal, in seconds since 1970 (UTC)."""
        own = self._own.credentials
        issued_s = min(own.not_before + BACKDATED_S, own.not_after)
        return (issued_s + own.not_after) / 2

    async def renew(self) -> None:
        """Gets the next certificate, from the file or from the resource manager.

        Raises:
            FinegrainError: the resource manager did not answer, or refused the renewal.
        """
        if self._take_newer(await asyncio.to_thread(self._read)):
            return
        own = self._own.credentials
        issued = await self._ask()
        if issued.identity != own.identity:
            raise Unauthenticated(
                f"the resource manager has signed a certificate of {issued.identity} for"
                f" {own.identity}",
                reason=Reason.CERTIFICATE_WRONG,
            )
        fresh = replace(
            own,
            addresses=tuple(dict.fromkeys((*own.addresses, *issued.addresses))),
            authorities=issued.authorities,
            certificate=issued.certificate,
            not_before=issued.not_before.seconds,
            not_after=issued.not_after.seconds,
        )
        self._own.replace(fresh)
        await asyncio.to_thread(self._write, fresh)

    async def _run(self) -> None:
        while True:
            wait_s = self.due_s - self._now()
            if wait_s <= 0:
                self._renewing = asyncio.ensure_future(self.renew())
                try:
                    await asyncio.shield(self._renewing)
                except FinegrainError as error:
                    log.warning("the certificate was not renewed: %s", error.message)
                self._renewing = None
                wait_s = LOOK_INTERVAL_S
            await asyncio.sleep(min(wait_s, LOOK_INTERVAL_S))

    def _read(self) -> Credentials | None:
        try:
            return read_credentials(self._file) if self._file is not None else None
        except FinegrainError:
            return None

    def _take_newer(self, found: Credentials | None) -> bool:
        own = self._own.credentials
        newer = (
            found is not None and found.identity == own.identity and found.not_after > own.not_after
        )
        if newer and found is not None:
            self._own.replace(found)
        return newer

    def _write(self, fresh: Credentials) -> None:
        found = self._read()
        # If the file has another key, the user has logged in again in the meantime. In this case,
        # keep the file.
        if self._file is None or found is None or found.key != fresh.key:
            return
        try:
            # Do not replace a file of another user, because the new file would belong to this user.
            if self._file.stat().st_uid == os.geteuid():
                write_credentials(self._file, fresh)
        except (OSError, FinegrainError) as error:
            log.warning("the renewed certificate is not in %s: %s", self._file, error)
