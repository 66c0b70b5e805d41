"""Decides which calls are recorded in the audit log, and counts refused calls.

The driver stores an entry in the transaction of the change. Refused calls are counted for each
identity, method and minute. So a flood of refused calls adds only few entries.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
)
from finegrain.rpc.access import current_caller
from resource_manager.storage.audit_log import AuditedCall

OBJECT_CHARACTERS_MAX = 200
REFUSALS_MAX = 1_000
"""Maximum number of different refusals that are counted in one minute. All further refusals are
counted together as "others".
"""
MINUTE_MS = 60_000
UNKNOWN = "unknown"
OTHERS = "others"

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


@dataclass(slots=True)
class _OpenCall:
    """A call in progress that the audit log records.

    Attributes:
        call: the call.
        is_queued: True if the call is in the writer's queue. The writer then adds the entry.
    """

    call: AuditedCall
    is_queued: bool = False


_open_call: ContextVar[_OpenCall | None] = ContextVar("finegrain_audited_call", default=None)


def audited(describe: Callable[[Any], str]) -> Callable[[F], F]:
    """Returns a decorator for a method of a service. The decorator records each change that the
    method makes, and counts refused calls of the method.

    Args:
        describe: a function that returns the object of the change, for example an executor id.
    """

    def decorate(method: F) -> F:
        @functools.wraps(method)
        async def record(self: Any, request: Any, context: Any) -> Any:
            call = AuditedCall(
                current_caller().name, method.__name__, short_text(describe(request))
            )
            # The context variable stays set until the task of the call ends: `RefusalCounts` needs
            # it after the method has raised an error.
            _open_call.set(_OpenCall(call))
            return await method(self, request, context)

        record.is_audited = True  # type: ignore[attr-defined]  # for `recorded_methods`
        return record  # type: ignore[return-value]

    return decorate


def recorded_methods(*services: type) -> frozenset[str]:
    """Returns the names of the methods of these services whose calls are recorded."""
    return frozenset(
        name
        for service in services
        for name in dir(service)
        if getattr(getattr(service, name), "is_audited", False)
    )


def current_call() -> AuditedCall | None:
    """Returns the recorded call that is in progress, or None."""
    open_call = _open_call.get()
    return None if open_call is None else open_call.call


def call_queued() -> None:
    """Marks the call in progress: the writer will add its entry, with the outcome."""
    if (open_call := _open_call.get()) is not None:
        open_call.is_queued = True


def short_text(text: str) -> str:
    """Returns a text for an entry: printable, and not too long."""
    text = "".join(each if each.isprintable() else "?" for each in text)
    most = OBJECT_CHARACTERS_MAX
    return text if len(text) <= most else text[: most - 3] + "..."


def outcome_of(error: BaseException) -> str:
    """Returns the outcome of a call that the engine has rejected."""
    return error.reason.value if isinstance(error, FinegrainError) else "failed"


class RefusalCounts:
    """Counts refused calls for each identity, method, reason and minute. Thread-safe.

    Attributes:
        recorded: names of the methods whose calls are recorded, for calls whose messages cannot be
            read.

    Args:
        now_ms: returns the present time in milliseconds since 1970.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.recorded: frozenset[str] = frozenset()
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, AuditedCall, str], int] = {}

    def add(self, method: str, error: FinegrainError) -> None:
        """Counts a call that was refused because of its caller. Also counts a call of a recorded
        method that was refused before it reached the writer, for example because of a bad argument.

        The message of such a call can be too large or unreadable. In this case the method never
        runs, and the object of the call is unknown.
        """
        open_call = _open_call.get()
        name = method.rpartition("/")[2]
        if isinstance(error, PermissionDenied | Unauthenticated):
            actor = current_caller().name or str(error.details.get("identity") or UNKNOWN)
            call = AuditedCall(actor, name)
        elif open_call is not None:
            if open_call.is_queued:
                return
            call = open_call.call
        elif name in self.recorded and isinstance(error, InvalidArgument | ResourceExhausted):
            call = AuditedCall(current_caller().name, name)
        else:
            return
        minute = self._now_ms() // MINUTE_MS
        with self._lock:
            key = (minute, call, error.reason.value)
            if key not in self._counts and len(self._counts) >= REFUSALS_MAX:
                key = (minute, AuditedCall(OTHERS, OTHERS), error.reason.value)
            self._counts[key] = self._counts.get(key, 0) + 1

    def take(self) -> list[tuple[AuditedCall, str, int]]:
        """Returns the calls of earlier minutes, with their outcomes and counts. Then forgets these
        calls.
        """
        minute = self._now_ms() // MINUTE_MS
        with self._lock:
            ended = [key for key in self._counts if key[0] != minute]
            return [(key[1], key[2], self._counts.pop(key)) for key in ended]
