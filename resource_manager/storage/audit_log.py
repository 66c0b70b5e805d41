"""Stores the audit log: the recorded calls, and the end of the chain of digests.

A resource manager and the commands that change its database add entries in the transaction of the
change.
"""

from __future__ import annotations

import os
import pwd
import sqlite3
import time
from dataclasses import asdict, dataclass

from resource_manager.engine.model.audit import AuditEntry, ChainLink, digest_of, linked
from resource_manager.engine.model.effects import Changes
from resource_manager.storage.store import Store

ENTRIES_MAX = 1_000_000
"""Maximum number of entries. If the log has more entries, the oldest tenth is deleted."""
HEAD = "audit/head"
ANCHOR = "audit/anchor"
PAGE = 1_000
OK = "ok"


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """A recorded call: the caller, the method, and the object that the call changes."""

    actor: str
    method: str
    object: str = ""


class AuditChain:
    """The end of the chain of digests. Only the writer uses it.

    Args:
        entries_max: number of entries that are kept.
    """

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
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
        entry = linked(_entry(time_ms, call, outcome, count), self._head)
        self._head = ChainLink(entry.sequence, entry.digest)
        self._new.append(entry)

    def put_into(self, changes: Changes, store: Store) -> None:
        """Moves the new entries into the batch that is about to be stored.

        Deletes the oldest entries if there are too many.

        Args:
            changes: the batch.
            store: the database, which has the digest of the last deleted entry.
        """
        if not self._new:
            return
        changes.audit, self._new = self._new, []
        changes.metas[HEAD] = self._head.text
        if self._head.sequence - self._anchor.sequence <= self._entries_max:
            return
        upto = self._head.sequence - self._entries_max + self._entries_max // 10
        # A batch never deletes its own new entries. So the last entry to delete is already stored.
        upto = min(upto, changes.audit[0].sequence - 1)
        for last in store.read_audit(upto + 1, 1):
            self._anchor = ChainLink(last.sequence, last.digest)
            changes.metas[ANCHOR] = self._anchor.text
            changes.trimmed_audit = last.sequence


def _entry(time_ms: int, call: AuditedCall, outcome: str, count: int) -> AuditEntry:
    return AuditEntry(0, time_ms, call.actor, call.method, call.object, outcome, count)


def record(store: Store, changes: Changes, call: AuditedCall) -> None:
    """Adds an entry to a batch of a process that is not a resource manager, for example of a
    command.

    Args:
        store: the database, on which the process leads.
        changes: the batch that is about to be stored.
        call: the call that makes the change.
    """
    chain = AuditChain()
    chain.load(store)
    chain.add(time.time_ns() // 1_000_000, call, OK)
    chain.put_into(changes, store)


def record_in_file(connection: sqlite3.Connection, call: AuditedCall) -> None:
    """Adds an entry to an SQLite file in the caller's transaction. No resource manager must lead
    on the file.
    """
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (HEAD,)).fetchone()
    entry = _entry(time.time_ns() // 1_000_000, call, OK, 1)
    entry = linked(entry, ChainLink.parse(found and found[0]))
    row = asdict(entry)
    names = ", ".join(row)
    marks = ", ".join("?" * len(row))
    connection.execute(
        f"INSERT INTO audit ({names}) VALUES ({marks})",  # noqa: S608 - names of columns
        tuple(row.values()),
    )
    connection.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
        (HEAD, ChainLink(entry.sequence, entry.digest).text),
    )


def local_actor() -> str:
    """Returns the name under which changes by a command on this host are recorded."""
    try:
        return f"local/{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"local/uid{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a check of the whole audit log.

    Attributes:
        entries: number of entries whose digests are right.
        first_sequence: number of the first entry; 0 if the log is empty.
        last_sequence: number of the last entry; 0 if the log is empty.
        problem: the problem of the first wrong entry; empty if no entry is wrong.
    """

    entries: int
    first_sequence: int
    last_sequence: int
    problem: str = ""


def verify(store: Store) -> Verified:
    """Checks that no entry was deleted or changed.

    The check reads the whole log in pages. Other processes can add entries during the check.
    """
    while True:
        anchor = ChainLink.parse(store.meta(ANCHOR))
        found = _verify_after(store, anchor)
        # If old entries were deleted during the check because the log was full, check again.
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
