"""Runs the gRPC server that all daemons use. Every call passes through the same wrapper
(`guard.py`).

The server serves only the methods in its access table. Servicer methods are `async`. They raise
`FinegrainError`, and never set status codes.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from finegrain.errors import ConfigurationError, Reason
from finegrain.options import ListenOptions
from finegrain.rpc.access import ANYBODY, OPERATORS, AccessTable, Caller, current_caller
from finegrain.rpc.addresses import format_address, parse_address
from finegrain.rpc.channels import SERVER_OPTIONS, connections_max
from finegrain.rpc.guard import Gate, GuardedMethod, Observer, Refused, ServerLifecycle
from finegrain.rpc.lasting_server import LastingServer
from finegrain.rpc.local_calls import LocalCalls
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.trust import Trust

__all__ = ["AccessTable", "Caller", "GuardedServer", "current_caller"]

_HEALTH = "grpc.health.v1.Health"
_REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
_OPEN_METHODS: AccessTable = {
    f"/{_HEALTH}/Check": ANYBODY,
    f"/{_HEALTH}/List": ANYBODY,
    f"/{_HEALTH}/Watch": ANYBODY,
    f"/{_REFLECTION}/ServerReflectionInfo": OPERATORS,
}


class _Recorder:
    """Records the handlers that a generated function `add_...Servicer_to_server` registers."""

    def __init__(self) -> None:
        self.services: dict[str, dict[str, Any]] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Records handlers. Newer generated code also calls `add_registered_method_handlers`."""
        for handler in handlers:
            name, methods = handler.service_name(), getattr(handler, "_method_handlers", {})
            plain = {full.rpartition("/")[2]: each for full, each in methods.items()}
            self.services.setdefault(name, plain)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.services[service] = dict(handlers)


class GuardedServer:
    """A gRPC server on one address.

    Attributes:
        local: calls the server's methods from this process.

    Args:
        listen: the address at which to listen. With port 0, the kernel chooses the port.
        access: the roles that may call each method; if a method is not listed, `add` fails.
        own: the certificate that the server shows.
        trust: the object that identifies the callers of the server.
        observe: a function that is called after every call.
        gate: a function that returns the error with which the server rejects calls at present, or
            None. The server calls the function after it has identified the caller, but not for
            health and reflection calls.
        refused: a function that is called for each call that ends with an error.
    """

    def __init__(
        self,
        listen: ListenOptions,
        access: AccessTable,
        own: OwnCertificate,
        trust: Trust,
        *,
        observe: Observer | None = None,
        gate: Gate = lambda: None,
        refused: Refused = lambda _method, _error: None,
    ) -> None:
        self._own = own
        self._listen = listen
        self._access = {**access, **_OPEN_METHODS}
        self._lifecycle = ServerLifecycle(
            trust, observe or (lambda _method, _code, _seconds: None), gate, refused
        )
        self._handlers: list[Any] = []
        self._methods: dict[str, GuardedMethod] = {}
        self.local = LocalCalls(self._methods)
        self._server = LastingServer(self._make, own.server_credentials)
        # A new certificate comes with the present authorities. End streams of callers whose
        # authority was dropped.
        own.on_replaced(self.end_denied_streams)
        self._health: Any = None
        self._names: list[str] = []

    @property
    def live_streams(self) -> int:
        """Number of streams whose handlers run."""
        return len(self._lifecycle.streams)

    def add(self, add_to_server: Callable[[Any, Any], None], servicer: Any) -> None:
        """Adds a service: `server.add(add_XServicer_to_server, servicer)`.

        Raises:
            ConfigurationError: a method of the service is not in the access table.
        """
        recorder = _Recorder()
        add_to_server(servicer, recorder)
        for service, handlers in recorder.services.items():
            wrapped = {
                name: self._wrap(f"/{service}/{name}", handler)
                for name, handler in handlers.items()
            }
            self._names.append(service)
            generic = grpc.method_handlers_generic_handler(service, wrapped)
            self._handlers.append(generic)

    async def start(self, *, serving: bool = True) -> str:
        """Binds the address and starts to serve. Returns the address with the actual port.

        Args:
            serving: if true, the health service first reports SERVING, otherwise NOT_SERVING.

        Raises:
            ConfigurationError: the address cannot be bound. The message says what to do.
        """
        self._add_health()
        if self._listen.reflection:
            self._add_reflection()
        host, port = parse_address(self._listen.address, "listen.address")
        # Try a plain bind first, because gRPC reports a failure without its reason, and also writes
        # to standard error.
        if (number := _why_not_bound(host, port)) is not None:
            raise bind_error(self._listen.address, number)
        bound = self._server.bind(self._listen.address)
        # If there is no port, another process has taken it between the first bind and this bind.
        if bound == 0:
            raise bind_error(self._listen.address, errno.EADDRINUSE)
        await self.set_serving(serving)
        address = format_address(host, bound)
        await self._server.start(address)
        return address

    async def set_serving(self, serving: bool) -> None:
        """Sets whether the health service reports SERVING or NOT_SERVING."""
        if self._health is not None:
            from grpc_health.v1 import health_pb2

            status = health_pb2.HealthCheckResponse
            await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    def end_denied_streams(self) -> None:
        """Ends streams of two kinds of callers: those that are denied now, and those whose
        authority is not trusted now.

        Call this method after each denial, because the server checks the caller of a stream only at
        the start of the stream.
        """
        self._lifecycle.end_denied_streams()

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stops the server: ends streams at once, and unary calls after `grace_s` seconds.

        If the client of a stream does not read, the stream is still sending a message. Such a
        stream also ends after `grace_s` seconds.
        """
        # Set this before the streams end. A handler that is cancelled below then ends with
        # UNAVAILABLE.
        self._lifecycle.stopping = True
        await self.set_serving(False)
        self._lifecycle.end_streams()
        await self._server.stop(grace_s)

    async def wait(self) -> None:
        """Returns when the server has stopped."""
        await self._server.wait()

    def _make(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=[
                *SERVER_OPTIONS,
                ("grpc.max_allowed_incoming_connections", connections_max()),
            ]
        )
        server.add_generic_rpc_handlers(self._handlers)
        return server

    def _add_health(self) -> None:
        try:
            from grpc_health.v1 import health, health_pb2_grpc
        except ImportError:  # a job master's server has only the base dependencies
            return
        self._health = health.aio.HealthServicer()
        self.add(health_pb2_grpc.add_HealthServicer_to_server, self._health)

    def _add_reflection(self) -> None:
        try:
            from grpc_reflection.v1alpha import (
                reflection,
                reflection_pb2_grpc,
            )
        except ImportError:
            raise ConfigurationError(
                "reflection needs the package grpcio-reflection; install finegrain[all], or "
                "switch listen.reflection off"
            ) from None
        servicer = reflection.aio.ReflectionServicer(service_names=[*self._names, _REFLECTION])
        self.add(reflection_pb2_grpc.add_ServerReflectionServicer_to_server, servicer)

    def _wrap(self, method: str, handler: Any) -> Any:
        allowed = self._access.get(method)
        if allowed is None:
            raise ConfigurationError(f"method {method} has no entry in the access table")
        # Health checks must work even while the gate rejects calls, as on a standby.
        gated = method not in _OPEN_METHODS
        call = GuardedMethod(self._lifecycle, method, allowed, handler, gated=gated)
        self._methods[method] = call
        kinds = ("unary", "stream")
        serve = getattr(
            call, f"{kinds[handler.request_streaming]}_{kinds[handler.response_streaming]}"
        )
        # Set no deserializer: the wrapper reads the raw bytes after it has identified the caller
        # (see guard.py).
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(serve, None, handler.response_serializer)


def bind_error(address: str, number: int) -> ConfigurationError:
    """Returns the error for an address that cannot be bound. `number` is the errno."""
    why = errno.errorcode.get(number, str(number))
    message = {
        errno.EADDRINUSE: f"{address} is in use by another process; stop it (ss -ltnp shows it) or "
        "choose another address",
        errno.EADDRNOTAVAIL: f"{address} is not an address of this host; choose one that "
        "'ip address' shows, or 127.0.0.1",
        errno.EACCES: f"only root may listen on {address}; choose a port above 1023",
    }.get(number, f"cannot listen on {address} ({why})")
    reason = Reason.ADDRESS_IN_USE if number == errno.EADDRINUSE else Reason.CONFIGURATION
    return ConfigurationError(message, reason=reason, details={"address": address, "errno": why})


def _why_not_bound(host: str, port: int) -> int | None:
    """Tries a plain bind. Returns its errno, or None if it works."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return errno.EADDRNOTAVAIL
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            # gRPC also sets this option on its socket. Without the option, closed connections of an
            # earlier server would block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                return error.errno or errno.EADDRNOTAVAIL
    return None
