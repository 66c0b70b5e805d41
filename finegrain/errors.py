"""Defines all error classes and all reasons.

Every error that can cross a process boundary is a `FinegrainError`. Its class determines the gRPC
status (see `finegrain/rpc/status.py`). Its `reason` is a stable code for programs. Its message says
what a person must do next. The string of a reason must never be changed or reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """Stable codes. They are sent as `ErrorInfo.reason` and as `ItemError.reason`."""

    # Reasons about bad input.
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    MIXED_KNOWN_AND_UNKNOWN = "MIXED_KNOWN_AND_UNKNOWN"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    # Reasons about unknown ids.
    JOB_UNKNOWN = "JOB_UNKNOWN"
    ALLOCATION_UNKNOWN = "ALLOCATION_UNKNOWN"
    EXECUTOR_UNKNOWN = "EXECUTOR_UNKNOWN"
    GROUP_UNKNOWN = "GROUP_UNKNOWN"
    TASK_UNKNOWN = "TASK_UNKNOWN"
    # Reasons about conflicts.
    ALREADY_EXISTS = "ALREADY_EXISTS"
    INSTANCE_CONFLICT = "INSTANCE_CONFLICT"
    # Reasons about a wrong state or outdated counters.
    JOB_ENDED = "JOB_ENDED"
    STALE_EPOCH = "STALE_EPOCH"
    STALE_REGISTRATION = "STALE_REGISTRATION"
    STALE_GENERATION = "STALE_GENERATION"
    STALE_RESIZE = "STALE_RESIZE"
    COMMAND_OUT_OF_ORDER = "COMMAND_OUT_OF_ORDER"
    SLOT_NOT_READY = "SLOT_NOT_READY"
    TASK_ENDED = "TASK_ENDED"
    EXECUTOR_NOT_LOST = "EXECUTOR_NOT_LOST"
    GROUP_IN_USE = "GROUP_IN_USE"
    VERSION_MISMATCH = "VERSION_MISMATCH"
    # Reasons about placement. They are the error of a single item, or say why a request waits. They
    # are never the status of a whole call.
    NOT_YET_CONSIDERED = "NOT_YET_CONSIDERED"
    STILL_WAITING = "STILL_WAITING"
    WAITING_CAPACITY = "WAITING_CAPACITY"
    WAITING_FRAGMENTED = "WAITING_FRAGMENTED"
    WAITING_LABELS = "WAITING_LABELS"
    WAITING_TOPOLOGY = "WAITING_TOPOLOGY"
    INFEASIBLE_NOW_OFFLINE = "INFEASIBLE_NOW_OFFLINE"
    INFEASIBLE_NEVER = "INFEASIBLE_NEVER"
    WAITING_EXECUTOR = "WAITING_EXECUTOR"
    WAITING_GANG = "WAITING_GANG"
    WAITING_GROUP_LIMIT = "WAITING_GROUP_LIMIT"
    WAITING_USER_LIMIT = "WAITING_USER_LIMIT"
    WAITING_DEPENDENCY = "WAITING_DEPENDENCY"
    WAITING_RESERVATION = "WAITING_RESERVATION"
    GANG_REFUSED = "GANG_REFUSED"
    INSUFFICIENT_RESOURCES = "INSUFFICIENT_RESOURCES"
    BELOW_USE = "BELOW_USE"
    IN_PROGRESS = "IN_PROGRESS"
    PARK_FAILED = "PARK_FAILED"
    SLOT_LIMIT = "SLOT_LIMIT"
    CARVE_FAILED = "CARVE_FAILED"
    CPUS_UNAVAILABLE = "CPUS_UNAVAILABLE"
    DEVICES_UNAVAILABLE = "DEVICES_UNAVAILABLE"
    FAIR_SHARE = "FAIR_SHARE"
    NOT_REUSABLE = "NOT_REUSABLE"
    # Reasons why a slot or a request ended.
    GANG_BROKEN = "GANG_BROKEN"
    GANG_TIMEOUT = "GANG_TIMEOUT"
    TIMED_OUT = "TIMED_OUT"
    REVOKED = "REVOKED"
    RESIZED = "RESIZED"
    REUSED = "REUSED"
    RESIZE_REFUSED = "RESIZE_REFUSED"
    EXECUTOR_LOST = "EXECUTOR_LOST"
    EXECUTOR_DRAINED = "EXECUTOR_DRAINED"
    DEVICE_LOST = "DEVICE_LOST"
    DEVICE_RECOVERED = "DEVICE_RECOVERED"
    DEVICE_UNHEALTHY = "DEVICE_UNHEALTHY"
    GPU_MEMORY_EXCEEDED = "GPU_MEMORY_EXCEEDED"
    SLOT_MISSING = "SLOT_MISSING"
    SLOT_BROKEN = "SLOT_BROKEN"
    OFFER_NOT_ACCEPTED = "OFFER_NOT_ACCEPTED"
    ORPHANED = "ORPHANED"
    TIME_LIMIT = "TIME_LIMIT"
    JOB_OVER = "JOB_OVER"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    TERMINATED = "TERMINATED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    ENDED = "ENDED"
    # Reasons about tasks.
    OUTPUT_LOST = "OUTPUT_LOST"
    MANAGED_MEMORY_EXCEEDED = "MANAGED_MEMORY_EXCEEDED"
    MANAGED_MEMORY_REVOKED = "MANAGED_MEMORY_REVOKED"
    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND"
    COMMAND_NOT_EXECUTABLE = "COMMAND_NOT_EXECUTABLE"
    CWD_UNAVAILABLE = "CWD_UNAVAILABLE"
    USER_NOT_ALLOWED = "USER_NOT_ALLOWED"
    LIMIT_TOO_SMALL = "LIMIT_TOO_SMALL"
    START_FAILED = "START_FAILED"
    # Reasons about access.
    CERTIFICATE_MISSING = "CERTIFICATE_MISSING"
    CERTIFICATE_WRONG = "CERTIFICATE_WRONG"
    CERTIFICATE_EXPIRED = "CERTIFICATE_EXPIRED"
    CERTIFICATE_DENIED = "CERTIFICATE_DENIED"
    TOKEN_WRONG = "TOKEN_WRONG"
    IDENTITY_UNKNOWN = "IDENTITY_UNKNOWN"
    ROLE_MISSING = "ROLE_MISSING"
    NOT_OWNER = "NOT_OWNER"
    TOKEN_REFUSED = "TOKEN_REFUSED"
    GROUP_NOT_ALLOWED = "GROUP_NOT_ALLOWED"
    NOT_REGISTERED = "NOT_REGISTERED"
    # Reasons about the service itself.
    OVER_LIMIT = "OVER_LIMIT"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    NOT_LEADER = "NOT_LEADER"
    UNREACHABLE = "UNREACHABLE"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    STORE_IN_USE = "STORE_IN_USE"
    STORE_SCHEMA = "STORE_SCHEMA"
    STORE_CORRUPT = "STORE_CORRUPT"
    DISK_FULL = "DISK_FULL"
    ADDRESS_IN_USE = "ADDRESS_IN_USE"
    CONFIGURATION = "CONFIGURATION"
    ILLEGAL_TRANSITION = "ILLEGAL_TRANSITION"
    INVARIANT_BROKEN = "INVARIANT_BROKEN"
    INTERNAL = "INTERNAL"


class FinegrainError(Exception):
    """The base class of all errors.

    `message` is one sentence for people. It names the field, the value and the remedy. `details`
    has the variable parts of the message for programs (keys in lower_snake_case, values as text).
    """

    default_reason: Reason = Reason.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        reason: Reason | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason: Reason = reason or self.default_reason
        # The protocol carries details as a map of texts.
        self.details: dict[str, str] = {key: str(value) for key, value in (details or {}).items()}


class InvalidArgument(FinegrainError):
    """Invalid input. The error names the field, the value, and the expected values."""

    default_reason = Reason.INVALID_ARGUMENT

    def __init__(
        self, field: str, value: object, expected: str, *, reason: Reason | None = None
    ) -> None:
        # Shorten the value, because callers choose it, and messages and logs contain it.
        shown = _shorten(value)
        super().__init__(
            f"{field} is {shown}; expected {expected}",
            reason=reason,
            details={"field": field, "value": shown, "expected": expected},
        )
        self.field = field
        self.expected = expected


class NotFound(FinegrainError):
    """There is no object with this id, or the object was deleted."""

    default_reason = Reason.ALLOCATION_UNKNOWN


class AlreadyExists(FinegrainError):
    """The id exists with other content or another owner.

    The error must not reveal which of the two is the case.
    """

    default_reason = Reason.ALREADY_EXISTS


class FailedPrecondition(FinegrainError):
    """The object exists, but its state or generation does not allow the call."""

    default_reason = Reason.SLOT_NOT_READY


class OutOfRange(FinegrainError):
    """The position in a stream is no longer stored."""

    default_reason = Reason.OUT_OF_RANGE


class Unauthenticated(FinegrainError):
    """The caller has not proved its identity."""

    default_reason = Reason.CERTIFICATE_MISSING


class PermissionDenied(FinegrainError):
    """The caller is known, but is not allowed to do what the call asks for."""

    default_reason = Reason.ROLE_MISSING


class ResourceExhausted(FinegrainError):
    """A limit is reached, or the server is overloaded.

    If `retry_after_s` is set, retry after that many seconds.
    """

    default_reason = Reason.OVER_LIMIT

    def __init__(
        self,
        message: str,
        *,
        reason: Reason | None = None,
        details: Mapping[str, object] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, reason=reason, details=details)
        self.retry_after_s = retry_after_s


class Unavailable(FinegrainError):
    """The server is not reachable, is starting, or is not the leader. A retry can succeed."""

    default_reason = Reason.UNREACHABLE


class StoreError(Unavailable):
    """The database cannot be used: it is missing, locked, corrupt, or of an older or newer
    version.
    """

    default_reason = Reason.STORE_UNAVAILABLE


class ConfigurationError(FinegrainError):
    """A daemon or command cannot start with its configuration."""

    default_reason = Reason.CONFIGURATION


class IllegalTransition(FinegrainError):
    """A transition is not in the state tables. This error is always a bug, never the caller's
    mistake.
    """

    default_reason = Reason.ILLEGAL_TRANSITION


class InvariantBroken(FinegrainError):
    """The resource manager's state contradicts itself because of a bug.

    The resource manager then grants no more slots.
    """

    default_reason = Reason.INVARIANT_BROKEN


def _shorten(value: object, limit: int = 120) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
