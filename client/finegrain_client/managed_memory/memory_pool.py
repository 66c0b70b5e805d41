"""Allocates pages of memory for one operator, within its quota.

If the quota shrinks, the pool returns its free pages to the kernel at once. The pool returns pages
in use when the operator releases them. The executor waits a moment for these pages before it
shrinks the slot.
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
REPORT_S = 1.0  # shortest time between ordinary reports of use
LENT_S = 30.0  # longest wait in seconds until other pools have returned lent pages of the quota
BORROW_BYTES = 1 << 20  # memory above the quota that the pool requests at a time


class PoolEmpty(MemoryError):
    """All pages of the quota are in use."""


class Page:
    """One page of memory. `memory` is valid until `release`."""

    def __init__(self, pool: MemoryPool, segment: mmap.mmap, offset: int, size: int) -> None:
        self._pool, self._segment, self._offset = pool, segment, offset
        self.memory = memoryview(segment)[offset : offset + size]

    def release(self) -> None:
        """Returns the page to the pool. The content of the page is lost. A second release does
        nothing.
        """
        self._pool._release(self)

    def _discard(self) -> None:
        """Returns the memory of the page to the kernel. The page can be used again later."""
        self._segment.madvise(mmap.MADV_DONTNEED, self._offset, len(self.memory))


class MemoryPool:
    """The pages of one operator.

    Args:
        page_bytes: size of a page; a multiple of the kernel's page size.
        pages: the quota, in pages.
        on_use: a function that is called with the bytes in use. The pool calls it at most once a
            second, and additionally when the quota changes or the use falls to the quota. The pool
            holds its lock during the call.
    """

    def __init__(
        self, page_bytes: int, pages: int, on_use: Callable[[int], None] = lambda _bytes: None
    ) -> None:
        self.page_bytes = page_bytes
        self._pages = pages
        self._on_use = on_use
        self._free: list[Page] = []
        self._clean: list[Page] = []  # free pages that have no memory now
        self._used: set[Page] = set()
        self._quota_pages = pages
        self._asked = 0  # number of pages that the pool has requested in total
        self._shares = False  # True if the pool lends and borrows pages
        self._changed = threading.Condition()
        self._socket: SlotSocket | None = None
        self._known = threading.Event()
        self._reported_at = 0.0

    @classmethod
    def for_operator(
        cls, operator_id: str, *, opportunistic: bool = False, path: str = ""
    ) -> MemoryPool:
        """Returns a pool with the quota of an operator of this task. The pool follows the quota.

        Args:
            operator_id: the operator, which must be registered.
            opportunistic: if true, the pool shares memory with other opportunistic pools of the
                slot. The pool can borrow memory that the other pools do not use, and it lends
                memory that it does not use itself. The operator must release `over_quota` pages
                within 2 s, or the executor ends the operator's task. While pages of the quota are
                lent, `allocate` waits up to 30 s for these pages, even with a shorter timeout.
            path: path of the slot's socket; an empty value means the path in FINEGRAIN_SLOT_SOCKET.

        Raises:
            SlotSocketError: there is no socket, or the executor does not answer.
            KeyError: this task has no such operator.
        """
        pool = cls(mmap.PAGESIZE, 0)

        def take(quotas: Quotas) -> None:
            found = [each for each in quotas["operators"] if each["operator_id"] == operator_id]
            if not found:
                return
            known = pool._known.is_set()
            if not known:  # all pages of a pool must have the same size
                pool.page_bytes = quotas["page_bytes"]
            pool._quota_pages = found[0]["quota_bytes"] // pool.page_bytes
            limit = found[0].get("limit_bytes")
            if limit is not None and pool._shares:
                pool.resize(limit // pool.page_bytes)
            elif not (known and pool._shares):
                pool.resize(pool._quota_pages)
            else:  # the executor was restarted, and needs a report of the pool's current limit
                pool.resize(pool._pages)
            pool._known.set()

        pool._shares = opportunistic
        slot = SlotSocket(path, take)
        pool._socket = slot
        pool._on_use = lambda used_bytes: slot.report(
            "UseMemory" if opportunistic else "ReportUse", **pool._use(operator_id, used_bytes)
        )
        # Report once, so that the executor knows that a pool enforces the quota of this operator.
        try:
            slot.call("ReportUse", operator_id=operator_id, used_bytes=0)
        except BaseException:
            slot.close()
            raise
        if not pool._known.is_set():
            slot.close()
            raise KeyError(operator_id)
        if opportunistic:
            pool.resize(pool._pages)  # this reports to the executor that the pool lends and borrows
        return pool

    def _use(self, operator_id: str, used_bytes: int) -> dict[str, Any]:
        """Returns the arguments of a report."""
        use: dict[str, Any] = {"operator_id": operator_id, "used_bytes": used_bytes}
        if self._shares:
            use["wanted_bytes"] = max(self._asked, len(self._used)) * self.page_bytes
            # If more pages are in use than the limit allows, report the pages in use, because the
            # pool still has them.
            use["limit_bytes"] = max(self._pages, len(self._used)) * self.page_bytes
        return use

    @property
    def pages(self) -> int:
        """Number of pages that the pool may use: the quota minus lent pages plus borrowed pages."""
        return self._pages

    @property
    def quota_pages(self) -> int:
        """The quota, in pages."""
        return self._quota_pages

    @property
    def used_pages(self) -> int:
        """Number of pages in use. For a time after the quota has shrunk, this number can exceed the
        quota.
        """
        return len(self._used)

    @property
    def over_quota(self) -> int:
        """Number of pages that the operator should release now."""
        return max(len(self._used) - self._pages, 0)

    def allocate(self, timeout_s: float | None = 0.0) -> Page:
        """Returns a page. Waits while all pages are in use.

        Args:
            timeout_s: longest time to wait, in seconds; 0 means that the call does not wait; None
                means that there is no limit.

        Raises:
            PoolEmpty: no page became free in time.
        """
        begun = time.monotonic()
        with self._changed:
            while len(self._used) >= self._pages:
                self._ask()
                wait_s = timeout_s
                if self._shares and len(self._used) < self._quota_pages and timeout_s is not None:
                    wait_s = max(timeout_s, LENT_S)
                left = None if wait_s is None else begun + wait_s - time.monotonic()
                if left is not None and left <= 0:
                    raise PoolEmpty(f"all {self._pages} pages are in use")
                self._changed.wait(left)
            page = self._take()
            self._used.add(page)
            self._report()
            return page

    def _ask(self) -> None:
        """Requests more pages. If pages of the quota are lent, requests these pages. Otherwise
        requests pages above the quota.
        """
        if not self._shares:
            return
        used = len(self._used)
        step = max(BORROW_BYTES // self.page_bytes, 1)
        asked = self._quota_pages if used < self._quota_pages else used + step
        if asked != self._asked:
            self._asked = asked
            self._report(now=True)

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
            self._asked = 0
            if len(self._used) + len(self._free) >= self._pages:
                page._discard()
                self._clean.append(page)
            else:
                self._free.append(page)
            # A resize of the slot possibly waits until this pool is within its quota.
            self._report(now=len(self._used) == self._pages)
            self._changed.notify()

    def resize(self, pages: int) -> None:
        """Changes the number of pages that the pool may use.

        The memory of free pages beyond this number goes back to the kernel.
        """
        with self._changed:
            self._pages = pages
            while self._free and len(self._used) + len(self._free) > pages:
                page = self._free.pop()
                page._discard()
                self._clean.append(page)
            self._report(now=True)
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the connection to the executor. The pages can still be used."""
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
