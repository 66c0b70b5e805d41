"""Parses addresses of the form "host:port", with IPv6 addresses in brackets."""

from __future__ import annotations

import ipaddress
import re

from finegrain.errors import InvalidArgument

MANAGER_DEFAULT = "127.0.0.1:7170"
"""Default address of a resource manager, for itself and for clients."""

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?\.?")
_EXPECTED = 'an address "host:port" such as 10.0.0.1:7170, host-a:7170 or [::1]:7170'


def parse_address(text: str, field: str = "address") -> tuple[str, int]:
    """Returns the host (without brackets) and the port (0 to 65,535). Port 0 is useful only for
    listening.

    Raises:
        InvalidArgument: the text does not have the form "host:port".
    """
    # Split at the last colon, because IPv6 addresses contain colons.
    host, colon, port_text = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not _is_host(bare, bracketed=bracketed):
        raise InvalidArgument(field, text, _EXPECTED)
    # Check for ASCII, because `isdigit` accepts digits of other scripts, and `int` converts them.
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5):
        raise InvalidArgument(field, text, _EXPECTED)
    if int(port_text) > 65_535:
        raise InvalidArgument(field, text, "a port from 0 to 65535")
    return bare, int(port_text)


def check_dialable(text: str, field: str = "address") -> str:
    """Returns the address unchanged, if other processes can connect to it.

    Raises:
        InvalidArgument: the address is malformed, its port is 0, or its host is a wildcard.
    """
    host, port = parse_address(text, field)
    if port == 0 or host in ("0.0.0.0", "::"):
        raise InvalidArgument(field, text, "an address that others can connect to, not a wildcard")
    return text


def check_page_address(text: str, field: str = "rm.web_advertise") -> str:
    """Returns the address of a web page unchanged, if it has the form "https://HOST[:PORT]".

    Raises:
        InvalidArgument: the text has another form.
    """
    scheme, colon, rest = text.partition("://")
    host = rest if re.search(r":[0-9]+$", rest) else f"{rest}:443"
    if scheme == "https" and colon:
        try:
            check_dialable(host)
        except InvalidArgument:
            pass
        else:
            return text
    raise InvalidArgument(field, text, "an address such as https://finegrain.example.org")


def format_address(host: str, port: int) -> str:
    """Joins host and port; the inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Returns True if the host of "host:port" is certainly this machine: localhost or a loopback
    IP.
    """
    host, _ = parse_address(address)
    if host == "localhost":
        return True
    try:
        # A name can resolve to any host. So it counts as remote.
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_host(host: str, *, bracketed: bool) -> bool:
    if bracketed:
        try:
            return ipaddress.ip_address(host.partition("%")[0]).version == 6
        except ValueError:
            return False
    return bool(_HOST_NAME.fullmatch(host))
