"""Certificates of a cluster, and the checks of TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from finegrain.certificates.authority import Authority, certificate_pem
from finegrain.certificates.keys import (
    certificate_request,
    is_signed_by,
    key_from_pem,
    key_of_request,
    key_pem,
    new_key,
    signature_of,
)
from finegrain.certificates.reading import read_certificate
from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.identity import Identity, Role

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
RM = Identity("c1", Role.RM)
WEB = Identity("c1", Role.EXECUTOR, "web-1")
ANN = Identity("c1", Role.OPERATOR, "ann")
METHOD = "/test.Echo/Who"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("c1", NOW)


class Holder:
    """A key with its certificate."""

    def __init__(
        self,
        authority: Authority,
        identity: Identity,
        *,
        now: datetime = NOW,
        lifetime: timedelta = DAY,
    ) -> None:
        key = new_key()
        self.certificate = authority.sign(identity, key.public_key(), now=now, lifetime=lifetime)
        self.pem, self.key = certificate_pem(self.certificate), key_pem(key)
        self.authority = authority.certificate_pem

    def server(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials(
            [(self.key, self.pem)], self.authority, require_client_auth=True
        )

    def client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.pem)


async def who(request: bytes, context: Any) -> bytes:
    """Answers with the SPIFFE id of the caller."""
    return b"".join(context.auth_context()["peer_spiffe_id"])


@asynccontextmanager
async def served(holder: Holder) -> AsyncIterator[str]:
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(who)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Echo", {"Who": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", holder.server())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def call(address: str, holder: Holder, expected: Identity) -> str:
    options = [("grpc.ssl_target_name_override", expected.dns_name)]
    async with grpc.aio.secure_channel(address, holder.client(), options=options) as channel:
        echo: Any = channel.unary_unary(METHOD)
        answer: bytes = await echo(b"", timeout=10)
    return answer.decode()


async def refused(address: str, holder: Holder, expected: Identity) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(address, holder, expected)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_both_ends_know_each_other(authority: Authority) -> None:
    async with served(Holder(authority, RM)) as address:
        for identity in (WEB, ANN, Identity("c1", Role.USER, "Ünknown".encode("idna").decode())):
            assert await call(address, Holder(authority, identity), RM) == identity.uri


async def test_an_executor_cannot_pass_as_the_manager(authority: Authority) -> None:
    async with served(Holder(authority, WEB)) as address:
        assert await call(address, Holder(authority, RM), WEB) == RM.uri
        await refused(address, Holder(authority, ANN), RM)
        await refused(address, Holder(authority, RM), Identity("c1", Role.EXECUTOR, "web-2"))


async def test_a_certificate_of_an_operator_serves_nobody(authority: Authority) -> None:
    async with served(Holder(authority, ANN)) as address:
        await refused(address, Holder(authority, RM), ANN)


async def test_strangers_and_expired_certificates_are_refused(authority: Authority) -> None:
    namesake = Authority.create("c1", NOW)
    async with served(Holder(authority, RM)) as address:
        stranger = Holder(namesake, ANN)
        await refused(address, stranger, RM)
        stranger.authority = authority.certificate_pem
        await refused(address, stranger, RM)
        old = NOW - timedelta(days=9)
        await refused(address, Holder(authority, ANN, now=old), RM)
        await refused(address, Holder(authority, ANN, now=NOW + DAY), RM)
        # A clock that is slow by an hour and a half: certificates are valid from two hours ago.
        skewed = NOW + timedelta(minutes=90)
        assert await call(address, Holder(authority, ANN, now=skewed), RM)


def test_certificates_say_who_and_until_when(authority: Authority) -> None:
    for identity in (RM, WEB, ANN):
        holder = Holder(authority, identity)
        peer = read_certificate(holder.pem)
        assert peer.identity == identity
        valid = (NOW - timedelta(hours=2), NOW + DAY)
        assert (peer.not_before_s, peer.not_after_s) == tuple(each.timestamp() for each in valid)
        assert peer.serial == f"{holder.certificate.serial_number:x}"
        assert not list(holder.certificate.subject)


def test_no_certificate_outlives_the_authority(authority: Authority) -> None:
    holder = Holder(authority, WEB, lifetime=timedelta(days=100_000))
    assert holder.certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc


def named(authority: Authority, *names: Any) -> bytes:
    """A certificate of the authority with names that the authority would never write."""
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(new_key().public_key())
        .serial_number(7)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate_pem(certificate)


def test_names_that_do_not_belong_together_are_refused(authority: Authority) -> None:
    uri, dns = x509.UniformResourceIdentifier, x509.DNSName
    good = [uri(WEB.uri), dns(WEB.dns_name)]
    assert read_certificate(named(authority, *good)).identity == WEB
    bad: list[list[Any]] = [
        [uri(WEB.uri)],
        [dns(WEB.dns_name)],
        [uri(WEB.uri), dns(RM.dns_name)],
        [*good, uri(RM.uri)],
        [*good, dns(RM.dns_name)],
        [*good, x509.RFC822Name("a@b")],
        [uri("https://c1/rm"), dns(RM.dns_name)],
    ]
    for names in bad:
        with pytest.raises(InvalidArgument):
            read_certificate(named(authority, *names))
    for junk in (b"", b"junk", authority.certificate_pem):
        with pytest.raises(InvalidArgument):
            read_certificate(junk)


def test_a_request_proves_the_key_and_names_nothing(authority: Authority) -> None:
    key = new_key()
    request = certificate_request(key)
    assert key_of_request(request) == key.public_key()
    middle = len(request) // 2
    changed = request[:middle] + bytes([request[middle] ^ 1]) + request[middle + 1 :]
    for bad in (b"", b"junk", changed, request + b"x" * 5_000):
        with pytest.raises(InvalidArgument):
            key_of_request(bad)


@pytest.mark.parametrize(
    "key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())]
)
def test_other_kinds_of_keys_are_refused(key: Any) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    data = request.sign(key, algorithm).public_bytes(Encoding.DER)
    with pytest.raises(InvalidArgument, match="another kind of key"):
        key_of_request(data)
    with pytest.raises(ConfigurationError, match="P-256"):
        key_from_pem(key_pem(key))


def test_signatures(authority: Authority) -> None:
    signature = signature_of(authority.key, b"epoch 7")
    assert is_signed_by(authority.key.public_key(), signature, b"epoch 7")
    assert not is_signed_by(authority.key.public_key(), signature, b"epoch 8")
    assert not is_signed_by(new_key().public_key(), signature, b"epoch 7")
    assert not is_signed_by(authority.key.public_key(), b"junk", b"epoch 7")


def test_an_authority_is_read_as_it_was_written(authority: Authority) -> None:
    again = Authority.from_pem(authority.certificate_pem, authority.private_key_pem)
    assert again.certificate == authority.certificate
    with pytest.raises(ConfigurationError, match="does not belong"):
        Authority.from_pem(authority.certificate_pem, key_pem(new_key()))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Authority.from_pem(b"junk", authority.private_key_pem)
    assert "PRIVATE" not in repr(authority)


def test_the_key_says_which_of_the_trusted_authorities_signs(authority: Authority) -> None:
    other = Authority.create("c1", NOW)
    both = authority.certificate_pem + other.certificate_pem
    read = Authority.from_pem(both, other.private_key_pem)
    assert (read.certificate, read.others) == (other.certificate, (authority.certificate,))
    assert read.trusted_pem == other.certificate_pem + authority.certificate_pem
    stranger = Authority.create("c1", NOW)
    with pytest.raises(ConfigurationError, match="does not belong"):
        Authority.from_pem(both, stranger.private_key_pem)
