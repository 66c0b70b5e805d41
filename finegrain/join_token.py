"""Reads and writes join tokens. A join token is the text with which a new member gets its first
certificate.

A token contains the addresses at which to join, the cluster, the key of the cluster's authority,
and a secret. With the key, the new member recognizes a resource manager of this cluster before it
sends the secret. The resource manager stores only a hash of the secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.identity import CLUSTER_PATTERN
from finegrain.rpc.addresses import parse_address

PREFIX = "fgjoin-"
TOKEN_CHARACTERS_MAX = 8 * 1024
SECRET_BYTES = 16
EXPECTED = "a token that finegrain token create has printed"


@dataclass(frozen=True, slots=True)
class JoinToken:
    """The parts of a token.

    Attributes:
        addresses: "host:port" of the resource managers' join ports.
        cluster: name of the cluster.
        authority_key: public key of the authority: a point of P-256, compressed, in hexadecimal.
        secret: the part that only the new member and the administrator know.
    """

    addresses: tuple[str, ...]
    cluster: str
    authority_key: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The token as one word."""
        parts = [list(self.addresses), self.cluster, self.authority_key, self.secret]
        data = json.dumps(parts, separators=(",", ":")).encode()
        return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Reads a token.

        Raises:
            InvalidArgument: the text is not a token. The message does not repeat the text, because
                the text can contain a secret.
        """
        error = InvalidArgument("token", f"{len(text)} characters", EXPECTED)
        text = text.strip()
        if not text.startswith(PREFIX) or len(text) > TOKEN_CHARACTERS_MAX:
            raise error
        body = text.removeprefix(PREFIX)
        try:
            parts = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            addresses, cluster, key, secret = parts
            plain = all(isinstance(each, str) for each in (*addresses, cluster, key, secret))
        except (ValueError, TypeError):
            raise error from None
        if not plain or not addresses or not CLUSTER_PATTERN.fullmatch(cluster):
            raise error
        for address in addresses:
            parse_address(address, "token")
        return cls(tuple(addresses), cluster, key, secret)


def new_secret() -> str:
    """Returns a secret for a new token: 128 random bits in hexadecimal."""
    return secrets.token_hex(SECRET_BYTES)


def sha256_hex(text: str) -> str:
    """Returns the SHA-256 of a secret in hexadecimal. Only this hash may be stored, never the
    secret.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def token_id(secret_sha256: str) -> str:
    """Returns the id by which administrators name a token: the start of the secret's hash."""
    return secret_sha256[:16]


def read_join_token(path: Path) -> JoinToken:
    """Reads a token from a file that only its owner can read.

    Raises:
        ConfigurationError: the file is missing or unreadable, contains no token, or can be read by
            other users.
    """
    details = {"path": path}
    try:
        with open(path, encoding="ascii") as file:
            # Check the open file, so that no process can replace the file between the check and the
            # reading.
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(TOKEN_CHARACTERS_MAX)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise ConfigurationError(
            f"the token file {path} cannot be read: {why}", details=details
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"the token file {path} can be read by other users; run: chmod 600 {path}",
            details=details,
        )
    try:
        return JoinToken.parse(text)
    except InvalidArgument:
        raise ConfigurationError(
            f"the token file {path} does not hold {EXPECTED}", details=details
        ) from None
