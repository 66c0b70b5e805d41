"""Checks before every command that no other resource manager leads."""

from __future__ import annotations

import asyncio

from finegrain.errors import StoreError
from resource_manager.service.runner import Runner
from resource_manager.storage.store import NotLeader

CONFIRM_PAUSE_S = 0.2


async def may_command(runner: Runner) -> bool:
    """Waits until it is certain which process leads. Returns False if another process leads."""
    while True:
        try:
            await runner.confirm()
        except NotLeader:
            return False
        except StoreError:
            # The database does not report the leader, so the loop tries again. If the state is
            # dropped during this loop, the waiting command is cancelled.
            await asyncio.sleep(CONFIRM_PAUSE_S)
        else:
            return True
