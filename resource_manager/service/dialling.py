"""Explains why the resource manager cannot connect to an executor, and what an administrator can
do.

The causes are recognized by the sentences of `finegrain/rpc/connect_failures.py`. An unknown
message is shown unchanged. This module makes no calls.
"""

from __future__ import annotations

from enum import Enum

from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    Unauthenticated,
)


class Obstacle(Enum):
    """The reason why the resource manager cannot connect to an executor. The value is the
    administrator's hint.
    """

    REFUSED = (
        "nothing listens there: set --advertise of the executor to an address that the resource "
        "manager can connect to"
    )
    NO_ANSWER = (
        "check that the resource manager can connect to the address in executor.advertise, and "
        "that no firewall blocks it"
    )
    UNKNOWN_NAME = (
        "the resource manager's host cannot resolve that name: set executor.advertise to an IP "
        "address, or to a name that it can resolve"
    )
    PLAIN_EXECUTOR = (
        "the program that listens there does not speak TLS, so it is no executor of this version:"
        " correct executor.advertise, or upgrade the executor"
    )
    CLOSED = (
        "the program that listens there has closed the connection: correct executor.advertise, or"
        " read the executor's log"
    )
    OTHER_AUTHORITY = (
        "the executor has a certificate of another cluster: let it join this one with finegrain"
        " token create --executor ID"
    )
    OTHER_NAME = "another executor or program listens there: correct executor.advertise of this one"
    CERTIFICATE = "the executor rejects the certificate of this resource manager: compare clocks"
    NO_EXECUTOR = "something else listens there: correct executor.advertise"
    ANOTHER_EXECUTOR = "another executor listens there: correct executor.advertise of this one"
    OTHER = "see docs/operations.md, Executors that cannot be dialed"


# removed from the end of an error, because the hint says more
_QUESTION = "; is it running, and is the address right?"
_WORDS = (
    ("does not use TLS", Obstacle.PLAIN_EXECUTOR),
    ("belongs to another cluster", Obstacle.OTHER_AUTHORITY),
    ("another member of the cluster answers", Obstacle.OTHER_NAME),
    ("connection refused", Obstacle.REFUSED),
    ("the name is unknown", Obstacle.UNKNOWN_NAME),
    ("closed the connection", Obstacle.CLOSED),
    ("no answer", Obstacle.NO_ANSWER),
    ("did not answer in time", Obstacle.NO_ANSWER),
)


def obstacle_of(error: FinegrainError) -> Obstacle:
    """Returns the reason why a call to an executor failed."""
    if isinstance(error, Unauthenticated):
        return Obstacle.CERTIFICATE
    if error.reason is Reason.VERSION_MISMATCH:
        return Obstacle.NO_EXECUTOR
    if error.reason is Reason.INSTANCE_CONFLICT:
        return Obstacle.ANOTHER_EXECUTOR
    # The words are compared last, because they depend on the version of grpcio. The types and
    # reasons above do not.
    return next((found for words, found in _WORDS if words in error.message), Obstacle.OTHER)


def cause_of(error: FinegrainError, address: str) -> str:
    """Returns the error and the hint in one line."""
    text = error.message.removeprefix(f"{address} ").removesuffix(_QUESTION)
    return f"{text}; {obstacle_of(error).value}"


def was_reached(error: FinegrainError) -> bool:
    """Returns True if the error shows that an executor read the call and accepted the caller."""
    return isinstance(error, InvalidArgument | NotFound | PermissionDenied)
