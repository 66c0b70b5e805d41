"""Identities for tests: one authority per run, and credentials of any identity, made on demand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from finegrain.certificates.authority import Authority, certificate_pem
from finegrain.certificates.keys import key_pem, new_key
from finegrain.certificates.reading import read_certificate
from finegrain.credentials import Credentials, write_credentials
from finegrain.identity import Identity
from finegrain.rpc.access import Caller
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.trust import Trust
from finegrain.v1 import identity_pb2

CLUSTER = "test"


def authority(name: str = CLUSTER) -> Authority:
    """Returns the authority of a cluster: always the same one for a name."""
    return _authority(name)


@cache
def _authority(name: str) -> Authority:
    return Authority.create(name, datetime.now(UTC))


def identity(text: str, cluster: str = CLUSTER) -> Identity:
    """Returns an identity from its text, such as "user/alice" or "rm"."""
    return Identity.from_text(cluster, text)


@cache
def credentials(
    text: str, *addresses: str, cluster: str = CLUSTER, life_s: float = 3_600, starts_s: float = 0
) -> Credentials:
    """Returns credentials of an identity in a cluster of the tests.

    Args:
        text: the identity: "user/alice", "rm".
        addresses: "host:port" of resource managers.
        cluster: name of the cluster.
        life_s: duration of the certificate's validity, in seconds; negative: it has expired.
        starts_s: beginning of the validity, in seconds from now.
    """
    signing = authority(cluster)
    return signed_by(signing, text, *addresses, life_s=life_s, starts_s=starts_s)


def signed_by(
    signing: Authority, text: str, *addresses: str, life_s: float = 3_600, starts_s: float = 0
) -> Credentials:
    """Returns credentials of an identity that any authority has signed; see `credentials`."""
    key, now = new_key(), datetime.now(UTC) + timedelta(seconds=starts_s)
    who = identity(text, signing.cluster)
    signed = signing.sign(who, key.public_key(), now=now, lifetime=timedelta(seconds=life_s))
    return Credentials(
        addresses=addresses,
        identity=who.uri,
        authorities=signing.certificate_pem.decode(),
        certificate=certificate_pem(signed).decode(),
        key=key_pem(key).decode(),
        not_before=int(signed.not_valid_before_utc.timestamp()),
        not_after=int(signed.not_valid_after_utc.timestamp()),
    )


def issued_again(caller: Caller) -> identity_pb2.IssuedCertificate:
    """Signs the key of a caller again, as a resource manager does at a renewal."""
    key = read_certificate(caller.certificate).public_key
    assert caller.identity is not None
    cluster = authority(caller.identity.cluster)
    signed = cluster.sign(caller.identity, key, now=datetime.now(UTC), lifetime=timedelta(hours=2))
    issued = identity_pb2.IssuedCertificate(
        identity=caller.identity.uri,
        certificate=certificate_pem(signed).decode(),
        authorities=cluster.certificate_pem.decode(),
    )
    issued.not_before.FromDatetime(signed.not_valid_before_utc)
    issued.not_after.FromDatetime(signed.not_valid_after_utc)
    return issued


def own(text: str) -> OwnCertificate:
    """Returns the certificate of an identity, for a channel or a server."""
    return OwnCertificate(credentials(text))


def trust() -> Trust:
    """Returns what a server of the test cluster accepts."""
    return Trust(CLUSTER)


def caller(text: str) -> Caller:
    """Returns the caller that a server would see."""
    return Caller(identity(text), credentials(text).certificate.encode(), "ipv4:127.0.0.1:1")


def credentials_file(folder: Path, text: str, *addresses: str) -> Path:
    """Writes a credentials file and returns its path."""
    path = folder / f"{text.replace('/', '-')}.credentials"
    write_credentials(path, replace(credentials(text), addresses=addresses))
    return path
