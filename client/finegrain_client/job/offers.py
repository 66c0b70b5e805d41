"""A server to which executors offer slots directly (`JobMasterService`), for jobs that want this.

The server accepts a slot that the job still wants. The caller must show the hash of the job's
secret, which the executors of the cluster know. An offer only decides whether the executor keeps
the slot: the client takes the slot's address from the resource manager's watch stream, and sends
the job's secret only there. The server uses no TLS, because executors connect to it without TLS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

from finegrain.errors import ConfigurationError, Reason
from finegrain.rpc.addresses import format_address, is_loopback, parse_address
from finegrain.rpc.channels import JOB_SECRET_HASH, SERVER_OPTIONS
from finegrain.rpc.tokens import same_secret, sha256_hex
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2


class OfferServer(job_master_pb2_grpc.JobMasterServiceServicer):
    """Serves offers until `stop`.

    Attributes:
        address: address of the server, valid after `start`; the value of `SlotSpec.target_address`.
    """

    def __init__(
        self,
        wanted: Callable[[str, int], bool],
        job_secret: str,
        address: str = "127.0.0.1:0",
        *,
        insecure: bool = False,
    ) -> None:
        """Checks the address; `start` opens the port.

        Args:
            wanted: called with allocation id and generation; returns whether the job wants the
                slot.
            job_secret: secret of the job; callers must show its hash.
            address: "host:port" to listen on; port 0: any free port.
            insecure: if true, the address need not be a loopback address.

        Raises:
            InvalidArgument: the address is malformed.
            ConfigurationError: the address is not a loopback address and `insecure` is false.
        """
        if not insecure and not is_loopback(address):
            raise ConfigurationError(
                f"slot offers would be received at {address} without encryption; pass "
                "insecure=True if only trusted hosts can reach that address",
                details={"address": address},
            )
        self._wanted = wanted
        self._secret_sha256 = sha256_hex(job_secret)
        self._server: grpc.aio.Server | None = None
        self.address = address

    async def start(self) -> None:
        """Starts to serve, and sets `address` to the actual port.

        Raises:
            ConfigurationError: ADDRESS_IN_USE: the address is in use, or is not on this host.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        job_master_pb2_grpc.add_JobMasterServiceServicer_to_server(self, server)
        host, _ = parse_address(self.address)
        try:
            port = server.add_insecure_port(self.address)
        except RuntimeError:
            raise ConfigurationError(
                f"slot offers cannot be received at {self.address}: the address is in use, or is "
                "not an address of this host; use port 0 for any free port",
                reason=Reason.ADDRESS_IN_USE,
                details={"address": self.address},
            ) from None
        await server.start()
        self._server = server
        self.address = format_address(host, port)

    async def stop(self) -> None:
        """Stops the server at once; calls in flight are cancelled."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def OfferSlots(
        self, request: job_master_pb2.OfferSlotsRequest, context: Any
    ) -> job_master_pb2.OfferSlotsResponse:
        """Accepts or rejects offered slots; answers once per slot, in the order of the offers."""
        shown = dict(context.invocation_metadata() or ()).get(JOB_SECRET_HASH, "")
        if not isinstance(shown, str) or not same_secret(shown, self._secret_sha256):
            return _answers(
                request, lambda _: _refusal(Reason.JOB_SECRET_WRONG, "the offer is for another job")
            )
        return _answers(request, self._judge)

    def _judge(self, slot: slots_pb2.SlotStatus) -> slots_pb2.ItemError | None:
        if self._wanted(slot.allocation_id, slot.generation):
            return None
        return _refusal(Reason.ALLOCATION_UNKNOWN, "this job master has no request for the slot")


def _answers(
    request: job_master_pb2.OfferSlotsRequest,
    judge: Callable[[slots_pb2.SlotStatus], slots_pb2.ItemError | None],
) -> job_master_pb2.OfferSlotsResponse:
    return job_master_pb2.OfferSlotsResponse(
        results=[
            slots_pb2.ItemResult(id=each.allocation_id, error=judge(each)) for each in request.slots
        ]
    )


def _refusal(reason: Reason, message: str) -> slots_pb2.ItemError:
    return slots_pb2.ItemError(reason=reason, message=message)
