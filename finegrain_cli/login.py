"""Implements `finegrain login`, which gets a certificate in one of three ways: with a token, from
this host's resource manager, or by renewal.

This module needs the library `cryptography`, which the client library does not need.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Sequence
from pathlib import Path

from finegrain.certificates.joining import credentials_of, join, renew_expired
from finegrain.certificates.keys import certificate_request, key_pem, new_key
from finegrain.credentials import Credentials
from finegrain.directories import SYSTEM_STATE
from finegrain.errors import (
    FinegrainError,
    PermissionDenied,
    Reason,
    Unauthenticated,
    Unavailable,
)
from finegrain.identity import Role
from finegrain.join_token import JoinToken
from finegrain.local_managers import find_local_managers
from finegrain.rpc.addresses import format_address, parse_address
from finegrain.v1.identity_pb2 import IssuedCertificate
from resource_manager.options import JOIN_PORT_DISTANCE

SOCKET_FILE = "login.sock"
ANSWER_BYTES_MAX = 64 * 1024
TIMEOUT_S = 10.0


def with_token(text: str) -> Credentials:
    """Exchanges a token for credentials.

    Raises:
        InvalidArgument: the text is not a token.
        FinegrainError: see `finegrain.certificates.joining.join`.
    """
    return join(JoinToken.parse(text))


def find_login_socket(state_dir: Path) -> Path | None:
    """Returns the socket of a resource manager on this host, or None if no resource manager runs on
    this host.

    Args:
        state_dir: the configured state directory, which the function searches first.
    """
    folders = [state_dir, *(each.state_dir for each in find_local_managers()), SYSTEM_STATE / "rm"]
    sockets = (folder / SOCKET_FILE for folder in folders)
    return next((path for path in sockets if path.is_socket()), None)


def at_socket(path: Path, role: Role) -> Credentials:
    """Gets credentials from a resource manager on this host. The resource manager reads the
    caller's user from the kernel.

    Args:
        path: the socket of the resource manager.
        role: `Role.USER` or `Role.OPERATOR`.

    Raises:
        PermissionDenied: this user is not allowed to have the role.
        Unavailable: the resource manager does not answer.
    """
    key = new_key()
    request = base64.b64encode(certificate_request(key)).decode()
    line = json.dumps({"certificate_request": request, "role": str(role)}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(line)
            with connection.makefile("rb") as answers:
                answer = json.loads(answers.readline(ANSWER_BYTES_MAX))
        if "error" in answer:
            raise _refusal(str(answer["error"]), str(answer.get("reason")))
        issued = IssuedCertificate.FromString(base64.b64decode(answer["issued"]))
    except FinegrainError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"the resource manager at {path} does not answer ({error}); is it running?",
            reason=Reason.UNREACHABLE,
        ) from None
    return credentials_of(issued, key_pem(key).decode())


def again(expired: Credentials, addresses: Sequence[str]) -> Credentials:
    """Renews credentials that have expired. The function calls the join port, whose number it
    computes from each address.

    If a resource manager has another join port, the function does not find this resource manager.

    Raises:
        Unauthenticated: the credentials expired too long ago, or were denied.
        Unavailable: no join port can be reached.
    """
    main = [parse_address(each) for each in addresses]
    return renew_expired(
        expired, [format_address(host, port + JOIN_PORT_DISTANCE) for host, port in main]
    )


def _refusal(message: str, reason: str) -> FinegrainError:
    known = Reason(reason) if reason in Reason.__members__ else Reason.ROLE_MISSING
    kind = PermissionDenied if known is Reason.ROLE_MISSING else Unauthenticated
    return kind(message, reason=known)
