"""Implements the certificate authority of a cluster, which signs one certificate for each identity.

Keys are ECDSA keys on the curve P-256, because gRPC's TLS library refuses Ed25519 keys. The
authority determines the names in a certificate itself, and never copies names from a request. The
subject stays empty. Otherwise gRPC would accept the subject's common name as a host name, if the
certificate has no DNS name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from finegrain.certificates.keys import key_from_pem, key_pem, new_key
from finegrain.errors import ConfigurationError
from finegrain.identity import CLUSTER_PATTERN, Identity

COMMON_NAME = "finegrain cluster "
AUTHORITY_LIFETIME = timedelta(days=3_650)
BACKDATED = timedelta(hours=2)
"""The validity of a new certificate begins this time before the certificate is made. So a host
accepts the certificate even if the host's clock is slow.
"""


@dataclass(frozen=True, slots=True)
class Authority:
    """The key and the certificate with which a cluster signs.

    Attributes:
        cluster: name of the cluster.
        certificate: the authority's own certificate, signed by itself or by an outside authority.
        key: the authority's private key.
        others: certificates of further authorities that the cluster trusts while an authority is
            replaced. This object does not sign with the keys of these authorities.
    """

    cluster: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    others: tuple[x509.Certificate, ...] = ()

    @classmethod
    def create(cls, cluster: str, now: datetime) -> Authority:
        """Makes a new authority.

        Args:
            cluster: name of the cluster.
            now: the present time, with a time zone.
        """
        key = new_key()
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "finegrain"),
                x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAME + cluster),
            ]
        )
        public = key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(cluster, certificate, key)

    @classmethod
    def from_pem(cls, certificate_pem: bytes, private_key_pem: bytes) -> Authority:
        """Reads an authority. The certificate contains the name of the cluster.

        Args:
            certificate_pem: the authority's certificate as PEM text. The text can also contain
                certificates of other authorities that the cluster trusts, before or after the
                first.
            private_key_pem: the authority's private key as PEM text.

        Raises:
            ConfigurationError: one of the texts is not PEM, or the key does not belong to the
                certificate. Or the certificate is not that of an authority, or names no cluster.
        """
        try:
            certificates = x509.load_pem_x509_certificates(certificate_pem)
        except ValueError as error:
            raise ConfigurationError(
                f"the certificate of the cluster's authority cannot be read: {error}"
            ) from None
        key = key_from_pem(private_key_pem)
        # Only the private key decides which of the certificates the authority signs with. So
        # replacing the key file is enough to replace the signing authority.
        own = [each for each in certificates if each.public_key() == key.public_key()]
        if not own:
            raise ConfigurationError(
                "the key of the cluster's authority does not belong to its certificate; restore"
                " both from one backup"
            )
        certificate = own[0]
        others = tuple(each for each in certificates if each not in own)
        if not _may_sign(certificate):
            raise ConfigurationError(
                "the certificate of the cluster's authority may not sign certificates (it needs"
                " basicConstraints CA:TRUE, and keyCertSign if it has a keyUsage)"
            )
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        cluster = str(names[0].value).removeprefix(COMMON_NAME) if names else ""
        if not CLUSTER_PATTERN.fullmatch(cluster):
            raise ConfigurationError(
                "the certificate of the cluster's authority must have the common name"
                f" '{COMMON_NAME}NAME', where NAME is the name of the cluster: 1 to 13 characters"
                " out of a-z 0-9 -, not - at an end"
            )
        return cls(cluster, certificate, key, others)

    @property
    def certificate_pem(self) -> bytes:
        """The authority's own certificate as PEM text."""
        return certificate_pem(self.certificate)

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """The certificates that all members of the cluster trust. The authority's own certificate
        is first.
        """
        return self.certificate, *self.others

    @property
    def trusted_pem(self) -> bytes:
        """The certificates in `trusted` as PEM text."""
        return b"".join(certificate_pem(each) for each in self.trusted)

    @property
    def private_key_pem(self) -> bytes:
        """The authority's private key as PEM text. With this key, a program can act as any member
        of the cluster.
        """
        return key_pem(self.key)

    def sign(
        self,
        identity: Identity,
        public_key: ec.EllipticCurvePublicKey,
        *,
        now: datetime,
        lifetime: timedelta,
    ) -> x509.Certificate:
        """Signs a certificate.

        Args:
            identity: the identity of the holder. Its role decides for which purposes the
                certificate can be used.
            public_key: key of the holder, on the curve P-256.
            now: the present time, with a time zone.
            lifetime: the time for which the certificate is valid from now on.
        """
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role.may_serve:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName(
            [
                x509.UniformResourceIdentifier(identity.uri),
                x509.DNSName(identity.dns_name),
            ]
        )
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(min(now + lifetime, self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            # This extension must be critical, because the subject is empty (RFC 5280, section
            # 4.2.1.6).
            .add_extension(names, critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )


def is_signed_by_one_of(
    keys: Iterable[ec.EllipticCurvePublicKey], certificate: x509.Certificate
) -> bool:
    """Returns True if one of these authorities' keys has signed a certificate.

    Dates and names are not checked.
    """
    try:
        algorithm = certificate.signature_hash_algorithm
    except UnsupportedAlgorithm:
        return False
    if algorithm is None:
        return False
    for key in keys:
        try:
            key.verify(
                certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(algorithm)
            )
        except InvalidSignature:
            continue
        return True
    return False


def authority_keys(certificates: Iterable[x509.Certificate]) -> list[ec.EllipticCurvePublicKey]:
    """Returns the public keys of authorities. A key of another kind is left out.

    Args:
        certificates: the certificates of the authorities.
    """
    keys = (each.public_key() for each in certificates)
    return [key for key in keys if isinstance(key, ec.EllipticCurvePublicKey)]


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Returns a certificate as PEM text."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def utc_now() -> datetime:
    """Returns the present time, with its time zone."""
    return datetime.now(UTC)


def _may_sign(certificate: x509.Certificate) -> bool:
    extensions = certificate.extensions
    try:
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        return extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound as missing:
        return missing.oid == x509.KeyUsage.oid


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
