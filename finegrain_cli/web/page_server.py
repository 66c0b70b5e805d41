"""Serves the page on a loopback port, for one user, while `finegrain web` runs.

The command prints an address with a code in its fragment. Browsers never send the fragment of an
address. The page exchanges the code for a token and keeps the token in its memory. The code is
valid once, and only for a minute. Other users of this host, and tasks, can connect to the port, but
get no data without the token. A page of another port cannot send the token, because it cannot set
the header that contains the token.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from finegrain.errors import PermissionDenied, Reason, Unauthenticated
from finegrain.rpc.server import bind_error
from finegrain_cli.web.application import make_application
from finegrain_cli.web.connection import Connections
from finegrain_cli.web.page_files import (
    PAGE_HEADERS,
    TOKEN_HEADER,
    check_same_origin,
    code_of,
    page_file,
)
from finegrain_cli.web.problems import problem
from finegrain_cli.web.remote_calls import RemoteCalls
from finegrain_cli.web.tasks import TaskReader, task_routes
from finegrain_client.connection import Connection

CODE_S = 60.0


class PageSession:
    """Keeps the code and the token of one run of the command."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._code = ""
        self._code_until_s = 0.0
        self.token = secrets.token_urlsafe(32)

    def new_code(self) -> str:
        """Returns a code that `redeem` accepts once. An earlier code becomes invalid."""
        self._code = secrets.token_urlsafe(24)
        self._code_until_s = self._clock() + CODE_S
        return self._code

    def redeem(self, code: str) -> str:
        """Returns the token for a code.

        Raises:
            Unauthenticated: the code is wrong, was used already, or is too old.
        """
        expected = self._code
        is_right = bool(expected) and hmac.compare_digest(expected.encode(), code.encode())
        # After a wrong code, the right code stays valid. Otherwise, every task on this host could
        # prevent the user's login.
        if is_right:
            self._code = ""
        if not is_right or self._clock() > self._code_until_s:
            raise Unauthenticated(
                "this address was used already, or is older than a minute; press Enter in the"
                " terminal of finegrain web to get a new one",
                reason=Reason.TOKEN_WRONG,
            )
        return self.token


class PageServer:
    """Serves the page in a `with` block.

    Args:
        connection: the connection of the user. The caller must close it.
        host: the loopback address.
        port: the port. If 0, the kernel chooses a port.
        view: path and query of the view that the addresses open.

    Raises:
        ConfigurationError: the port is in use.
    """

    def __init__(self, connection: Connection, host: str, port: int, view: str = "/") -> None:
        self._connection = connection
        self._view = view
        self._host, self._port = host, port
        self._session = PageSession()
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None

    async def __aenter__(self) -> PageServer:
        loop = asyncio.get_running_loop()
        listening = socket.socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
        except OSError as error:
            listening.close()
            raise bind_error(f"{self._host}:{self._port}", error.errno or 0) from None
        self._port = listening.getsockname()[1]
        self._connections = Connections(make_page(self._connection, self._session, self.host))
        self._server = await loop.create_server(self._connections.accept, sock=listening)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None and self._connections is not None:
            self._server.close()
            await self._connections.stop()

    @property
    def host(self) -> str:
        """The address as "host:port"."""
        return f"{self._host}:{self._port}"

    def new_address(self) -> str:
        """Returns an address for the browser, which works only once and only for a minute."""
        return f"http://{self.host}{self._view}#{self._session.new_code()}"


def make_page(connection: Connection, session: PageSession, host: str) -> Any:
    """Returns the application with the page.

    Args:
        connection: the connection of the user.
        session: the code and the token.
        host: the only allowed value of the header Host. Requests to the same port under another
            host name are refused.
    """
    calls = RemoteCalls(connection, session.token.encode())
    api = make_application(calls, _token_of)

    async def redeem(request: Request) -> Response:
        try:
            token = session.redeem(await code_of(request))
        except Unauthenticated as error:
            return problem(error)
        return JSONResponse(
            {"token": token, "identity": str(connection.own.credentials.who)}, headers=PAGE_HEADERS
        )

    async def show(_request: Request) -> Response:
        return problem(
            Unauthenticated(
                "this page has lost its session; press Enter in the terminal of finegrain web to"
                " get a new address"
            )
        )

    pages = Starlette(
        routes=[
            Route("/session", redeem, methods=["POST"]),
            Route("/session", show, methods=["GET"]),
            *task_routes(
                TaskReader(connection), lambda request: calls.check("", _token_of(request), "")
            ),
            Route("/{path:path}", page_file, methods=["GET"]),
        ]
    )

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        refusal = _refusal(request, host)
        if refusal is not None:
            await problem(refusal)(scope, receive, send)
            return
        app: Callable[..., Awaitable[None]] = api if request.url.path.startswith("/v1/") else pages
        await app(scope, receive, send)

    return serve


def _refusal(request: Request, host: str) -> PermissionDenied | None:
    """Returns an error if another page has caused the request. Otherwise, returns None."""
    if request.headers.get("host") != host:
        return PermissionDenied(f"this page is at http://{host} only")
    if request.method == "GET" and not request.url.path.startswith("/v1/"):
        return None  # the user opens the page, possibly from another page
    try:
        check_same_origin(request, (f"http://{host}",), must_say=False)
    except PermissionDenied as error:
        return error
    return None


def _token_of(request: Request) -> bytes:
    return request.headers.get(TOKEN_HEADER, "").encode()
