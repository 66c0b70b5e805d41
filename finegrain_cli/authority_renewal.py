"""Replaces the authority of a cluster in three steps: add, use, drop. Until the last step, members
trust both authorities. The file `ca.pem` has the certificates of all trusted authorities. The
authority whose key is in `ca.key` signs. `ca.next.key` is the key of an authority that was added
and does not sign yet. A running resource manager reads these files again after each change.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from finegrain.certificates.authority import (
    Authority,
    authority_keys,
    certificate_pem,
    is_signed_by_one_of,
    utc_now,
)
from finegrain.credentials import Credentials, read_credentials, write_private_file
from finegrain.errors import ConfigurationError, FailedPrecondition, InvalidArgument, Reason
from finegrain_cli.authority_files import existing_authority, give_to_owner, make_folder
from resource_manager.service.identities.own import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    FOLDER,
    RM_FILE,
    write_authority,
)
from resource_manager.service.state_dir import is_locked

NEXT_KEY_FILE = "ca.next.key"
USED_WITHIN_S = 20.0
FILE_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class AuthorityInfo:
    """One authority that a cluster trusts.

    Attributes:
        cluster: name of the cluster.
        use: "signs", "next" (the authority was added and does not sign yet) or "trusted" (the
            authority signed before).
        fingerprint: SHA-256 of the certificate of the authority, in hexadecimal.
        expire_time: the time when the certificate of the authority expires.
        issuer: the issuer of the certificate of the authority. An authority that finegrain made has
            issued its own certificate.
    """

    cluster: str
    use: str
    fingerprint: str
    expire_time: str
    issuer: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)


def authorities(state_dir: Path) -> list[AuthorityInfo]:
    """Returns the trusted authorities. The first authority is the one that signs.

    Raises:
        FailedPrecondition: the directory has no authority.
        ConfigurationError: a file cannot be read.
    """
    present = existing_authority(state_dir)
    other = "next" if _next_key(state_dir).exists() else "trusted"
    uses = ("signs", *(other for _ in present.others))
    return [
        _info(present.cluster, use, each) for use, each in zip(uses, present.trusted, strict=True)
    ]


def add_authority(state_dir: Path, files: tuple[Path, Path] | None) -> AuthorityInfo:
    """Adds a trusted authority. If the directory has no authority yet, the added authority signs
    from now on.

    Args:
        state_dir: state directory of a resource manager.
        files: certificate and key of an outside authority. If None, the function makes a new
            authority.

    Raises:
        InvalidArgument: the outside authority belongs to another cluster, or is already trusted.
        FailedPrecondition: the present authority is already being replaced by another authority.
            This error is also raised if the directory has no authority and `files` is None.
        ConfigurationError: a file cannot be read or written.
    """
    folder = state_dir / FOLDER
    outside = _read_outside(*files) if files else None
    if outside is not None and not (folder / AUTHORITY_FILE).exists():
        make_folder(folder)
        write_authority(state_dir, outside)
        give_to_owner(state_dir, folder)
        return _info(outside.cluster, "signs", outside.certificate)
    present = existing_authority(state_dir)
    if present.others:
        raise FailedPrecondition(
            f"{folder} trusts a second authority already; first end that replacement with finegrain"
            " certs ca use or finegrain certs ca drop",
            reason=Reason.ALREADY_EXISTS,
            details={"path": folder},
        )
    added = outside or Authority.create(present.cluster, utc_now())
    if added.cluster != present.cluster:
        raise InvalidArgument(
            "--certificate", f"cluster {added.cluster}", f"one of cluster {present.cluster}"
        )
    if added.key.public_key() == present.key.public_key():
        raise InvalidArgument("--key", "the present authority's key", "another key")
    # Write the key before the certificate. If the second write fails, a key without a trusted
    # authority does no harm, but a trusted authority without its key could never sign.
    write_private_file(folder / NEXT_KEY_FILE, added.private_key_pem)
    write_private_file(folder / AUTHORITY_FILE, present.certificate_pem + added.certificate_pem)
    give_to_owner(state_dir, folder)
    return _info(added.cluster, "next", added.certificate)


def check_usable(state_dir: Path) -> None:
    """Checks that an authority was added, and that the resource manager gives the added authority
    to members.

    Raises:
        FailedPrecondition: no authority was added, or the resource manager does not yet give the
            added authority to members.
    """
    present = existing_authority(state_dir)
    if not _next_key(state_dir).exists() or not present.others:
        raise FailedPrecondition(
            f"{state_dir / FOLDER} has no authority that could be used next; run: finegrain certs"
            " ca add",
            reason=Reason.CERTIFICATE_MISSING,
        )
    served = _served(state_dir)
    if served is None or certificate_pem(present.others[0]).decode() not in served.authorities:
        raise FailedPrecondition(
            "no resource manager has run here since finegrain certs ca add, so its members do not"
            " trust the new authority yet; start it, and wait until they do",
            reason=Reason.CERTIFICATE_WRONG,
        )


def use_authority(state_dir: Path) -> AuthorityInfo:
    """Makes the added authority the signing authority, in one step. The former key is deleted.

    Raises:
        FailedPrecondition: see `check_usable`.
        ConfigurationError: a file cannot be written.
    """
    check_usable(state_dir)
    folder = state_dir / FOLDER
    try:
        _next_key(state_dir).rename(folder / AUTHORITY_KEY_FILE)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from None
    return authorities(state_dir)[0]


def check_droppable(state_dir: Path) -> None:
    """Checks that the directory trusts an authority that does not sign, and that the resource
    manager does not use that authority.

    Raises:
        FailedPrecondition: the directory trusts only the signing authority, or the resource manager
            still shows a certificate that the other authority has signed.
    """
    present = existing_authority(state_dir)
    if not present.others:
        raise FailedPrecondition(
            f"{state_dir / FOLDER} trusts one authority only", reason=Reason.CERTIFICATE_MISSING
        )
    served = _served(state_dir)
    if served is None:
        return
    shown = x509.load_pem_x509_certificate(served.certificate.encode())
    if not is_signed_by_one_of(authority_keys([present.certificate]), shown):
        raise FailedPrecondition(
            "no resource manager has run here since finegrain certs ca use, so all members still"
            " have certificates of the other authority; start it, and wait until they have renewed"
            " them",
            reason=Reason.CERTIFICATE_WRONG,
        )


def drop_authorities(state_dir: Path) -> AuthorityInfo:
    """Trusts only the authority that signs.

    Raises:
        FailedPrecondition: see `check_droppable`.
        ConfigurationError: a file cannot be written.
    """
    check_droppable(state_dir)
    present, folder = existing_authority(state_dir), state_dir / FOLDER
    write_private_file(folder / AUTHORITY_FILE, present.certificate_pem)
    _next_key(state_dir).unlink(missing_ok=True)
    give_to_owner(state_dir, folder)
    return _info(present.cluster, "signs", present.certificate)


def wait_until_used(state_dir: Path) -> bool:
    """Waits until the resource manager that runs in a state directory uses the authorities of this
    directory.

    Returns:
        False if no resource manager runs in the directory. A resource manager then uses the
        authorities after its next start.

    Raises:
        FailedPrecondition: the resource manager does not use the authorities after 20 s.
    """
    trusted = existing_authority(state_dir).trusted_pem.decode()
    until = time.monotonic() + USED_WITHIN_S
    while is_locked(state_dir):
        served = _served(state_dir)
        if served is not None and served.authorities == trusted:
            return True
        if time.monotonic() > until:
            raise FailedPrecondition(
                f"the files in {state_dir / FOLDER} are changed, but the resource manager does not"
                f" use them after {USED_WITHIN_S:g} s; its log says why; restart it",
                reason=Reason.CERTIFICATE_WRONG,
            )
        time.sleep(0.1)
    return False


def _next_key(state_dir: Path) -> Path:
    return state_dir / FOLDER / NEXT_KEY_FILE


def _served(state_dir: Path) -> Credentials | None:
    """Returns the certificates that the resource manager shows, or None if the resource manager has
    never started with these files.
    """
    path = state_dir / FOLDER / RM_FILE
    return read_credentials(path) if path.exists() else None


def _read_outside(certificate: Path, key: Path) -> Authority:
    texts = []
    for path in (certificate, key):
        try:
            with path.open("rb") as file:
                texts.append(file.read(FILE_BYTES_MAX))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    read = Authority.from_pem(*texts)
    # Trust only this authority. Do not trust the authority that has issued its certificate, because
    # that authority possibly also signs for other systems.
    return Authority(read.cluster, read.certificate, read.key)


def _info(cluster: str, use: str, certificate: x509.Certificate) -> AuthorityInfo:
    return AuthorityInfo(
        cluster,
        use,
        certificate.fingerprint(hashes.SHA256()).hex(),
        certificate.not_valid_after_utc.isoformat().replace("+00:00", "Z"),
        certificate.issuer.rfc4514_string(),
    )
