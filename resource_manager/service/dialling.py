"""Why an executor that reports cannot be dialled, and what whoever runs it can do about it.

Judges by the words of gRPC, which has no codes for this (those of grpcio 1.85, see the tests); what
is not recognised still has the error's own text beside it. Makes no calls.
"""

from __future__ import annotations

from enum import Enum

from finegrain.errors import (
    ConfigurationError,
    FinegrainError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    Unauthenticated,
)


class Obstacle(Enum):
    """What stands between the RM and an executor; the value is the way out."""

    REFUSED = (
        "nothing listens there: give the executor an address with --advertise that the resource"
        " manager can dial"
    )
    NO_ANSWER = (
        "check that executor.advertise is an address that the resource manager can dial, and that"
        " no firewall stands in between"
    )
    UNKNOWN_NAME = (
        "the resource manager's host does not know that name: let executor.advertise be an IP"
        " address or a name that it knows"
    )
    PLAIN_EXECUTOR = (
        "the resource manager speaks TLS and the executor does not: set executor.tls_certificate"
        " and executor.tls_key"
    )
    CLOSED = (
        "if the executor speaks TLS, the resource manager must too: set rm.executor_tls_ca, and"
        " rm.executor_tls_certificate and rm.executor_tls_key where the executor demands client"
        " certificates of an authority of its own"
    )
    OTHER_AUTHORITY = (
        "set rm.executor_tls_ca to the authority that signed the executor's certificate"
    )
    OTHER_NAME = (
        "the executor's certificate must name the host that it advertises, as subjectAltName"
    )
    IN_CLEAR = "set rm.executor_tls_ca, or rm.insecure if nobody else can listen"
    TOKEN = "the executor must read the resource manager's present cluster.token"
    NO_EXECUTOR = "something else listens there: correct executor.advertise"
    ANOTHER_EXECUTOR = "another executor listens there: correct executor.advertise of this one"
    OTHER = "see docs/operations.md, Executors that cannot be dialled"


_QUESTION = "; is it running, and is the address right?"  # answered here
_WORDS = (
    ("WRONG_VERSION_NUMBER", Obstacle.PLAIN_EXECUTOR),
    ("CERTIFICATE_VERIFY_FAILED", Obstacle.OTHER_AUTHORITY),
    ("Hostname Verification", Obstacle.OTHER_NAME),
    ("Connection refused", Obstacle.REFUSED),
    ("errors resolving", Obstacle.UNKNOWN_NAME),
    ("DNS resolution failed", Obstacle.UNKNOWN_NAME),
    ("Socket closed", Obstacle.CLOSED),
    ("Connection reset", Obstacle.CLOSED),
    ("handshake failed", Obstacle.CLOSED),
    ("timed out", Obstacle.NO_ANSWER),
    ("No route to host", Obstacle.NO_ANSWER),
    ("Network is unreachable", Obstacle.NO_ANSWER),
    ("did not answer in time", Obstacle.NO_ANSWER),
)


def obstacle_of(error: FinegrainError) -> Obstacle:
    """What stands in the way, by the error that a call ended with."""
    if isinstance(error, Unauthenticated):
        return Obstacle.TOKEN
    if isinstance(error, ConfigurationError) and "in clear" in error.message:
        return Obstacle.IN_CLEAR
    if error.reason is Reason.VERSION_MISMATCH:
        return Obstacle.NO_EXECUTOR
    if error.reason is Reason.INSTANCE_CONFLICT:
        return Obstacle.ANOTHER_EXECUTOR
    return next((found for words, found in _WORDS if words in error.message), Obstacle.OTHER)


def cause_of(error: FinegrainError, address: str) -> str:
    """The same in one line, with the way out."""
    text = error.message.removeprefix(f"{address} ").removesuffix(_QUESTION)
    return f"{text}; {obstacle_of(error).value}"


def was_reached(error: FinegrainError) -> bool:
    """True if an error shows that an executor has read the call and accepted its token."""
    return isinstance(error, InvalidArgument | NotFound | PermissionDenied)
