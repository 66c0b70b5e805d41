"""Taking slot offers from executors directly (`JobMasterService`), for who asks for that.

Decides only what to answer: yes to a slot that the job still wants, no to all else. An offer tells
who may keep a slot, never where a slot is: it comes from whoever can reach this port, so the slot
itself (with the address that will be shown the job's secret) is taken from the RM's watch stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

from finegrain.errors import ConfigurationError, Reason
from finegrain.options import TlsOptions
from finegrain.rpc.addresses import format_address, is_loopback, parse_address
from finegrain.rpc.channels import SERVER_OPTIONS, server_credentials
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2


class OfferServer(job_master_pb2_grpc.JobMasterServiceServicer):
    """Serves offers until `stop`.

    Attributes:
        address: where, once started; goes into `SlotSpec.target_address`.
    """

    def __init__(
        self,
        wanted: Callable[[str, int], bool],
        address: str = "127.0.0.1:0",
        *,
        tls: TlsOptions | None = None,
        insecure: bool = False,
    ) -> None:
        """`wanted` is asked with allocation id and generation.

        Raises:
            InvalidArgument: a malformed address.
            ConfigurationError: beyond loopback without TLS.
        """
        if tls is None and not insecure and not is_loopback(address):
            raise ConfigurationError(
                f"offers would be taken at {address} in clear; give tls, or say insecure=True if "
                "nobody else can reach that address",
                details={"address": address},
            )
        self._wanted = wanted
        self._tls = tls
        self._server: grpc.aio.Server | None = None
        self.address = address

    async def start(self) -> None:
        """Begins to serve.

        Raises:
            ConfigurationError: ADDRESS_IN_USE, or unreadable TLS files.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        job_master_pb2_grpc.add_JobMasterServiceServicer_to_server(self, server)
        host, _ = parse_address(self.address)
        try:
            if self._tls is None:
                port = server.add_insecure_port(self.address)
            else:
                port = server.add_secure_port(self.address, server_credentials(self._tls))
        except RuntimeError:
            raise ConfigurationError(
                f"offers cannot be taken at {self.address}: the address is in use or not of this "
                "host; use port 0 for any free one",
                reason=Reason.ADDRESS_IN_USE,
                details={"address": self.address},
            ) from None
        await server.start()
        self._server = server
        self.address = format_address(host, port)

    async def stop(self) -> None:
        """Ends at once."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def OfferSlots(
        self, request: job_master_pb2.OfferSlotsRequest, _context: Any
    ) -> job_master_pb2.OfferSlotsResponse:
        """One answer per slot, in the order sent."""
        return job_master_pb2.OfferSlotsResponse(
            results=[self._answer(each) for each in request.slots]
        )

    def _answer(self, slot: slots_pb2.SlotStatus) -> slots_pb2.ItemResult:
        if self._wanted(slot.allocation_id, slot.generation):
            return slots_pb2.ItemResult(id=slot.allocation_id)
        error = slots_pb2.ItemError(
            reason=Reason.ALLOCATION_UNKNOWN, message="this job master does not want the slot"
        )
        return slots_pb2.ItemResult(id=slot.allocation_id, error=error)
