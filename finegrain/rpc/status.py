"""Converts errors to gRPC statuses and back.

This module contains the only table of status codes by error class.

A status carries google.rpc.Status details: ErrorInfo with the reason, BadRequest and RetryInfo. The
caller converts the status back to an error of the same class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import (  # type: ignore[import-untyped]
    code_pb2,
    error_details_pb2,
    status_pb2,
)

from finegrain import errors
from finegrain.errors import FinegrainError, InvalidArgument, Reason, ResourceExhausted, Unavailable
from finegrain.rpc.connect_failures import NOT_RUNNING, connect_failure
from finegrain.v1 import slots_pb2

DOMAIN = "finegrain"
DETAILS_KEY = "grpc-status-details-bin"
UNAVAILABLE_RETRY_S = 0.2
"""Retry delay that is sent with UNAVAILABLE. The client adds its own backoff and jitter."""

LEADER_ADDRESS = "leader_address"
"""Detail of a NOT_LEADER error: the last known address of the leader.

The address is a hint, which can be outdated.
"""
_PUSHBACK = ("grpc-retry-pushback-ms", "-1")
"""Tells the caller's channel not to retry by itself: the leader has another address."""

# maximum length of a message in characters: gRPC metadata contains the message twice, and has a
# hard limit of 16 KiB
_TEXT_MAX = 800
_DETAIL_MAX = 200
_DETAILS_MAX = 16

STATUS_BY_CLASS: dict[type[FinegrainError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.StoreError: grpc.StatusCode.UNAVAILABLE,
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.IllegalTransition: grpc.StatusCode.INTERNAL,
    errors.InvariantBroken: grpc.StatusCode.INTERNAL,
    errors.FinegrainError: grpc.StatusCode.INTERNAL,
}
"""The status of every error class. `finegrain.errors` describes each class."""

_CLASS_BY_STATUS: dict[grpc.StatusCode, type[FinegrainError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.Unavailable,
    grpc.StatusCode.UNIMPLEMENTED: errors.FailedPrecondition,
}
for _class, _status in STATUS_BY_CLASS.items():
    # If several classes have the same status, use the first class. So UNAVAILABLE without a reason
    # becomes Unavailable and not StoreError.
    _CLASS_BY_STATUS.setdefault(_status, _class)
# Set this entry explicitly. The loop above has found IllegalTransition first, which has the same
# status.
_CLASS_BY_STATUS[grpc.StatusCode.INTERNAL] = errors.FinegrainError

_CLASS_BY_REASON: dict[Reason, type[FinegrainError]] = {
    Reason.INVALID_ARGUMENT: errors.InvalidArgument,
    Reason.MIXED_KNOWN_AND_UNKNOWN: errors.InvalidArgument,
    Reason.MESSAGE_TOO_LARGE: errors.ResourceExhausted,
    Reason.JOB_UNKNOWN: errors.NotFound,
    Reason.ALLOCATION_UNKNOWN: errors.NotFound,
    Reason.EXECUTOR_UNKNOWN: errors.NotFound,
    Reason.TASK_UNKNOWN: errors.NotFound,
    Reason.ALREADY_EXISTS: errors.AlreadyExists,
    Reason.INSTANCE_CONFLICT: errors.AlreadyExists,
    Reason.CERTIFICATE_MISSING: errors.Unauthenticated,
    Reason.CERTIFICATE_WRONG: errors.Unauthenticated,
    Reason.CERTIFICATE_EXPIRED: errors.Unauthenticated,
    Reason.CERTIFICATE_DENIED: errors.Unauthenticated,
    Reason.TOKEN_WRONG: errors.Unauthenticated,
    Reason.IDENTITY_UNKNOWN: errors.NotFound,
    Reason.ROLE_MISSING: errors.PermissionDenied,
    Reason.NOT_OWNER: errors.PermissionDenied,
    Reason.TOKEN_REFUSED: errors.PermissionDenied,
    Reason.GROUP_NOT_ALLOWED: errors.PermissionDenied,
    Reason.OVER_LIMIT: errors.ResourceExhausted,
    Reason.OUT_OF_RANGE: errors.OutOfRange,
    Reason.NOT_REGISTERED: errors.Unavailable,
    Reason.NOT_LEADER: errors.Unavailable,
    Reason.UNREACHABLE: errors.Unavailable,
    Reason.STORE_UNAVAILABLE: errors.StoreError,
    Reason.STORE_IN_USE: errors.StoreError,
    Reason.STORE_SCHEMA: errors.StoreError,
    Reason.STORE_CORRUPT: errors.StoreError,
    Reason.DISK_FULL: errors.StoreError,
    Reason.ADDRESS_IN_USE: errors.ConfigurationError,
    Reason.CONFIGURATION: errors.ConfigurationError,
    Reason.ILLEGAL_TRANSITION: errors.IllegalTransition,
    Reason.INVARIANT_BROKEN: errors.InvariantBroken,
    Reason.INTERNAL: errors.FinegrainError,
}

Metadata = tuple[tuple[str, str | bytes], ...]


def status_code_of(error: FinegrainError) -> grpc.StatusCode:
    """Returns the status code of an error: the code of the nearest base class in the table."""
    return next(STATUS_BY_CLASS[base] for base in type(error).__mro__ if base in STATUS_BY_CLASS)


def status_of(error: FinegrainError) -> tuple[grpc.StatusCode, str, Metadata]:
    """Returns the code, message and trailing metadata (with details) that a server sends for an
    error.
    """
    code = status_code_of(error)
    message = _cut(error.message, _TEXT_MAX)
    status = status_pb2.Status(code=code.value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN)
    for key, value in list(error.details.items())[:_DETAILS_MAX]:
        info.metadata[key] = _cut(value, _DETAIL_MAX)
    status.details.add().Pack(info)
    if isinstance(error, InvalidArgument):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(error.field, _DETAIL_MAX), description=_cut(message, _DETAIL_MAX)
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if (retry_s := _retry_of(error)) is not None:
        delay = Duration()
        delay.FromMilliseconds(round(retry_s * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    details: Metadata = ((DETAILS_KEY, status.SerializeToString()),)
    if error.reason is Reason.NOT_LEADER:
        details = (*details, _PUSHBACK)
    return code, message, details


def error_from_rpc(error: grpc.RpcError, address: str = "") -> FinegrainError:
    """Converts a failed call to an error of the same class as at the server.

    Args:
        error: error of a blocking or an asyncio call.
        address: address of the server, for the message of an error if the server did not answer.
    """
    call = cast("grpc.Call", error)
    code = call.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    text = (call.details() if hasattr(error, "details") else str(error)) or ""
    status = _details_of(call.trailing_metadata() if hasattr(error, "trailing_metadata") else ())
    info = _unpack(status, error_details_pb2.ErrorInfo)
    # A finegrain server adds details to its status. If the details are missing, the status comes
    # from gRPC itself, a proxy or another service.
    if info is None or info.domain != DOMAIN:
        return _bare(code, text, address)
    retry = _unpack(status, error_details_pb2.RetryInfo)
    retry_s = retry.retry_delay.ToMilliseconds() / 1000 if retry is not None else None
    return _build(
        _CLASS_BY_STATUS.get(code, FinegrainError), text, info.reason, info.metadata, retry_s
    )


def item_error(error: FinegrainError) -> slots_pb2.ItemError:
    """Converts an error to the result of one item of a batch."""
    return slots_pb2.ItemError(
        reason=error.reason.value, message=error.message, details=error.details
    )


def error_from_item(item: slots_pb2.ItemError) -> FinegrainError:
    """Converts an item's result to an error; the inverse of `item_error`."""
    return _build(errors.FailedPrecondition, item.message, item.reason, item.details, None)


def _build(
    fallback: type[FinegrainError],
    message: str,
    reason_text: str,
    details: Mapping[str, str],
    retry_s: float | None,
) -> FinegrainError:
    """Creates an error. The reason determines its class. For an unknown reason, the class is
    `fallback`.
    """
    reason = Reason(reason_text) if reason_text in Reason.__members__ else None
    cls = _CLASS_BY_REASON.get(reason, fallback) if reason else fallback
    kept = dict(details)
    if reason is None and reason_text:
        kept.setdefault("reason", reason_text)  # keep a reason that only newer versions know
    error: FinegrainError
    if issubclass(cls, InvalidArgument):
        # The constructor composes a message. The server's message replaces it below.
        error = InvalidArgument(kept.get("field", ""), "", kept.get("expected", ""))
        error.message, error.args = message, (message,)
        error.reason = reason or error.reason
        error.details = kept
    elif issubclass(cls, ResourceExhausted):
        error = cls(message, reason=reason, details=kept, retry_after_s=retry_s)
    else:
        error = cls(message, reason=reason, details=kept)
    return error


def _bare(code: grpc.StatusCode, text: str, address: str) -> FinegrainError:
    """Converts a status that gRPC itself created, without an answer from a finegrain server."""
    where = address or "the server"
    details = {"address": address} if address else {}
    if code is grpc.StatusCode.UNAVAILABLE:
        return connect_failure(text, address)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(f"{where} did not answer in time; {NOT_RUNNING}", details=details)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.FailedPrecondition(
            f"{where} does not know this call ({text}); its version does not match the version of "
            "this program",
            reason=Reason.VERSION_MISMATCH,
            details=details,
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return ResourceExhausted(text, reason=Reason.MESSAGE_TOO_LARGE, details=details)
    if code is grpc.StatusCode.CANCELLED:
        return Unavailable(f"the call to {where} was cancelled ({text})", details=details)
    return FinegrainError(f"{where} answered {code.name}: {text}", details=details)


def _retry_of(error: FinegrainError) -> float | None:
    if isinstance(error, ResourceExhausted):
        return error.retry_after_s
    return UNAVAILABLE_RETRY_S if isinstance(error, Unavailable) else None


def _details_of(metadata: Iterable[Any] | None) -> status_pb2.Status:
    status = status_pb2.Status(code=code_pb2.OK)
    for key, value in metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                status.ParseFromString(value)
            except DecodeError:  # the details have another format
                return status_pb2.Status()
    return status


def _unpack(status: status_pb2.Status, kind: type[Any]) -> Any:
    for each in status.details:
        if each.Is(kind.DESCRIPTOR):
            found = kind()
            each.Unpack(found)
            return found
    return None


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
