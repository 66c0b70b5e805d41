"""Converts errors to problem details (RFC 9457): status, reason code, message and details."""

from __future__ import annotations

import json
from typing import Any

import grpc
from starlette.responses import Response

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from finegrain.rpc.status import UNAVAILABLE_RETRY_S, status_code_of

MEDIA_TYPE = "application/problem+json"

STATUS: dict[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.OUT_OF_RANGE: 410,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""The HTTP status for each status of the protocol."""

BY_REASON = {Reason.MESSAGE_TOO_LARGE: 413}
"""Reasons whose HTTP status differs from the status of their class of errors."""


class Changed(FailedPrecondition):
    """The resource has changed after the client had read the resource."""


class OtherContent(InvalidArgument):
    """A client used the key of an earlier request for a request with other content."""


BY_CLASS: dict[type[FinegrainError], int] = {Changed: 412, OtherContent: 422}
"""The HTTP status of errors that only the gateway reports."""


def problem(error: FinegrainError, status: int = 0) -> Response:
    """Returns the response for an error.

    Args:
        error: the error.
        status: the HTTP status. If 0, the response has the status of the error's class.
    """
    number = (
        status
        or BY_CLASS.get(type(error))
        or BY_REASON.get(error.reason)
        or STATUS[status_code_of(error)]
    )
    body: dict[str, Any] = {
        "type": f"urn:finegrain:{error.reason.value}",
        "title": error.reason.value.replace("_", " ").capitalize(),
        "status": number,
        "detail": error.message,
        "code": error.reason.value,
        "details": {name: str(value) for name, value in error.details.items()},
    }
    response = Response(json.dumps(body, ensure_ascii=False), number, media_type=MEDIA_TYPE)
    retry_s = error.retry_after_s if isinstance(error, ResourceExhausted) else None
    if isinstance(error, Unavailable):
        retry_s = UNAVAILABLE_RETRY_S
    if retry_s is not None:
        response.headers["Retry-After"] = str(max(1, round(retry_s)))
    return response
