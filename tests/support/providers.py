"""Helpers for tests of providers that start real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from finegrain.certificates.joining import public_bytes
from finegrain.identity import Identity
from finegrain.join_token import JoinToken
from resource_manager.providers.config import ProvidersConfiguration, read_providers
from resource_manager.providers.process_tree import Process, command_lines
from resource_manager.providers.provider import ProviderContext
from resource_manager.providers.registry import find_kind
from resource_manager.service.identities.issuing import Issuer
from resource_manager.service.identities.join_service import JoinServer
from tests.support.identities import CLUSTER, authority, identity, own

TOKEN = "fgjoin-" + "t" * 32
NOBODY_LISTENS = "127.0.0.1:9"
CPU = min(os.sched_getaffinity(0))


def provider_context(state_dir: Path, manager: str = NOBODY_LISTENS) -> ProviderContext:
    """Returns the context of a resource manager with this state directory."""
    state_dir.mkdir(mode=0o700, exist_ok=True)
    return ProviderContext(state_dir, (manager,))


def give_token(context: ProviderContext, executor_id: str, token: str = TOKEN) -> Path:
    """Writes a join token for an executor, as the resource manager does before a start."""
    path = context.token_file(executor_id)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(token)
    path.chmod(0o600)
    return path


def configuration(folder: Path, text: str) -> ProvidersConfiguration:
    """Writes a providers' file with this text, and reads it."""
    file = folder / "providers.toml"
    file.write_text(text)
    return read_providers(file)


def make_provider(name: str, read: ProvidersConfiguration, around: ProviderContext) -> Any:
    """Makes a provider in the same way as a starting resource manager. To test a restart, call it
    again.
    """
    return find_kind(name).make(read.common[name], read.shapes.get(name, ()), around)


def halves(count: int, *, isolation: str = "none", memory: str = "64MiB") -> str:
    """Returns configuration of a shape "half": `count` executors, each with an equal part of one
    cpu."""
    share = f"""
    [[shape.process.share]]
    cpus = "{CPU}"
    cpu = "{1000 // count}m"
    memory = "{memory}"
    """
    return f"""
    [process]
    stop_timeout = "20s"
    executor = {{ task_user = "self", allow_root_tasks = true, isolation = "{isolation}" }}
    [[shape]]
    name = "half"
    provider = "process"
    labels = {{ zone = "a" }}
    """ + (count * share)


def processes_naming(path: Path) -> list[tuple[Process, list[str]]]:
    """Returns running processes whose command lines contain this path or a path below it."""
    return [
        (process, words)
        for process, words in command_lines()
        if any(str(path) in word for word in words) and process.is_running()
    ]


class AnyMember:
    """Stands for the stored tokens: each secret is the id of the executor that joins with it."""

    async def redeem(self, secret: str, _key_sha256: str) -> tuple[Identity, int]:
        """Returns the identity of the executor."""
        return identity(f"executor/{secret}"), 0

    def is_denied(self, _identity: Identity, _serial: str) -> bool:
        """Returns False."""
        return False


@asynccontextmanager
async def joining() -> AsyncIterator[str]:
    """Runs a join port at which every executor can join the test cluster; yields its address."""
    members: Any = AnyMember()
    server = JoinServer(
        "127.0.0.1:0",
        own("rm"),
        Issuer(authority, lambda: [NOBODY_LISTENS]),
        members,
        lambda: None,
        refused=lambda _method, _error: None,
    )
    yield await server.start()
    await server.stop()


def join_token(address: str, executor_id: str) -> str:
    """Returns a token for the join port that `joining` runs."""
    key = public_bytes(authority().certificate).hex()
    return JoinToken((address,), CLUSTER, key, executor_id).text
