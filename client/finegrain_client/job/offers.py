"""Serves `JobMasterService`, through which executors offer slots directly to a job master.

The server accepts a slot that the job still wants, if the caller's certificate has the role
`executor` of this cluster. An offer only decides whether the executor keeps the slot. The slot's
address always comes from the resource manager's watch stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

from finegrain.errors import ConfigurationError, FinegrainError, PermissionDenied, Reason
from finegrain.identity import Identity, Role
from finegrain.rpc.addresses import format_address, parse_address
from finegrain.rpc.channels import SERVER_OPTIONS
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.status import status_of
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2

IDENTITY_KEY = "peer_spiffe_id"
"""gRPC's name of the URI in the caller's certificate. gRPC sets it only if the certificate has
exactly one URI.
"""


class OfferServer(job_master_pb2_grpc.JobMasterServiceServicer):
    """Serves offers until `stop`.

    Attributes:
        address: address of the server, valid after `start`; the value of `SlotSpec.target_address`.
    """

    def __init__(
        self,
        wanted: Callable[[str, int], bool],
        own: OwnCertificate,
        address: str = "127.0.0.1:0",
    ) -> None:
        """Checks the certificate. `start` opens the port.

        Args:
            wanted: a function of allocation id and generation that returns True if the job wants
                the slot.
            own: the certificate to show. Executors expect the certificate of the job's owner.
            address: the address "host:port" to listen on. With port 0, the kernel chooses a free
                port.

        Raises:
            ConfigurationError: the certificate is valid for clients only.
        """
        who = own.credentials.who
        if not who.role.may_serve:
            raise ConfigurationError(
                f"{who} cannot receive slot offers, because its certificate is for clients only;"
                " use the credentials of a user",
                details={"identity": str(who)},
            )
        self._wanted = wanted
        self._own = own
        self._cluster = who.cluster
        self._server: grpc.aio.Server | None = None
        self.address = address

    async def start(self) -> None:
        """Starts to serve, and sets `address` to the actual port.

        Raises:
            InvalidArgument: the address is malformed.
            ConfigurationError: ADDRESS_IN_USE.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        job_master_pb2_grpc.add_JobMasterServiceServicer_to_server(self, server)
        host, _ = parse_address(self.address)
        try:
            port = server.add_secure_port(self.address, self._own.server_credentials())
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
        """Stops the server at once, and cancels calls in flight."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def OfferSlots(
        self, request: job_master_pb2.OfferSlotsRequest, context: Any
    ) -> job_master_pb2.OfferSlotsResponse:
        """Accepts or rejects offered slots. Returns one answer per slot, in the order of the
        offer.
        """
        if (error := self._refusal(context)) is not None:
            await context.abort(*status_of(error))
        return job_master_pb2.OfferSlotsResponse(
            results=[
                slots_pb2.ItemResult(id=each.allocation_id, error=self._judge(each))
                for each in request.slots
            ]
        )

    def _refusal(self, context: Any) -> FinegrainError | None:
        """Returns the reason why the caller is not allowed to offer slots, or None if there is no
        such reason.
        """
        shown = context.auth_context().get(IDENTITY_KEY, ())
        try:
            caller = Identity.parse(shown[0].decode()) if shown else None
        except (FinegrainError, UnicodeDecodeError):
            caller = None
        if caller and caller.role is Role.EXECUTOR and caller.cluster == self._cluster:
            return None
        name = str(caller) if caller else "a caller without an identity"
        return PermissionDenied(
            f"{name} may not offer slots; this call needs the role executor",
            reason=Reason.ROLE_MISSING,
            details={"identity": name, "method": "OfferSlots", "needs": "executor"},
        )

    def _judge(self, slot: slots_pb2.SlotStatus) -> slots_pb2.ItemError | None:
        if self._wanted(slot.allocation_id, slot.generation):
            return None
        return slots_pb2.ItemError(
            reason=Reason.ALLOCATION_UNKNOWN,
            message="this job master has no request for the slot",
        )
