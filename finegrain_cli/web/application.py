"""Makes the web application, which serves all routes of the table in `routes.py`.

First, the application identifies the caller of a request and checks its role. Then it checks the
size of the body, and reads and parses the body. Finally, it makes the call and converts the answer
to JSON. So a request from a caller without rights needs little CPU time and memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as StarletteRoute

from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
)
from finegrain.rpc.access import LARGE_BYTES, request_bytes_max
from finegrain.v1 import cluster_pb2
from finegrain_cli.web.calls import Calls
from finegrain_cli.web.events import event_stream
from finegrain_cli.web.idempotency import Repeats, check_key
from finegrain_cli.web.live import Live
from finegrain_cli.web.openapi import description
from finegrain_cli.web.problems import Changed, problem
from finegrain_cli.web.requests import message_from, message_from_query
from finegrain_cli.web.routes import ROUTES, Json, Route

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
BODY_FACTOR = 4
"""Maximum ratio of the size of a message in JSON to the size of the same message in the protocol.
"""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

STREAM_HEADERS = {
    **HEADERS,
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}

CertificateOf = Callable[[Request], bytes]
"""A function that returns the certificate of a request's caller as PEM text, or an empty text if
the caller has shown no certificate.
"""

_BY_PATH = {route.path: route for route in ROUTES if not route.changes}


def make_application(calls: Calls, certificate_of: CertificateOf) -> Starlette:
    """Returns the application.

    Args:
        calls: the object that calls the servicers.
        certificate_of: a function that returns the certificate of a caller.
    """
    gateway = _Gateway(calls, certificate_of)
    served = [
        StarletteRoute(route.pattern, partial(gateway.serve, route), methods=[route.verb])
        for route in ROUTES
    ]
    served.append(StarletteRoute("/v1/openapi.json", gateway.describe, methods=["GET"]))
    served.append(StarletteRoute("/v1/live", gateway.live, methods=["GET"]))
    return Starlette(
        routes=served,
        exception_handlers={404: _unknown_path, 405: _unknown_verb, 500: _failed},
    )


class _Gateway:
    def __init__(self, calls: Calls, certificate_of: CertificateOf) -> None:
        self._calls = calls
        self._certificate_of = certificate_of
        self._repeats = Repeats()
        self._live = Live(calls)

    async def serve(self, route: Route, request: Request) -> Response:
        """Serves one request."""
        try:
            certificate, peer = self._certificate_of(request), _peer(request)
            self._calls.check(route.call, certificate, peer)
            key = request.headers.get("idempotency-key") if route.changes else None
            if key is not None:
                check_key(key)
            call = partial(self._calls.unary, certificate=certificate, peer=peer)
            if route.name == "ListEvents" and EVENT_STREAM in request.headers.get("accept", ""):
                return await self._events(route, request, call)
            body = await _body(route, request) if route.changes else b""
            message = _message(route, request, body)
            if not route.changes:
                return _answer(route, request, route.form(message, await call(route.call, message)))
            await self._check_unchanged(route, request, call)
            run = partial(self._change, route, request, message, call)
            if key is None:
                return await run()
            digest = hashlib.sha256(
                f"{route.verb} {request.url.path}\n".encode() + body
            ).hexdigest()
            caller = hashlib.sha256(certificate).hexdigest()
            return await self._repeats.once(caller, key, digest, run)
        except FinegrainError as error:
            return problem(error)

    async def describe(self, _request: Request) -> Response:
        """Returns the description of the interface, which needs no certificate."""
        return _json(description())

    async def live(self, request: Request) -> Response:
        """Returns the live stream of the page."""
        try:
            stream = await self._live.open(
                self._certificate_of(request),
                _peer(request),
                request.headers.get("last-event-id", ""),
            )
        except FinegrainError as error:
            return problem(error)
        return StreamingResponse(stream, media_type=EVENT_STREAM, headers=STREAM_HEADERS)

    async def _change(
        self, route: Route, request: Request, message: Message, call: Callable[..., Awaitable[Any]]
    ) -> Response:
        return _answer(route, request, route.form(message, await call(route.call, message)))

    async def _events(
        self, route: Route, request: Request, call: Callable[..., Awaitable[Any]]
    ) -> Response:
        stream: AsyncIterator[str] = await event_stream(
            call,
            cast("cluster_pb2.ListEventsRequest", _message(route, request, b"")),
            request.headers.get("last-event-id", ""),
        )
        return StreamingResponse(stream, media_type=EVENT_STREAM, headers=STREAM_HEADERS)

    async def _check_unchanged(
        self, route: Route, request: Request, call: Callable[..., Awaitable[Any]]
    ) -> None:
        """Refuses a change if the ETag of the resource differs from the ETag in `If-Match`."""
        expected = request.headers.get("if-match")
        if expected is None or expected == "*":
            return
        if not route.guarded_by:
            raise InvalidArgument("If-Match", expected, f"no such header for {route.path}")
        if not expected.strip():
            raise InvalidArgument("If-Match", expected, "an ETag, or *")
        guard = _BY_PATH[route.guarded_by]
        fields = _path_fields(guard, request)
        message = message_from(guard.request, fields)
        present = _etag(_encoded(guard.form(message, await call(guard.call, message))))
        if present not in [each.strip() for each in expected.split(",")]:
            raise Changed(
                f"{guard.path.format(**fields)} has changed since it was read: its ETag is"
                f" {present}; read it again",
                reason=Reason.ALREADY_EXISTS,
                details={"etag": present},
            )


async def _body(route: Route, request: Request) -> bytes:
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON:
        raise InvalidArgument("Content-Type", kind, JSON)
    most = min(request_bytes_max(route.call) * BODY_FACTOR, LARGE_BYTES)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise ResourceExhausted(
                f"the body has more than {most} bytes; send fewer items at a time",
                reason=Reason.MESSAGE_TOO_LARGE,
                details={"limit_bytes": most},
            )
        parts.append(part)
    return b"".join(parts)


def _message(route: Route, request: Request, body: bytes) -> Message:
    named = _path_fields(route, request)
    if not route.changes:
        pairs = request.query_params.multi_items()
        for name, _ in pairs:
            if name in named:
                raise InvalidArgument(name, named[name], "the value in the path only")
        return message_from_query(route.request, [*pairs, *named.items()])
    if request.url.query:
        raise InvalidArgument("query", request.url.query, "no query; use a JSON body")
    try:
        data = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("body", "no JSON", f"a JSON object ({error})") from None
    if not isinstance(data, Mapping):
        raise InvalidArgument("body", "no JSON object", "a JSON object")
    for name in named:
        if name in data:
            raise InvalidArgument(name, data[name], "the value in the path only")
    return message_from(route.request, {**data, **named})


def _path_fields(route: Route, request: Request) -> dict[str, str]:
    return {name: each for name, each in request.path_params.items() if f"{{{name}}}" in route.path}


def _answer(route: Route, request: Request, data: Json) -> Response:
    text = _encoded(data)
    tag = _etag(text)
    if not route.changes and tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={**HEADERS, "ETag": tag})
    headers = HEADERS if route.changes else {**HEADERS, "ETag": tag}
    return Response(text, route.status, media_type=JSON, headers=headers)


def _json(data: Json) -> Response:
    return Response(_encoded(data), media_type=JSON, headers=HEADERS)


def _encoded(data: Json) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _etag(text: bytes) -> str:
    return f'"{hashlib.sha256(text).hexdigest()[:24]}"'


def _peer(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else ""


async def _unknown_path(request: Request, _error: Exception) -> Response:
    error = NotFound(
        f"there is no {request.url.path}; /v1/openapi.json lists all paths",
        reason=Reason.INVALID_ARGUMENT,
    )
    return problem(error, 404)


async def _unknown_verb(request: Request, _error: Exception) -> Response:
    known = sorted(route.verb for route in ROUTES if _matches(route, request))
    error = InvalidArgument("method", request.method, " or ".join(known) or "GET")
    response = problem(error, 405)
    response.headers["Allow"] = ", ".join(known) or "GET"
    return response


def _matches(route: Route, request: Request) -> bool:
    parts, shown = route.path.split("/"), request.url.path.split("/")
    return len(parts) == len(shown) and all(
        part.startswith("{") or part == text for part, text in zip(parts, shown, strict=True)
    )


async def _failed(_request: Request, _error: Exception) -> Response:
    return problem(
        FinegrainError(
            "the server failed while it handled this request; its log has the details",
            reason=Reason.INTERNAL,
        )
    )
