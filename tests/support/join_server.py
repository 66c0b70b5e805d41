"""A join port: exchanges scripted tokens for certificates, and renews expired certificates."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import grpc.aio
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from finegrain.certificates.authority import Authority, certificate_pem
from finegrain.certificates.joining import public_bytes
from finegrain.certificates.keys import is_signed_by, key_of_request
from finegrain.certificates.reading import read_certificate
from finegrain.errors import FinegrainError, Reason, Unauthenticated
from finegrain.identity import Identity
from finegrain.join_token import JoinToken, new_secret
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.status import status_of
from finegrain.v1 import identity_pb2 as pb
from tests.support import identities

SERVICE = "finegrain.v1.JoinService"


@dataclass
class JoinServer:
    """Answers like a resource manager. `shown` is the identity in the certificate that the server
    shows.
    """

    shown: str = "rm"
    cluster: str = identities.CLUSTER
    life: timedelta = timedelta(hours=2)
    managers: tuple[str, ...] = ()  # addresses of resource managers in its answers
    refuse: FinegrainError | None = None
    address: str = ""
    calls: list[str] = field(default_factory=list)
    answers_lost: int = 0  # the next answers that do not arrive
    _tokens: dict[str, str] = field(default_factory=dict)  # secrets, with identities
    # Secrets, each with the key that has used it.
    _keys: dict[str, bytes] = field(default_factory=dict)
    _nonces: set[bytes] = field(default_factory=set)

    @property
    def authority(self) -> Authority:
        return identities.authority(self.cluster)

    def token(self, who: str, *addresses: str) -> JoinToken:
        """Makes a token for an identity, which works once."""
        secret = new_secret()
        self._tokens[secret] = who
        key = public_bytes(self.authority.certificate).hex()
        return JoinToken(addresses or (self.address,), self.cluster, key, secret)

    @asynccontextmanager
    async def listening(self, address: str = "127.0.0.1:0") -> AsyncIterator[JoinServer]:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        for name, handler, decode in (
            ("Join", self.Join, pb.JoinRequest.FromString),
            ("RenewExpired", self.RenewExpired, pb.RenewExpiredRequest.FromString),
        ):
            method: Any = grpc.unary_unary_rpc_method_handler(
                handler, decode, lambda message: bytes(message.SerializeToString())
            )
            generic = grpc.method_handlers_generic_handler(SERVICE, {name: method})
            server.add_generic_rpc_handlers((generic,))
        own = OwnCertificate(identities.credentials(self.shown, cluster=self.cluster))
        port = server.add_secure_port(address, own.joining_credentials())
        self.address = f"127.0.0.1:{port}"
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinResponse:
        self.calls.append("Join")
        who = self._tokens.get(request.secret, "")
        key = key_of_request(request.certificate_request)
        point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        same_key = self._keys.setdefault(request.secret, point) == point
        refusal = self.refuse or Unauthenticated("the token was used", reason=Reason.TOKEN_WRONG)
        if self.refuse or not who or not same_key:
            await context.abort(*status_of(refusal))
        if self.answers_lost:
            self.answers_lost -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return pb.JoinResponse(issued=self._issue(identities.identity(who, self.cluster), key))

    async def RenewExpired(
        self, request: pb.RenewExpiredRequest, context: Any
    ) -> pb.RenewExpiredResponse:
        self.calls.append("RenewExpired")
        if self.refuse:
            await context.abort(*status_of(self.refuse))
        if not request.nonce:
            self._nonces.add(nonce := secrets.token_bytes(16))
            return pb.RenewExpiredResponse(nonce=nonce)
        shown = read_certificate(request.certificate.encode())
        self._nonces.remove(request.nonce)
        assert is_signed_by(shown.public_key, request.signature, request.nonce)
        return pb.RenewExpiredResponse(issued=self._issue(shown.identity, shown.public_key))

    def _issue(self, who: Identity, key: Any) -> pb.IssuedCertificate:
        signed = self.authority.sign(who, key, now=datetime.now(UTC), lifetime=self.life)
        issued = pb.IssuedCertificate(
            identity=who.uri,
            certificate=certificate_pem(signed).decode(),
            authorities=self.authority.certificate_pem.decode(),
            addresses=self.managers,
        )
        issued.not_before.FromDatetime(signed.not_valid_before_utc)
        issued.not_after.FromDatetime(signed.not_valid_after_utc)
        return issued
