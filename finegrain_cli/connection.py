"""How a command finds the resource manager and a token, and gets a client.

Flag or environment first, then the configuration, then the endpoint file of a resource manager that
runs on this host under the same user (`finegrain up`, `finegrain rm serve`), then the default
address.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.options import TlsOptions
from finegrain_cli.config.daemon_options import rm_state_dir, tls_options
from finegrain_cli.config.directories import state_directory
from finegrain_cli.context import Invocation, current
from resource_manager.options import DEFAULT_ADDRESS

if TYPE_CHECKING:
    import finegrain_client
    from finegrain_client import blocking

ENDPOINT_FILE = "endpoint.json"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the resource manager is and what to show it. `token_file` None: no token was found."""

    addresses: tuple[str, ...]
    token_file: Path | None
    tls: TlsOptions | None = None
    insecure: bool = False


def resolve_target(invocation: Invocation | None = None) -> Target:
    """Settles the target of this invocation.

    Raises:
        ConfigurationError: the configuration cannot be used.
    """
    invocation = invocation or current()
    settings = invocation.configuration().settings
    client = settings.client
    own_rm = rm_state_dir(settings.rm)
    addresses = _split(invocation.manager) or tuple(client.manager)
    token = invocation.token_file or client.token_file
    state_dirs = [state_directory("up"), own_rm]
    if not addresses:
        found = next((each for each in map(_endpoint, state_dirs) if each), None)
        addresses = (found[1],) if found else (DEFAULT_ADDRESS,)
        if found:
            state_dirs = [found[0]]
    token_file = Path(token) if token else _token_in(state_dirs)
    tls = tls_options(client.tls_ca, client.tls_certificate, client.tls_key)
    return Target(addresses, token_file, tls, client.insecure)


def open_cluster() -> blocking.Cluster:
    """A blocking client of this invocation's cluster; use it in `with`."""
    from finegrain_client import blocking

    target = resolve_target()
    return blocking.connect(
        target.addresses, token_file=target.token_file, tls=target.tls, insecure=target.insecure
    )


def open_cluster_async() -> finegrain_client.Cluster:
    """An asyncio client of this invocation's cluster; use it in `async with`."""
    import finegrain_client

    target = resolve_target()
    return finegrain_client.connect(
        target.addresses, token_file=target.token_file, tls=target.tls, insecure=target.insecure
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _endpoint(state_dir: Path) -> tuple[Path, str] | None:
    try:
        data = json.loads((state_dir / ENDPOINT_FILE).read_text(encoding="utf-8"))
        return state_dir, str(data["address"])
    except (OSError, ValueError, KeyError):
        return None


def _token_in(state_dirs: list[Path]) -> Path | None:
    for state_dir in state_dirs:
        for name in ("cluster.token", "user.token"):
            path = state_dir / name
            if os.access(path, os.R_OK):
                return path
    return None
