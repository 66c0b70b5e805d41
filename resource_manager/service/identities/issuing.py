"""Signs certificates of the cluster's members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric import ec

from finegrain.certificates.authority import Authority, certificate_pem, utc_now
from finegrain.identity import Identity, Role
from finegrain.v1 import identity_pb2
from resource_manager.service.identities.own import PERSON_LIFETIME, SERVICE_LIFETIME

RENEW_GRACE = timedelta(days=30)
"""Time for which a certificate can still be renewed after it has expired. The renewal needs a
signature with the key of the certificate.
"""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Signs certificates with the cluster's authority.

    Attributes:
        present: returns the authority that signs now.
        addresses: returns "host:port" of the resource managers, for the holders of certificates.
        now: returns the present time, with a time zone.
    """

    present: Callable[[], Authority]
    addresses: Callable[[], Sequence[str]]
    now: Callable[[], datetime] = utc_now

    @property
    def authority(self) -> Authority:
        """The authority that signs now."""
        return self.present()

    def issue(
        self, identity: Identity, key: ec.EllipticCurvePublicKey, life_s: int = 0
    ) -> identity_pb2.IssuedCertificate:
        """Signs a certificate.

        Args:
            identity: the identity in the certificate.
            key: public key of the holder.
            life_s: duration of the certificate's validity, in seconds; 0: the default of the role.
        """
        lifetime = timedelta(seconds=life_s) if life_s else lifetime_of(identity.role)
        authority = self.authority
        signed = authority.sign(identity, key, now=self.now(), lifetime=lifetime)
        issued = identity_pb2.IssuedCertificate(
            identity=identity.uri,
            certificate=certificate_pem(signed).decode(),
            authorities=authority.trusted_pem.decode(),
            addresses=self.addresses(),
        )
        issued.not_before.FromDatetime(signed.not_valid_before_utc)
        issued.not_after.FromDatetime(signed.not_valid_after_utc)
        return issued


def lifetime_of(role: Role) -> timedelta:
    """Returns the default validity of the certificates of a role."""
    return SERVICE_LIFETIME if role in (Role.RM, Role.EXECUTOR) else PERSON_LIFETIME
