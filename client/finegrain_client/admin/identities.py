"""Implements the calls of `Cluster` about join tokens, identities and sessions of the web page. All
calls except those about sessions need the role `operator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrain.v1 import identity_pb2 as pb
from finegrain_client.connection import Connection

if TYPE_CHECKING:
    from finegrain_client.types.identities import (
        AuditCheck,
        AuditEntry,
        Denial,
        NewToken,
        TokenStatus,
        WebLink,
        WebSession,
    )

AUDIT_PAGE = 1_000


class Identities:
    """The part of `Cluster` with the calls about join tokens, identities and sessions of the web
    page.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def identity(self) -> str:
        """The identity that this client shows, such as "user/alice"."""
        return str(self._connection.own.credentials.who)

    async def create_token(
        self, role: str, name: str = "", *, ttl_s: int = 900, certificate_life_s: int = 0
    ) -> NewToken:
        """Creates a token with which one new member gets its first certificate.

        Args:
            role: "executor", "operator", "viewer", "user", "metrics" or "rm".
            name: executor id, or login name; empty for the roles "metrics" and "rm".
            ttl_s: time in seconds in which the token can be used.
            certificate_life_s: validity of the certificate in seconds; 0 means the default of the
                role.

        Raises:
            InvalidArgument: the role, the name or a time is not allowed.
            FailedPrecondition: the resource manager has no join port.
        """
        message = pb.CreateTokenRequest(
            role=role, name=name, ttl_s=ttl_s, certificate_life_s=certificate_life_s
        )
        answer = await self._connection.call_identities(
            lambda service, timeout_s: service.CreateToken(message, timeout=timeout_s)
        )
        from finegrain_client.decoding_identities import read
        from finegrain_client.types.identities import NewToken

        return read(NewToken, answer)

    async def tokens(self) -> list[TokenStatus]:
        """Returns the tokens that were never used and are still valid."""
        answer = await self._connection.call_identities(
            lambda service, timeout_s: service.ListTokens(pb.ListTokensRequest(), timeout=timeout_s)
        )
        from finegrain_client.decoding_identities import read
        from finegrain_client.types.identities import TokenStatus

        return read.each(TokenStatus, answer.tokens)

    async def revoke_token(self, token_id: str) -> None:
        """Revokes a token, so that no member can use the token any more.

        Raises:
            NotFound: there is no such token.
        """
        message = pb.RevokeTokenRequest(id=token_id)
        await self._connection.call_identities(
            lambda service, timeout_s: service.RevokeToken(message, timeout=timeout_s)
        )

    async def deny_identity(self, subject: str, *, reason: str = "") -> None:
        """Denies an identity: its calls are rejected from now on, and its streams end.

        Args:
            subject: "ROLE/NAME", or the serial number of one certificate in hexadecimal.
            reason: the reason why the identity is denied, for other administrators.
        """
        message = pb.DenyIdentityRequest(subject=subject, reason=reason)
        await self._connection.call_identities(
            lambda service, timeout_s: service.DenyIdentity(message, timeout=timeout_s)
        )

    async def allow_identity(self, subject: str) -> None:
        """Withdraws the denial of an identity or a certificate.

        Raises:
            NotFound: the identity or certificate is not denied.
        """
        message = pb.AllowIdentityRequest(subject=subject)
        await self._connection.call_identities(
            lambda service, timeout_s: service.AllowIdentity(message, timeout=timeout_s)
        )

    async def denied_identities(self) -> list[Denial]:
        """Returns all denials."""
        answer = await self._connection.call_identities(
            lambda service, timeout_s: service.ListDenied(pb.ListDeniedRequest(), timeout=timeout_s)
        )
        from finegrain_client.decoding_identities import read
        from finegrain_client.types.identities import Denial

        return read.each(Denial, answer.denials)

    async def web_link(self) -> WebLink:
        """Returns a link that begins a session of the web page with the identity of this client.

        Raises:
            FailedPrecondition: the resource manager serves no web page.
        """
        answer = await self._connection.call_identities(
            lambda service, timeout_s: service.CreateWebLink(
                pb.CreateWebLinkRequest(), timeout=timeout_s
            )
        )
        from finegrain_client.decoding_identities import read
        from finegrain_client.types.identities import WebLink

        return read(WebLink, answer)

    async def web_sessions(self) -> list[WebSession]:
        """Returns the sessions of the web page that this identity has. A caller with the role
        `operator` gets the sessions of all identities.
        """
        answer = await self._connection.call_identities(
            lambda service, timeout_s: service.ListWebSessions(
                pb.ListWebSessionsRequest(), timeout=timeout_s
            )
        )
        from finegrain_client.decoding_identities import read
        from finegrain_client.types.identities import WebSession

        return read.each(WebSession, answer.sessions)

    async def end_web_session(self, session_id: str) -> None:
        """Ends a session of the web page.

        Raises:
            NotFound: there is no such session, or it belongs to another identity.
        """
        message = pb.EndWebSessionRequest(id=session_id)
        await self._connection.call_identities(
            lambda service, timeout_s: service.EndWebSession(message, timeout=timeout_s)
        )

    async def audit(
        self, *, newest: int = 100, actor: str = "", method: str = ""
    ) -> list[AuditEntry]:
        """Returns the newest entries of the audit log, ordered from the oldest to the newest.

        Args:
            newest: maximum number of entries.
            actor: return only entries of this identity, such as "operator/ann". If empty, return
                the entries of all identities.
            method: return only entries of this method, such as "DrainExecutor". If empty, return
                the entries of all methods.
        """
        found: list[AuditEntry] = []
        while len(found) < newest:
            message = pb.ListAuditRequest(
                before_sequence=found[0].sequence if found else 0,
                page_size=min(AUDIT_PAGE, newest - len(found)),
                actor=actor,
                method=method,
            )
            page = await self._audit_page(message)
            if not page:
                break
            found = page + found
        return found

    async def _audit_page(self, message: pb.ListAuditRequest) -> list[AuditEntry]:
        answer = await self._connection.call_identities(
            lambda service, timeout_s: service.ListAudit(message, timeout=timeout_s)
        )
        from finegrain_client.decoding_identities import read
        from finegrain_client.types.identities import AuditEntry

        return read.each(AuditEntry, answer.entries)

    async def verify_audit(self) -> AuditCheck:
        """Checks that no entry of the audit log was deleted or changed."""
        answer = await self._connection.call_identities(
            lambda service, timeout_s: service.VerifyAudit(
                pb.VerifyAuditRequest(), timeout=timeout_s
            )
        )
        from finegrain_client.decoding_identities import read
        from finegrain_client.types.identities import AuditCheck

        return read(AuditCheck, answer)
