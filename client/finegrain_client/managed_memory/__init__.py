"""Managed memory for operators that are Python programs: quotas of a task, and memory within them.

    from finegrain_client.managed_memory import MemoryPool

    with MemoryPool.for_operator("sort") as pool:
        page = pool.allocate()
        page.memory[:5] = b"hello"
        page.release()

The modules here use only the standard library, and are for use inside tasks.
"""

from finegrain_client.managed_memory.memory_pool import MemoryPool, Page, PoolEmpty
from finegrain_client.managed_memory.slot_socket import SlotSocket, SlotSocketError

__all__ = ["MemoryPool", "Page", "PoolEmpty", "SlotSocket", "SlotSocketError"]
