"""Impostors on the network: a server that is not the manager receives nothing and cannot command
anything.

A task of an ordinary user can listen on any free port, for example on the port of a manager that
has stopped. It may even have a certificate of the cluster: the certificate of a user.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from finegrain.errors import PermissionDenied, Reason, Unavailable
from finegrain.v1 import task_executor_pb2 as te
from tests.support.identities import credentials
from tests.task_executor.service.conftest import Executor, executor_at
from tests.task_executor.service.scripted_rm import (
    OTHER_OWNER,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

IMPOSTORS = ("executor/host-b", "executor/host-a", "user/alice")


@pytest.fixture
async def rm() -> AsyncIterator[ScriptedRM]:
    manager = ScriptedRM()
    await manager.start()
    yield manager
    await manager.stop()


@pytest.fixture
async def executor(rm: ScriptedRM, tmp_path: Path) -> AsyncIterator[Executor]:
    async with executor_at(tmp_path, rm.address) as made:
        await made.start()
        await eventually(lambda: rm.reports, "it reports")
        yield made


class Squatter:
    """A server that keeps what it receives; it uses TLS if it has a certificate."""

    def __init__(self) -> None:
        self.connections = 0
        self.heard = b""

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.heard += data
        writer.close()

    @asynccontextmanager
    async def at(self, address: str, context: ssl.SSLContext | None) -> AsyncIterator[None]:
        host, _, port = address.rpartition(":")

        async with await asyncio.start_server(self.listen, host, int(port), ssl=context):
            yield


def context_of(who: str, folder: Path) -> ssl.SSLContext:
    """Returns the TLS context of a server that accepts any client."""
    shown = credentials(who)
    file = folder / "impostor.pem"
    file.write_text(shown.key + shown.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.parametrize("who", IMPOSTORS)
async def test_a_squatter_with_a_certificate_of_the_cluster_receives_not_one_byte(
    rm: ScriptedRM, executor: Executor, tmp_path: Path, who: str
) -> None:
    await rm.stop()
    squatter, sent = Squatter(), executor.front.agent.state.reports_sent
    async with squatter.at(rm.address, context_of(who, tmp_path)):
        await eventually(lambda: executor.front.agent._link._failures > 0, "it has tried")
    assert squatter.heard == b""
    assert executor.front.agent.state.reports_sent == sent


async def test_a_squatter_without_tls_receives_no_report(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.stop()
    squatter, sent = Squatter(), executor.front.agent.state.reports_sent
    async with squatter.at(rm.address, None):
        await eventually(lambda: squatter.heard, "it has tried")
    assert executor.front.agent.state.reports_sent == sent
    own = executor.front.own.credentials
    # It has received the start of a TLS handshake, which names the expected server and nothing else
    # of the cluster.
    assert squatter.heard.startswith(b"\x16\x03")
    for secret in (own.key, own.certificate, "host-a", executor.front.keeper.identity.instance_id):
        assert secret.encode() not in squatter.heard


@pytest.mark.parametrize("who", ["executor/host-b", "executor/host-a", "user/alice", "operator/o"])
async def test_a_false_manager_commands_nothing(
    rm: ScriptedRM, executor: Executor, who: str
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("sleep", "1000")
    rm.identity = who
    for command in (
        rm.free(free(), rm_epoch=1 << 40),
        rm.resize(1, cpu_milli=100),
        rm.allocate(allocation("theirs")),
    ):
        with pytest.raises(PermissionDenied) as caught:
            await command
        assert caught.value.reason is Reason.ROLE_MISSING
    assert executor.front.keeper.fence.rm_epoch == 1
    assert [slot.spec.allocation_id for slot in executor.front.keeper.table] == ["slot"]
    assert not executor.helper.exits


async def test_the_certificate_of_another_user_cannot_touch_a_task(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("sleep", "1000")
    stranger = JobMaster(executor.front.address, OTHER_OWNER)
    for call in (
        stranger.cancel(),
        stranger.signal(9),
        stranger.watch(),
        stranger.write((0, b"x", False)),
        stranger.tasks(),
        stranger.submit("true", task_id="second"),
        stranger.call("SetTaskPeers", te.SetTaskPeersRequest(task_id="task")),
    ):
        with pytest.raises(PermissionDenied) as caught:
            await call
        assert caught.value.reason is Reason.NOT_OWNER
    assert not executor.helper.exits


async def test_a_job_master_does_not_take_another_executor_for_its_own(
    rm: ScriptedRM, executor: Executor
) -> None:
    """Another program on an executor's port does not get the job master's calls."""
    await rm.allocate(allocation())
    master = JobMaster(executor.front.address, executor_id="host-b")
    with pytest.raises(Unavailable):
        await master.submit("true")
    assert not executor.helper.specs
