"""The question that goes before everything that is commanded: does anybody else lead?"""

from __future__ import annotations

import asyncio

from finegrain.errors import StoreError
from resource_manager.service.runner import Runner
from resource_manager.storage.store import NotLeader

CONFIRM_PAUSE_S = 0.2


async def may_command(runner: Runner) -> bool:
    """Waits while it is unsure who leads; False: another one does."""
    while True:
        try:
            await runner.confirm()
        except NotLeader:
            return False
        except StoreError:  # the database does not say; what waits is dropped with the books
            await asyncio.sleep(CONFIRM_PAUSE_S)
        else:
            return True
