"""The two tokens of a cluster, which the resource manager creates at its first start.

`cluster.token` (mode 0600) is for the resource manager and executors. `user.token` (mode 0640) is
for job masters and the command line. The access table of each service lists what each token allows.
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
    """Both tokens. `repr` does not show them."""

    cluster: str = field(repr=False)
    user: str = field(repr=False)


def ensure_token_files(state_dir: Path, user_group: str = "") -> Tokens:
    """Reads both token files of a state directory, and creates the missing ones.

    Each file appears atomically, with its whole content. Two processes that start at the same time
    return the same tokens.

    Args:
        state_dir: an existing directory.
        user_group: group that may read `user.token`; empty: the group of this process.

    Raises:
        ConfigurationError: the group does not exist, or the directory or a file cannot be used.
    """
    gid = _gid(user_group) if user_group else -1
    cluster = _ensure(state_dir / CLUSTER_TOKEN_FILE, mode=0o600, gid=-1)
    user = _ensure(state_dir / USER_TOKEN_FILE, mode=0o640, gid=gid)
    return Tokens(cluster=cluster, user=user)


def read_token(path: Path) -> str:
    """Returns the token in a file.

    Raises:
        ConfigurationError: the file is missing, unreadable, malformed, or open to all users.
    """
    details = {"path": path}
    try:
        with open(path, encoding="ascii") as file:
            # The mode is read from the open file, so that no process can replace the file between
            # this check and the reading.
            mode = os.fstat(file.fileno()).st_mode
            # The path may name any file, even a huge one, so at most 4 KiB are read.
            text = file.read(4096).strip()
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no token file {path}; the resource manager creates it in its state "
            "directory at its first start; name another file with --token-file",
            details=details,
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise ConfigurationError(
            f"the token file {path} cannot be read: {why}", details=details
        ) from None
    if mode & 0o007:
        raise ConfigurationError(
            f"the token file {path} is accessible to all users; run: chmod o-rwx {path}",
            details=details,
        )
    if not TOKEN_PATTERN.fullmatch(text):
        raise ConfigurationError(
            f"the token file {path} does not hold one token of 16 to 512 characters; remove it "
            "and start the resource manager, which creates a new one",
            details=details,
        )
    return text


def sha256_hex(text: str) -> str:
    """Returns the SHA-256 hash of a token or secret, in hex. Store and pass on only this hash."""
    return hashlib.sha256(text.encode()).hexdigest()


def same_secret(left: str, right: str) -> bool:
    """Compares two texts in constant time, so that the time does not reveal where they differ."""
    return hmac.compare_digest(left.encode(), right.encode())


def _ensure(path: Path, *, mode: int, gid: int) -> str:
    if not path.exists():
        _create(path, mode=mode, gid=gid)
    # Read the file even if this process has just tried to create it: another process may have been
    # faster, and then its token is valid.
    return read_token(path)


def _create(path: Path, *, mode: int, gid: int) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # No other user can read the file before its group and mode are set.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            if gid >= 0:
                # Set the group before the mode. Otherwise the process's own group could read the
                # file for a moment.
                os.fchown(file.fileno(), -1, gid)
            os.fchmod(file.fileno(), mode)
            file.flush()
            # The content must be durable before the name. Otherwise a power cut could leave an
            # empty token file, which no process would replace.
            os.fsync(file.fileno())
        # `link` fails if the file exists, while `rename` would replace another process's token.
        with suppress(FileExistsError):  # another process was faster, and its token is valid
            os.link(temporary, path)
        # Make the name durable, too.
        _sync_directory(path.parent)
    except OSError as error:
        raise ConfigurationError(
            f"the token file {path} cannot be created: {error.strerror}", details={"path": path}
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
            f"there is no group {group!r} for the user token; create it (groupadd {group}), or "
            "configure another group",
            details={"group": group},
        ) from None
