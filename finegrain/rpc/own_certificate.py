"""Provides the certificate of this process as TLS credentials for its channels and its server.

A renewal replaces the certificate while the process runs. A server shows the new certificate to
each new connection. A channel keeps the credentials with which it was opened. So when `version` has
changed, the owner of a channel opens a new channel.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc

from finegrain.credentials import Credentials
from finegrain.errors import Reason, Unauthenticated


class OwnCertificate:
    """The credentials of this process, which a renewal replaces.

    Attributes:
        version: the number of times that the credentials were replaced.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._on_replaced: list[Callable[[], None]] = []
        self._channel: grpc.ChannelCredentials | None = None
        self.version = 0

    @property
    def credentials(self) -> Credentials:
        """The present credentials."""
        return self._credentials

    def replace(self, credentials: Credentials) -> None:
        """Uses other credentials of the same identity from now on."""
        self._credentials = credentials
        self._channel = None
        self.version += 1
        for call in self._on_replaced:
            call()

    def on_replaced(self, call: Callable[[], None]) -> None:
        """Registers a function that is called after each replacement, on the thread that has called
        `replace`.
        """
        self._on_replaced.append(call)

    def check_valid(self) -> None:
        """Checks that the certificate is valid now. A server that refuses an invalid certificate
        gives no reason.

        Raises:
            Unauthenticated: the certificate is not valid now. The message names the dates and the
                clock.
        """
        if problem := self._credentials.problem_at(time.time()):
            raise Unauthenticated(problem, reason=Reason.CERTIFICATE_EXPIRED)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns TLS credentials of a client, for new channels."""
        if self._channel is None:
            own = self._credentials
            self._channel = grpc.ssl_channel_credentials(
                root_certificates=own.authorities.encode(),
                private_key=own.key.encode(),
                certificate_chain=own.certificate.encode(),
            )
        return self._channel

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns TLS credentials of a server that demands certificates from its clients.

        At each new connection, the server reads the present certificate of this process.
        """
        return self._server_credentials(require_certificates=True)

    def joining_credentials(self) -> grpc.ServerCredentials:
        """Returns TLS credentials of a server that requests no certificate from its clients."""
        return self._server_credentials(require_certificates=False)

    def _server_credentials(self, *, require_certificates: bool) -> grpc.ServerCredentials:
        shown = self.version

        # gRPC frees each configuration that it gets. So make a new configuration for each server
        # and for each change. Without this, gRPC would use freed memory, and the process would
        # crash.
        def changed_configuration() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            if shown == self.version:
                return None  # the certificate has not changed
            shown = self.version
            return _configuration(self._credentials)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._credentials),
            changed_configuration,  # type: ignore[arg-type] # None means unchanged
            require_client_authentication=require_certificates,
        )


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key.encode(), credentials.certificate.encode())],
        root_certificates=credentials.authorities.encode(),
    )
