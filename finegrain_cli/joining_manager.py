"""Implements `finegrain rm join`, which copies the cluster's authority to the host of another
resource manager.
"""

from __future__ import annotations

from pathlib import Path

from finegrain.certificates.joining import join_as_manager
from finegrain.errors import ConfigurationError, FailedPrecondition, Reason
from finegrain.join_token import JoinToken
from finegrain_cli.authority_files import give_to_owner, make_folder
from resource_manager.service.identities.own import AUTHORITY_FILE, FOLDER, write_authority


def join_cluster(state_dir: Path, token: str) -> str:
    """Exchanges a token for the cluster's authority. Returns the name of the cluster.

    Args:
        state_dir: state directory of the new resource manager.
        token: the token.

    Raises:
        InvalidArgument: the text is not a token, or the token is for another role.
        FailedPrecondition: the directory already has an authority.
        ConfigurationError: the directory cannot be used.
        FinegrainError: see `finegrain.certificates.joining.join`.
    """
    parsed = JoinToken.parse(token)
    folder = state_dir / FOLDER
    if (folder / AUTHORITY_FILE).exists():
        raise FailedPrecondition(
            f"{folder} has the authority of a cluster already; if no resource manager of this host"
            " needs it, remove the directory first",
            reason=Reason.ALREADY_EXISTS,
            details={"path": folder},
        )
    try:
        # Create the directory before the token is used, because a token works only once.
        make_folder(folder)
    except OSError as error:
        raise ConfigurationError(
            f"the directory {folder} cannot be created: {error.strerror}", details={"path": folder}
        ) from None
    authority = join_as_manager(parsed)
    write_authority(state_dir, authority)
    give_to_owner(state_dir, folder)
    return authority.cluster
