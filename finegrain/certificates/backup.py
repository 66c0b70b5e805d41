"""Packs an authority into a file that can be read only with a passphrase.

The format is PKCS #12 (RFC 7292), which OpenSSL can also read. The encryption is AES-256 with a key
from PBKDF2 with SHA-256 (PBES2, RFC 8018), and a MAC protects the whole file.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import PrivateFormat, pkcs12

from finegrain.certificates.authority import Authority, certificate_pem
from finegrain.certificates.keys import key_pem
from finegrain.errors import ConfigurationError, InvalidArgument

KDF_ROUNDS = 600_000  # as OWASP recommends for PBKDF2 with SHA-256
PASSPHRASE_CHARACTERS_MIN = 12
FILE_BYTES_MAX = 64 * 1024


def pack(authority: Authority, passphrase: str) -> bytes:
    """Returns a backup with the key and the certificate of the authority, and the certificates of
    other trusted authorities.

    Raises:
        InvalidArgument: the passphrase is too short.
    """
    if len(passphrase) < PASSPHRASE_CHARACTERS_MIN:
        raise InvalidArgument(
            "passphrase",
            f"{len(passphrase)} characters",
            f"at least {PASSPHRASE_CHARACTERS_MIN} characters",
        )
    encryption = (
        PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(KDF_ROUNDS)
        .key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(passphrase.encode())
    )
    return pkcs12.serialize_key_and_certificates(
        f"finegrain cluster {authority.cluster}".encode(),
        authority.key,
        authority.certificate,
        authority.others or None,
        encryption,
    )


def unpack(data: bytes, passphrase: str) -> Authority:
    """Reads a backup.

    Raises:
        ConfigurationError: the passphrase is wrong, or the data is no backup of an authority.
    """
    try:
        key, certificate, others = pkcs12.load_key_and_certificates(data, passphrase.encode())
    except (ValueError, TypeError):
        raise ConfigurationError(
            "the passphrase is wrong, or the file is no backup that finegrain certs backup has made"
        ) from None
    if certificate is None or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("the file has no key of a cluster's authority")
    certificates = b"".join(certificate_pem(each) for each in (certificate, *others))
    return Authority.from_pem(certificates, key_pem(key))
