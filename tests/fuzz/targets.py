"""The servers that are attacked: a real cluster, and credentials of every kind of member."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from finegrain.certificates.authority import Authority
from finegrain.credentials import Credentials
from finegrain.identity import Identity, Role
from finegrain.v1 import cluster_pb2, identity_pb2, resource_manager_pb2, task_executor_pb2
from finegrain_cli.local.cluster import LocalCluster
from tests.support.identities import signed_by

JOINING = "JoinService"


@dataclass(frozen=True)
class Target:
    """One port.

    Attributes:
        name: what the report calls it.
        address: "host:port".
        server: who answers there.
        methods: descriptors of what it serves.
        pid: the process.
        asks_for_certificates: false on the join port.
    """

    name: str
    address: str
    server: Identity
    methods: tuple[MethodDescriptor, ...]
    pid: int
    asks_for_certificates: bool = True


def path_of(method: MethodDescriptor) -> str:
    """Returns the full name of a method, as gRPC sends it."""
    return f"/{method.containing_service.full_name}/{method.name}"


def request_type(method: MethodDescriptor) -> type[Message]:
    """Returns the class of a method's requests."""
    return GetMessageClass(method.input_type)


@dataclass
class Targets:
    """A cluster of real daemons that is attacked.

    Attributes:
        local: the cluster.
        all: its ports.
        who: credentials by identity.
    """

    local: LocalCluster
    all: tuple[Target, ...]
    who: Mapping[str, Credentials]

    @property
    def executor_id(self) -> str:
        return self.local.notes[0].executor_id

    def logs(self) -> Iterator[tuple[str, list[str]]]:
        """Yields the name and the lines of each log."""
        for path in sorted((self.local.state_dir / "logs").glob("*.log")):
            yield path.stem, path.read_text(encoding="utf-8", errors="replace").splitlines()


@contextmanager
def cluster_under_attack() -> Iterator[Targets]:
    """Starts a resource manager and an executor, with one cpu and little memory."""
    with LocalCluster(1, memory_bytes=1 << 30) as local:
        folder = local.state_dir / "rm" / "certificates"
        authority = Authority.from_pem(
            (folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()
        )
        (executor,) = local.notes
        names = (
            "rm",
            f"executor/{executor.executor_id}",
            "executor/fuzz-1",
            "operator/fuzz",
            "viewer/fuzz",
            "user/fuzz",
            "user/other",
            "metrics",
        )
        endpoint = _endpoint(local.state_dir / "rm")
        manager = Identity(authority.cluster, Role.RM)
        joining = identity_pb2.DESCRIPTOR.services_by_name[JOINING]
        of_manager = [
            *_methods(resource_manager_pb2),
            *_methods(cluster_pb2),
            *(each for each in _methods(identity_pb2) if each.containing_service is not joining),
            *_methods(health_pb2),
        ]
        of_executor = [*_methods(task_executor_pb2), *_methods(health_pb2)]
        pid = int(endpoint["pid"])
        there = Identity(authority.cluster, Role.EXECUTOR, executor.executor_id)
        yield Targets(
            local,
            (
                Target("manager", local.address, manager, tuple(of_manager), pid),
                Target(
                    "join port",
                    str(endpoint["join_address"]),
                    manager,
                    tuple(joining.methods),
                    pid,
                    asks_for_certificates=False,
                ),
                Target("executor", executor.address, there, tuple(of_executor), executor.pid),
            ),
            {name: signed_by(authority, name) for name in names},
        )


def _methods(module: Any) -> Iterator[MethodDescriptor]:
    for service in module.DESCRIPTOR.services_by_name.values():
        yield from service.methods


def _endpoint(state_dir: Path) -> dict[str, Any]:
    return dict(json.loads((state_dir / "endpoint.json").read_text(encoding="utf-8")))
