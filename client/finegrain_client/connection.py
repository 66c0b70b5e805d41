"""Keeps the client's gRPC channels to resource managers and executors, one channel per address.

A channel opens on first use. If too many channels to executors are unused, the client closes the
channels that have been unused for the longest time. The module of a stub is imported at the first
call of the stub, because the import is slow. `finegrain/rpc/leaders.py` chooses which of several
resource managers to call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import grpc.aio

from finegrain.credentials import Credentials
from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.identity import Identity, Role
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.channels import open_channel
from finegrain.rpc.leaders import Leaders
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain_client.renewal import Renewal
from finegrain_client.retry import RetryPolicy, call_with_retries

if TYPE_CHECKING:
    from finegrain.v1 import identity_pb2
    from finegrain.v1.cluster_pb2_grpc import ClusterServiceAsyncStub
    from finegrain.v1.identity_pb2_grpc import IdentityServiceAsyncStub
    from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceAsyncStub
    from finegrain.v1.task_executor_pb2_grpc import TaskExecutorServiceAsyncStub

T = TypeVar("T")

GROWTH_OF_SEVERAL = 1.5
"""Growth of the delay between two tries if there are several resource managers.

If the delay doubled, it could be as long as the whole takeover. The client might then find a new
leader only after twice the time of the takeover.
"""

LEAVE_FROZEN_AFTER_S = 2.0
"""If there are several resource managers, and the called one does not answer within this time in
seconds, the client switches to another one.
"""

EXECUTOR_CHANNELS_IDLE_MAX = 64
"""Largest number of unused channels to executors that stay open."""


@dataclass(slots=True)
class ExecutorLink:
    """An open channel to one executor.

    Attributes:
        address: address of the executor.
        executor_id: id of the executor. The executor must prove that it has this id.
        certificate: version of the client's certificate with which the channel was opened.
        stub: the stub of the executor's service.
    """

    address: str
    executor_id: str
    certificate: int
    channel: grpc.aio.Channel
    stub: TaskExecutorServiceAsyncStub
    users: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """The values that distinguish this link from all other links of a client."""
        return (self.address, self.executor_id, self.certificate)


class Connection:
    """All channels of one client. Use a connection only on one event loop.

    Attributes:
        own: the certificate that the client shows. The client renews it in the background.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        credentials: Credentials,
        *,
        file: Path | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        """Checks the addresses, and opens no channel yet.

        Args:
            addresses: "host:port" of each resource manager.
            credentials: the identity to show.
            file: the file that the credentials come from, which a renewal replaces.
            policy: budget and delays of retries.

        Raises:
            InvalidArgument: there is no address, or an address is malformed.
        """
        if not addresses:
            raise InvalidArgument("address", "", "at least one address of a resource manager")
        for address in addresses:
            check_dialable(address)
        self.policy = policy or RetryPolicy()
        self._leaders = Leaders(addresses)
        # The client must find a new leader soon after a takeover, even if the takeover takes long.
        if self._leaders.several:
            self.policy = replace(self.policy, growth=GROWTH_OF_SEVERAL)
        self.own = OwnCertificate(credentials)
        self._cluster_name = credentials.who.cluster
        self._renewal = Renewal(self.own, file, self._renew_certificate)
        self._manager_channels: dict[tuple[str, int], grpc.aio.Channel] = {}
        # Stubs by service and channel. The connection keeps them, because a new stub for each call
        # would make calls slower.
        self._stubs: dict[tuple[object, grpc.aio.Channel], object] = {}
        self._links: OrderedDict[tuple[str, str, int], ExecutorLink] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def manager_address(self) -> str:
        """Address of the resource manager that the client currently calls."""
        return self._leaders.current

    @property
    def manager(self) -> ResourceManagerServiceAsyncStub:
        """The resource manager's service for job masters."""
        from finegrain.v1 import resource_manager_pb2_grpc

        stub = self._stub(resource_manager_pb2_grpc.ResourceManagerServiceStub)
        return cast("ResourceManagerServiceAsyncStub", stub)

    @property
    def cluster(self) -> ClusterServiceAsyncStub:
        """The resource manager's service for administrators."""
        from finegrain.v1 import cluster_pb2_grpc

        stub = self._stub(cluster_pb2_grpc.ClusterServiceStub)
        return cast("ClusterServiceAsyncStub", stub)

    @property
    def identities(self) -> IdentityServiceAsyncStub:
        """The resource manager's service for certificates and join tokens."""
        from finegrain.v1 import identity_pb2_grpc

        stub = self._stub(identity_pb2_grpc.IdentityServiceStub)
        return cast("IdentityServiceAsyncStub", stub)

    def _stub(self, service: Callable[[grpc.aio.Channel], object]) -> object:
        channel = self._manager_channel()
        if (service, channel) not in self._stubs:
            self._stubs[service, channel] = service(channel)
        return self._stubs[service, channel]

    async def call_manager(
        self,
        call: Callable[[ResourceManagerServiceAsyncStub, float], Awaitable[T]],
        *,
        policy: RetryPolicy | None = None,
    ) -> T:
        """Makes a unary call to the resource manager, with retries.

        Args:
            call: a function that makes one try. Its arguments are the stub and the deadline in
                seconds.
            policy: budget and delays; None means the policy of the connection.

        Raises:
            FinegrainError: see `call_with_retries`.
        """
        return await self._call(lambda timeout_s: call(self.manager, timeout_s), policy)

    async def call_cluster(
        self, call: Callable[[ClusterServiceAsyncStub, float], Awaitable[T]]
    ) -> T:
        """Makes a unary call to the service for administrators; see `call_manager`."""
        return await self._call(lambda timeout_s: call(self.cluster, timeout_s), None)

    async def call_identities(
        self, call: Callable[[IdentityServiceAsyncStub, float], Awaitable[T]]
    ) -> T:
        """Makes a unary call to the service for identities; see `call_manager`."""
        return await self._call(lambda timeout_s: call(self.identities, timeout_s), None)

    def manager_answered(self, address: str) -> None:
        """Records that the resource manager at `address` answered, so it is the leader."""
        self._leaders.worked(address)

    def leave_manager(self, address: str, error: FinegrainError | None = None) -> bool:
        """Switches to another resource manager. Returns True if the other resource manager should
        be called at once.

        Args:
            address: the address of the resource manager that failed. If the client already uses
                another address, nothing changes.
            error: the error of the call. If the error names the leader, the client switches to the
                leader.
        """
        return self._leaders.failed(address, error)

    async def _call(
        self, attempt: Callable[[float], Awaitable[T]], policy: RetryPolicy | None
    ) -> T:
        used = self.manager_address

        async def once(timeout_s: float) -> T:
            nonlocal used
            # Each try can go to another resource manager, so read the address again.
            used = self.manager_address
            answer = await attempt(timeout_s)
            self.manager_answered(used)
            return answer

        return await call_with_retries(
            once,
            where=lambda: used,
            policy=policy or self.policy,
            redirect=lambda error: self.leave_manager(used, error),
        )

    def acquire_executor(self, address: str, executor_id: str) -> ExecutorLink:
        """Returns a link to an executor. The caller must call `release_executor` later.

        Args:
            address: address of the executor.
            executor_id: the id of the executor. If another server answers at this address, the
                client sends nothing to that server.

        Raises:
            Unauthenticated: the client's certificate has expired.
        """
        key = (address, executor_id, self.own.version)
        link = self._links.get(key)
        if link is None:
            from finegrain.v1 import task_executor_pb2_grpc

            server = Identity(self._cluster_name, Role.EXECUTOR, executor_id)
            channel = open_channel(address, self.own, server)
            stub = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
            link = ExecutorLink(*key, channel, cast("TaskExecutorServiceAsyncStub", stub))
            self._links[key] = link
        link.users += 1
        # Keep the links in order of use, so that `release_executor` closes the links that have been
        # unused for the longest time.
        self._links.move_to_end(key)
        return link

    def is_current(self, link: ExecutorLink) -> bool:
        """Returns True if a link uses the client's present certificate."""
        return link.certificate == self.own.version

    def release_executor(self, link: ExecutorLink) -> None:
        """Drops one user of a link.

        Closes unused links with an earlier certificate. If there are still more unused links than
        the limit, closes the links that have been unused for the longest time.
        """
        link.users -= 1
        idle = [each for each in self._links.values() if each.users <= 0]
        beyond = max(0, len(idle) - EXECUTOR_CHANNELS_IDLE_MAX)
        for number, each in enumerate(idle):
            if number >= beyond and self.is_current(each):
                continue
            del self._links[each.key]
            closing = asyncio.get_running_loop().create_task(each.channel.close())
            # Keep a reference to the task, because the event loop keeps only weak references.
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all channels, and cancels the calls in flight."""
        await self._renewal.stop()
        channels = [
            *self._manager_channels.values(),
            *(each.channel for each in self._links.values()),
        ]
        # Clear the channels before the wait, so that no other call uses a channel that is being
        # closed.
        self._manager_channels.clear()
        self._stubs.clear()
        self._links.clear()
        await asyncio.gather(*self._closing, *(each.close() for each in channels))

    def _manager_channel(self) -> grpc.aio.Channel:
        # Check this before the call: with an expired certificate, the channel would report only
        # that the server has closed the connection.
        self._renewal.check_valid()
        self._renewal.start()
        # A channel with an earlier certificate stays open for the streams on it.
        key = (self.manager_address, self.own.version)
        if key not in self._manager_channels:
            # If there is only one resource manager, wait for it: there is no other address.
            self._manager_channels[key] = open_channel(
                self.manager_address,
                self.own,
                Identity(self._cluster_name, Role.RM),
                leave_frozen_after_s=LEAVE_FROZEN_AFTER_S if self._leaders.several else None,
            )
        return self._manager_channels[key]

    async def _renew_certificate(self) -> identity_pb2.IssuedCertificate:
        from finegrain.v1 import identity_pb2

        message = identity_pb2.RenewCertificateRequest()
        answer = await self.call_identities(
            lambda service, timeout_s: service.RenewCertificate(message, timeout=timeout_s)
        )
        return answer.issued
