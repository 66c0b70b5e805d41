"""Reads the certificate of this executor from its state directory, or gets it with a join token.

    executor.credentials  the certificate with its key, and the addresses of resource managers
    executor.join         the addresses at which to join, and the id of the token that was used
    executor.key          the key, from the first attempt to join until an attempt succeeds

The name in the certificate is the executor's id. A token works only once, so the executor deletes
the file of a used token. This module must not import grpc at module level, see
`task_executor/main.py`.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

from finegrain.credentials import (
    Credentials,
    read_credentials,
    write_credentials,
    write_private_file,
)
from finegrain.errors import ConfigurationError, FinegrainError, Unavailable
from finegrain.identity import Role
from finegrain.join_token import JoinToken, read_join_token, sha256_hex, token_id
from finegrain.logs import get_logger

CREDENTIALS_FILE = "executor.credentials"
JOIN_FILE = "executor.join"
KEY_FILE = "executor.key"
TOKEN_FILE = "join.token"
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 10.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JoinRecord:
    """A record of how this executor has joined.

    Attributes:
        addresses: "host:port" of the resource managers' join ports.
        token: id of the token that was used.
    """

    addresses: tuple[str, ...] = ()
    token: str = ""


def read_join_record(state_dir: Path) -> JoinRecord:
    """Reads how this executor has joined. Returns an empty record if there is no saved record."""
    try:
        data = json.loads((state_dir / JOIN_FILE).read_text())
        return JoinRecord(tuple(str(each) for each in data["addresses"]), str(data["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return JoinRecord()


def executor_credentials(
    state_dir: Path, token_file: Path | None, executor_id: str, stopping: threading.Event
) -> Credentials:
    """Returns the credentials of this executor, and joins the cluster if there is a new token.

    The first join waits until a resource manager can be reached. An executor that already has
    credentials does not wait: it must adopt its tasks. If its certificate has expired, the executor
    renews it later, see `task_executor/service/renewal.py`.

    Args:
        state_dir: the state directory of the executor.
        token_file: the file with a join token; None: join.token in the state directory.
        executor_id: the configured or saved id of the executor; empty: any id.
        stopping: an event that ends the wait of a first join.

    Raises:
        ConfigurationError: there are no credentials and no token, a file cannot be used, or the
            certificate belongs to another executor.
        Unauthenticated: the token cannot be used.
        Unavailable: the executor was stopped before it had joined.
    """
    path = state_dir / CREDENTIALS_FILE
    token_file = token_file or state_dir / TOKEN_FILE
    present = read_credentials(path) if path.exists() else None
    if present is not None:
        _check_own(present, executor_id, str(path))
    if not token_file.exists():
        if present is not None:
            return present
        raise ConfigurationError(
            "this executor has no certificate yet; run finegrain token create --executor"
            f" {executor_id or 'ID'} where the resource manager runs, and write the token to"
            f" {token_file} (mode 0600), or name another file with --join-token-file",
            details={"state_dir": state_dir},
        )
    try:
        token = read_join_token(token_file)
        if present is not None and _id_of(token) == read_join_record(state_dir).token:
            # the token in the file was used before, but its file could not be deleted
            return present
        joined = _join(token, _key(state_dir / KEY_FILE), stopping, patient=present is None)
        _check_own(joined, executor_id, f"the token in {token_file}")
    except FinegrainError as error:
        if present is None:
            raise
        log.error("join_failed", token_file=str(token_file), error=error.message)
        return present
    record = {"addresses": token.addresses, "token": _id_of(token)}
    write_private_file(state_dir / JOIN_FILE, json.dumps(record).encode())
    write_credentials(path, joined)
    (state_dir / KEY_FILE).unlink(missing_ok=True)
    log.info("joined", cluster=joined.who.cluster, executor_id=joined.who.name)
    _delete(token_file)
    return joined


def _key(path: Path) -> str:
    """Returns the key to join with, which stays the same until the executor has joined.

    If the answer to an attempt is lost, for example by a power cut, the token works for the same
    key again.
    """
    from finegrain.certificates.keys import key_pem, new_key

    try:
        return path.read_text()
    except FileNotFoundError:
        text = key_pem(new_key())
        write_private_file(path, text)
        return text.decode()


def _join(token: JoinToken, key: str, stopping: threading.Event, *, patient: bool) -> Credentials:
    # Import this module only now, because it imports grpc. At the first start, this process
    # therefore imports grpc before it starts the helper. This is safe, because the forked process
    # immediately executes the helper's program.
    from finegrain.certificates.joining import join

    pause_s = PAUSE_S_MIN
    while True:
        try:
            return join(token, key)
        except Unavailable as error:
            if not patient:
                raise
            log.warning("join_failed", error=error.message, retry_s=pause_s)
            if stopping.wait(pause_s):
                raise
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _check_own(credentials: Credentials, executor_id: str, source: str) -> None:
    who = credentials.who
    if who.role is not Role.EXECUTOR:
        raise ConfigurationError(
            f"{source} is for {who}, not for an executor; use a token from finegrain token create"
            " --executor ID"
        )
    if executor_id and who.name != executor_id:
        raise ConfigurationError(
            f"{source} is for executor {who.name}, but this executor is {executor_id}; make a"
            f" token with finegrain token create --executor {executor_id}, or correct executor_id",
            details={"executor_id": executor_id},
        )


def _id_of(token: JoinToken) -> str:
    return token_id(sha256_hex(token.secret))


def _delete(token_file: Path) -> None:
    try:
        token_file.unlink()
    except OSError as error:
        log.warning("token_file_not_deleted", path=str(token_file), error=str(error))
