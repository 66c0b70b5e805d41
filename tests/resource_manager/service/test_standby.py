"""Tests of a standby: what it answers while it waits, and that it takes over."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc

from finegrain.errors import Reason, Unavailable
from finegrain.logs import configure_logging
from finegrain.options import ListenOptions, LogOptions
from finegrain.v1 import cluster_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.main import EXIT_FAILED, EXIT_OK, EXIT_REPLACED, serve
from resource_manager.options import ResourceManagerOptions
from resource_manager.service.engine_driver import EngineDriver
from resource_manager.service.executor_link import ExecutorLinks
from resource_manager.service.identities.own import FOLDER
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Listener, Runner
from resource_manager.service.standby import Leadership
from resource_manager.storage.store import NotLeader, StoreAway
from tests.resource_manager.service.test_runner import GatedStore
from tests.support.patience import PATIENCE_S
from tests.support.postgresql import PostgresqlServer
from tests.support.rm_service import (
    RunningRm,
    ScriptedJob,
    endpoint_of,
    eventually,
    fetch,
    refusal,
    running_rm,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    started = PostgresqlServer()
    yield started
    started.stop()


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/books.db"
    server: PostgresqlServer = request.getfixturevalue("server")
    return server.url(server.create_database())


def another(tmp_path: Path, url: str, name: str = "b", **options: Any) -> Any:
    """Runs a resource manager on the same database, with the authority of the first."""
    (tmp_path / name).mkdir(mode=0o700)
    shutil.copytree(tmp_path / "a" / FOLDER, tmp_path / name / FOLDER)
    return running_rm(tmp_path / name, database_url=url, **options)


async def health(rm: RunningRm) -> int:
    stub: Any = health_pb2_grpc.HealthStub(rm.channel("metrics"))
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    return int(answer.status)


async def test_a_standby_says_who_leads_and_does_nothing(tmp_path: Path, url: str) -> None:
    async with (
        running_rm(tmp_path / "a", database_url=url, standby=True) as leader,
        another(tmp_path, url, standby=True) as standby,
    ):
        assert await health(leader) == SERVING
        for call in (
            standby.rm.RegisterJob(rm_pb2.RegisterJobRequest()),
            standby.cluster.GetCluster(cluster_pb2.GetClusterRequest()),
            standby.rm_as("executor/a").ReportSlots(rm_pb2.ReportSlotsRequest()),
            anext(aiter(standby.rm.WatchJob(rm_pb2.WatchJobRequest()))),
        ):
            error = await refusal(call)
            assert isinstance(error, Unavailable)
            assert error.reason is Reason.NOT_LEADER
            assert error.details == {"leader_address": leader.address}
            assert f"leads at {leader.address}" in error.message
        assert await health(standby) == NOT_SERVING
        assert await fetch(standby.metrics_address, "/readyz") == (503, "standby\n")
        assert "finegrain_rm_leader 0.0" in (await fetch(standby.metrics_address, "/metrics"))[1]
        assert "finegrain_rm_leader 1.0" in (await fetch(leader.metrics_address, "/metrics"))[1]
        assert endpoint_of(tmp_path / "b")["address"] == standby.address


async def test_it_tells_when_to_come_back_and_that_here_is_not_the_place(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/books.db"
    async with (
        running_rm(tmp_path / "a", database_url=url),
        another(tmp_path, url, standby=True) as standby,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            await standby.rm.RegisterJob(rm_pb2.RegisterJobRequest())
    call: Any = caught.value
    trailing = dict(call.trailing_metadata())
    assert trailing["grpc-retry-pushback-ms"] == "-1"  # the channel does not retry here
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    kinds = [each.TypeName() for each in status.details]
    assert error_details_pb2.RetryInfo.DESCRIPTOR.full_name in kinds


async def test_callers_without_the_role_do_not_learn_who_leads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/books.db"
    async with (
        running_rm(tmp_path / "a", database_url=url) as leader,
        another(tmp_path, url, standby=True) as standby,
    ):
        error = await refusal(standby.rm_as("metrics").RegisterJob(rm_pb2.RegisterJobRequest()))
        assert error.reason is Reason.ROLE_MISSING
        assert leader.address not in str(error.details) + error.message


async def test_it_takes_over_when_the_leader_leaves(tmp_path: Path, url: str) -> None:
    async with AsyncExitStack() as stack:
        async with running_rm(tmp_path / "a", database_url=url) as leader:
            job = await ScriptedJob(leader).register()
            second = await stack.enter_async_context(another(tmp_path, url, standby=True))

        async def serves() -> bool:
            return await health(second) == SERVING

        await eventually(serves)
        stream = job.watch(rm=second)
        await stream.read()  # the job is known, and so is its owner
        stream.cancel()
        answer = await second.cluster.GetCluster(cluster_pb2.GetClusterRequest())
        assert answer.rm_epoch == 2
        assert await fetch(second.metrics_address, "/readyz") == (200, "ok\n")
        assert "finegrain_rm_leader 1.0" in (await fetch(second.metrics_address, "/metrics"))[1]


async def test_without_standby_a_second_one_is_refused_with_the_way_out(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_rm(tmp_path / "a", database_url=url):
        options = ResourceManagerOptions(
            tmp_path / "b", url, ListenOptions("127.0.0.1:0", metrics_address="")
        )
        configure_logging(LogOptions(format="json"))
        assert await serve(options) == EXIT_FAILED
    told = capsys.readouterr().err
    assert "is in use by" in told
    assert "start this one with --standby" in told


async def test_one_that_was_replaced_does_not_call_itself_the_next_leader() -> None:
    """Otherwise callers would wait for it, instead of trying another one."""
    metrics = ResourceManagerMetrics("test")
    driver = EngineDriver(GatedStore(), EngineSettings(), metrics, holder="test")
    runner = Runner(driver, metrics)
    leadership = Leadership(runner, metrics)
    leadership.address, leadership.standing_by = "rm-a:7170", True
    driver.lead()
    taking = leadership.refusal()
    assert taking is not None
    assert taking.details == {"leader_address": "rm-a:7170"}
    leadership.begin()
    assert leadership.refusal() is None
    runner.fatal.set_result(NotLeader("another leads"))
    leadership.end()
    replaced = leadership.refusal()
    assert replaced is not None
    assert replaced.reason is Reason.NOT_LEADER
    assert replaced.details == {}


@pytest.mark.parametrize(
    ("leader", "page", "linked"),
    [
        pytest.param("rm-a.example:7170", "https://rm-a.example:7172", True, id="other hosts"),
        pytest.param("rm-a.example:7170", "https://finegrain.example.org", True, id="a proxy"),
        pytest.param("rm-a.example:7170", "https://127.0.0.1:7172", False, id="only its own host"),
        pytest.param("127.0.0.1:7170", "https://127.0.0.1:7172", True, id="one host"),
        pytest.param("127.0.0.1:7170", "https://[::1]:7172", True, id="one host, IPv6"),
        pytest.param("rm-a.example:7170", "https://[::1]:7172", False, id="loopback, IPv6"),
        pytest.param("rm-a.example:7170", "", False, id="no page"),
    ],
)
async def test_a_standby_names_only_a_page_that_browsers_can_open(
    leader: str, page: str, linked: bool
) -> None:
    metrics = ResourceManagerMetrics("test")
    driver = EngineDriver(GatedStore(), EngineSettings(), metrics, holder="test")
    leadership = Leadership(Runner(driver, metrics), metrics)
    leadership.standing_by = True
    leadership.leader_address, leadership.leader_page = leader, page
    assert leadership.leading_page == (page if linked else "")
    driver.lead()
    assert leadership.leading_page == ""  # this process leads now


async def test_a_standby_without_the_authority_of_the_leader_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would take over one day, and no client could authenticate."""
    url = f"sqlite:///{tmp_path}/books.db"
    async with running_rm(tmp_path / "a", database_url=url, standby=True):
        listen = ListenOptions("127.0.0.1:0", metrics_address="")
        given = ResourceManagerOptions(tmp_path / "b", url, listen, standby=True)
        configure_logging(LogOptions(format="json"))
        for _ in range(2):  # files that it made are not left behind
            assert await serve(given) == EXIT_FAILED
            assert "a standby needs the certificates of its leader" in capsys.readouterr().err


async def test_the_address_that_is_told_can_be_another_than_the_bound_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/books.db"
    async with (
        running_rm(tmp_path / "a", database_url=url, advertise_address="rm-a.example:7170"),
        another(tmp_path, url, standby=True) as standby,
    ):
        error = await refusal(standby.rm.RegisterJob(rm_pb2.RegisterJobRequest()))
        assert error.details["leader_address"] == "rm-a.example:7170"


@pytest.mark.parametrize(
    ("address", "advertised", "word"),
    [
        pytest.param("127.0.0.1:0", "0.0.0.0:7170", "wildcard", id="a wildcard"),
        pytest.param("0.0.0.0:0", "", "--advertise", id="nothing to tell others"),
    ],
)
async def test_a_standby_needs_an_address_that_others_can_use(
    tmp_path: Path,
    address: str,
    advertised: str,
    word: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    listen = ListenOptions(address, metrics_address="")
    configure_logging(LogOptions(format="json"))
    given = ResourceManagerOptions(
        tmp_path / "a", listen=listen, standby=True, advertise_address=advertised
    )
    assert await serve(given) == EXIT_FAILED
    assert word in capsys.readouterr().err


@pytest.mark.needs("postgresql")
async def test_a_standby_that_led_and_was_replaced_begins_anew(
    tmp_path: Path, server: PostgresqlServer
) -> None:
    database = server.create_database()
    async with running_rm(tmp_path / "a", database_url=server.url(database), standby=True) as rm:
        taken = "UPDATE leadership SET rm_epoch = rm_epoch + 1, holder = 'another'"
        await asyncio.to_thread(server.execute, taken, database)
        done, _ = await asyncio.wait({rm.task}, timeout=PATIENCE_S)
        assert done
        assert rm.task.result() == EXIT_REPLACED


async def test_one_that_is_told_to_end_while_it_is_replaced_does_not_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = ListenOptions("127.0.0.1:0", metrics_address="")
    given = ResourceManagerOptions(tmp_path, listen=listen, standby=True)
    serves = asyncio.Event()
    close = ExecutorLinks.stop

    loop, handled = asyncio.get_running_loop(), asyncio.Event()
    add_handler = loop.add_signal_handler

    def noted(number: int, handler: Callable[[], None]) -> None:
        def handle() -> None:
            handler()
            handled.set()

        add_handler(number, handle)

    async def told_to_end(links: ExecutorLinks) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await handled.wait()
        await close(links)

    monkeypatch.setattr(loop, "add_signal_handler", noted)
    monkeypatch.setattr(ExecutorLinks, "stop", told_to_end)
    task = asyncio.create_task(
        serve(given, ready=lambda *_: serves.set(), handle_signals=True), name="rm"
    )
    async with asyncio.timeout(PATIENCE_S):
        await serves.wait()
        # a different database is there now
        (tmp_path / "finegrain.db").rename(tmp_path / "taken.db")
        assert await task == EXIT_OK


@pytest.mark.needs("postgresql")
async def test_a_standby_sits_out_a_database_that_goes_away(
    tmp_path: Path, server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, start = 0, Runner.start

    async def counted(runner: Runner, listener: Listener) -> int:
        nonlocal failures
        try:
            return await start(runner, listener)
        except StoreAway:
            failures += 1
            raise

    monkeypatch.setattr(Runner, "start", counted)
    database = server.create_database()
    url = server.url(database)
    async with AsyncExitStack() as stack:
        async with running_rm(tmp_path / "a", database_url=url):
            second = await stack.enter_async_context(another(tmp_path, url, standby=True))
            closed = f"ALTER DATABASE {database} ALLOW_CONNECTIONS false"
            await asyncio.to_thread(server.execute, closed)
            sessions = f"FROM pg_stat_activity WHERE datname = '{database}'"
            await asyncio.to_thread(server.execute, f"SELECT pg_terminate_backend(pid) {sessions}")
            await eventually(lambda: failures >= 2, what="it tries while the database is away")
            assert not second.task.done()
        opened = f"ALTER DATABASE {database} ALLOW_CONNECTIONS true"
        await asyncio.to_thread(server.execute, opened)

        async def serves() -> bool:
            return await health(second) == SERVING

        await eventually(serves)
