"""Defines identities. A certificate states the identity of its holder: of the program that makes a
call, or of the server that answers.

An identity is a role in one cluster, and for most roles a name. Servers read the URI of an identity
(SPIFFE form) from a caller's certificate. Clients expect the DNS name of an identity in a server's
certificate, because gRPC's Python client compares only names.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from enum import StrEnum

from finegrain.errors import InvalidArgument
from finegrain.texts import ID_PATTERN

DOMAIN = "finegrain.internal"
CLUSTER_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,11}[a-z0-9])?")
"""The allowed form of a cluster's name. The name must be short: a DNS name with the longest id must
fit into 253 characters.
"""
_LABEL_CHARACTERS_MAX = 63  # the limit of RFC 1035


class Role(StrEnum):
    """The role of the holder of a certificate."""

    RM = "rm"
    EXECUTOR = "executor"
    OPERATOR = "operator"
    VIEWER = "viewer"
    USER = "user"
    METRICS = "metrics"

    @property
    def is_named(self) -> bool:
        """True if identities of this role have a name."""
        return self not in (Role.RM, Role.METRICS)

    @property
    def may_serve(self) -> bool:
        """True if a certificate of this role is also valid for a server.

        The role `user` is also allowed to serve, because a job master receives offers of slots.
        """
        return self in (Role.RM, Role.EXECUTOR, Role.USER)


@dataclass(frozen=True, slots=True)
class Identity:
    """One role in one cluster.

    Attributes:
        cluster: name of the cluster, see `CLUSTER_PATTERN`.
        role: the role.
        name: the executor's id, or the login name of a person; empty for roles without names.

    Raises:
        InvalidArgument: the cluster or the name is malformed. Or a role without names has a name,
            or a role with names has none.
    """

    cluster: str
    role: Role
    name: str = ""

    def __post_init__(self) -> None:
        if not CLUSTER_PATTERN.fullmatch(self.cluster):
            raise InvalidArgument(
                "cluster", self.cluster, "1 to 13 characters out of a-z 0-9 -, not - at an end"
            )
        if not self.role.is_named and self.name:
            raise InvalidArgument("name", self.name, f"no name for the role {self.role}")
        if self.role.is_named and not ID_PATTERN.fullmatch(self.name):
            raise InvalidArgument(
                "name",
                self.name,
                f"for the role {self.role}, 1 to 128 characters out of A-Z a-z 0-9 . _ - that start"
                " with a letter or digit",
            )

    @property
    def uri(self) -> str:
        """The URI in certificates: `spiffe://CLUSTER/executor/web-1`, `spiffe://CLUSTER/rm`."""
        path = f"{self.role}/{self.name}" if self.name else str(self.role)
        return f"spiffe://{self.cluster}/{path}"

    @property
    def dns_name(self) -> str:
        """The DNS name in certificates: `ROLE.CLUSTER.finegrain.internal`. If the identity has a
        name, the name in base32 comes first.

        Example: the executor `web-1` of the cluster `c1` is
        `o5sweljr.executor.c1.finegrain.internal`.
        """
        # Use base32, because ids can differ only in case, but DNS names ignore case.
        encoded = base64.b32encode(self.name.encode()).decode().rstrip("=").lower()
        labels = [
            encoded[at : at + _LABEL_CHARACTERS_MAX]
            for at in range(0, len(encoded), _LABEL_CHARACTERS_MAX)
        ]
        return ".".join((*labels, str(self.role), self.cluster, DOMAIN))

    def __str__(self) -> str:
        return f"{self.role}/{self.name}" if self.name else str(self.role)

    @classmethod
    def from_text(cls, cluster: str, text: str) -> Identity:
        """Reads the short form, as `str` returns it: "user/alice", "rm".

        Args:
            cluster: name of the cluster.
            text: the short form.

        Raises:
            InvalidArgument: the text is not an identity.
        """
        return cls.parse(f"spiffe://{cluster}/{text}")

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """Reads the URI of a certificate.

        Raises:
            InvalidArgument: the text is not the URI of an identity.
        """
        scheme, separator, rest = uri.partition("://")
        cluster, _, path = rest.partition("/")
        role, slash, name = path.partition("/")
        # A role without a name must have no slash. Two different texts must never mean the same
        # identity.
        known = role in tuple(Role) and bool(slash) == Role(role).is_named
        if scheme != "spiffe" or not separator or not known:
            raise InvalidArgument("identity", uri, "spiffe://CLUSTER/ROLE or .../ROLE/NAME")
        return cls(cluster, Role(role), name)
