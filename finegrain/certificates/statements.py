"""Statements that a resource manager signs with the key of its certificate: its epoch, and the
tokens for slots.

Each statement contains the certificate. A statement stays valid after the manager restarts, and
after the manager's certificate is renewed. So the certificate has possibly expired when a member
checks the statement. The check ignores the dates, and only the signatures count. If a certificate's
key is stolen, an administrator denies the certificate.
"""

from __future__ import annotations

from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from finegrain.certificates.authority import is_signed_by_one_of
from finegrain.certificates.reading import PeerCertificate, read_certificate
from finegrain.errors import FinegrainError
from finegrain.identity import Role


def signing_manager(
    pem: bytes, authorities: Iterable[ec.EllipticCurvePublicKey], cluster: str
) -> PeerCertificate | None:
    """Reads the certificate of the resource manager that has signed a statement.

    Args:
        pem: the certificate as PEM text.
        authorities: the keys of the cluster's authorities.
        cluster: name of the cluster.

    Returns:
        The data of the certificate; None: the text is not the certificate of a resource manager of
        this cluster.
    """
    try:
        if not is_signed_by_one_of(authorities, x509.load_pem_x509_certificate(pem)):
            return None
        signer = read_certificate(pem)
    except (ValueError, TypeError, FinegrainError):
        return None
    identity = signer.identity
    return signer if identity.role is Role.RM and identity.cluster == cluster else None
