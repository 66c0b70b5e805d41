"""Reads the certificate that a peer has shown: identity, serial number and dates."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.identity import Identity


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What a certificate says of its holder.

    Attributes:
        identity: who it is.
        serial: serial number of the certificate, in hexadecimal.
        not_before_s: valid from here on, in seconds since 1970 (UTC).
        not_after_s: not valid any more after this, in the same form.
        public_key: the holder's key.
    """

    identity: Identity
    serial: str
    not_before_s: float
    not_after_s: float
    public_key: ec.EllipticCurvePublicKey


def read_certificate(pem: bytes) -> PeerCertificate:
    """Reads a certificate. Its signature is not checked: the TLS handshake has done that.

    Args:
        pem: the certificate as PEM text.

    Raises:
        InvalidArgument: it is no certificate of this kind. In particular it must have exactly one
            URI, and exactly the DNS name that belongs to this URI.
    """
    expected = "a certificate with the identity of one member of a cluster"
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts = names.get_values_for_type(x509.DNSName)
        key = certificate.public_key()
        identity = Identity.parse(uris[0]) if len(uris) == 1 else None
    except FinegrainError:
        raise
    except Exception:  # the library raises several kinds for malformed input
        raise InvalidArgument("certificate", f"{len(pem)} bytes", expected) from None
    if identity is None:
        raise InvalidArgument("certificate", f"{len(uris)} URIs", expected)
    if len(names) != 2 or hosts != [identity.dns_name]:
        raise InvalidArgument("certificate", f"the names {', '.join(hosts)}", expected)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidArgument("certificate", "another kind of key", expected)
    return PeerCertificate(
        identity,
        f"{certificate.serial_number:x}",
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
        key,
    )
