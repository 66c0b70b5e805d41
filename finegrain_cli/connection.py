"""Finds the resource manager and the credentials for a command, and opens a client.

`finegrain/targets.py` has the rules, which also apply to the client library. This module adds flags
and the configuration. The module imports gRPC and the configuration's model only when they are
needed, so that commands start fast.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain import targets
from finegrain.directories import state_directory
from finegrain.errors import Reason, Unavailable
from finegrain.rpc.addresses import is_loopback, parse_address
from finegrain.targets import Target
from finegrain_cli.config.sources import ClientSettings
from finegrain_cli.context import Invocation, current

if TYPE_CHECKING:
    import finegrain_client
    from finegrain_client import blocking
    from finegrain_client.connection import Connection

PATIENCE_S = 5.0
DIAL_S = 1.0
"""Time limit in seconds of one attempt to find out whether a process listens at a loopback
address.
"""


def resolve_target(invocation: Invocation | None = None) -> Target:
    """Determines addresses and credentials of this invocation.

    Args:
        invocation: the invocation. If None, the current invocation is used.

    Raises:
        FinegrainError: see `finegrain.targets.resolve_target`.
        ConfigurationError: the configuration is invalid.
    """
    invocation = invocation or current()
    client = invocation.client_settings()
    return targets.resolve_target(
        invocation.manager or client.manager,
        invocation.credentials or client.credentials,
        state_dir=_own_state_dir(client),
    )


def open_cluster(budget_s: float = PATIENCE_S) -> blocking.Cluster:
    """Returns a blocking client of this invocation's cluster, for use in `with`.

    Args:
        budget_s: time limit of one call including all retries. The default is short, because a
            person waits for the call.
    """
    from finegrain_client import blocking

    target = resolve_target()
    _check_listens(target)
    return blocking.connect(
        target.addresses,
        credentials=target.file or target.credentials,
        budget_s=budget_s,
    )


def open_cluster_async(budget_s: float) -> finegrain_client.Cluster:
    """Returns an asyncio client of this invocation's cluster, for use in `async with`.

    Args:
        budget_s: time limit of one call including all retries.
    """
    import finegrain_client

    target = resolve_target()
    _check_listens(target)
    return finegrain_client.connect(
        target.addresses,
        credentials=target.file or target.credentials,
        budget_s=budget_s,
    )


@asynccontextmanager
async def open_connection(budget_s: float) -> AsyncIterator[Connection]:
    """Yields a connection for calls of the protocol. The connection is closed at the end of the
    context.

    Args:
        budget_s: time limit of one call including all retries.
    """
    from finegrain_client.connection import Connection
    from finegrain_client.retry import RetryPolicy

    target = resolve_target()
    _check_listens(target)
    policy = RetryPolicy(budget_s=budget_s)
    connection = Connection(target.addresses, target.credentials, file=target.file, policy=policy)
    try:
        yield connection
    finally:
        await connection.close()


def _own_state_dir(client: ClientSettings) -> Path:
    """Returns the state directory that a resource manager on this host uses, if one runs."""
    return Path(client.rm_state_dir) if client.rm_state_dir else state_directory("rm")


def _check_listens(target: Target) -> None:
    """If all addresses are loopback addresses, checks that a process listens at one of them. So the
    command fails at once if no resource manager runs.

    Raises:
        Unavailable: no process listens at any of the addresses, and `local_managers` knows no
            resource manager with one of these addresses. For a known resource manager the command
            tries again, because the resource manager is possibly being restarted.
    """
    if not all(map(is_loopback, target.addresses)):
        return
    for address in target.addresses:
        try:
            socket.create_connection(parse_address(address), DIAL_S).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            return
        return
    own = _own_state_dir(current().client_settings())
    if any(each.address in target.addresses for each in targets.local_managers(own)):
        return
    raise Unavailable(
        f"no resource manager runs at {', '.join(target.addresses)}", reason=Reason.UNREACHABLE
    )
