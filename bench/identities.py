"""Makes certificates for benchmarks, signed by the authority in a resource manager's state
directory.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from finegrain.certificates.authority import Authority, certificate_pem, utc_now
from finegrain.certificates.keys import key_pem, new_key
from finegrain.identity import DOMAIN, Identity, Role
from finegrain.rpc.channels import open_channel
from finegrain.rpc.own_certificate import OwnCertificate
from resource_manager.service.identities.own import open_own_files
from tests.support.identities import signed_by

LIFE_S = 24 * 3_600.0


def authority_of(state_dir: Path) -> Authority:
    """Returns the authority in a state directory. Creates the authority if the directory is new."""
    return open_own_files(state_dir).authority


def own_of(authority: Authority, who: str) -> OwnCertificate:
    """Returns a certificate of an identity, for example "user/alice"."""
    return OwnCertificate(signed_by(authority, who, life_s=LIFE_S))


def channel_as(authority: Authority, who: str, address: str) -> grpc.aio.Channel:
    """Returns a channel of an identity to the resource manager at an address."""
    server = Identity(authority.cluster, Role.RM)
    return open_channel(address, own_of(authority, who), server)


class AnyExecutor(OwnCertificate):
    """The certificate of a server, which is valid for every executor with a short id."""

    def __init__(self, authority: Authority) -> None:
        super().__init__(signed_by(authority, "executor/any", life_s=LIFE_S))
        self._authority = authority

    def server_credentials(self) -> grpc.ServerCredentials:
        """See `OwnCertificate`."""
        return _for_all_executors(self._authority)


def _for_all_executors(authority: Authority) -> grpc.ServerCredentials:
    # The code of the product never signs a certificate for several executors.
    key, now = new_key(), utc_now()
    names = [x509.DNSName(f"*.{Role.EXECUTOR}.{authority.cluster}.{DOMAIN}")]
    signed = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(authority.key, hashes.SHA256())
    )
    return grpc.ssl_server_credentials(
        [(key_pem(key), certificate_pem(signed))],
        root_certificates=authority.certificate_pem,
        require_client_auth=True,
    )
