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


def tls_options(ca: str, certificate: str, key: str) -> TlsOptions | None:
    """Returns TLS options with these files; None if no file is given."""
    if not (ca or certificate or key):
        return None
    ca_file, certificate_file, key_file = (
        Path(each) if each else None for each in (ca, certificate, key)
    )
    return TlsOptions(ca=ca_file, certificate=certificate_file, key=key_file)


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
