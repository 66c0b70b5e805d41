"""A connection without messages stays open, although both ends send keep-alive pings."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from finegrain.rpc.channels import (
    CHANNEL_OPTIONS,
    KEEPALIVE_TIME_MS,
    PING_INTERVAL_MS_MIN,
    SERVER_OPTIONS,
)
from tests.support.identities import identity, own

PING_INTERVAL_MS = 2 * PING_INTERVAL_MS_MIN  # of callers that want to leave a frozen server soon
PINGS = 5  # a server with the default limit closes the connection at the third ping


@pytest.mark.slow
@pytest.mark.full
async def test_an_idle_connection_is_not_hung_up() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    port = server.add_secure_port("127.0.0.1:0", own("rm").server_credentials())
    await server.start()
    others = [(name, value) for name, value in CHANNEL_OPTIONS if "keepalive_time" not in name]
    named = ("grpc.ssl_target_name_override", identity("rm").dns_name)
    options = [("grpc.keepalive_time_ms", PING_INTERVAL_MS), named, *others]
    shown = own("user/alice").channel_credentials()
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", shown, options=options) as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
            changed = channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(changed, PINGS * PING_INTERVAL_MS / 1000)
    finally:
        await server.stop(0)


def test_servers_take_pings_more_often_than_callers_send_them() -> None:
    taken_ms = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert 2 * int(taken_ms) <= PING_INTERVAL_MS < KEEPALIVE_TIME_MS
