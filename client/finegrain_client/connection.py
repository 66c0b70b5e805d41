"""The client's gRPC channels to resource managers and executors: one per address.

A channel opens on first use. Channels to executors that are not used are closed, the longest unused
first. `finegrain/rpc/leaders.py` chooses which of several resource managers to call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

import grpc.aio

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.options import TlsOptions
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.channels import check_token_is_safe, open_channel
from finegrain.rpc.leaders import Leaders
from finegrain.v1 import cluster_pb2_grpc, resource_manager_pb2_grpc, task_executor_pb2_grpc
from finegrain_client.retry import RetryPolicy, call_with_retries

if TYPE_CHECKING:
    from finegrain.v1.cluster_pb2_grpc import ClusterServiceAsyncStub
    from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceAsyncStub
    from finegrain.v1.task_executor_pb2_grpc import TaskExecutorServiceAsyncStub

T = TypeVar("T")

GROWTH_OF_SEVERAL = 1.5
"""Growth of the delay between two tries if there are several resource managers.

With a doubling delay, the client could find a new leader only after twice the time that the
takeover took.
"""

LEAVE_FROZEN_AFTER_S = 2.0
"""With several resource managers, the client leaves a manager that does not answer in this time."""

EXECUTOR_CHANNELS_IDLE_MAX = 64
"""Largest number of open channels to executors that no slot uses."""


@dataclass(slots=True)
class _ExecutorLink:
    channel: grpc.aio.Channel
    stub: TaskExecutorServiceAsyncStub
    users: int = 0


class Connection:
    """All channels of one client; use it on one event loop only."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str | None = None,
        tls: TlsOptions | None = None,
        insecure: bool = False,
        policy: RetryPolicy | None = None,
    ) -> None:
        """Checks the addresses; opens no channel yet.

        Args:
            addresses: "host:port" of each resource manager.
            token: the token to send with every call, or None.
            tls: certificate and key files for TLS.
            insecure: if true, allows sending the token over a network without TLS.
            policy: budget and delays of retries.

        Raises:
            InvalidArgument: there is no address, or an address is malformed.
            ConfigurationError: the token would be sent over a network without TLS.
        """
        if not addresses:
            raise InvalidArgument("address", "", "at least one address of a resource manager")
        for address in addresses:
            check_dialable(address)
            check_token_is_safe(address, tls=tls, token=token, insecure=insecure)
        self.policy = policy or RetryPolicy()
        self._leaders = Leaders(addresses, tls)
        # A new leader must be found soon after a takeover, however long the takeover takes.
        if self._leaders.several:
            self.policy = replace(self.policy, growth=GROWTH_OF_SEVERAL)
        self._token = token
        self._tls = tls
        self._insecure = insecure
        self._manager_channels: dict[str, grpc.aio.Channel] = {}
        self._links: OrderedDict[str, _ExecutorLink] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def manager_address(self) -> str:
        """Address of the resource manager that the client currently calls."""
        return self._leaders.current

    @property
    def manager(self) -> ResourceManagerServiceAsyncStub:
        """The resource manager's service for job masters."""
        stub = resource_manager_pb2_grpc.ResourceManagerServiceStub(self._manager_channel())
        return cast("ResourceManagerServiceAsyncStub", stub)

    @property
    def cluster(self) -> ClusterServiceAsyncStub:
        """The resource manager's service for operators."""
        stub = cluster_pb2_grpc.ClusterServiceStub(self._manager_channel())
        return cast("ClusterServiceAsyncStub", stub)

    async def call_manager(
        self,
        call: Callable[[ResourceManagerServiceAsyncStub, float], Awaitable[T]],
        *,
        policy: RetryPolicy | None = None,
    ) -> T:
        """Makes a unary call to the resource manager, with retries.

        Args:
            call: makes one try; gets the stub and the deadline in seconds.
            policy: budget and delays; None: the policy of the connection.

        Raises:
            FinegrainError: see `call_with_retries`.
        """
        return await self._call(lambda timeout_s: call(self.manager, timeout_s), policy)

    async def call_cluster(
        self, call: Callable[[ClusterServiceAsyncStub, float], Awaitable[T]]
    ) -> T:
        """Makes a unary call to the service for operators; see `call_manager`."""
        return await self._call(lambda timeout_s: call(self.cluster, timeout_s), None)

    def manager_answered(self, address: str) -> None:
        """Records that the resource manager at `address` answered, so it is the leader."""
        self._leaders.worked(address)

    def leave_manager(self, address: str, error: FinegrainError | None = None) -> bool:
        """Switches to another resource manager. Returns True if it should be called at once.

        Args:
            address: the resource manager that failed; nothing changes if it is not the current one.
            error: its error; if the error names the leader, the client switches to the leader.
        """
        return self._leaders.failed(address, error)

    async def _call(
        self, attempt: Callable[[float], Awaitable[T]], policy: RetryPolicy | None
    ) -> T:
        used = self.manager_address

        async def once(timeout_s: float) -> T:
            nonlocal used
            # Each try may go to another resource manager, so the address is read again.
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

    def acquire_executor(self, address: str) -> TaskExecutorServiceAsyncStub:
        """Returns the service of an executor; the caller must call `release_executor` later.

        Raises:
            ConfigurationError: the job's secret would be sent over a network without TLS.
        """
        link = self._links.get(address)
        if link is None:
            secret = self._token or ""  # a job's secret needs the same protection
            check_token_is_safe(address, tls=self._tls, token=secret, insecure=self._insecure)
            channel = self._open(address)
            stub = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
            link = _ExecutorLink(channel, cast("TaskExecutorServiceAsyncStub", stub))
            self._links[address] = link
        link.users += 1
        # This keeps the links in order of use, so that `release_executor` closes the oldest.
        self._links.move_to_end(address)
        return link.stub

    def release_executor(self, address: str) -> None:
        """Drops one user of a channel.

        Closes unused channels beyond the limit, longest unused first.
        """
        if (link := self._links.get(address)) is not None:
            link.users -= 1
        idle = [each for each, link in self._links.items() if link.users <= 0]
        for each in idle[: max(0, len(idle) - EXECUTOR_CHANNELS_IDLE_MAX)]:
            closing = asyncio.get_running_loop().create_task(self._links.pop(each).channel.close())
            # The event loop keeps only weak references to tasks.
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all channels; calls in flight are cancelled."""
        channels = [
            *self._manager_channels.values(),
            *(each.channel for each in self._links.values()),
        ]
        # This comes before the wait, so that no other call uses a channel that is being closed.
        self._manager_channels.clear()
        self._links.clear()
        await asyncio.gather(*self._closing, *(each.close() for each in channels))

    def _manager_channel(self) -> grpc.aio.Channel:
        address = self.manager_address
        if address not in self._manager_channels:
            # With a single resource manager there is no other to switch to, so the client waits.
            self._manager_channels[address] = self._open(
                address, LEAVE_FROZEN_AFTER_S if self._leaders.several else None
            )
        return self._manager_channels[address]

    def _open(self, address: str, leave_frozen_after_s: float | None = None) -> grpc.aio.Channel:
        return open_channel(
            address,
            tls=self._tls,
            token=self._token,
            insecure=self._insecure,
            leave_frozen_after_s=leave_frozen_after_s,
        )
