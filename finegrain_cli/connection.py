"""Finds the resource manager and the token for a command, and opens a client.

The first of these sources that has an address is used: flag or environment variable, configuration,
a resource manager that this user runs on this host (`finegrain up`, `finegrain rm serve`), default.
Commands must start fast, so gRPC and the configuration's model are imported only when needed.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import ConfigurationError, Reason, Unavailable
from finegrain.options import TlsOptions, tls_options
from finegrain.rpc.addresses import MANAGER_DEFAULT, is_loopback, parse_address
from finegrain_cli.config.directories import state_directory
from finegrain_cli.context import Invocation, current
from finegrain_cli.local.published import LocalManager, endpoint_in, find_local_managers

if TYPE_CHECKING:
    import finegrain_client
    from finegrain_client import blocking

PATIENCE_S = 5.0
DIAL_S = 1.0
"""Time limit of the test whether a process listens at a loopback address."""
TOKEN_FILES = ("cluster.token", "user.token")


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses of the resource manager, and credentials; `token_file` is None without a token."""

    addresses: tuple[str, ...]
    token_file: Path | None
    tls: TlsOptions | None = None
    insecure: bool = False
    is_noted: bool = False  # a note on this host names a resource manager at one of the addresses


def resolve_target(invocation: Invocation | None = None) -> Target:
    """Determines the target of this invocation.

    Args:
        invocation: None: the current one.

    Raises:
        ConfigurationError: the configuration is invalid, or no address was given although several
            resource managers run on this host.
    """
    invocation = invocation or current()
    client = invocation.client_settings()
    own_rm = Path(client.rm_state_dir) if client.rm_state_dir else state_directory("rm")
    addresses = _split(invocation.manager) or client.manager
    found = find_local_managers()
    configured = endpoint_in(own_rm)
    if configured and configured not in found:
        found.append(configured)
    if addresses:
        state_dirs = [each.state_dir for each in found if each.address in addresses]
    else:
        chosen = _only(found)
        addresses = (chosen.address if chosen else MANAGER_DEFAULT,)
        state_dirs = [chosen.state_dir] if chosen else []
    token = invocation.token_file or client.token_file
    token_file = Path(token) if token else _token_in(state_dirs or [own_rm])
    tls = tls_options(client.tls_ca, client.tls_certificate, client.tls_key)
    return Target(addresses, token_file, tls, client.insecure, is_noted=bool(state_dirs))


def open_cluster(budget_s: float = PATIENCE_S) -> blocking.Cluster:
    """Returns a blocking client of this invocation's cluster, for use in `with`.

    Args:
        budget_s: limit of one call including all retries; short by default, because a person waits
            for the call.
    """
    from finegrain_client import blocking

    target = resolve_target()
    _check_listens(target)
    return blocking.connect(
        target.addresses,
        token_file=target.token_file,
        tls=target.tls,
        insecure=target.insecure,
        budget_s=budget_s,
    )


def open_cluster_async(budget_s: float) -> finegrain_client.Cluster:
    """Returns an asyncio client of this invocation's cluster, for use in `async with`.

    Args:
        budget_s: limit of one call including all retries.
    """
    import finegrain_client

    target = resolve_target()
    _check_listens(target)
    return finegrain_client.connect(
        target.addresses,
        token_file=target.token_file,
        tls=target.tls,
        insecure=target.insecure,
        budget_s=budget_s,
    )


def _check_listens(target: Target) -> None:
    """Checks whether any process listens at a loopback address, so that a command fails at once.

    Raises:
        Unavailable: all addresses are loopback addresses, no process listens at them, and no note
            names a resource manager there. With such a note, the manager may just be restarting.
    """
    if target.is_noted or not all(map(is_loopback, target.addresses)):
        return
    for address in target.addresses:
        try:
            socket.create_connection(parse_address(address), DIAL_S).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            return
        return
    raise Unavailable(
        f"no resource manager runs at {', '.join(target.addresses)}", reason=Reason.UNREACHABLE
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _only(found: list[LocalManager]) -> LocalManager | None:
    addresses = list(dict.fromkeys(each.address for each in found))
    if len(addresses) > 1:
        raise ConfigurationError(
            f"{len(addresses)} resource managers run on this host ({', '.join(addresses)}); "
            "choose one with --manager",
            details={"addresses": ",".join(addresses)},
        )
    return found[0] if found else None


def _token_in(state_dirs: list[Path]) -> Path | None:
    for state_dir in state_dirs:
        for name in TOKEN_FILES:
            path = state_dir / name
            if os.access(path, os.R_OK):
                return path
    return None
