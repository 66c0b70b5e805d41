"""Defines values about join tokens and denied identities. `status.py` describes the form of all
values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class NewToken(Value):
    """A token that was just created. Only this answer contains the token itself."""

    token: str = field(repr=False)
    token_id: str
    expire_time: datetime | None


@dataclass(frozen=True, slots=True)
class TokenStatus(Value):
    """A token that can still be used."""

    token_id: str
    identity: str  # for example "executor/web-1"
    expire_time: datetime | None
    made_by: str  # for example "operator/root"


@dataclass(frozen=True, slots=True)
class WebLink(Value):
    """A link that begins a session of the web page. The link can be used only once."""

    link: str = field(repr=False)
    expire_time: datetime | None


@dataclass(frozen=True, slots=True)
class WebSession(Value):
    """A session of the web page in one browser."""

    session_id: str
    identity: str  # for example "user/alice"
    serial: str  # serial number of the certificate for which the link was made
    begin_time: datetime | None
    end_time: datetime | None


@dataclass(frozen=True, slots=True)
class Denial(Value):
    """An identity, or one certificate, that is rejected."""

    subject: str  # "user/mallory", or the serial number of a certificate in hexadecimal
    reason: str
    deny_time: datetime | None
    denied_by: str


@dataclass(frozen=True, slots=True)
class AuditEntry(Value):
    """An entry about a change by an administrator, or about calls that were refused because of
    their caller.
    """

    sequence: int
    entry_time: datetime | None
    actor: str  # for example "operator/ann"
    method: str  # for example "DrainExecutor"
    object: str  # the thing that the call changes; empty if the calls were refused
    outcome: str  # "ok", or the reason code of the refusal
    count: int  # number of calls that the entry represents
    digest: str


@dataclass(frozen=True, slots=True)
class AuditCheck(Value):
    """The result of a check of the audit log."""

    entries: int  # number of entries before the first wrong one
    first_sequence: int
    last_sequence: int
    problem: str  # empty if nothing is wrong
