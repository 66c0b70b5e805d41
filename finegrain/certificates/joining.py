"""Gets a new certificate. The caller shows a join token or an expired certificate as proof.

The caller knows only the key of the cluster's authority. So the caller first fetches the server's
certificate, and checks that the authority has signed the certificate for the role `rm`. Then the
caller connects only to the holder of this certificate, and no other server receives the request.
All functions block.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from finegrain.certificates.authority import Authority, authority_keys, is_signed_by_one_of
from finegrain.certificates.keys import certificate_request, key_from_pem, key_pem, new_key
from finegrain.certificates.keys import signature_of as sign
from finegrain.certificates.reading import read_certificate
from finegrain.credentials import Credentials
from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    Reason,
    Unauthenticated,
    Unavailable,
)
from finegrain.identity import Identity, Role
from finegrain.join_token import JoinToken
from finegrain.rpc.addresses import parse_address
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import identity_pb2, identity_pb2_grpc

TIMEOUT_S = 10.0

T = TypeVar("T")
Stub = identity_pb2_grpc.JoinServiceStub
AuthorityKeys = Sequence[ec.EllipticCurvePublicKey]


def join(token: JoinToken, key_text: str = "") -> Credentials:
    """Exchanges a token for a certificate of a key.

    Args:
        token: the token. It works only for the first key with which it is used. With this key, the
            token works repeatedly, because an answer can be lost.
        key_text: the private key as PEM text; empty: the function makes a new key.

    Raises:
        Unavailable: no address of the token can be reached.
        Unauthenticated: the token was used, has expired, or was revoked. Or the server at the
            token's address is not a resource manager of the token's cluster.
    """
    return _join(token, key_from_pem(key_text.encode()) if key_text else new_key())[0]


def join_for(token: JoinToken, request: bytes) -> identity_pb2.IssuedCertificate:
    """Exchanges a token for a certificate of a key that another program has.

    Args:
        token: the token.
        request: the other program's request for a certificate (PKCS #10, DER).

    Raises:
        Unavailable, Unauthenticated: see `join`.
        InvalidArgument: the request is malformed.
    """
    return _exchange(token, request).issued


def join_as_manager(token: JoinToken) -> Authority:
    """Exchanges a token of the role `rm` for the cluster's authority, with its private key.

    Raises:
        Unavailable, Unauthenticated: see `join`.
        InvalidArgument: the token is for another role.
    """
    credentials, authority_key = _join(token, new_key())
    if not authority_key:
        raise InvalidArgument("token", f"for {credentials.who}", "one for a resource manager")
    return Authority.from_pem(credentials.authorities.encode(), authority_key.encode())


def _join(token: JoinToken, key: ec.EllipticCurvePrivateKey) -> tuple[Credentials, str]:
    answer = _exchange(token, certificate_request(key))
    return credentials_of(answer.issued, key_pem(key).decode()), answer.authority_key


def _exchange(token: JoinToken, request: bytes) -> identity_pb2.JoinResponse:
    message = identity_pb2.JoinRequest(secret=token.secret, certificate_request=request)
    point = bytes.fromhex(token.authority_key)
    return _at_one_of(
        token.addresses,
        token.cluster,
        [ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)],
        lambda stub: stub.Join(message, timeout=TIMEOUT_S),
    )


def renew_expired(credentials: Credentials, addresses: Sequence[str]) -> Credentials:
    """Renews a certificate that has expired. The caller proves with a signature that it has the
    key.

    Args:
        credentials: the expired credentials.
        addresses: "host:port" of the resource managers' join ports.

    Raises:
        Unavailable: no address can be reached.
        Unauthenticated: the certificate expired too long ago, or was denied.
    """
    key = key_from_pem(credentials.key.encode())
    first = identity_pb2.RenewExpiredRequest(certificate=credentials.certificate)

    def renew(stub: Stub) -> identity_pb2.IssuedCertificate:
        nonce = stub.RenewExpired(first, timeout=TIMEOUT_S).nonce
        second = identity_pb2.RenewExpiredRequest(
            certificate=credentials.certificate, nonce=nonce, signature=sign(key, nonce)
        )
        return stub.RenewExpired(second, timeout=TIMEOUT_S).issued

    trusted = authority_keys(x509.load_pem_x509_certificates(credentials.authorities.encode()))
    issued = _at_one_of(addresses, credentials.who.cluster, trusted, renew)
    return credentials_of(issued, credentials.key)


def credentials_of(issued: identity_pb2.IssuedCertificate, key: str) -> Credentials:
    """Returns credentials from the answer of a resource manager.

    Args:
        issued: the answer.
        key: the private key as PEM text.
    """
    return Credentials(
        addresses=tuple(issued.addresses),
        identity=issued.identity,
        authorities=issued.authorities,
        certificate=issued.certificate,
        key=key,
        not_before=issued.not_before.seconds,
        not_after=issued.not_after.seconds,
    )


def public_bytes(certificate: x509.Certificate) -> bytes:
    """Returns the public key of a certificate on P-256 as a compressed point (33 bytes).

    Raises:
        InvalidArgument: the key is of another kind.
    """
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidArgument("certificate", "another kind of key", "an ECDSA key on P-256")
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _at_one_of(
    addresses: Sequence[str], cluster: str, trusted: AuthorityKeys, call: Callable[[Stub], T]
) -> T:
    """Makes a call at the first address where a resource manager of the cluster answers."""
    failure: FinegrainError | None = None
    for address in addresses:
        try:
            return _at(address, cluster, trusted, call)
        except Unavailable as error:
            failure = error
    raise failure or Unavailable("there is no address at which to join", reason=Reason.UNREACHABLE)


def _at(address: str, cluster: str, trusted: AuthorityKeys, call: Callable[[Stub], T]) -> T:
    server = Identity(cluster, Role.RM)
    certificate = _checked_certificate(address, server, trusted)
    # This channel trusts only the server's own certificate.
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate)
    options = (("grpc.ssl_target_name_override", server.dns_name), ("grpc.enable_http_proxy", 0))
    with grpc.secure_channel(address, credentials, options=options) as channel:
        try:
            return call(Stub(channel))
        except grpc.RpcError as error:
            raise error_from_rpc(error, address) from None


def _checked_certificate(address: str, server: Identity, trusted: AuthorityKeys) -> bytes:
    """Returns the certificate of a server as PEM text, if the server is a resource manager of the
    cluster.
    """
    host, port = parse_address(address)
    try:
        pem = ssl.get_server_certificate((host, port), timeout=TIMEOUT_S).encode()
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"no resource manager can be reached at {address}: {error}", reason=Reason.UNREACHABLE
        ) from None
    wrong = Unauthenticated(
        f"the server at {address} is no resource manager of cluster {server.cluster}; check the"
        " address, and that no other program listens there",
        reason=Reason.CERTIFICATE_WRONG,
        details={"address": address},
    )
    try:
        signed = is_signed_by_one_of(trusted, x509.load_pem_x509_certificate(pem))
        shown = read_certificate(pem)
    except (ValueError, TypeError, InvalidArgument):
        raise wrong from None
    if not signed or shown.identity != server:
        raise wrong
    if not shown.not_before_s <= time.time() <= shown.not_after_s:
        raise Unauthenticated(
            f"the certificate of the resource manager at {address} is not valid now; the clock of"
            f" this host says {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            reason=Reason.CERTIFICATE_EXPIRED,
        )
    return pem
