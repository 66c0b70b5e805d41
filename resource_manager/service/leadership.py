"""The check before every command: no other resource manager leads."""

from __future__ import annotations

import asyncio

from finegrain.errors import StoreError
from resource_manager.service.runner import Runner
from resource_manager.storage.store import NotLeader

CONFIRM_PAUSE_S = 0.2


async def may_command(runner: Runner) -> bool:
    """Waits until it is certain who leads. Returns False if another resource manager does."""
    while True:
        try:
            await runner.confirm()
        except NotLeader:
            return False
        except StoreError:
            # The database does not report who leads. If the state is dropped meanwhile, the
            # listener cancels the command that waits here.
            await asyncio.sleep(CONFIRM_PAUSE_S)
        else:
            return True
