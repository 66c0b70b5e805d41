"""Serves the page of a resource manager and the sessions of browsers, in addition to the routes.

A session needs two secrets. The first secret is a cookie. Scripts cannot read the cookie, but
browsers send it to every port of this host, and tasks can listen on some of these ports. So each
call also needs the second secret, a token that only pages of this port can read and send.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from finegrain.errors import FinegrainError, Unauthenticated, Unavailable
from finegrain_cli.web.application import make_application
from finegrain_cli.web.connection import certificate_of
from finegrain_cli.web.page_files import (
    PAGE_HEADERS,
    TOKEN_HEADER,
    check_same_origin,
    code_of,
    page_file,
)
from finegrain_cli.web.problems import problem
from resource_manager.service.identities.web_sessions import NO_SESSION, WebSession
from resource_manager.web_site import WebSite

COOKIE = "__Host-finegrain"
"""Name of the cookie. Browsers accept a cookie with this prefix only if it has `Secure` and the
path /, and no domain.
"""

LEADING_PAGE = "leading_page"
SESSION = "/session"
_READS = ("GET", "HEAD")
_VERSION = re.compile(r"/v[0-9]+(/|$)")


class ManagerPage:
    """The web application at the web port of a resource manager.

    Args:
        site: the services and the sessions of the resource manager.
    """

    def __init__(self, site: WebSite) -> None:
        self._site = site
        self._api = make_application(site.calls, self._certificate)
        self._pages = Starlette(
            routes=[
                Route(SESSION, self._begin, methods=["POST"]),
                Route(SESSION, self._show, methods=["GET"]),
                Route(SESSION, self._leave, methods=["DELETE"]),
                Route("/{path:path}", page_file, methods=["GET"]),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request."""
        path = scope["path"]
        is_page = path == SESSION or (scope["method"] in _READS and not _VERSION.match(path))
        app: Callable[..., Awaitable[None]] = self._pages if is_page else self._api
        await app(scope, receive, send)

    def _certificate(self, request: Request) -> bytes:
        """Returns the certificate of a caller: the certificate of the connection or, if the
        connection has none, the certificate of the session.

        Raises:
            PermissionDenied: a page of another origin has caused the request.
            Unauthenticated: the session has ended.
        """
        changes = request.method not in _READS
        shown = certificate_of(request)
        if shown:
            # A browser with a certificate also shows the certificate in calls that other pages
            # cause. Programs do not send the headers that name the page, so do not require these
            # headers.
            check_same_origin(request, self._origins(request), must_say=False)
            return shown
        if COOKIE not in request.cookies and TOKEN_HEADER not in request.headers:
            return b""
        check_same_origin(request, self._origins(request), must_say=changes)
        return self._session(request).certificate.encode()

    def _session(self, request: Request) -> WebSession:
        return self._site.sessions.of(
            request.cookies.get(COOKIE, ""), request.headers.get(TOKEN_HEADER, "")
        )

    def _origins(self, request: Request) -> tuple[str, ...]:
        """The origins of this page: the address with which the browser reached the page, and the
        configured address of the page.
        """
        return (f"https://{request.headers.get('host', '')}", self._site.sessions.address)

    async def _begin(self, request: Request) -> Response:
        """Exchanges the code of a link for a session."""
        try:
            check_same_origin(request, self._origins(request), must_say=True)
            self._check_leads()
            new = await self._site.sessions.begin(await code_of(request))
        except FinegrainError as error:
            return problem(error)
        response = _session_answer(new.session, token=new.token)
        response.set_cookie(
            COOKIE,
            new.cookie,
            max_age=(new.session.ends_ms - new.session.begun_ms) // 1_000,
            secure=True,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _show(self, request: Request) -> Response:
        """Returns the session of a browser, or an error that says how to get a session."""
        try:
            self._check_leads()
            if COOKIE not in request.cookies:
                raise Unauthenticated(NO_SESSION)
            check_same_origin(request, self._origins(request), must_say=False)
            session = self._session(request)
            # Use the same checks as for other callers. The certificate is possibly denied, or the
            # cluster no longer trusts its authority.
            self._site.calls.check(
                "/finegrain.v1.ClusterService/GetCluster", session.certificate.encode(), ""
            )
            return _session_answer(session)
        except FinegrainError as error:
            return problem(error)

    async def _leave(self, request: Request) -> Response:
        """Ends the session of a browser."""
        try:
            check_same_origin(request, self._origins(request), must_say=True)
            self._session(request)
            await self._site.sessions.leave(request.cookies.get(COOKIE, ""))
        except FinegrainError as error:
            return problem(error)
        response = Response(status_code=204, headers=PAGE_HEADERS)
        response.delete_cookie(COOKIE, secure=True, httponly=True, samesite="strict")
        return response

    def _check_leads(self) -> None:
        """Refuses sessions while another resource manager is the leader. The error names the page
        of the leader.
        """
        refusal = self._site.refusal()
        if refusal is None:
            return
        details = {**refusal.details}
        if page := self._site.leading_page():
            details[LEADING_PAGE] = page
        raise Unavailable(refusal.message, reason=refusal.reason, details=details)


def _session_answer(session: WebSession, **more: str) -> JSONResponse:
    identity = session.identity
    return JSONResponse(
        {
            "identity": str(identity),
            "role": identity.role.value,
            "ends_ms": session.ends_ms,
            **more,
        },
        headers=PAGE_HEADERS,
    )
