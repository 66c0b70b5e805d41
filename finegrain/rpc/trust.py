"""Identifies callers by the certificates that they have shown in the TLS handshake.

The handshake proves that the cluster's authority has signed the certificate, and that the caller
has the certificate's key. A connection has only one handshake, and can stay open for a long time.
So at every call, the server checks the dates and the list of denied identities again. After the
authorities of the cluster have changed, the server also checks the signature again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from finegrain.certificates.authority import authority_keys, is_signed_by_one_of
from finegrain.certificates.reading import PeerCertificate, read_certificate
from finegrain.errors import InvalidArgument, Reason, Unauthenticated
from finegrain.identity import Identity
from finegrain.rpc.access import Caller
from finegrain.rpc.own_certificate import OwnCertificate

CACHED_CERTIFICATES_MAX = 20_000
CERTIFICATE_KEY = "x509_pem_cert"  # gRPC's name of the caller's certificate

Auth = Mapping[str, Sequence[bytes]]
"""The result of `context.auth_context()`."""


class Trust:
    """Decides which certificates one server accepts as proof of an identity.

    Args:
        cluster: name of the cluster that the server belongs to.
        is_denied: a function that returns True if an administrator has denied an identity or a
            serial number (in hexadecimal).
        now: a function that returns the time in seconds since 1970 (UTC).
        own: the certificate of the server, with the authorities that the server trusts now; None:
            the authorities never change.
    """

    def __init__(
        self,
        cluster: str,
        *,
        is_denied: Callable[[Identity, str], bool] = lambda _identity, _serial: False,
        now: Callable[[], float] = time.time,
        own: OwnCertificate | None = None,
    ) -> None:
        self.cluster = cluster
        self._own = own
        self._authorities = own.credentials.authorities if own else ""
        # None: the authorities have not changed, so the check in the handshake is still valid.
        self._keys: list[ec.EllipticCurvePublicKey] | None = None
        self.is_denied = is_denied
        self._now = now
        # Reading a certificate takes 10 us. Cache the result, because a caller shows the same
        # certificate at every call.
        self._read: dict[bytes, PeerCertificate] = {}

    def identify(self, auth: Auth, peer: str) -> Caller:
        """Returns the caller of a call.

        Args:
            auth: the authentication context of the call.
            peer: network address of the caller.

        Raises:
            Unauthenticated: the caller has shown no certificate of this cluster, or the certificate
                is not valid now or was denied. The message says what to do.
        """
        shown = auth.get(CERTIFICATE_KEY)
        if not shown:
            raise Unauthenticated(
                "the call shows no certificate of this cluster; make credentials with finegrain"
                " login, or get them from an administrator"
            )
        certificate = self._certificate(shown[0])
        identity = certificate.identity
        if identity.cluster != self.cluster:
            raise Unauthenticated(
                f"the certificate is of cluster {identity.cluster}, and this is cluster"
                f" {self.cluster}; choose other credentials",
                reason=Reason.CERTIFICATE_WRONG,
            )
        now_s = self._now()
        if not certificate.not_before_s <= now_s <= certificate.not_after_s:
            raise Unauthenticated(
                f"the certificate of {identity} is valid from {_utc(certificate.not_before_s)} to"
                f" {_utc(certificate.not_after_s)}, and the clock of this server says"
                f" {_utc(now_s)}; run finegrain login, or set the clock that is wrong",
                reason=Reason.CERTIFICATE_EXPIRED,
                details={"identity": str(identity)},
            )
        caller = Caller(identity, shown[0], peer)
        self.check_not_denied(caller)
        return caller

    def check_not_denied(self, caller: Caller) -> None:
        """Checks that neither a caller nor its certificate is denied. The server can also call this
        method while a call is in progress.

        Args:
            caller: the caller that `identify` returned. A caller without an identity passes the
                check.

        Raises:
            Unauthenticated: an administrator has denied the caller or its certificate.
        """
        identity = caller.identity
        if identity is None:
            return
        if self.is_denied(identity, self._certificate(caller.certificate).serial):
            raise Unauthenticated(
                f"an administrator has denied {identity}; ask for new credentials",
                reason=Reason.CERTIFICATE_DENIED,
                details={"identity": str(identity)},
            )

    def _certificate(self, pem: bytes) -> PeerCertificate:
        self._follow_authorities()
        known = self._read.get(pem)
        if known is not None:
            return known
        try:
            read = read_certificate(pem)
            self._check_signature(pem, read.identity)
        except InvalidArgument as error:
            raise Unauthenticated(
                f"the certificate is none of a member of this cluster: {error.message}",
                reason=Reason.CERTIFICATE_WRONG,
            ) from None
        if len(self._read) >= CACHED_CERTIFICATES_MAX:
            self._read.clear()
        self._read[pem] = read
        return read

    def _follow_authorities(self) -> None:
        if self._own is None or self._own.credentials.authorities == self._authorities:
            return
        self._authorities = self._own.credentials.authorities
        certificates = x509.load_pem_x509_certificates(self._authorities.encode())
        self._keys = authority_keys(certificates)
        self._read.clear()

    def _check_signature(self, pem: bytes, identity: Identity) -> None:
        """Refuses a certificate whose authority was dropped after the handshake."""
        if self._keys is None or is_signed_by_one_of(
            self._keys, x509.load_pem_x509_certificate(pem)
        ):
            return
        raise Unauthenticated(
            f"the cluster no longer trusts the authority that has signed the certificate of"
            f" {identity}; run finegrain login, or join again with a token",
            reason=Reason.CERTIFICATE_WRONG,
            details={"identity": str(identity)},
        )


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
