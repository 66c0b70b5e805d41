"""Implements IdentityService: renewal of certificates, join tokens and denials; see
identity.proto.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from finegrain.certificates.authority import BACKDATED
from finegrain.certificates.joining import public_bytes
from finegrain.certificates.reading import read_certificate
from finegrain.errors import FailedPrecondition, InvalidArgument
from finegrain.identity import Identity, Role
from finegrain.ids import check_text
from finegrain.join_token import JoinToken, sha256_hex, token_id
from finegrain.rpc.access import current_caller
from finegrain.v1 import identity_pb2 as pb
from finegrain.v1.identity_pb2_grpc import IdentityServiceServicer
from resource_manager.service.audit import audited
from resource_manager.service.identities.issuing import Issuer
from resource_manager.service.identities.members import Members
from resource_manager.service.identities.web_sessions import WebSessions
from resource_manager.service.paging import page_size
from resource_manager.storage.audit_log import verify

_SERIAL = re.compile(r"[0-9a-f]{1,40}")
LIFE_S_MAX = 365 * 24 * 3_600
REASON_CHARACTERS_MAX = 500


class IdentityCalls(IdentityServiceServicer):
    """The calls of IdentityService.

    Args:
        issuer: signs certificates.
        members: tokens and denials.
        sessions: sessions of browsers.
        join_addresses: returns "host:port" of the join port; empty: there is no join port.
    """

    def __init__(
        self,
        issuer: Issuer,
        members: Members,
        sessions: WebSessions,
        join_addresses: Callable[[], Sequence[str]],
    ) -> None:
        self._issuer = issuer
        self._members = members
        self._sessions = sessions
        self._join_addresses = join_addresses

    async def RenewCertificate(
        self, request: pb.RenewCertificateRequest, context: Any
    ) -> pb.RenewCertificateResponse:
        """See the protocol."""
        caller = current_caller()
        shown = read_certificate(caller.certificate)
        # The renewed certificate is valid for as long as the former certificate was.
        life_s = round(shown.not_after_s - shown.not_before_s - BACKDATED.total_seconds())
        issued = self._issuer.issue(shown.identity, shown.public_key, life_s)
        return pb.RenewCertificateResponse(issued=issued)

    @audited(lambda request: f"{request.role}/{request.name}".removesuffix("/"))
    async def CreateToken(
        self, request: pb.CreateTokenRequest, context: Any
    ) -> pb.CreateTokenResponse:
        """See the protocol."""
        if request.role not in tuple(Role):
            raise InvalidArgument("role", request.role, f"one of {', '.join(Role)}")
        role = Role(request.role)
        identity = Identity(self._issuer.authority.cluster, role, request.name)
        if request.certificate_life_s:
            if role in (Role.RM, Role.EXECUTOR, Role.OPERATOR):
                raise InvalidArgument(
                    "certificate_life_s", request.certificate_life_s, f"0 for the role {role}"
                )
            if not 60 <= request.certificate_life_s <= LIFE_S_MAX:
                raise InvalidArgument(
                    "certificate_life_s", request.certificate_life_s, f"60 to {LIFE_S_MAX} seconds"
                )
        addresses = self._join_addresses()
        if not addresses:
            raise FailedPrecondition(
                "this resource manager has no join port, so a token would be useless; set"
                " rm.join_listen"
            )
        secret, token = await self._members.create_token(
            identity,
            made_by=current_caller().name,
            ttl_s=request.ttl_s,
            life_s=request.certificate_life_s,
        )
        answer = pb.CreateTokenResponse(
            token=self.token_of(secret).text, id=token_id(sha256_hex(secret))
        )
        answer.expires_at.FromMilliseconds(token.expires_ms)
        return answer

    def token_of(self, secret: str) -> JoinToken:
        """Returns the token for a secret."""
        authority = self._issuer.authority
        return JoinToken(
            tuple(self._join_addresses()),
            authority.cluster,
            public_bytes(authority.certificate).hex(),
            secret,
        )

    async def ListTokens(
        self, request: pb.ListTokensRequest, context: Any
    ) -> pb.ListTokensResponse:
        """See the protocol."""
        answer = pb.ListTokensResponse()
        for name, token in (await self._members.tokens()).items():
            info = answer.tokens.add(
                id=name, identity=str(Identity.parse(token.identity)), made_by=token.made_by
            )
            info.expires_at.FromMilliseconds(token.expires_ms)
        return answer

    @audited(lambda request: request.id)
    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, context: Any
    ) -> pb.RevokeTokenResponse:
        """See the protocol."""
        await self._members.revoke(request.id)
        return pb.RevokeTokenResponse()

    @audited(lambda request: request.subject)
    async def DenyIdentity(
        self, request: pb.DenyIdentityRequest, context: Any
    ) -> pb.DenyIdentityResponse:
        """See the protocol."""
        subject = self._subject(request.subject)
        if subject == current_caller().name:
            raise InvalidArgument("subject", subject, "another identity than the caller's own")
        if request.reason:
            check_text("reason", request.reason, longest=REASON_CHARACTERS_MAX)
        await self._members.deny(subject, request.reason, current_caller().name)
        return pb.DenyIdentityResponse()

    @audited(lambda request: request.subject)
    async def AllowIdentity(
        self, request: pb.AllowIdentityRequest, context: Any
    ) -> pb.AllowIdentityResponse:
        """See the protocol."""
        await self._members.allow(self._subject(request.subject))
        return pb.AllowIdentityResponse()

    async def ListDenied(
        self, request: pb.ListDeniedRequest, context: Any
    ) -> pb.ListDeniedResponse:
        """See the protocol."""
        answer = pb.ListDeniedResponse()
        for each in self._members.denials:
            denial = answer.denials.add(
                subject=each.subject, reason=each.reason, denied_by=each.denied_by
            )
            denial.denied_at.FromMilliseconds(each.denied_ms)
        return answer

    async def ListAudit(self, request: pb.ListAuditRequest, context: Any) -> pb.ListAuditResponse:
        """See the protocol."""
        if request.before_sequence < 0:
            raise InvalidArgument("before_sequence", request.before_sequence, "0 or more")
        limit = page_size(request.page_size)
        entries = await self._members.in_store(
            lambda store: store.read_audit(
                request.before_sequence, limit, actor=request.actor, method=request.method
            )
        )
        answer = pb.ListAuditResponse()
        for each in entries:
            entry = answer.entries.add(
                sequence=each.sequence,
                actor=each.actor,
                method=each.method,
                object=each.object,
                outcome=each.outcome,
                count=each.count,
                digest=each.digest,
            )
            entry.entry_time.FromMilliseconds(each.time_ms)
        return answer

    async def VerifyAudit(
        self, request: pb.VerifyAuditRequest, context: Any
    ) -> pb.VerifyAuditResponse:
        """See the protocol."""
        found = await self._members.in_store(verify)
        return pb.VerifyAuditResponse(
            entries=found.entries,
            first_sequence=found.first_sequence,
            last_sequence=found.last_sequence,
            problem=found.problem,
        )

    async def CreateWebLink(
        self, request: pb.CreateWebLinkRequest, context: Any
    ) -> pb.CreateWebLinkResponse:
        """See the protocol."""
        link, expires_ms = self._sessions.new_link(current_caller())
        answer = pb.CreateWebLinkResponse(link=link)
        answer.expires_at.FromMilliseconds(expires_ms)
        return answer

    async def ListWebSessions(
        self, request: pb.ListWebSessionsRequest, context: Any
    ) -> pb.ListWebSessionsResponse:
        """See the protocol."""
        answer = pb.ListWebSessionsResponse()
        for session_id, each in self._sessions.sessions(current_caller()):
            shown = answer.sessions.add(
                id=session_id, identity=str(each.identity), serial=each.serial
            )
            shown.begun_at.FromMilliseconds(each.begun_ms)
            shown.ends_at.FromMilliseconds(each.ends_ms)
        return answer

    @audited(lambda request: request.id)
    async def EndWebSession(
        self, request: pb.EndWebSessionRequest, context: Any
    ) -> pb.EndWebSessionResponse:
        """See the protocol."""
        await self._sessions.end(request.id, current_caller())
        return pb.EndWebSessionResponse()

    def _subject(self, text: str) -> str:
        if _SERIAL.fullmatch(text):
            return text
        try:
            return str(Identity.from_text(self._issuer.authority.cluster, text))
        except InvalidArgument:
            raise InvalidArgument(
                "subject", text, "ROLE/NAME, or a serial number in hexadecimal"
            ) from None
