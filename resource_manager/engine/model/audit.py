"""Defines the audit log, which lists the changes by administrators and the refused calls.

Each entry has a digest of its content and of the previous entry's digest. So if an entry is changed
or deleted, all later digests change.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit log.

    Attributes:
        sequence: number of the entry: 1, 2, 3, and so on. The numbers never start again within one
            database.
        time_ms: the time at which the entry was written, in milliseconds since 1970.
        actor: identity of the caller, for example "operator/ann"; "unknown" means that the caller
            has no identity.
        method: name of the called method.
        object: the object that the call changes, for example an executor id.
        outcome: "ok", or the reason code of the refusal.
        count: number of calls that the entry represents.
        digest: SHA-256 of the other fields and the previous digest, in hexadecimal.
    """

    sequence: int
    time_ms: int
    actor: str
    method: str
    object: str
    outcome: str
    count: int = 1
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The sequence number and the digest of one entry. The default values are the link to which the
    first entry is chained.
    """

    sequence: int = 0
    digest: str = ""

    @property
    def text(self) -> str:
        """The text form of the link, which is stored in the database."""
        return f"{self.sequence}:{self.digest}"

    @classmethod
    def parse(cls, text: str | None) -> ChainLink:
        """Parses the text form of a link. None gives the link before the first entry. A malformed
        text gives a link that matches no entry. This program never writes a malformed text, so a
        person has changed it.
        """
        if text is None:
            return cls()
        number, _, digest = text.partition(":")
        return cls(int(number) if number.isascii() and number.isdigit() else 0, digest)


def linked(entry: AuditEntry, previous: ChainLink) -> AuditEntry:
    """Returns the entry with the next sequence number and its digest."""
    entry = replace(entry, sequence=previous.sequence + 1)
    return replace(entry, digest=digest_of(entry, previous))


def digest_of(entry: AuditEntry, previous: ChainLink) -> str:
    """Returns the digest that the entry must have after `previous`."""
    content = [
        previous.digest,
        entry.sequence,
        entry.time_ms,
        entry.actor,
        entry.method,
        entry.object,
        entry.outcome,
        entry.count,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
