"""Checks which executors can run tasks of job graphs. These tasks need version 1.1 of the protocol.

An executor with an earlier version would start the task without its operators, and report no error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from finegrain_client.batch.slots import retry_until_answered

if TYPE_CHECKING:
    from finegrain_client.cluster import Cluster

NEEDED: Final = (1, 1)


class ExecutorVersions:
    """Reads the protocol versions of all executors when the version of an executor is first needed.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._suitable: set[str] = set()
        self._reading = asyncio.Lock()

    async def refusal(self, executor_id: str) -> str:
        """Returns the reason why an executor cannot run tasks of job graphs, or an empty text if
        the executor can run them.

        Raises:
            FinegrainError: the resource manager refused the call.
        """
        async with self._reading:  # one call serves all tasks that wait for the lock
            if executor_id in self._suitable:
                return ""
            executors = await retry_until_answered(self._cluster.executors, "listing executors")
        versions = {each.executor_id: each.protocol_version for each in executors}
        self._suitable = {name for name, version in versions.items() if is_suitable(version)}
        version = versions.get(executor_id, "")
        # An executor that is not listed was just lost. Its slot will report the loss.
        if executor_id in self._suitable or executor_id not in versions:
            return ""
        return (
            f"executor {executor_id} speaks version {version or '1.0'} of the protocol, which has "
            "no tasks of job graphs; upgrade that executor, and the resource manager"
        )


def is_suitable(version: str) -> bool:
    """Returns True if a protocol version has tasks of job graphs."""
    parts = version.split(".")
    return len(parts) == 2 and all(map(str.isdecimal, parts)) and tuple(map(int, parts)) >= NEEDED
