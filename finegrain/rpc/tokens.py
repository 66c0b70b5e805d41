"""The two tokens: made once at the RM's first start, read by everybody else.

`cluster.token` (mode 0600) is for the RM and executors, `user.token` (0640) for job masters and the
command line. Refuses to know what either allows: that stands in each service's access table.
"""

from __future__ import annotations

import grp
import hashlib
import hmac
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from finegrain.errors import ConfigurationError

CLUSTER_TOKEN_FILE = "cluster.token"
USER_TOKEN_FILE = "user.token"
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_.~+/=-]{16,512}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Both tokens; never shown in a repr."""

    cluster: str = field(repr=False)
    user: str = field(repr=False)


def ensure_token_files(state_dir: Path, user_group: str = "") -> Tokens:
    """Reads both token files of a state directory, making those that do not exist yet.

    Each appears atomically and complete; two processes that start at once agree on one content.

    Args:
        state_dir: exists already.
        user_group: group that may read `user.token`; empty: our own.

    Raises:
        ConfigurationError: no such group, or the directory or a file cannot be used.
    """
    gid = _gid(user_group) if user_group else -1
    cluster = _ensure(state_dir / CLUSTER_TOKEN_FILE, mode=0o600, gid=-1)
    user = _ensure(state_dir / USER_TOKEN_FILE, mode=0o640, gid=gid)
    return Tokens(cluster=cluster, user=user)


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        ConfigurationError: missing, unreadable, malformed, or readable by everybody.
    """
    details = {"path": path}
    try:
        with open(path, encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096).strip()
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no token file {path}; the resource manager makes it at its first start in "
            "its state directory, or name another one with --token-file",
            details=details,
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise ConfigurationError(
            f"the token file {path} cannot be read: {why}", details=details
        ) from None
    if mode & 0o007:
        raise ConfigurationError(
            f"the token file {path} is open to everybody; run: chmod o-rwx {path}", details=details
        )
    if not TOKEN_PATTERN.fullmatch(text):
        raise ConfigurationError(
            f"the token file {path} does not hold one token of 16 to 512 characters; "
            "remove it and start the resource manager, which makes a new one",
            details=details,
        )
    return text


def sha256_hex(text: str) -> str:
    """SHA-256 of a token or secret, in hex: what may be stored and passed on."""
    return hashlib.sha256(text.encode()).hexdigest()


def same_secret(left: str, right: str) -> bool:
    """Compares in a time that does not depend on where they differ."""
    return hmac.compare_digest(left.encode(), right.encode())


def _ensure(path: Path, *, mode: int, gid: int) -> str:
    if not path.exists():
        _create(path, mode=mode, gid=gid)
    return read_token(path)


def _create(path: Path, *, mode: int, gid: int) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            if gid >= 0:
                os.fchown(file.fileno(), -1, gid)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # somebody else was first: theirs holds
            os.link(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        raise ConfigurationError(
            f"the token file {path} cannot be made: {error.strerror}", details={"path": path}
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigurationError(
            f"there is no group {group!r} for the user token; make it (groupadd {group}), or "
            "configure another one",
            details={"group": group},
        ) from None
