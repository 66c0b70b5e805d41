"""Keeps the list of identities that administrators have denied. The resource manager sends the
list.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.identity import Identity


@dataclass(frozen=True, slots=True)
class Denials:
    """One list of denied identities.

    Attributes:
        number: number of the list; 0: the list is empty.
        subjects: identities ("user/alice") and serial numbers of certificates in hexadecimal.
    """

    number: int = 0
    subjects: tuple[str, ...] = ()

    def contains(self, identity: Identity, serial: str) -> bool:
        """Returns True if an identity or its certificate is denied.

        Args:
            identity: the identity.
            serial: serial number of the identity's certificate, in hexadecimal.
        """
        return bool(self.subjects) and (str(identity) in self.subjects or serial in self.subjects)
