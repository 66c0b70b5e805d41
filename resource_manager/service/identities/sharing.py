"""Ensures that all resource managers of a cluster have the same authority, and renews
certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from finegrain.certificates.joining import public_bytes
from finegrain.errors import ConfigurationError, FinegrainError
from finegrain.logs import get_logger
from finegrain.software_version import software_version
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.events import ExecutorsAwaited
from resource_manager.service.identities.own import AUTHORITY_FILE, FOLDER, OwnFiles
from resource_manager.service.runner import Runner
from resource_manager.storage.backup import AUTHORITY_KEY
from resource_manager.storage.store import StoreAway

if TYPE_CHECKING:
    from resource_manager.wiring import Components

AWAITED_FOR_MS = 7 * 24 * 3_600_000
AWAY_PAUSE_S = 0.2
RENEW_INTERVAL_S = 3_600.0
LOGGED_MAX = 100  # number of executors that one line of the log names

_log = get_logger("finegrain.rm")


def check_authority_shared(own: OwnFiles, leader: str) -> None:
    """Checks that this start of a standby has not created an authority, which would differ from the
    authority of the leader.

    If this start has created an authority, the function deletes the authority's files and fails.

    Args:
        own: the files of this resource manager.
        leader: name of the leader, for the error.

    Raises:
        ConfigurationError: this start has created the authority.
    """
    if not own.made:
        return
    own.remove()
    raise ConfigurationError(
        f"a standby needs the certificates of its leader, but {own.state_dir} had none; make a"
        f" token on the host of {leader} (finegrain token create --rm), and run finegrain rm join"
        " here",
        details={"path": own.state_dir, "leader": leader},
    )


async def check_authority(runner: Runner, own: OwnFiles) -> None:
    """Checks that the authority of this host is the authority that the database names.

    The first resource manager that leads on a database stores the key of its authority in this
    database. If the database already contains executors, they ran a version without certificates:
    they are awaited. If another authority replaces the present one, both are trusted for some time,
    and the new key is stored.

    Raises:
        ConfigurationError: the database belongs to another authority.
        StoreError: the database cannot be read.
    """
    key, *others = (public_bytes(each).hex() for each in own.authority.trusted)
    while True:
        try:
            known = await runner.in_store(lambda store: store.meta(AUTHORITY_KEY))
            if known is None:
                # Do this before the key is stored. If the start is interrupted between the two
                # steps, the next start repeats this step.
                awaited: list[str] = await runner.submit(
                    lambda at: ExecutorsAwaited(at, AWAITED_FOR_MS)
                )
                if awaited:
                    _log.warning(
                        "executors_awaited",
                        executors=len(awaited),
                        executor_ids=awaited[:LOGGED_MAX],
                        needs=f"finegrain {software_version()} on the hosts of these executors",
                        fix="install it, and give each a join token: finegrain certs migrate",
                    )
            if known is None or known in others:
                await runner.in_store(
                    lambda store: store.commit(Changes(metas={AUTHORITY_KEY: key}))
                )
                return
        except StoreAway:
            await asyncio.sleep(AWAY_PAUSE_S)
        else:
            break
    if known != key:
        own.remove()
        raise ConfigurationError(
            "the database belongs to another cluster authority than the one in"
            f" {own.state_dir / FOLDER / AUTHORITY_FILE}, so all executors and clients would be"
            " refused; restore the certificates of the database's cluster (finegrain certs"
            " restore), or bring them from another resource manager (finegrain rm join)",
            details={"path": own.state_dir},
        )


async def renew_daily(components: Components) -> None:
    """Replaces the certificates of this process and of the local administrator when they are one
    day old.

    The function never ends. After an error, it logs the error and tries again an hour later.
    """
    while True:
        await asyncio.sleep(RENEW_INTERVAL_S)
        try:
            fresh = await asyncio.to_thread(components.own_files.rm_credentials)
            if fresh != components.own.credentials:
                components.own.replace(fresh)
                address = components.leadership.address
                await asyncio.to_thread(components.own_files.write_operator, address)
                _log.info("certificate_renewed", not_after=fresh.not_after)
        except FinegrainError as error:
            _log.error("certificate_not_renewed", error=error.message)


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
