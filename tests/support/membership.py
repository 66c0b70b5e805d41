"""Makes daemons and people members of a cluster. In real clusters, an administrator does this."""

from __future__ import annotations

from pathlib import Path

from finegrain.certificates.joining import join
from finegrain.credentials import write_credentials
from finegrain.join_token import JoinToken
from finegrain_client import blocking
from resource_manager.service.identities.own import FOLDER, write_authority
from tests.support.identities import authority, credentials

LIFE_S = 7 * 24 * 3_600.0
"""Life of certificates, so that no long run ends with one."""


def give_authority(state_dir: Path) -> None:
    """Makes a resource manager a member of the test cluster, before its first start."""
    (state_dir / FOLDER).mkdir(mode=0o700, parents=True)
    write_authority(state_dir, authority())


def give_membership(state_dir: Path, executor_id: str) -> None:
    """Gives an executor its certificate. The executor then seems to have joined the test cluster
    before.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = credentials(f"executor/{executor_id}", life_s=LIFE_S)
    write_credentials(state_dir / "executor.credentials", found)


def give_credentials(folder: Path, who: str, *addresses: str) -> Path:
    """Returns a credentials file of a member of the test cluster, valid for a long run.

    Args:
        folder: folder for the file.
        who: the identity: "user/alice".
        addresses: "host:port" of the resource managers.
    """
    path = folder / f"{who.replace('/', '-')}.credentials"
    write_credentials(path, credentials(who, *addresses, life_s=LIFE_S))
    return path


def log_in(address: str, operator: Path, folder: Path, who: str) -> Path:
    """Returns a credentials file of a person who has joined with an administrator's token.

    Args:
        address: "host:port" of the resource manager.
        operator: credentials file of an administrator.
        folder: folder for the file.
        who: the identity: "user/alice".
    """
    role, _, name = who.partition("/")
    with blocking.connect(address, credentials=operator) as cluster:
        token = cluster.create_token(role, name).token
    path = folder / f"{role}-{name}.credentials"
    write_credentials(path, join(JoinToken.parse(token)))
    return path
