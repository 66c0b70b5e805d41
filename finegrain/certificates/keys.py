"""Makes and reads private keys, requests for certificates, and signatures, all on the curve
P-256.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from finegrain.errors import ConfigurationError, InvalidArgument

REQUEST_BYTES_MAX = 4 * 1024
_ALGORITHM = ec.ECDSA(hashes.SHA256())


def new_key() -> ec.EllipticCurvePrivateKey:
    """Makes a private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a private key as PEM text, without a passphrase."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(text: bytes) -> ec.EllipticCurvePrivateKey:
    """Reads a private key.

    Raises:
        ConfigurationError: the text is not a private key in PEM, on P-256 and without a
            passphrase.
    """
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"the private key cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigurationError("the private key is not an ECDSA key on the curve P-256")
    return key


def certificate_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a request (PKCS #10, DER), which proves that the caller owns the key.

    The request names no identity, because the authority chooses the identity and ignores names in
    requests.
    """
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def key_of_request(data: bytes) -> ec.EllipticCurvePublicKey:
    """Returns the public key of a request for a certificate.

    Args:
        data: the request in DER.

    Raises:
        InvalidArgument: the data is too long, is no request, or has a wrong signature. Or the key
            is not on P-256.
    """
    expected = "a PKCS #10 request with an ECDSA key on P-256"
    if len(data) > REQUEST_BYTES_MAX:
        raise InvalidArgument("request", f"{len(data)} bytes", f"at most {REQUEST_BYTES_MAX} bytes")
    try:
        request = x509.load_der_x509_csr(data)
        valid = request.is_signature_valid
        key = request.public_key()
    except Exception:  # the library raises several kinds of exceptions for malformed input
        raise InvalidArgument("request", f"{len(data)} bytes", expected) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidArgument("request", "another kind of key", expected)
    if not valid:
        raise InvalidArgument("request", "a wrong signature", expected)
    return key


def signature_of(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Signs data with ECDSA and SHA-256. Returns the signature in DER."""
    return key.sign(data, _ALGORITHM)


def is_signed_by(key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    """Returns True if the signature of the data was made with this key."""
    try:
        key.verify(signature, data, _ALGORITHM)
    except InvalidSignature:
        return False
    return True
