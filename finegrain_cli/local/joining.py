"""Writes join tokens for the executors of a local cluster. So the user of the cluster does not have
to set up anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from finegrain.credentials import read_credentials, write_private_file
from finegrain.errors import ConfigurationError
from finegrain.identity import Role

EXECUTOR_FILE = "executor.credentials"
TOKEN_FILE = "join.token"
TTL_S = 900


def join_token_file(state_dir: Path, executor_id: str) -> Path:
    """Returns the path of an executor's token."""
    return state_dir / "executors" / executor_id / TOKEN_FILE


def write_join_tokens(
    state_dir: Path, executor_ids: Sequence[str], address: str, operator: Path
) -> None:
    """Writes a token for each executor that has no valid certificate of this cluster.

    Args:
        state_dir: state directory of the local cluster.
        executor_ids: ids of the cluster's executors.
        address: address of the cluster's resource manager.
        operator: credentials file with the role `operator`.

    Raises:
        FinegrainError: the resource manager did not answer.
        ConfigurationError: a file cannot be written.
    """
    authorities = read_credentials(operator).authorities
    new = [each for each in executor_ids if not _is_member(state_dir, each, authorities)]
    if not new:
        return
    from finegrain_client import blocking

    with blocking.connect((address,), credentials=operator) as cluster:
        for executor_id in new:
            path = join_token_file(state_dir, executor_id)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            token = cluster.create_token(Role.EXECUTOR, executor_id, ttl_s=TTL_S)
            write_private_file(path, token.token.encode())


def _is_member(state_dir: Path, executor_id: str, authorities: str) -> bool:
    """Returns True if an executor has a certificate of this cluster. If the certificate is of an
    earlier authority, removes the certificate.
    """
    path = join_token_file(state_dir, executor_id).with_name(EXECUTOR_FILE)
    try:
        found = read_credentials(path)
    except ConfigurationError:
        return False
    if found.authorities != authorities:
        path.unlink(missing_ok=True)
        return False
    return not found.problem_at(time.time())
