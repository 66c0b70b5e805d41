"""Reads and writes the files with the cluster's authority and with the certificates of this
resource manager.

At its first start, a resource manager creates the authority. Another resource manager of the same
cluster needs a copy of the authority (`finegrain rm join`).
"""

from __future__ import annotations

import os
import pwd
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from finegrain.certificates.authority import Authority, certificate_pem, utc_now
from finegrain.certificates.keys import key_pem, new_key
from finegrain.credentials import (
    Credentials,
    read_credentials,
    write_credentials,
    write_private_file,
)
from finegrain.errors import ConfigurationError
from finegrain.identity import Identity, Role
from finegrain.texts import ID_PATTERN

FOLDER = "certificates"
AUTHORITY_FILE = "ca.pem"
AUTHORITY_KEY_FILE = "ca.key"
RM_FILE = "rm.credentials"
OPERATOR_FILE = "operator.credentials"
SERVICE_LIFETIME = timedelta(days=7)
PERSON_LIFETIME = timedelta(days=30)
RENEW_AFTER = timedelta(days=1)
DEFAULT_OPERATOR = "root"

Stamp = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class OwnFiles:
    """The authority of the cluster, and the state directory with the files of this resource
    manager.

    Attributes:
        state_dir: state directory of the resource manager.
        authority: the cluster's authority.
        made: True if this start has created the authority.
        stamp: a value that identifies the files from which the authority was read.
    """

    state_dir: Path
    authority: Authority
    made: bool
    stamp: Stamp = ()

    def read_again(self) -> None:
        """Reads the authority again if a command has changed its files.

        Raises:
            ConfigurationError: a file cannot be read, or the files do not belong to this cluster.
        """
        # Take the stamp before the files are read. A later change then causes another read.
        stamp = _stamp_of(self.state_dir)
        if stamp == self.stamp:
            return
        found = read_authority(self.state_dir)
        if found.cluster != self.cluster:
            raise ConfigurationError(
                f"the authority in {self.state_dir} is now of cluster {found.cluster}, and this"
                f" resource manager serves cluster {self.cluster}; restore the files of"
                f" {self.cluster}"
            )
        self.stamp, self.authority = stamp, found

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self.authority.cluster

    @property
    def operator_path(self) -> Path:
        """The credentials file of the local administrator."""
        return self.state_dir / OPERATOR_FILE

    def remove(self) -> None:
        """Deletes the files that this start has created, because the cluster has another
        authority.
        """
        if self.made:
            for name in (AUTHORITY_FILE, AUTHORITY_KEY_FILE, RM_FILE):
                (self.state_dir / FOLDER / name).unlink(missing_ok=True)
            self.operator_path.unlink(missing_ok=True)

    def rm_credentials(self) -> Credentials:
        """Returns the credentials of this resource manager. If these are a day old, makes new
        credentials.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        path, now = self.state_dir / FOLDER / RM_FILE, utc_now()
        identity = Identity(self.cluster, Role.RM)
        try:
            known = read_credentials(path)
        except ConfigurationError:
            known = None
        if known is not None and self._is_fresh(known, identity, now):
            return known
        made = self._issue(identity, (), SERVICE_LIFETIME, now)
        write_credentials(path, made)
        return made

    def write_operator(self, address: str) -> Path:
        """Writes credentials for the administrator of this host, who can read the state directory.

        The file gives no new right: the key of the authority is in the same directory.

        Args:
            address: "host:port" at which other processes reach this resource manager.

        Returns:
            The path of the file.
        """
        identity = Identity(self.cluster, Role.OPERATOR, local_user())
        made = self._issue(identity, (address,), PERSON_LIFETIME, utc_now())
        write_credentials(self.operator_path, made)
        return self.operator_path

    def _is_fresh(self, known: Credentials, identity: Identity, now: datetime) -> bool:
        age_s = now.timestamp() - known.not_before
        ours = known.authorities == self.authority.trusted_pem.decode()
        return known.identity == identity.uri and ours and 0 <= age_s < RENEW_AFTER.total_seconds()

    def _issue(
        self, identity: Identity, addresses: tuple[str, ...], lifetime: timedelta, now: datetime
    ) -> Credentials:
        key = new_key()
        signed = self.authority.sign(identity, key.public_key(), now=now, lifetime=lifetime)
        return Credentials(
            addresses=addresses,
            identity=identity.uri,
            authorities=self.authority.trusted_pem.decode(),
            certificate=certificate_pem(signed).decode(),
            key=key_pem(key).decode(),
            not_before=int(signed.not_valid_before_utc.timestamp()),
            not_after=int(signed.not_valid_after_utc.timestamp()),
        )


def open_own_files(state_dir: Path) -> OwnFiles:
    """Reads the authority from the state directory, or creates it.

    Raises:
        ConfigurationError: the files cannot be read or written, or only one of the two files
            exists.
    """
    folder = state_dir / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the directory {folder} cannot be created: {error.strerror}", details={"path": folder}
        ) from None
    certificate, key = folder / AUTHORITY_FILE, folder / AUTHORITY_KEY_FILE
    made = not certificate.exists()
    if made:
        if key.exists():
            # A start writes the key before the certificate. So a key without a certificate comes
            # from an interrupted start, and has signed nothing.
            key.unlink()
        write_authority(state_dir, Authority.create(new_cluster_name(), utc_now()))
    stamp = _stamp_of(state_dir)
    return OwnFiles(state_dir, read_authority(state_dir), made=made, stamp=stamp)


def _stamp_of(state_dir: Path) -> Stamp:
    """Returns a value that changes with the files of the authority."""
    stamp = []
    for name in (AUTHORITY_FILE, AUTHORITY_KEY_FILE):
        try:
            found = (state_dir / FOLDER / name).stat()
        except OSError:  # reading the file reports the problem
            stamp.append((0, 0))
        else:
            stamp.append((found.st_ino, found.st_mtime_ns))
    return tuple(stamp)


def write_authority(state_dir: Path, authority: Authority) -> None:
    """Writes the files of an authority, durably.

    Args:
        state_dir: the state directory of a resource manager.
        authority: the authority.

    Raises:
        ConfigurationError: a file cannot be written.
    """
    folder = state_dir / FOLDER
    # The certificate comes last: a directory with a certificate is complete.
    write_private_file(folder / AUTHORITY_KEY_FILE, authority.private_key_pem)
    write_private_file(folder / AUTHORITY_FILE, authority.trusted_pem)


def new_cluster_name() -> str:
    """Returns a name for a new cluster, which differs from the names of all other clusters."""
    return f"c{secrets.token_hex(5)}"


def local_user() -> str:
    """Returns the login name of this process's user, as the name of an identity."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = f"uid{os.geteuid()}"
    return name if ID_PATTERN.fullmatch(name) else DEFAULT_OPERATOR


def read_authority(state_dir: Path) -> Authority:
    """Reads the authority from a state directory.

    Raises:
        ConfigurationError: a file cannot be read, or the files do not belong together.
    """
    certificate, key = (state_dir / FOLDER / name for name in (AUTHORITY_FILE, AUTHORITY_KEY_FILE))
    try:
        return Authority.from_pem(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"the file {error.filename} of the cluster's authority cannot be read:"
            f" {error.strerror}; restore both {AUTHORITY_FILE} and {AUTHORITY_KEY_FILE} from a"
            " backup",
            details={"path": error.filename},
        ) from None
