"""Finds the default directories of state and sockets: system directories for root, otherwise XDG
directories.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from finegrain.errors import ConfigurationError

SYSTEM_STATE = Path("/var/lib/finegrain")
SYSTEM_RUN = Path("/run/finegrain")


def state_directory(part: str) -> Path:
    """Returns the default state directory of "rm" or "executor"."""
    if os.geteuid() == 0:
        return SYSTEM_STATE / part
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "finegrain" / part


def default_credentials_file() -> Path:
    """Returns the path of this user's own credentials file."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "finegrain" / "credentials"


def run_directory(part: str) -> Path:
    """Returns the default directory of sockets, and of the notes that `local_managers.py` reads.

    The path must be short, because a socket's path has at most 107 bytes.
    """
    chosen = os.environ.get("FINEGRAIN_RUN_DIR")
    if chosen:
        return Path(chosen) / part
    if os.geteuid() == 0:
        return SYSTEM_RUN / part
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "finegrain" / part
    return Path(tempfile.gettempdir()) / f"finegrain-{os.geteuid()}" / part


def make_private(directory: Path) -> None:
    """Creates a directory that `run_directory` returned, and its parent. If a directory exists,
    checks that it is private.

    Raises:
        ConfigurationError: a directory cannot be created, or other users can write to a directory.
    """
    for path in (directory.parent, directory):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the directory {path} cannot be created: {error.strerror}",
                details={"path": path},
            ) from None
        if not is_private(path):
            raise ConfigurationError(
                f"the directory {path} is not private: it must belong to uid {os.geteuid()} and "
                "not be writable for other users; remove it, or set XDG_RUNTIME_DIR to a private "
                "directory",
                details={"path": path},
            )


def is_private(path: Path) -> bool:
    """Returns True if only this user or root can write to the path, and the path is not a
    symlink.
    """
    try:
        # Do not use `stat`: a symlink of another user could lead to a directory of this user.
        found = path.lstat()
    except OSError:
        return False
    ours = found.st_uid in (0, os.geteuid())
    return ours and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o022
