"""Implements JoinService on a separate port. Its calls are the only calls that need no certificate;
see identity.proto.

The server shows a certificate, but asks its callers for no certificate. The size of a message, the
number of calls at the same time, and the rate of calls from one address are limited.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from google.protobuf.message import DecodeError, Message

from finegrain.certificates.authority import authority_keys, is_signed_by_one_of
from finegrain.certificates.keys import is_signed_by, key_of_request
from finegrain.certificates.reading import PeerCertificate, read_certificate
from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unauthenticated,
)
from finegrain.identity import Role
from finegrain.rpc.addresses import format_address, parse_address
from finegrain.rpc.channels import SERVER_OPTIONS
from finegrain.rpc.lasting_server import LastingServer
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.refusal_log import RefusalLog
from finegrain.rpc.server import bind_error
from finegrain.rpc.status import status_of
from finegrain.v1 import identity_pb2 as pb
from resource_manager.service.identities.issuing import RENEW_GRACE, Issuer
from resource_manager.service.identities.members import Members

MESSAGE_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 1_024
CALLS_MAX = 64  # the largest number of calls at the same time
RATE_PER_S = 10.0  # calls per second, for each address
BURST = 100
ADDRESSES_MAX = 10_000
NONCE_LIFE_S = 60

_log = logging.getLogger("finegrain.rm")


@dataclass(slots=True)
class RateLimit:
    """A token bucket for each key: a burst, and then a constant rate.

    Example: with a rate of 10 and a burst of 100, an address can make 100 calls at once, and then
    one call every 100 ms.
    """

    rate_per_s: float = RATE_PER_S
    burst: int = BURST
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def allows(self, key: str) -> bool:
        """Takes one call from the bucket of `key`; returns False if the bucket is empty."""
        now_s = self.clock()
        left, at_s = self._buckets.pop(key, (float(self.burst), now_s))
        left = min(float(self.burst), left + (now_s - at_s) * self.rate_per_s)
        allowed = left >= 1
        self._buckets[key] = (left - 1 if allowed else left, now_s)
        if len(self._buckets) > ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return allowed


class JoinServer:
    """Serves the calls with which new members join.

    Args:
        listen: "host:port"; port 0 lets the kernel choose.
        own: the certificate that the server shows.
        issuer: signs certificates.
        members: tokens and denials.
        gate: returns the error with which calls are rejected at the moment, or None.
        refused: a function that is called with the method and the error of each failed call.
    """

    def __init__(
        self,
        listen: str,
        own: OwnCertificate,
        issuer: Issuer,
        members: Members,
        gate: Callable[[], FinegrainError | None],
        *,
        refused: Callable[[str, FinegrainError], None],
    ) -> None:
        self._listen = listen
        self._own = own
        self._issuer = issuer
        self._members = members
        self._gate = gate
        self._refused = refused
        self._limit = RateLimit()
        self._refusals = RefusalLog(_log)
        self._nonce_key = secrets.token_bytes(32)
        self._server = LastingServer(self._make, own.joining_credentials)
        self.address = ""

    async def start(self) -> str:
        """Binds the address and starts to serve. Returns the address with the actual port.

        Raises:
            ConfigurationError: the address cannot be bound.
        """
        host, _ = parse_address(self._listen, "rm.join_listen")
        bound = self._server.bind(self._listen)
        if bound == 0:
            raise bind_error(self._listen, errno.EADDRINUSE)
        self.address = format_address(host, bound)
        await self._server.start(self.address)
        return self.address

    def _make(self) -> grpc.aio.Server:
        options = {
            **dict(SERVER_OPTIONS),
            "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
            "grpc.max_concurrent_streams": 8,
            "grpc.max_connection_age_ms": 30_000,
            "grpc.max_connection_age_grace_ms": 5_000,
            "grpc.max_allowed_incoming_connections": CONNECTIONS_MAX,
        }
        server = grpc.aio.server(options=list(options.items()), maximum_concurrent_rpcs=CALLS_MAX)
        handlers = {
            "Join": self._handler(pb.JoinRequest, self._join),
            "RenewExpired": self._handler(pb.RenewExpiredRequest, self._renew),
        }
        service = pb.DESCRIPTOR.services_by_name["JoinService"].full_name
        generic = grpc.method_handlers_generic_handler(service, handlers)
        server.add_generic_rpc_handlers((generic,))
        return server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stops the server."""
        await self._server.stop(grace_s)

    async def _join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        key = key_of_request(request.certificate_request)
        identity, life_s = await self._members.redeem(request.secret, _sha256_of(key))
        if self._members.is_denied(identity, ""):
            raise _denied()
        answer = pb.JoinResponse(issued=self._issuer.issue(identity, key, life_s))
        if identity.role is Role.RM:
            answer.authority_key = self._issuer.authority.private_key_pem.decode()
        _log.info("joined", extra={"identity": str(identity)})
        return answer

    async def _renew(self, request: pb.RenewExpiredRequest) -> pb.RenewExpiredResponse:
        pem = request.certificate.encode()
        shown = self._own_certificate(pem)
        if self._members.is_denied(shown.identity, shown.serial):
            raise _denied()
        if time.time() > shown.not_after_s + RENEW_GRACE.total_seconds():
            raise Unauthenticated(
                f"the certificate of {shown.identity} expired more than {RENEW_GRACE.days} days"
                " ago; join again with a token",
                reason=Reason.CERTIFICATE_EXPIRED,
            )
        if not request.nonce:
            return pb.RenewExpiredResponse(nonce=self._nonce(pem, int(time.time())))
        made_s = int.from_bytes(request.nonce[:8], "big")
        expected = self._nonce(pem, made_s)
        fresh = 0 <= time.time() - made_s <= NONCE_LIFE_S
        if not hmac.compare_digest(expected, request.nonce) or not fresh:
            raise InvalidArgument(
                "nonce", f"{len(request.nonce)} bytes", "the nonce of this server"
            )
        if not is_signed_by(shown.public_key, request.signature, request.nonce):
            raise Unauthenticated(
                "the signature is not of the certificate's key", reason=Reason.CERTIFICATE_WRONG
            )
        return pb.RenewExpiredResponse(issued=self._issuer.issue(shown.identity, shown.public_key))

    def _own_certificate(self, pem: bytes) -> PeerCertificate:
        """Reads a certificate, and checks that an authority of this cluster has signed it."""
        shown = read_certificate(pem)
        trusted = authority_keys(self._issuer.authority.trusted)
        if not is_signed_by_one_of(trusted, load_pem_x509_certificate(pem)):
            raise Unauthenticated(
                "the certificate is of another cluster", reason=Reason.CERTIFICATE_WRONG
            )
        return shown

    def _nonce(self, pem: bytes, made_s: int) -> bytes:
        made = made_s.to_bytes(8, "big")
        mark = hmac.new(self._nonce_key, made + hashlib.sha256(pem).digest(), hashlib.sha256)
        return made + mark.digest()

    def _handler(self, request: type[Message], call: Callable[[Any], Awaitable[Message]]) -> Any:
        """Returns the handler of one method. The handler gets raw bytes, so that this module also
        returns the error for bytes that are not a message.
        """
        name = request.DESCRIPTOR.name.removesuffix("Request")

        async def serve(data: bytes, context: Any) -> Message:
            peer = context.peer()
            try:
                # The peer's port changes with each connection, so the limit is for the peer's
                # address.
                if not self._limit.allows(peer.rpartition(":")[0]):
                    raise ResourceExhausted("too many calls; wait a second", retry_after_s=1.0)
                if (refusal := self._gate()) is not None:
                    raise refusal
                return await call(_parsed(request, data))
            except FinegrainError as refused:
                error = refused
                self._refusals.add(name, error, peer)
                self._refused(name, error)
            except Exception as failure:
                _log.error("call_failed", exc_info=failure, extra={"method": name})
                error = FinegrainError(
                    "the server failed while it handled this call; its log has the details",
                    reason=Reason.INTERNAL,
                )
            code, message, trailing = status_of(error)
            await context.abort(code, message, trailing)
            raise error  # `abort` has raised

        return grpc.unary_unary_rpc_method_handler(serve, None, _serialized)


def _parsed(request: type[Message], data: bytes) -> Message:
    try:
        return request.FromString(data)
    except DecodeError:
        expected = f"a {request.DESCRIPTOR.name} message"
        raise InvalidArgument("request", f"{len(data)} bytes", expected) from None


def _serialized(answer: Message) -> bytes:
    return answer.SerializeToString()


def _sha256_of(key: ec.EllipticCurvePublicKey) -> str:
    data = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return hashlib.sha256(data).hexdigest()


def _denied() -> Unauthenticated:
    return Unauthenticated(
        "an administrator of the cluster has denied this identity", reason=Reason.CERTIFICATE_DENIED
    )
