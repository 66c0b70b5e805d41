"""Makes join tokens for the executors that providers start. Each token is in a separate file."""

from __future__ import annotations

from pathlib import Path

from finegrain.credentials import write_private_file
from finegrain.errors import ConfigurationError
from finegrain.identity import Identity, Role
from resource_manager.providers.provider import ProviderFailed
from resource_manager.service.identities.identity_service import IdentityCalls
from resource_manager.service.identities.members import Members

TTL_S = 24 * 3_600
"""The longest time between the start of an executor and its registration.

Before an executor registers, its provider possibly creates a machine, or waits in the queue of
another cluster manager.
"""


class ProviderTokens:
    """Writes and deletes the files with the tokens.

    Args:
        calls: makes the text of a token.
        members: stores tokens.
        cluster: name of the cluster.
    """

    def __init__(self, calls: IdentityCalls, members: Members, cluster: str) -> None:
        self._calls = calls
        self._members = members
        self._cluster = cluster

    async def write(self, executor_id: str, path: Path) -> None:
        """Makes a token for an executor and writes it to a file that only this user can read.

        Args:
            executor_id: the only executor that can use the token.
            path: path of the file.

        Raises:
            ProviderFailed: the file cannot be written.
        """
        identity = Identity(self._cluster, Role.EXECUTOR, executor_id)
        secret, _ = await self._members.create_token(identity, made_by="rm", ttl_s=TTL_S)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private_file(path, self._calls.token_of(secret).text.encode() + b"\n")
        except (OSError, ConfigurationError) as error:
            raise ProviderFailed(
                f"the join token of {executor_id} cannot be written: {error}"
            ) from None
