"""Environment variables with which a provider or an installer lets an executor join a cluster.

FINEGRAIN_PROVIDED_AS names the executor shape of a provider. FINEGRAIN_JOIN_TOKEN is the cluster
token itself, for a host without a token file. The executor removes the token from its environment
before it starts a process that would inherit the token.
"""

from __future__ import annotations

import os
from pathlib import Path

from finegrain.errors import ConfigurationError
from finegrain.ids import check_id
from finegrain.rpc.tokens import TOKEN_PATTERN, read_token

PROVIDED_AS_VARIABLE = "FINEGRAIN_PROVIDED_AS"
JOIN_TOKEN_VARIABLE = "FINEGRAIN_JOIN_TOKEN"


def take_join_token() -> str:
    """Removes the token from the environment and returns it. Returns an empty text if there was no
    token.

    Raises:
        ConfigurationError: the value cannot be a token.
    """
    token = os.environ.pop(JOIN_TOKEN_VARIABLE, "").strip()
    if token and not TOKEN_PATTERN.fullmatch(token):
        raise ConfigurationError(
            f"{JOIN_TOKEN_VARIABLE} is not a token of 16 to 512 characters; set it to the content "
            "of cluster.token in the state directory of the resource manager"
        )
    return token


def cluster_token(join_token: str, given: Path | None, usual: Path) -> str:
    """Returns the cluster token.

    It prefers a readable configured file, then the join token, then the usual file.

    Args:
        join_token: the token from the environment; empty: none.
        given: the configured token file; None: none is configured.
        usual: the token file to use if neither exists.

    Raises:
        ConfigurationError: there is no token, or its file cannot be used.
    """
    # A token file that cannot be read must not prevent a host from joining.
    if join_token and (given is None or not os.access(given, os.R_OK)):
        return join_token
    return read_token(given or usual)


def provided_as(configured: str) -> str:
    """Returns the shape under which a provider started this executor; empty: no provider started
    it.

    Raises:
        InvalidArgument: the value is not a valid name.
    """
    name = configured or os.environ.get(PROVIDED_AS_VARIABLE, "")
    return check_id("provided_as", name) if name else ""
