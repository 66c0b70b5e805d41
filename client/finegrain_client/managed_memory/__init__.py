"""Provides managed memory for operators that are Python programs: reads quotas, and allocates
memory within quotas.

    from finegrain_client.managed_memory import MemoryPool

    with MemoryPool.for_operator("sort") as pool:
        page = pool.allocate()
        page.memory[:5] = b"hello"
        page.release()

The modules of this package are for use inside tasks. They need only the standard library.
"""

from finegrain_client.managed_memory.memory_pool import MemoryPool, Page, PoolEmpty
from finegrain_client.managed_memory.slot_socket import SlotSocket, SlotSocketError

__all__ = ["MemoryPool", "Page", "PoolEmpty", "SlotSocket", "SlotSocketError"]
