"""Defines the values that the HTTP interface gets from a resource manager.

The interface is a client of the services. Its code is in the package of the command line, because
the interface and the command line produce the same JSON (`-o json`). The command line passes a
function of type `ServeWeb` to `resource_manager.main`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from finegrain.errors import FinegrainError
from finegrain.rpc.local_calls import LocalCalls
from finegrain.rpc.own_certificate import OwnCertificate
from resource_manager.service.identities.web_sessions import WebSessions


@dataclass(frozen=True, slots=True)
class WebSite:
    """The address of the HTTP interface, and its connection to the services.

    Attributes:
        address: the address of the port to open, as "host:port".
        calls: the services of this process.
        own: the certificate of this resource manager.
        sessions: the sessions of browsers.
        refusal: returns the error for callers while this resource manager does not lead, or None.
        leading_page: returns the address of the page of the resource manager that leads; empty: the
            address is not known.
        certificate_file: a certificate of the administrator for browsers, as a PEM file; empty: the
            interface shows the certificate of this resource manager.
        key_file: the key of `certificate_file`.
    """

    address: str
    calls: LocalCalls
    own: OwnCertificate
    sessions: WebSessions
    refusal: Callable[[], FinegrainError | None]
    leading_page: Callable[[], str]
    certificate_file: str = ""
    key_file: str = ""


ServeWeb = Callable[[WebSite], AbstractAsyncContextManager[str]]
"""Serves the HTTP interface until the end of a `with` block, and yields its address."""
