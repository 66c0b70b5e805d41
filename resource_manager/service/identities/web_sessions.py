"""Keeps the sessions of browsers at the web page.

A person with a certificate asks for a link. The link has a code, which a browser exchanges for a
session. The session acts with the person's certificate. Sessions are stored in the database, so
they survive a restart and a change of the leader. Only hashes of their secrets are stored.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass

from finegrain.certificates.reading import read_certificate
from finegrain.errors import (
    FailedPrecondition,
    NotFound,
    Reason,
    ResourceExhausted,
    Unauthenticated,
)
from finegrain.identity import Identity
from finegrain.join_token import sha256_hex
from finegrain.rpc.access import Caller
from resource_manager.service.runner import Runner

SESSION_PREFIX = "web_session/"
CODE_MS = 60 * 1_000
SESSION_MS = 8 * 3_600 * 1_000
CODES_OF_IDENTITY_MAX = 10
SESSIONS_OF_IDENTITY_MAX = 10
"""Maximum number of sessions of one identity. A further session ends the oldest session."""
SESSIONS_MAX = 2_000
CODES_MAX = 2_000
ID_CHARACTERS = 12

NO_SESSION = (
    "this browser has no session; run finegrain web --link in a terminal, and open the link that it"
    " prints"
)


@dataclass(frozen=True, slots=True)
class WebSession:
    """The stored facts of a session.

    Attributes:
        uri: URI of the identity that the session acts as.
        serial: serial number of the certificate in hexadecimal.
        certificate: the certificate as PEM text.
        token_sha256: hash of the token that the page sends with each call.
        begun_ms: when the session began.
        ends_ms: when the session ends.
    """

    uri: str
    serial: str
    certificate: str
    token_sha256: str
    begun_ms: int
    ends_ms: int

    @property
    def identity(self) -> Identity:
        """The identity that the session acts as."""
        return Identity.parse(self.uri)


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session that has just begun, with its secrets.

    Attributes:
        cookie: the secret in the browser's cookie. The browser sends it to every port of this host.
        token: the secret that only pages of this port can read and send.
        session: the stored facts.
    """

    cookie: str
    token: str
    session: WebSession


@dataclass(frozen=True, slots=True)
class _Code:
    certificate: bytes
    expires_ms: int


class WebSessions:
    """Begins, finds and ends sessions.

    Attributes:
        address: address of the page for browsers, such as "https://host:7172"; empty: there is no
            page.

    Args:
        runner: gives access to the database.
        is_denied: returns True if an identity or a serial number is denied.
        now_ms: returns the present time in milliseconds since 1970.
    """

    def __init__(
        self,
        runner: Runner,
        is_denied: Callable[[Identity, str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._runner = runner
        self._is_denied = is_denied
        self._now_ms = now_ms
        self._codes: dict[str, _Code] = {}
        self._sessions: dict[str, WebSession] = {}  # by the hash of the cookie
        self._cleaning: set[asyncio.Task[None]] = set()
        self.address = ""

    async def load(self) -> None:
        """Reads the sessions. Call it when this process has become the leader."""
        stored = await self._runner.in_store(lambda store: store.metas(SESSION_PREFIX))
        self._sessions = {
            key.removeprefix(SESSION_PREFIX): WebSession(**json.loads(text))
            for key, text in stored.items()
        }
        await self._delete(self._ended())

    # -- links -----------------------------------------------------------------------------------

    def new_link(self, caller: Caller) -> tuple[str, int]:
        """Returns a link that begins a session for a caller, and the time at which the link
        expires, in milliseconds since 1970.

        Raises:
            FailedPrecondition: there is no page.
            ResourceExhausted: there are too many links.
        """
        if not self.address:
            raise FailedPrecondition(
                "this resource manager serves no web page; set rm.web_listen, or run finegrain web"
                " without --link"
            )
        now_ms = self._now_ms()
        self._codes = {key: each for key, each in self._codes.items() if each.expires_ms > now_ms}
        own = [key for key, each in self._codes.items() if each.certificate == caller.certificate]
        if len(own) >= CODES_OF_IDENTITY_MAX:
            del self._codes[own[0]]
        if len(self._codes) >= CODES_MAX:
            raise ResourceExhausted(
                f"{len(self._codes)} links wait to be opened; try again in a minute",
                reason=Reason.OVER_LIMIT,
            )
        code = secrets.token_urlsafe(24)
        self._codes[sha256_hex(code)] = _Code(caller.certificate, now_ms + CODE_MS)
        return f"{self.address}/#{code}", now_ms + CODE_MS

    async def begin(self, code: str) -> NewSession:
        """Exchanges the code of a link for a session.

        Raises:
            Unauthenticated: the code is wrong, was used already, or is too old. All three cases
                have the same message.
            ResourceExhausted: there are too many sessions.
        """
        now_ms = self._now_ms()
        found = self._codes.pop(sha256_hex(code), None)
        if found is None or found.expires_ms <= now_ms:
            raise Unauthenticated(
                "this link was used already, or is older than a minute; run finegrain web --link"
                " again",
                reason=Reason.TOKEN_WRONG,
            )
        shown = read_certificate(found.certificate)
        uri = shown.identity.uri
        gone = self._ended()
        own = [key for key, each in self._sessions.items() if each.uri == uri]
        gone += [key for key in own if key not in gone][: 1 - SESSIONS_OF_IDENTITY_MAX or None]
        if len(self._sessions) - len(gone) >= SESSIONS_MAX:
            raise ResourceExhausted(
                f"{len(self._sessions)} browsers have a session; an administrator can end some with"
                " finegrain web --end ID",
                reason=Reason.OVER_LIMIT,
            )
        cookie, token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = WebSession(
            uri=uri,
            serial=shown.serial,
            certificate=found.certificate.decode(),
            token_sha256=sha256_hex(token),
            begun_ms=now_ms,
            ends_ms=min(now_ms + SESSION_MS, round(shown.not_after_s * 1_000)),
        )
        key = sha256_hex(cookie)
        # Store the session first: a browser must not get a session that is lost in a restart.
        await self._runner.put({SESSION_PREFIX + key: json.dumps(asdict(session))}, audited=False)
        self._sessions[key] = session
        await self._delete(gone)
        return NewSession(cookie, token, session)

    # -- sessions --------------------------------------------------------------------------------

    def of(self, cookie: str, token: str) -> WebSession:
        """Returns the session of a browser.

        Args:
            cookie: the secret in the cookie.
            token: the secret of the page.

        Raises:
            Unauthenticated: there is no such session, or it has ended.
        """
        key = sha256_hex(cookie)
        session = self._sessions.get(key)
        if session is None or not hmac.compare_digest(session.token_sha256, sha256_hex(token)):
            raise Unauthenticated(NO_SESSION)
        if session.ends_ms <= self._now_ms():
            raise Unauthenticated(
                "this session has ended after its time; run finegrain web --link in a terminal, and"
                " open the link that it prints",
                reason=Reason.CERTIFICATE_EXPIRED,
            )
        return session

    def sessions(self, caller: Caller) -> list[tuple[str, WebSession]]:
        """Returns the sessions that a caller is allowed to see, with their ids, oldest first."""
        ended = set(self._ended())
        found = [
            (key[:ID_CHARACTERS], each)
            for key, each in self._sessions.items()
            if key not in ended and (caller.is_operator or caller.owns(str(each.identity)))
        ]
        return sorted(found, key=lambda each: each[1].begun_ms)

    async def end(self, session_id: str, caller: Caller) -> None:
        """Ends a session.

        Raises:
            NotFound: there is no such session, or the caller is not allowed to see it.
        """
        known = {name for name, _ in self.sessions(caller)}
        if session_id not in known:
            raise NotFound(
                f"there is no session with the id {session_id}; finegrain web --sessions lists all",
                reason=Reason.IDENTITY_UNKNOWN,
            )
        found = [key for key in self._sessions if key.startswith(session_id)]
        await self._delete(found, audited=True)

    async def leave(self, cookie: str) -> None:
        """Ends the session of a browser."""
        await self._delete([key for key in self._sessions if key == sha256_hex(cookie)])

    def drop_denied(self) -> None:
        """Ends the sessions of callers that are denied now. A session does not start again when its
        denial is withdrawn.
        """
        if gone := self._ended():
            task = asyncio.create_task(self._delete(gone))
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)

    def _ended(self) -> list[str]:
        now_ms = self._now_ms()
        return [
            key
            for key, each in self._sessions.items()
            if each.ends_ms <= now_ms or self._is_denied(each.identity, each.serial)
        ]

    async def _delete(self, keys: list[str], *, audited: bool = False) -> None:
        for key in keys:
            self._sessions.pop(key, None)
        if keys:
            values = dict.fromkeys(SESSION_PREFIX + key for key in keys)
            await self._runner.put(values, audited=audited)
