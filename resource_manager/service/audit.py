"""The audit log: which calls are recorded, and the writer's end of the chain of digests.

The driver stores an entry in the transaction of the change. Refused calls are counted for each
identity, method and minute, so that a flood of refused calls adds few entries.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from finegrain.errors import FinegrainError, PermissionDenied, Unauthenticated
from finegrain.rpc.access import current_caller
from resource_manager.engine.model.audit import AuditEntry, ChainLink, digest_of, linked
from resource_manager.engine.model.effects import Changes
from resource_manager.storage.store import Store

ENTRIES_MAX = 1_000_000
"""Entries that are kept. If there are more, the oldest tenth is deleted."""
OBJECT_CHARACTERS_MAX = 200
REFUSALS_MAX = 1_000
"""Different refusals that are counted in one minute. Others are counted together as "others"."""
HEAD = "audit/head"
ANCHOR = "audit/anchor"
PAGE = 1_000
MINUTE_MS = 60_000
UNKNOWN = "unknown"
OTHERS = "others"
OK = "ok"

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """A call that is recorded. The record has the caller, the method, and the change that the call
    makes.
    """

    actor: str
    method: str
    object: str = ""


_call: ContextVar[AuditedCall | None] = ContextVar("finegrain_audited_call", default=None)


def audited(describe: Callable[[Any], str]) -> Callable[[F], F]:
    """Records each change that a method of a service makes.

    Args:
        describe: returns what the request changes, for example an executor id.
    """

    def decorate(method: F) -> F:
        @functools.wraps(method)
        async def record(self: Any, request: Any, context: Any) -> Any:
            call = AuditedCall(current_caller().name, method.__name__, _short(describe(request)))
            token = _call.set(call)
            try:
                return await method(self, request, context)
            finally:
                _call.reset(token)

        record.is_audited = True  # type: ignore[attr-defined]  # for the test of all methods
        return record  # type: ignore[return-value]

    return decorate


def current_call() -> AuditedCall | None:
    """Returns the recorded call that is in progress, or None."""
    return _call.get()


def _short(text: str) -> str:
    text = "".join(each if each.isprintable() else "?" for each in text)
    most = OBJECT_CHARACTERS_MAX
    return text if len(text) <= most else text[: most - 3] + "..."


def outcome_of(error: BaseException) -> str:
    """Returns the outcome of a call that the engine has rejected."""
    return error.reason.value if isinstance(error, FinegrainError) else "failed"


class RefusalCounts:
    """Counts refused calls for each identity, method, reason and minute. Thread-safe.

    Args:
        now_ms: returns the present time in milliseconds since 1970.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, AuditedCall, str], int] = {}

    def add(self, method: str, error: FinegrainError) -> None:
        """Counts a call that was refused because of its caller. Other errors are no refusals."""
        if not isinstance(error, PermissionDenied | Unauthenticated):
            return
        actor = current_caller().name or str(error.details.get("identity") or UNKNOWN)
        call = AuditedCall(actor, method.rpartition("/")[2])
        minute = self._now_ms() // MINUTE_MS
        with self._lock:
            key = (minute, call, error.reason.value)
            if key not in self._counts and len(self._counts) >= REFUSALS_MAX:
                key = (minute, AuditedCall(OTHERS, OTHERS), error.reason.value)
            self._counts[key] = self._counts.get(key, 0) + 1

    def take(self) -> list[tuple[AuditedCall, str, int]]:
        """Returns and forgets the calls of earlier minutes, with their outcomes and counts."""
        minute = self._now_ms() // MINUTE_MS
        with self._lock:
            ended = [key for key in self._counts if key[0] != minute]
            return [(key[1], key[2], self._counts.pop(key)) for key in ended]


class AuditChain:
    """The end of the chain of digests. Only the writer uses it.

    Args:
        refusals: the refused calls, which are recorded when their minute is over.
        entries_max: number of entries that are kept.
    """

    def __init__(self, refusals: RefusalCounts, entries_max: int = ENTRIES_MAX) -> None:
        self._refusals = refusals
        self._entries_max = entries_max
        self._head = ChainLink()
        self._anchor = ChainLink()
        self._new: list[AuditEntry] = []

    def load(self, store: Store) -> None:
        """Reads the end of the stored chain, and forgets entries that were not stored."""
        self._head = ChainLink.parse(store.meta(HEAD))
        self._anchor = ChainLink.parse(store.meta(ANCHOR))
        self._new = []

    def add(self, time_ms: int, call: AuditedCall, outcome: str, count: int = 1) -> None:
        """Adds an entry, which `put_into` stores."""
        entry = AuditEntry(0, time_ms, call.actor, call.method, call.object, outcome, count)
        entry = linked(entry, self._head)
        self._head = ChainLink(entry.sequence, entry.digest)
        self._new.append(entry)

    def add_refusals(self, time_ms: int) -> None:
        """Adds the refused calls of the minutes that are over."""
        for call, outcome, count in self._refusals.take():
            self.add(time_ms, call, outcome, count)

    def put_into(self, changes: Changes, store: Store) -> None:
        """Moves the new entries into the batch that is about to be stored.

        Deletes the oldest entries if there are too many.

        Args:
            changes: the batch.
            store: has the digest of the last deleted entry.
        """
        if not self._new:
            return
        changes.audit, self._new = self._new, []
        changes.metas[HEAD] = self._head.text
        if self._head.sequence - self._anchor.sequence <= self._entries_max:
            return
        upto = self._head.sequence - self._entries_max + self._entries_max // 10
        # New entries are never deleted at once, so the last deleted entry is stored.
        upto = min(upto, changes.audit[0].sequence - 1)
        for last in store.read_audit(upto + 1, 1):
            self._anchor = ChainLink(last.sequence, last.digest)
            changes.metas[ANCHOR] = self._anchor.text
            changes.trimmed_audit = last.sequence


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a check of the whole audit log.

    Attributes:
        entries: number of entries whose digests are right.
        first_sequence: number of the first entry; 0: there is none.
        last_sequence: number of the last entry; 0: there is none.
        problem: what is wrong with the first wrong entry; empty: nothing.
    """

    entries: int
    first_sequence: int
    last_sequence: int
    problem: str = ""


def verify(store: Store) -> Verified:
    """Checks that all entries are there and unchanged.

    The check reads the whole log in pages, so entries may be added meanwhile.
    """
    while True:
        anchor = ChainLink.parse(store.meta(ANCHOR))
        found = _verify_after(store, anchor)
        # Entries may have been deleted during the check because there were too many.
        if not found.problem or ChainLink.parse(store.meta(ANCHOR)) == anchor:
            return found


def _verify_after(store: Store, anchor: ChainLink) -> Verified:
    head = ChainLink.parse(store.meta(HEAD))
    last, first, entries = anchor, 0, 0
    for other in store.read_audit(anchor.sequence + 1, 1):
        return Verified(0, 0, 0, f"entry {other.sequence} was deleted earlier, and is there again")
    while last.sequence < head.sequence:
        end = min(last.sequence + PAGE, head.sequence)
        page = store.read_audit(end + 1, end - last.sequence)
        for entry in (each for each in page if each.sequence > last.sequence):
            if entry.sequence != last.sequence + 1:
                return Verified(
                    entries, first, last.sequence, f"entry {last.sequence + 1} is missing"
                )
            if entry.digest != digest_of(entry, last):
                problem = f"entry {entry.sequence} was changed, or the entry before it"
                return Verified(entries, first, last.sequence, problem)
            first, entries = first or entry.sequence, entries + 1
            last = ChainLink(entry.sequence, entry.digest)
        if last.sequence < end:
            problem = f"entry {last.sequence + 1} is missing"
            return Verified(entries, first, last.sequence, problem)
    problem = "" if last == head else f"entry {last.sequence} is not the last one"
    return Verified(entries, first, last.sequence, problem)
