"""Opens gRPC channels with identities and deadlines, and defines the transport settings of both
ends.

The settings were measured on grpcio 1.85. With these settings, a channel soon notices a failed
peer, and soon reconnects to a restarted peer. Callers use the generated stubs on the channels that
this module opens.
"""

from __future__ import annotations

import json
import resource
from typing import Any, cast

import grpc
import grpc.aio

from finegrain.identity import Identity, Role
from finegrain.rpc.addresses import is_loopback, parse_address
from finegrain.rpc.own_certificate import OwnCertificate

__all__ = [
    "CHANNEL_OPTIONS",
    "DEFAULT_DEADLINE_S",
    "MESSAGE_BYTES_MAX",
    "SERVER_OPTIONS",
    "is_loopback",
    "open_channel",
    "parse_address",
]

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
"""If a connection has not completed its handshake after this time, the server closes it."""

CONNECTION_AGE_MAX_MS = 3_600_000
"""After this time, a server asks a client to open a new connection. The time varies by ±10 %, so
that not all clients reconnect at the same time. With the new connection, the server sees whether
the client's certificate was renewed or has expired.
"""
CONNECTION_AGE_GRACE_MS = 600_000
"""After a connection has become too old, its open calls can continue for this time. Streams that
are open then end with UNAVAILABLE, and their callers resume them.
"""
CONNECTION_IDLE_MAX_MS = 900_000
"""After this time without a call, a server closes a connection; the next call opens another."""
CONNECTIONS_MAX = 16_384
"""Maximum number of connections to one port. It is lower if the process is not allowed to open
enough files.
"""

CONNECT_TIME_MAX_MS = 20_000
"""Time limit of one attempt to connect, if there is only one address."""
CONNECT_TIME_OF_SEVERAL_MS = 3_000
"""Time limit of one attempt to connect, if the caller can switch to another address."""

PING_INTERVAL_MS_MIN = 500
"""Shortest interval between a client's pings.

If a client pings more often, the server closes the connection (GOAWAY too_many_pings).
"""

SERVER_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_KEEPALIVE,
    ("grpc.so_reuseport", 0),  # otherwise a second server can bind the same port
    # Without probing, the window of a call stays at 64 KiB until the server reads the message. With
    # probing, gRPC announces 4 MiB, so a whole message would arrive before the caller is
    # identified.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.http2.settings_timeout", HANDSHAKE_TIMEOUT_MS),
    ("grpc.max_connection_age_ms", CONNECTION_AGE_MAX_MS),
    ("grpc.max_connection_age_grace_ms", CONNECTION_AGE_GRACE_MS),
    ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MAX_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_concurrent_streams", 10_000),  # per connection; one caller can watch many tasks
    # By default, gRPC cancels further calls while 1,000 calls wait for their handlers. This
    # limit is too low: when a resource manager restarts, thousands of executors call it at the same
    # time.
    ("grpc.server.max_pending_requests", 8_000),
    ("grpc.server.max_pending_requests_hard_limit", 12_000),
)


def connections_max() -> int:
    """Returns how many connections one port of this process accepts.

    A quarter of the files that the process is allowed to open is left for other ports, databases
    and files.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS_MAX if files < 0 else min(CONNECTIONS_MAX, files * 3 // 4)


_STREAMING = (
    ("finegrain.v1.ResourceManagerService", "WatchJob"),
    ("finegrain.v1.TaskExecutorService", "WatchTask"),
    ("finegrain.v1.TaskExecutorService", "WriteTaskInput"),
)
_SERVICES = (
    "finegrain.v1.ResourceManagerService",
    "finegrain.v1.ClusterService",
    "finegrain.v1.IdentityService",
    "finegrain.v1.TaskExecutorService",
    "finegrain.v1.JobMasterService",
)

SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                # All unary calls can be repeated: the ids in them make them idempotent.
                "name": [{"service": service} for service in _SERVICES],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            },
            # Do not retry streams: only the caller of a stream knows its position, so the caller
            # resumes the stream itself.
            {"name": [{"service": service, "method": method} for service, method in _STREAMING]},
        ]
    }
)

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # This is also the time limit of one attempt to connect. When thousands of clients return to a
    # restarted server, their handshakes take seconds. A client that gave up sooner would only begin
    # again, and the server would have worked without result.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIME_MAX_MS),
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_send_message_length", ANSWER_BYTES_MAX),  # the server rejects larger messages
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # so one channel's backoff does not delay others
    ("grpc.enable_retries", 1),
    ("grpc.service_config", SERVICE_CONFIG),
)


def open_channel(
    address: str,
    own: OwnCertificate,
    server: Identity,
    *,
    leave_frozen_after_s: float | None = None,
) -> grpc.aio.Channel:
    """Opens an asyncio channel, which connects on first use and reconnects by itself.

    The channel sends calls only to a server that proves that it is `server`. A unary call without a
    deadline gets the deadline `DEFAULT_DEADLINE_S`.

    Args:
        address: "host:port" of the server.
        own: the certificate with which the caller proves its identity.
        server: the identity that the server must have.
        leave_frozen_after_s: for callers that switch to another address on failure. The channel
            gives up a frozen peer after this time, at least 2 s, and does not retry calls.

    Raises:
        InvalidArgument: the address is malformed.
        Unauthenticated: the certificate of the caller is not valid now.
    """
    parse_address(address)
    own.check_valid()
    options = _options(own.credentials.who, server, leave_frozen_after_s)
    return _DeadlineChannel(
        grpc.aio.secure_channel(address, own.channel_credentials(), options=options)
    )


def _options(
    caller: Identity, server: Identity, leave_frozen_after_s: float | None = None
) -> list[tuple[str, int | str]]:
    # gRPC compares the name in the server's certificate with this name instead of the address.
    options: dict[str, int | str] = {
        **dict(CHANNEL_OPTIONS),
        "grpc.ssl_target_name_override": server.dns_name,
    }
    # By default, gRPC sends a ping with most answers, to measure the bandwidth of the connection.
    # This makes long streams over slow networks faster, but daemons only make unary calls.
    if caller.role in (Role.RM, Role.EXECUTOR):
        options["grpc.http2.bdp_probe"] = 0
    if leave_frozen_after_s is not None:
        # gRPC sends the ping after half of the given time. The answer must arrive within the other
        # half.
        half_ms = max(2 * PING_INTERVAL_MS_MIN, round(leave_frozen_after_s * 500))
        options |= {
            "grpc.keepalive_time_ms": half_ms,
            "grpc.keepalive_timeout_ms": half_ms,
            "grpc.http2.ping_timeout_ms": half_ms,
            "grpc.min_reconnect_backoff_ms": CONNECT_TIME_OF_SEVERAL_MS,
            # The channel must not repeat calls by itself, because its caller tries another address.
            "grpc.enable_retries": 0,
        }
    return list(options.items())


class _Call:
    """A gRPC multi-callable that adds the configured deadline, if there is one, to each call.

    An interceptor could do the same, but grpc.aio runs every intercepted call in a separate task,
    which is slower.
    """

    def __init__(self, inner: Any, deadline_s: float):
        self._inner = inner
        self._deadline_s = deadline_s

    def __call__(self, request: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self._deadline_s
        return self._inner(request, **kwargs)


class _DeadlineChannel(grpc.aio.Channel):
    """A channel whose unary calls have a deadline. Streams have no deadline: a stream ends when its
    caller stops reading.
    """

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner: Any = inner

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _Call(self._inner.unary_unary(*args, **kwargs), DEFAULT_DEADLINE_S)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.unary_stream(*args, **kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.stream_unary(*args, **kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.stream_stream(*args, **kwargs)

    async def __aenter__(self) -> _DeadlineChannel:
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
