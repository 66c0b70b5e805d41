"""Pages of memory for one operator, never more than its quota.

If the quota shrinks, free pages go back to the kernel at once, and pages in use when they are
released. The executor waits a moment for that before it shrinks the slot.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from finegrain_client.managed_memory.slot_socket import Quotas, SlotSocket

SEGMENT_BYTES = 4 << 20  # the pool maps memory in pieces of this size
REPORT_S = 1.0  # between reports of use, while the quota does not shrink


class PoolEmpty(MemoryError):
    """All pages of the quota are in use."""


class Page:
    """One page. Use `memory` until `release`."""

    def __init__(self, pool: MemoryPool, segment: mmap.mmap, offset: int, size: int) -> None:
        self._pool, self._segment, self._offset = pool, segment, offset
        self.memory = memoryview(segment)[offset : offset + size]

    def release(self) -> None:
        """Gives the page back; its content is lost. Releasing it again does nothing."""
        self._pool._release(self)

    def _discard(self) -> None:
        """Gives the memory of a page back to the kernel; the page can be used again."""
        self._segment.madvise(mmap.MADV_DONTNEED, self._offset, len(self.memory))


class MemoryPool:
    """The pages of one operator.

    Args:
        page_bytes: size of a page; a multiple of the kernel's.
        pages: the quota.
        on_use: called with the bytes in use, at most once a second and when the quota changes or is
            reached; the lock of the pool is held.
    """

    def __init__(
        self, page_bytes: int, pages: int, on_use: Callable[[int], None] = lambda _bytes: None
    ) -> None:
        self.page_bytes = page_bytes
        self._pages = pages
        self._on_use = on_use
        self._free: list[Page] = []
        self._clean: list[Page] = []  # free, and without memory behind them
        self._used: set[Page] = set()
        self._changed = threading.Condition()
        self._socket: SlotSocket | None = None
        self._known = threading.Event()
        self._reported_at = 0.0

    @classmethod
    def for_operator(cls, operator_id: str, *, path: str = "") -> MemoryPool:
        """Returns a pool with the quota of an operator of this task. The pool follows the quota.

        Args:
            operator_id: the operator; it must be registered.
            path: the socket of the slot; empty: FINEGRAIN_SLOT_SOCKET.

        Raises:
            SlotSocketError: there is no socket, or the executor does not answer.
            KeyError: this task has no such operator.
        """
        pool = cls(mmap.PAGESIZE, 0)

        def take(quotas: Quotas) -> None:
            sizes = {each["operator_id"]: each["quota_bytes"] for each in quotas["operators"]}
            if operator_id in sizes:
                if not pool._known.is_set():  # later pages must have the size of the first ones
                    pool.page_bytes = quotas["page_bytes"]
                pool.resize(sizes[operator_id] // pool.page_bytes)
                pool._known.set()

        slot = SlotSocket(path, take)
        pool._socket = slot
        pool._on_use = lambda used_bytes: slot.report(operator_id, used_bytes)
        # The first report tells the executor that a pool keeps this operator to its quota.
        try:
            slot.call("ReportUse", operator_id=operator_id, used_bytes=0)
        except BaseException:
            slot.close()
            raise
        if not pool._known.is_set():
            slot.close()
            raise KeyError(operator_id)
        return pool

    @property
    def pages(self) -> int:
        """The quota, in pages."""
        return self._pages

    @property
    def used_pages(self) -> int:
        """Pages in use. More than the quota for some time after it has shrunk."""
        return len(self._used)

    @property
    def over_quota(self) -> int:
        """Number of pages that the operator should release now."""
        return max(len(self._used) - self._pages, 0)

    def allocate(self, timeout_s: float | None = 0.0) -> Page:
        """Returns a page; waits for one while all are in use.

        Args:
            timeout_s: how long to wait; 0: not at all; None: until there is one.

        Raises:
            PoolEmpty: no page became free in time.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while len(self._used) >= self._pages:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise PoolEmpty(f"all {self._pages} pages are in use")
                self._changed.wait(left)
            page = self._take()
            self._used.add(page)
            self._report()
            return page

    def _report(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if now or moment - self._reported_at >= REPORT_S:
            self._reported_at = moment
            self._on_use(len(self._used) * self.page_bytes)

    def _take(self) -> Page:
        for pages in (self._free, self._clean):
            if pages:
                return pages.pop()
        count = max(SEGMENT_BYTES // self.page_bytes, 1)
        segment = mmap.mmap(-1, count * self.page_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._clean += [
            Page(self, segment, at * self.page_bytes, self.page_bytes) for at in range(count)
        ]
        return self._clean.pop()

    def _release(self, page: Page) -> None:
        with self._changed:
            if page not in self._used:
                return
            self._used.remove(page)
            if len(self._used) + len(self._free) >= self._pages:
                page._discard()
                self._clean.append(page)
            else:
                self._free.append(page)
            # A resize of the slot may wait until this pool is within its quota.
            self._report(now=len(self._used) == self._pages)
            self._changed.notify()

    def resize(self, pages: int) -> None:
        """Changes the quota. Free pages beyond it go back to the kernel."""
        with self._changed:
            self._pages = pages
            while self._free and len(self._used) + len(self._free) > pages:
                page = self._free.pop()
                page._discard()
                self._clean.append(page)
            self._report(now=True)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the connection. Pages can still be used."""
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> MemoryPool:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> Any:
        self.close()
