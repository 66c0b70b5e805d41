"""Serves a Unix socket at which users of this host get a certificate without a token.

The server reads the user of the caller from the kernel (SO_PEERCRED), so a user can only become
`user/LOGIN`. Members of the group `finegrain-admin`, root and the user of this process can also
become `operator/LOGIN`. A caller sends one line of JSON, and receives one line of JSON.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import grp
import json
import logging
import os
import pwd
import socket
import struct
from pathlib import Path
from typing import Any

from finegrain.certificates.keys import key_of_request
from finegrain.errors import FinegrainError, InvalidArgument, PermissionDenied, Reason
from finegrain.identity import Identity, Role
from resource_manager.service.identities.issuing import Issuer
from resource_manager.service.identities.members import Members

SOCKET_FILE = "login.sock"
OPERATORS_GROUP = "finegrain-admin"
LINE_BYTES_MAX = 16 * 1024
TIME_MAX_S = 10.0
CONNECTIONS_MAX = 32

_log = logging.getLogger("finegrain.rm")
_PEER = struct.Struct("3i")  # the pid, uid and gid of the caller


class LoginSocket:
    """Serves logins of this host's users.

    Args:
        path: path of the socket.
        issuer: signs certificates.
        members: knows which identities are denied.
    """

    def __init__(self, path: Path, issuer: Issuer, members: Members) -> None:
        self._path = path
        self._issuer = issuer
        self._members = members
        self._server: asyncio.AbstractServer | None = None
        self._open = 0

    async def start(self) -> None:
        """Starts to serve. An error is only logged: the cluster works without this socket."""
        try:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(
                self._accept, str(self._path), limit=LINE_BYTES_MAX
            )
            self._path.chmod(0o666)  # all users can connect, and the server checks their user id
        except OSError as error:
            _log.error(
                "login_socket_not_served", extra={"path": str(self._path), "error": str(error)}
            )

    async def stop(self) -> None:
        """Stops serving and removes the socket."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > CONNECTIONS_MAX:
                return
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(TIME_MAX_S):
                    line = await reader.readline()
                    answer = self._answer(line, _uid_of(writer.get_extra_info("socket")))
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, line: bytes, uid: int) -> dict[str, str]:
        try:
            issued = self._issue(line, uid)
        except FinegrainError as error:
            return {"error": error.message, "reason": error.reason.value}
        return {"issued": base64.b64encode(issued.SerializeToString()).decode()}

    def _issue(self, line: bytes, uid: int) -> Any:
        try:
            asked = json.loads(line)
            role = Role(asked.get("role", Role.USER))
            request = base64.b64decode(asked["certificate_request"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidArgument(
                "request", f"{len(line)} bytes", "a request of finegrain login"
            ) from None
        try:
            login = pwd.getpwuid(uid).pw_name
        except KeyError:
            raise PermissionDenied(
                f"this host knows no user with the id {uid}", reason=Reason.ROLE_MISSING
            ) from None
        if role not in (Role.USER, Role.OPERATOR):
            raise InvalidArgument("role", role, "user or operator")
        if role is Role.OPERATOR and not _may_operate(uid, login):
            raise PermissionDenied(
                f"{login} is not in the group {OPERATORS_GROUP}, whose members may get the role "
                f"operator of the cluster; run: usermod -aG {OPERATORS_GROUP} {login}",
                reason=Reason.ROLE_MISSING,
            )
        identity = Identity(self._issuer.authority.cluster, role, login)
        if self._members.is_denied(identity, ""):
            raise PermissionDenied(
                f"an administrator of the cluster has denied {identity}",
                reason=Reason.CERTIFICATE_DENIED,
            )
        issued = self._issuer.issue(identity, key_of_request(request))
        _log.info("logged_in", extra={"identity": str(identity), "uid": uid})
        return issued


def _uid_of(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(data)[1])


def _may_operate(uid: int, login: str) -> bool:
    if uid in (0, os.geteuid()):
        return True
    try:
        group = grp.getgrnam(OPERATORS_GROUP)
    except KeyError:
        return False
    return login in group.gr_mem or pwd.getpwuid(uid).pw_gid == group.gr_gid
