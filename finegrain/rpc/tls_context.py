"""Provides TLS for servers that are not gRPC servers: an `ssl.SSLContext` with the certificate of
this process.

The module `ssl` reads keys only from files. So this module writes the key to a file without a name,
which exists only in memory.
"""

from __future__ import annotations

import os
import ssl
from typing import Any

from finegrain.rpc.own_certificate import OwnCertificate


def presenting_context(own: OwnCertificate) -> ssl.SSLContext:
    """Returns a context that always shows the present certificate of this process.

    The context requests a certificate from clients. A client can connect without a certificate, but
    not with a certificate of another authority.

    Args:
        own: the certificate of this process. After it was replaced, new connections use the new
            certificate.
    """
    return _Presenter(own).context


class _Presenter:
    def __init__(self, own: OwnCertificate) -> None:
        self._own = own
        self._version = own.version
        self._present = _context_of(own)
        self.context = _context_of(own)
        # OpenSSL calls this function at the start of every handshake, even if the client names no
        # server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _outer: Any) -> None:
        if self._version != self._own.version:
            self._version = self._own.version
            self._present = _context_of(self._own)
        connection.context = self._present


def _context_of(own: OwnCertificate) -> ssl.SSLContext:
    credentials = own.credentials
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    # Accept the certificate of the cluster's authority as the end of a chain. An outside authority,
    # which the cluster does not trust, has possibly signed this certificate.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=credentials.authorities)
    file = os.memfd_create("finegrain-certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, (credentials.key + credentials.certificate).encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
