"""Options of both daemons: listening, TLS and logging."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS files in PEM form.

    A server needs `certificate` and `key`, and requires client certificates if `ca` is set. A
    client checks the server against `ca`, and shows `certificate` and `key` if they are set.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""  # expected name of the server, if it differs from the address


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The addresses at which a daemon serves calls, metrics and health.

    Addresses have the form "host:port". With port 0, the kernel chooses the port. An address other
    than loopback needs TLS or `insecure`.
    """

    address: str
    metrics_address: str = ""  # empty: no metrics port
    tls: TlsOptions | None = None
    insecure: bool = False
    reflection: bool = False


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a daemon logs."""

    level: str = "info"  # debug, info, warning, error
    format: str = "auto"  # auto: JSON unless standard error is a terminal; json; text
