"""Reads and writes credentials files. A credentials file contains all that a client needs to be a
member of one cluster.

The file is in JSON, with the addresses of the cluster, the certificates of the cluster's authority,
and a certificate with its private key. Only the owner of the file may read it. Nothing in this
module needs the library `cryptography`, so the client library can use it.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from finegrain.errors import ConfigurationError, FinegrainError
from finegrain.identity import Identity

VERSION = 1
FILE_BYTES_MAX = 64 * 1024


@lru_cache(16)
def _sha256(text: str) -> str:
    import hashlib  # not at module level: the import is slow, and few commands need it

    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    """An identity in one cluster, with its certificate and key as proof.

    Attributes:
        addresses: "host:port" of the resource managers.
        identity: URI of the identity, see `Identity`.
        authorities: the certificate of the cluster's authority as PEM text; two certificates while
            the authority is being replaced.
        certificate: certificate of the identity as PEM text.
        key: private key of the certificate as PEM text.
        not_before: the time from which the certificate is valid, in seconds since 1970 (UTC).
        not_after: the end of the certificate's validity, in seconds since 1970 (UTC).
    """

    addresses: tuple[str, ...]
    identity: str
    authorities: str
    certificate: str
    key: str = field(repr=False)
    not_before: int
    not_after: int

    @property
    def who(self) -> Identity:
        """The identity."""
        return Identity.parse(self.identity)

    @property
    def authorities_sha256(self) -> str:
        """SHA-256 of `authorities` in hexadecimal. It shows whether two members trust the same
        authorities.
        """
        return _sha256(self.authorities)

    def problem_at(self, now_s: float) -> str:
        """Returns the reason why the certificate is not valid at a time; empty: the certificate is
        valid.

        During the handshake, servers refuse an invalid certificate, but give no reason. So callers
        check the certificate first.

        Args:
            now_s: seconds since 1970 (UTC).
        """
        who, clock = f"the certificate of {self.who}", f"the clock of this host says {_utc(now_s)}"
        if now_s > self.not_after:
            return f"{who} expired at {_utc(self.not_after)}; {clock}; run finegrain login"
        if now_s < self.not_before:
            return f"{who} is valid from {_utc(self.not_before)} on; {clock}; set the clock"
        return ""


def read_credentials(path: Path) -> Credentials:
    """Reads a credentials file.

    Raises:
        ConfigurationError: the file is missing, unreadable or malformed, or other users can read
            it.
    """
    details = {"path": path}
    try:
        with open(path, "rb") as file:
            # Check the open file, so that no process can replace the file between the check and the
            # reading.
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no credentials file {path}; make one with finegrain login, or get one from"
            " an administrator",
            details=details,
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"the credentials file {path} cannot be read: {error.strerror}", details=details
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"the credentials file {path} can be read by other users; run: chmod 600 {path}",
            details=details,
        )
    try:
        return _from_json(json.loads(data))
    except (ValueError, KeyError, TypeError, FinegrainError) as error:
        why = error.message if isinstance(error, FinegrainError) else "it is no such file"
        raise ConfigurationError(
            f"the credentials file {path} is malformed ({why}); make a new one with finegrain"
            " login, or get one from an administrator",
            details=details,
        ) from None


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Writes a credentials file with mode 0600. Replaces an older file in one step.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    text = json.dumps({"version": VERSION, **asdict(credentials)}, indent=2) + "\n"
    write_private_file(path, text.encode())


def write_private_file(path: Path, data: bytes) -> None:
    """Writes a file durably, with mode 0600. Replaces an older file in one step.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigurationError(
            f"the file {path} cannot be written: {error.strerror}", details={"path": path}
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _from_json(data: Any) -> Credentials:
    if data["version"] != VERSION:
        raise ConfigurationError(
            f"it has version {data['version']}, this program knows version {VERSION}"
        )
    texts = {name: data[name] for name in ("identity", "authorities", "certificate", "key")}
    addresses = data["addresses"]
    if not all(isinstance(each, str) for each in (*texts.values(), *addresses)):
        raise TypeError
    # Check the identity here, so that a malformed identity is found when the file is read.
    Identity.parse(texts["identity"])
    return Credentials(
        addresses=tuple(addresses),
        not_before=int(data["not_before"]),
        not_after=int(data["not_after"]),
        **texts,
    )


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
