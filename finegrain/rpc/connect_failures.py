"""Converts the texts that gRPC reports for failed connections to plain sentences."""

from __future__ import annotations

from datetime import UTC, datetime

from finegrain.errors import Reason, Unavailable

NOT_RUNNING = "is it running, and is the address right?"
_CLOSED = "{where} closed the connection; is it running, and does it accept your certificate?"


def connect_failure(text: str, address: str = "") -> Unavailable:
    """Returns the error for a connection that failed, or that broke.

    Args:
        text: the text that gRPC reports.
        address: address of the server; empty: unknown.
    """
    where = address or "the server"
    details = {"address": address} if address else {}
    for pattern, message, reason in _FAILURES:
        if pattern in text:
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return Unavailable(message.format(where=where, now=now), reason=reason, details=details)
    return Unavailable(f"{where} cannot be reached; {NOT_RUNNING}", details=details)


# Texts of gRPC 1.66 to 1.85 with BoringSSL. The first entry of this table whose text occurs
# decides. A server that refuses the client's certificate closes the connection without a reason.
_FAILURES: tuple[tuple[str, str, Reason], ...] = (
    (
        "Hostname Verification Check failed",
        (
            "another member of the cluster answers at {where}, for example an executor at the"
            " address of a resource manager; nothing was sent to it; check the address"
        ),
        Reason.CERTIFICATE_WRONG,
    ),
    (
        "certificate has expired",
        "the certificate of the server at {where} has expired; the clock of this host says {now}",
        Reason.CERTIFICATE_EXPIRED,
    ),
    (
        "certificate is not yet valid",
        (
            "the certificate of the server at {where} is not valid yet; the clock of this host says"
            " {now}"
        ),
        Reason.CERTIFICATE_EXPIRED,
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        (
            "the server at {where} belongs to another cluster than your credentials; nothing was"
            " sent to it; check the address, or use credentials of its cluster"
        ),
        Reason.CERTIFICATE_WRONG,
    ),
    (
        "WRONG_VERSION_NUMBER",
        (
            "the server at {where} does not use TLS, so it is no finegrain server of version"
            " 0.2 or newer; nothing was sent to it; check the address, and the version that is"
            " installed there"
        ),
        Reason.CERTIFICATE_WRONG,
    ),
    (
        "Connection refused",
        "{where} cannot be reached (connection refused); " + NOT_RUNNING,
        Reason.UNREACHABLE,
    ),
    # The time limit of the handshake has passed.
    (
        "Endpoint closing",
        "{where} cannot be reached (no answer); " + NOT_RUNNING,
        Reason.UNREACHABLE,
    ),
    (
        "No route to host",
        "{where} cannot be reached (no answer); " + NOT_RUNNING,
        Reason.UNREACHABLE,
    ),
    (
        "Network is unreachable",
        "{where} cannot be reached (no answer); " + NOT_RUNNING,
        Reason.UNREACHABLE,
    ),
    (
        "Connection timed out",
        "{where} cannot be reached (no answer); " + NOT_RUNNING,
        Reason.UNREACHABLE,
    ),
    ("DNS", "{where} cannot be reached (the name is unknown); " + NOT_RUNNING, Reason.UNREACHABLE),
    ("Socket closed", _CLOSED, Reason.UNREACHABLE),
    ("Connection reset by peer", _CLOSED, Reason.UNREACHABLE),
    ("Broken pipe", _CLOSED, Reason.UNREACHABLE),
)
