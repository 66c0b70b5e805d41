"""The connection to the resource managers: one channel, to the resource manager that seems to lead.

If a call fails, the link waits for a backoff time and then uses the next address.
`finegrain/rpc/leaders.py` chooses the address.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import grpc
import grpc.aio

from finegrain.errors import ConfigurationError, FinegrainError, Unavailable
from finegrain.options import TlsOptions
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.channels import check_token_is_safe, open_channel
from finegrain.rpc.leaders import Leaders
from finegrain.rpc.status import error_from_rpc
from finegrain.v1.resource_manager_pb2 import (
    RegisterExecutorRequest,
    RegisterExecutorResponse,
    ReportSlotsRequest,
    ReportSlotsResponse,
)
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub

CALL_S_MAX = 5.0
LEAVE_FROZEN_AFTER_S = 4.0  # with several RMs: leave an RM that does not answer for this time
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0


class ManagerLink:
    """Calls the resource manager that seems to be the leader.

    Args:
        managers: addresses of resource managers, "host:port".
        token: the cluster token.
        tls: the options of the encryption; None: connections are not encrypted.
        insecure: True: the token may be sent unencrypted over the network.

    Raises:
        ConfigurationError: there is no address, or the token would be sent unencrypted.
        InvalidArgument: an address is malformed.
    """

    def __init__(
        self,
        managers: tuple[str, ...],
        *,
        token: str,
        tls: TlsOptions | None = None,
        insecure: bool = False,
    ) -> None:
        if not managers:
            raise ConfigurationError("no resource manager is named; use --manager HOST:PORT")
        for address in managers:
            check_dialable(address, "manager")
            check_token_is_safe(address, tls=tls, token=token, insecure=insecure)
        self._leaders = Leaders(managers, tls)
        self._several = len(managers)
        self._token, self._tls, self._insecure = token, tls, insecure
        self._channel: grpc.aio.Channel | None = None
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
        return cast("RegisterExecutorResponse", await self._call("RegisterExecutor", request))

    async def report(self, request: ReportSlotsRequest) -> ReportSlotsResponse:
        """Calls ReportSlots; see resource_manager.proto.

        Raises:
            FinegrainError: the resource manager's error, or Unavailable.
        """
        return cast("ReportSlotsResponse", await self._call("ReportSlots", request))

    async def _call(self, method: str, request: Any) -> Any:
        if self._channel is None:
            self._channel = open_channel(
                self.address,
                tls=self._tls,
                token=self._token,
                insecure=self._insecure,
                leave_frozen_after_s=LEAVE_FROZEN_AFTER_S if self._leaders.several else None,
            )
        stub: Any = ResourceManagerServiceStub(self._channel)
        try:
            answer = await getattr(stub, method)(request, timeout=CALL_S_MAX)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC cancels a call when a change of address closes its channel. This is no
            # cancellation of the asyncio task, so it becomes an ordinary error.
            raise Unavailable(f"the connection to {self.address} was closed") from None
        self._failures = 0
        self._leaders.worked(self.address)
        return answer

    async def next_address(self, error: FinegrainError | None = None) -> float:
        """Moves to the next address, or to the leader that `error` names.

        Returns:
            How long to wait before the next call, in seconds.
        """
        await self.close()
        # If the error names the leader, or another call has found the leader, no pause is needed.
        if self._leaders.failed(self.address, error):
            return 0.0
        self._failures += 1
        # The pause grows only after all addresses were tried, so that each address is tried early.
        rounds = (self._failures - 1) // self._several
        backoff_s: float = min(BACKOFF_S_MIN * 2 ** min(rounds, 10), BACKOFF_S_MAX)
        # The jitter prevents that all executors of a cluster call the RM at the same moment.
        return backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    async def close(self) -> None:
        """Closes the channel; the next call opens a new one."""
        channel: Any = self._channel
        self._channel = None
        if channel is not None:
            await channel.close()
