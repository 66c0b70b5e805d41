"""Connects to the resource managers, with one channel to the resource manager that seems to lead.

If a server cannot prove that it is a resource manager of the cluster, the link sends nothing to it.
If a call fails, the link waits for a backoff time and then uses the next address.
`finegrain/rpc/leaders.py` chooses the address.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import grpc
import grpc.aio

from finegrain.certificates.joining import credentials_of
from finegrain.credentials import Credentials
from finegrain.errors import (
    ConfigurationError,
    FinegrainError,
    Reason,
    Unauthenticated,
    Unavailable,
)
from finegrain.identity import Identity, Role
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.channels import open_channel
from finegrain.rpc.leaders import Leaders
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.status import error_from_rpc
from finegrain.v1.identity_pb2 import RenewCertificateRequest
from finegrain.v1.identity_pb2_grpc import IdentityServiceStub
from finegrain.v1.resource_manager_pb2 import (
    RegisterExecutorRequest,
    RegisterExecutorResponse,
    ReportSlotsRequest,
    ReportSlotsResponse,
)
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub

CALL_S_MAX = 5.0
# if there are several RMs, the link leaves an RM that has not answered for this time
LEAVE_FROZEN_AFTER_S = 4.0
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0


class ManagerLink:
    """Calls the resource manager that seems to be the leader.

    Args:
        managers: addresses of resource managers, "host:port".
        own: the certificate of this executor. After the certificate was replaced, calls use a new
            channel.

    Raises:
        ConfigurationError: there is no address.
        InvalidArgument: an address is malformed.
    """

    def __init__(self, managers: Sequence[str], own: OwnCertificate) -> None:
        if not managers:
            raise ConfigurationError("no resource manager is named; use --manager HOST:PORT")
        for address in managers:
            check_dialable(address, "manager")
        self._leaders = Leaders(managers)
        self._several = len(managers)
        self._own = own
        self._server = Identity(own.credentials.who.cluster, Role.RM)
        self._channel: grpc.aio.Channel | None = None
        self._stubs: dict[Any, Any] = {}  # by service, for the present channel
        self._channel_version = 0  # version of the certificate that the channel uses
        self._retired: set[asyncio.Task[None]] = set()  # channels with earlier certificates
        self._failures = 0

    @property
    def address(self) -> str:
        """Address of the resource manager that calls go to at present."""
        return self._leaders.current

    async def register(self, request: RegisterExecutorRequest) -> RegisterExecutorResponse:
        """Calls RegisterExecutor; see resource_manager.proto.

        Raises:
            FinegrainError: the resource manager's error, or Unavailable.
        """
        answer = await self._call(ResourceManagerServiceStub, "RegisterExecutor", request)
        return cast("RegisterExecutorResponse", answer)

    async def report(self, request: ReportSlotsRequest) -> ReportSlotsResponse:
        """Calls ReportSlots; see resource_manager.proto.

        Raises:
            FinegrainError: the resource manager's error, or Unavailable.
        """
        answer = await self._call(ResourceManagerServiceStub, "ReportSlots", request)
        return cast("ReportSlotsResponse", answer)

    async def renew(self) -> Credentials:
        """Calls RenewCertificate; see identity.proto. Returns the credentials with the new
        certificate.

        Raises:
            Unauthenticated: the answer contains a certificate of another identity.
            FinegrainError: the resource manager's error, or Unavailable.
        """
        present = self._own.credentials
        answer = await self._call(
            IdentityServiceStub, "RenewCertificate", RenewCertificateRequest()
        )
        fresh = credentials_of(answer.issued, present.key)
        if fresh.identity != present.identity:
            raise Unauthenticated(
                f"the resource manager has renewed the certificate of {present.who} for another"
                " identity",
                reason=Reason.CERTIFICATE_WRONG,
            )
        return fresh

    async def _call(self, service: Any, method: str, request: Any) -> Any:
        if self._channel is not None and self._channel_version != self._own.version:
            self._retire_channel()
        if self._channel is None:
            self._channel_version = self._own.version
            self._channel = open_channel(
                self.address,
                self._own,
                self._server,
                leave_frozen_after_s=LEAVE_FROZEN_AFTER_S if self._leaders.several else None,
            )
        if service not in self._stubs:
            self._stubs[service] = service(self._channel)
        try:
            answer = await getattr(self._stubs[service], method)(request, timeout=CALL_S_MAX)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC cancels a call when a change of address closes the channel. But the asyncio task
            # was not cancelled, so raise an ordinary error.
            raise Unavailable(f"the connection to {self.address} was closed") from None
        self._failures = 0
        self._leaders.worked(self.address)
        return answer

    async def next_address(self, error: FinegrainError | None = None) -> float:
        """Moves to the next address, or to the leader that `error` names.

        Returns:
            The time to wait before the next call, in seconds.
        """
        await self.close()
        # If the error names the leader, or another call has found the leader, no pause is needed.
        if self._leaders.failed(self.address, error):
            return 0.0
        self._failures += 1
        # The pause grows only after all addresses were tried, so that each address is tried soon.
        rounds = (self._failures - 1) // self._several
        backoff_s: float = min(BACKOFF_S_MIN * 2 ** min(rounds, 10), BACKOFF_S_MAX)
        # Add jitter, so that the executors of a cluster do not all call the RM at the same moment.
        return backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    async def close(self) -> None:
        """Closes the channel. The next call opens a new channel."""
        channel: Any = self._channel
        self._forget_channel()
        if channel is not None:
            await channel.close()

    def _retire_channel(self) -> None:
        """Closes the channel when the last call that uses it has ended."""
        channel: Any = self._channel
        self._forget_channel()
        closing = asyncio.create_task(channel.close(CALL_S_MAX))
        self._retired.add(closing)
        closing.add_done_callback(self._retired.discard)

    def _forget_channel(self) -> None:
        self._channel = None
        self._stubs.clear()
