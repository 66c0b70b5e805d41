"""Options that both daemons share: where they listen, whom they trust, how they log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS by files in PEM form.

    A server needs `certificate` and `key`, and demands client certificates where `ca` is set. A
    client checks the server against `ca` and shows `certificate` and `key` where they are set.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""  # expected name of the server where it differs from the address


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where a daemon serves calls, and where it serves metrics and health.

    Addresses are "host:port"; port 0 lets the kernel choose. Beyond loopback TLS or an explicit
    `insecure` is needed.
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
