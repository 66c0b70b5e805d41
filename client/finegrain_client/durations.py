"""Converts durations: float seconds in the client, messages in the protocol."""

from __future__ import annotations

from typing import overload

from google.protobuf.duration_pb2 import Duration


@overload
def duration(value_s: float) -> Duration: ...
@overload
def duration(value_s: None) -> None: ...
@overload
def duration(value_s: float | None) -> Duration | None: ...


def duration(value_s: float | None) -> Duration | None:
    """Returns seconds as a message, with a precision of microseconds; None gives None."""
    if value_s is None:
        return None
    message = Duration()
    # Round, because the product of floats may be slightly below the whole number.
    message.FromMicroseconds(round(value_s * 1e6))
    return message
