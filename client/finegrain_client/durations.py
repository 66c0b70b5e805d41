"""Converts durations: float seconds in the client, messages in the protocol."""

from __future__ import annotations

from typing import overload

from google.protobuf.duration_pb2 import Duration

from finegrain.errors import InvalidArgument
from finegrain.values.bounds import GRACE_MS_MAX


@overload
def duration(value_s: float) -> Duration: ...
@overload
def duration(value_s: None) -> None: ...
@overload
def duration(value_s: float | None) -> Duration | None: ...


def duration(value_s: float | None) -> Duration | None:
    """Returns seconds as a message, with a precision of microseconds. Returns None if the value is
    None.
    """
    if value_s is None:
        return None
    message = Duration()
    # Round, because the product of floats can be slightly below the whole number.
    message.FromMicroseconds(round(value_s * 1e6))
    return message


def grace(grace_s: float | None) -> Duration | None:
    """Returns the time between SIGTERM and SIGKILL as a message. None means the executor's default.

    Raises:
        InvalidArgument: the time is negative, or longer than a day.
    """
    if grace_s is not None and not 0 <= grace_s * 1000 <= GRACE_MS_MAX:
        raise InvalidArgument("grace_s", grace_s, f"0 to {GRACE_MS_MAX // 1000} seconds")
    return duration(grace_s)
