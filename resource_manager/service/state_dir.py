"""The state directory of a resource manager: its modes, its lock, and the endpoint file."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from finegrain.errors import ConfigurationError
from finegrain.logs import get_logger

_log = get_logger("finegrain.rm")

LOCK_FILE = "rm.lock"
ENDPOINT_FILE = "endpoint.json"


@contextmanager
def locked_state_dir(path: Path) -> Iterator[Path]:
    """Creates the directory if it does not exist, and locks it.

    Its mode is 0711: other users can reach only the login socket in it.

    Raises:
        ConfigurationError: the directory cannot be created or used, or another process has locked
            it.
    """
    descriptor = _open_lock(path)
    try:
        yield path
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Returns True if a resource manager runs in a state directory."""
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_endpoint(state_dir: Path, addresses: Mapping[str, str]) -> None:
    """Writes the file with the addresses of this resource manager, for the command line.

    The file is replaced atomically. An error (for example a full disk) is only logged, because the
    resource manager itself does not need the file.

    Args:
        state_dir: the state directory.
        addresses: the addresses of the ports, by name. An address is empty if its port is not open.
    """
    path = state_dir / ENDPOINT_FILE
    temporary = path.with_suffix(".tmp")
    note = {**addresses, "pid": os.getpid()}
    try:
        temporary.write_text(json.dumps(note) + "\n", encoding="ascii")
        # Set the mode before the rename. So the file never has another mode.
        temporary.chmod(0o640)
        temporary.replace(path)
    except OSError as error:
        _log.error("endpoint_not_written", path=str(path), error=error.strerror)


def remove_endpoint(state_dir: Path) -> None:
    """Removes the endpoint file, if the disk allows it."""
    with suppress(OSError):
        (state_dir / ENDPOINT_FILE).unlink(missing_ok=True)


def _open_lock(path: Path) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The mode is set explicitly, because the umask limits `mkdir`, and the directory possibly
        # exists already with another mode.
        path.chmod(0o711)
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the state directory {path} cannot be used: {error.strerror}; choose another one "
            "with --state-dir",
            details={"path": path},
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # The process id tells the administrator which process to stop.
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise ConfigurationError(
            f"the state directory {path} is in use by process {holder or '?'}; stop it, or choose "
            "another directory with --state-dir",
            details={"path": path, "pid": holder},
        ) from None
    # The process id only appears in the error of other processes. So a full disk is no problem.
    with suppress(OSError):
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    return descriptor
