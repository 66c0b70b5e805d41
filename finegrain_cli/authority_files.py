"""Reads, saves and restores the authority's files in a state directory, for `finegrain certs`."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from finegrain.certificates.authority import Authority
from finegrain.certificates.backup import FILE_BYTES_MAX, pack, unpack
from finegrain.certificates.joining import public_bytes
from finegrain.credentials import write_private_file
from finegrain.errors import ConfigurationError, FailedPrecondition, Reason
from resource_manager.service.identities.host_changes import note_change
from resource_manager.service.identities.own import (
    AUTHORITY_FILE,
    FOLDER,
    read_authority,
    write_authority,
)
from resource_manager.service.state_dir import LOCK_FILE, locked_state_dir


def backup_authority(state_dir: Path, file: Path, passphrase: str) -> Authority:
    """Writes the authority of a state directory to an encrypted file of mode 0600.

    Raises:
        InvalidArgument: the passphrase is too short.
        FailedPrecondition: the directory has no authority.
        ConfigurationError: a file cannot be read or written.
    """
    authority = existing_authority(state_dir)
    write_private_file(file, pack(authority, passphrase))
    return authority


def read_backup(file: Path, passphrase: str) -> Authority:
    """Reads an encrypted file that `backup_authority` has written.

    Raises:
        ConfigurationError: the file cannot be read, the file is not a backup, or the passphrase is
            wrong.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(
            f"the file {file} cannot be read: {error.strerror}", details={"path": file}
        ) from None
    return unpack(data, passphrase)


def restore_authority(state_dir: Path, authority: Authority) -> Path | None:
    """Writes an authority into a state directory. Moves the former certificates to another
    directory, beside the new files.

    Args:
        state_dir: state directory of a resource manager. The resource manager must not run.
        authority: the authority.

    Returns:
        The directory in which the former certificates are now, or None if there were no former
        certificates.

    Raises:
        ConfigurationError: a file cannot be written, or a resource manager uses the directory.
    """
    folder = state_dir / FOLDER
    kept = None
    with locked_state_dir(state_dir):
        try:
            if (folder / AUTHORITY_FILE).exists():
                kept = folder.with_name(f"{FOLDER}.replaced-{time.time_ns() // 1_000_000}")
                folder.rename(kept)
            make_folder(folder)
        except OSError as error:
            raise ConfigurationError(
                f"the directory {folder} cannot be written: {error.strerror}",
                details={"path": folder},
            ) from None
        write_authority(state_dir, authority)
        give_to_owner(state_dir, folder)
    return kept


def note(state_dir: Path, method: str, changed: str) -> None:
    """Writes a note about a change. The resource manager adds the note to its audit log.

    Raises:
        ConfigurationError: the note cannot be written.
    """
    note_change(state_dir, method, changed)
    give_to_owner(state_dir, state_dir / FOLDER)


def existing_authority(state_dir: Path) -> Authority:
    """Returns the authority of a state directory.

    Raises:
        FailedPrecondition: the directory has no authority.
        ConfigurationError: the authority cannot be read.
    """
    if not (state_dir / FOLDER / AUTHORITY_FILE).exists():
        raise FailedPrecondition(
            f"{state_dir} has no authority of a cluster; run this on the resource manager's host,"
            " and name its state directory with --state-dir",
            reason=Reason.CERTIFICATE_MISSING,
            details={"path": state_dir},
        )
    return read_authority(state_dir)


def trusted_keys(state_dir: Path) -> list[str]:
    """Returns the public keys of the authorities that a state directory trusts. The first key is
    the key that signs.
    """
    if not (state_dir / FOLDER / AUTHORITY_FILE).exists():
        return []
    return [public_bytes(each).hex() for each in read_authority(state_dir).trusted]


def make_folder(folder: Path) -> None:
    """Creates the directory for certificates, which only its owner can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def give_to_owner(state_dir: Path, folder: Path) -> None:
    """Gives the files to the owner of the state directory, because this user runs the daemon."""
    owner = state_dir.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        lock = state_dir / LOCK_FILE
        for path in (folder, *folder.iterdir(), *([lock] if lock.exists() else [])):
            os.chown(path, owner.st_uid, owner.st_gid)


def read_passphrase(file: Path) -> str:
    """Returns the first line of a file that only its owner can read.

    Raises:
        ConfigurationError: the file cannot be read, or other users can read it.
    """
    try:
        with file.open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.readline(FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise ConfigurationError(
            f"the passphrase file {file} cannot be read: {why}", details={"path": file}
        ) from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"the passphrase file {file} can be read by other users; run: chmod 600 {file}",
            details={"path": file},
        )
    return text.rstrip("\r\n")
