"""gRPC channels: transport settings for both ends, tokens, TLS and deadlines.

The settings were measured on grpcio 1.85. With them, a channel soon notices a failed peer, and soon
reconnects to a restarted one. Callers use the generated stubs on the channels that this module
opens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from finegrain.errors import ConfigurationError
from finegrain.options import TlsOptions
from finegrain.rpc.addresses import is_loopback, parse_address

__all__ = [
    "AUTHORIZATION",
    "CHANNEL_OPTIONS",
    "DEFAULT_DEADLINE_S",
    "JOB_SECRET",
    "JOB_SECRET_HASH",
    "MESSAGE_BYTES_MAX",
    "SERVER_OPTIONS",
    "is_loopback",
    "open_blocking_channel",
    "open_channel",
    "parse_address",
]

AUTHORIZATION = "authorization"
JOB_SECRET = "finegrain-job-secret"
JOB_SECRET_HASH = "finegrain-job-secret-sha256"
"""Metadata key for the hash of a job's secret.

An executor sends it with an offer, to prove that it belongs to the job's cluster.
"""
DEFAULT_DEADLINE_S = 30.0
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Largest message that a server accepts; some methods accept less, see finegrain/rpc/access.py."""
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Largest message that a client accepts: the snapshot of a very large job."""

KEEPALIVE_TIME_MS = 5_000
KEEPALIVE_TIMEOUT_MS = 2_000

_KEEPALIVE = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without this option, a frozen peer is noticed only at the call's deadline.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

HANDSHAKE_TIMEOUT_MS = 10_000
"""After this time a server closes a connection that has not completed its handshake."""

PING_INTERVAL_MS_MIN = 500
"""Shortest interval between a client's pings.

If it pings more often, the server closes the connection (GOAWAY too_many_pings).
"""

SERVER_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_KEEPALIVE,
    ("grpc.so_reuseport", 0),  # else a second server can bind the same port
    # The window of a call stays at 64 KiB until its message is read. With probing, gRPC announces 4
    # MiB, so a whole message would arrive before the caller is identified.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.http2.settings_timeout", HANDSHAKE_TIMEOUT_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_concurrent_streams", 10_000),  # per connection; one caller may watch many tasks
    # By default, gRPC cancels calls while 1,000 wait for their handlers to start. When a resource
    # manager restarts, thousands of executors call at once.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 40_000),
)

_STREAMING = (
    ("finegrain.v1.ResourceManagerService", "WatchJob"),
    ("finegrain.v1.TaskExecutorService", "WatchTask"),
    ("finegrain.v1.TaskExecutorService", "WriteTaskInput"),
)
_SERVICES = (
    "finegrain.v1.ResourceManagerService",
    "finegrain.v1.ClusterService",
    "finegrain.v1.TaskExecutorService",
    "finegrain.v1.JobMasterService",
)

SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                # All unary calls may be repeated: the ids in them make them idempotent.
                "name": [{"service": service} for service in _SERVICES],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            },
            # Only the caller of a stream knows its position, so it resumes the stream itself.
            {"name": [{"service": service, "method": method} for service, method in _STREAMING]},
        ]
    }
)

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # This is also the time limit of one attempt to connect: a busy host needs more than 100 ms.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_send_message_length", ANSWER_BYTES_MAX),  # the server rejects larger messages
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # so that one channel's backoff does not delay others
    ("grpc.enable_retries", 1),
    ("grpc.service_config", SERVICE_CONFIG),
)


def open_channel(
    address: str,
    *,
    tls: TlsOptions | None = None,
    token: str | None = None,
    insecure: bool = False,
    leave_frozen_after_s: float | None = None,
) -> grpc.aio.Channel:
    """Opens an asyncio channel, which connects on first use and reconnects by itself.

    Unary calls get a deadline of `DEFAULT_DEADLINE_S` unless they have their own. Every call
    carries the token.

    Args:
        address: "host:port" of the server.
        tls: certificate and key files; None: no TLS.
        token: sent with every call.
        insecure: if true, allows sending the token beyond loopback without TLS.
        leave_frozen_after_s: for callers that switch to another address on failure. The channel
            gives up a frozen peer after this time, at least 2 s, and does not retry calls.

    Raises:
        InvalidArgument: the address is malformed.
        ConfigurationError: a token would be sent beyond loopback without TLS, or a TLS file cannot
            be read.
    """
    check_token_is_safe(address, tls=tls, token=token, insecure=insecure)
    options = _options(tls, leave_frozen_after_s)
    if tls is None:
        inner = grpc.aio.insecure_channel(address, options=options)
    else:
        inner = grpc.aio.secure_channel(address, channel_credentials(tls), options=options)
    return _TokenChannel(inner, _token_metadata(token))


def open_blocking_channel(
    address: str,
    *,
    tls: TlsOptions | None = None,
    token: str | None = None,
    insecure: bool = False,
) -> grpc.Channel:
    """Opens a channel for blocking callers; see `open_channel`."""
    check_token_is_safe(address, tls=tls, token=token, insecure=insecure)
    options = _options(tls)
    if tls is None:
        inner = grpc.insecure_channel(address, options=options)
    else:
        inner = grpc.secure_channel(address, channel_credentials(tls), options=options)
    return _BlockingTokenChannel(inner, _token_metadata(token))


def check_token_is_safe(
    address: str, *, tls: TlsOptions | None, token: str | None, insecure: bool
) -> None:
    """Checks that a token would not be sent over a network without TLS.

    Args:
        address: "host:port" of the server.
        tls: TLS settings; None: no TLS.
        token: the token, or None.
        insecure: if true, allows sending the token without TLS.

    Raises:
        InvalidArgument: the address is malformed.
        ConfigurationError: there is a token and no TLS, and the address is not loopback; `insecure`
            allows this.
    """
    # A malformed address is reported as such, even if there is no token to protect.
    parse_address(address)
    if token is not None and tls is None and not insecure and not is_loopback(address):
        raise ConfigurationError(
            f"the token would be sent to {address} without encryption; set up TLS (--tls-ca), or "
            "pass --insecure if the network is trusted",
            details={"address": address},
        )


def channel_credentials(tls: TlsOptions) -> grpc.ChannelCredentials:
    """Returns the TLS credentials of a client.

    Raises:
        ConfigurationError: a file cannot be read, or only one of certificate and key is given.
    """
    if (tls.certificate is None) != (tls.key is None):
        raise ConfigurationError("a TLS certificate and its key must be set together")
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca),
        private_key=_read(tls.key),
        certificate_chain=_read(tls.certificate),
    )


def server_credentials(tls: TlsOptions) -> grpc.ServerCredentials:
    """Returns the TLS credentials of a server.

    The server requires client certificates if `tls.ca` is set.

    Raises:
        ConfigurationError: a file is missing or cannot be read.
    """
    key, certificate = _read(tls.key), _read(tls.certificate)
    if key is None or certificate is None:
        raise ConfigurationError("TLS for a server needs a certificate and a key")
    return grpc.ssl_server_credentials(
        [(key, certificate)],
        root_certificates=_read(tls.ca),
        require_client_auth=tls.ca is not None,
    )


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"the TLS file {path} cannot be read: {error.strerror}", details={"path": path}
        ) from None


def _options(
    tls: TlsOptions | None, leave_frozen_after_s: float | None = None
) -> list[tuple[str, int | str]]:
    options = list(CHANNEL_OPTIONS)
    if leave_frozen_after_s is not None:
        # gRPC sends the ping after half of the time. The answer must arrive within the other half.
        half_ms = max(2 * PING_INTERVAL_MS_MIN, round(leave_frozen_after_s * 500))
        sooner = (
            "grpc.keepalive_time_ms",
            "grpc.keepalive_timeout_ms",
            "grpc.http2.ping_timeout_ms",
        )
        # The channel must not repeat calls by itself: its caller tries another address instead.
        changed = {**dict.fromkeys(sooner, half_ms), "grpc.enable_retries": 0}
        options = list((dict(options) | changed).items())
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def _token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return ((AUTHORIZATION, f"Bearer {token}"),) if token else ()


class _Call:
    """A gRPC multi-callable that adds the token, and a deadline if one is configured.

    An interceptor could do the same, but grpc.aio runs every intercepted call in a separate task,
    which is slower.
    """

    def __init__(self, inner: Any, extra: Sequence[tuple[str, str]], deadline_s: float | None):
        self._inner = inner
        self._extra = extra
        self._deadline_s = deadline_s

    def __call__(self, request: Any = None, **kwargs: Any) -> Any:
        return self._inner(request, **self._filled(kwargs))

    def with_call(self, request: Any, **kwargs: Any) -> Any:
        return self._inner.with_call(request, **self._filled(kwargs))

    def future(self, request: Any, **kwargs: Any) -> Any:
        return self._inner.future(request, **self._filled(kwargs))

    def _filled(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if kwargs.get("timeout") is None:
            # For streams this is None: a stream has no deadline, and ends when its caller stops
            # reading.
            kwargs["timeout"] = self._deadline_s
        if self._extra:
            kwargs["metadata"] = (*self._extra, *(kwargs.get("metadata") or ()))
        return kwargs


class _Wrapping:
    """The common part of both channels: wraps the four kinds of calls."""

    def __init__(self, inner: Any, extra: Sequence[tuple[str, str]]) -> None:
        self._inner = inner
        self._extra = extra

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrap(self._inner.unary_unary, DEFAULT_DEADLINE_S, args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrap(self._inner.unary_stream, None, args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrap(self._inner.stream_unary, None, args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrap(self._inner.stream_stream, None, args, kwargs)

    def _wrap(
        self, make: Callable[..., Any], deadline_s: float | None, args: Any, kwargs: Any
    ) -> _Call:
        return _Call(make(*args, **kwargs), self._extra, deadline_s)


class _TokenChannel(_Wrapping, grpc.aio.Channel):
    async def __aenter__(self) -> _TokenChannel:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._inner.__aexit__(*exc)

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return cast("grpc.ChannelConnectivity", self._inner.get_state(try_to_connect))

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()


class _BlockingTokenChannel(_Wrapping, grpc.Channel):
    def subscribe(self, callback: Callable[..., Any], try_to_connect: bool | None = False) -> None:
        self._inner.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[..., Any]) -> None:
        self._inner.unsubscribe(callback)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> _BlockingTokenChannel:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
