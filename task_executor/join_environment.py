"""What whoever starts an executor may tell it by its environment, to join a cluster.

FINEGRAIN_PROVIDED_AS names the executor shape of a provider, and FINEGRAIN_JOIN_TOKEN is the
cluster token itself, for a host that has no file of it. Decides that the token leaves the
environment before anything is started that would inherit it.
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
    """The token of the environment, which has none afterwards; empty if there was none.

    Raises:
        ConfigurationError: it cannot be a token.
    """
    token = os.environ.pop(JOIN_TOKEN_VARIABLE, "").strip()
    if token and not TOKEN_PATTERN.fullmatch(token):
        raise ConfigurationError(
            f"{JOIN_TOKEN_VARIABLE} is not a token of 16 to 512 characters; give it the content "
            "of cluster.token in the state directory of the resource manager"
        )
    return token


def cluster_token(join_token: str, given: Path | None, usual: Path) -> str:
    """The token of the file that was given, if we may read it; else the join token; else that of
    the usual file.

    Raises:
        ConfigurationError: there is none, or its file cannot be used.
    """
    if join_token and (given is None or not os.access(given, os.R_OK)):
        return join_token
    return read_token(given or usual)


def provided_as(configured: str) -> str:
    """The shape as which a provider started this executor; empty: none did.

    Raises:
        InvalidArgument: not a name.
    """
    name = configured or os.environ.get(PROVIDED_AS_VARIABLE, "")
    return check_id("provided_as", name) if name else ""
