"""Reads the certificate that a peer has shown: identity, serial number and dates."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.identity import Identity


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The data about the holder that a certificate contains.

    Attributes:
        identity: the identity of the holder.
        serial: serial number of the certificate, in hexadecimal.
        not_before_s: the time from which the certificate is valid, in seconds since 1970 (UTC).
        not_after_s: the end of the certificate's validity, in seconds since 1970 (UTC).
        public_key: the holder's key.
    """

    identity: Identity
    serial: str
    not_before_s: float
    not_after_s: float
    public_key: ec.EllipticCurvePublicKey


def read_certificate(pem: bytes) -> PeerCertificate:
    """Reads a certificate. Does not check its signature, because the TLS handshake has checked it.

    Args:
        pem: the certificate as PEM text.

    Raises:
        InvalidArgument: the text is not a certificate of a member of a cluster. Such a certificate
            has exactly one URI, and exactly the DNS name that belongs to this URI.
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
    except Exception:  # the library raises several kinds of exceptions for malformed input
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
