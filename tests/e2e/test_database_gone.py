"""A real PostgreSQL that goes away under real daemons: nothing is acknowledged, no executor is
lost, and everything continues by itself when it is back."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.errors import FinegrainError, Reason, StoreError, Unavailable
from tests.e2e.driving import Daemons, unique
from tests.support.patience import PATIENCE_S
from tests.support.postgresql import PostgresqlServer
from tests.support.postgresql_proxy import Loss, PostgresqlProxy, postgresql_proxy

pytestmark = [pytest.mark.slow, pytest.mark.needs("postgresql")]

LOST_TIMEOUT = ("--lost-timeout", "6s")
AWAY_S = 7  # more than that
SMALL = fg.SlotSpec(cpu_milli=50, memory_bytes=16 * fg.MIB)
TICKER = "i=0; while [ $i -lt 80 ]; do i=$((i+1)); echo $i; sleep 0.2; done; exit 7"
TICKS = b"".join(b"%d\n" % number for number in range(1, 81))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    """A server that runs until all tests of this module have ended, unless a test stops it."""
    made = PostgresqlServer()
    yield made
    made.stop()


@pytest.fixture
async def proxy(server: PostgresqlServer) -> AsyncIterator[PostgresqlProxy]:
    """A proxy to the server, whose connections can be cut."""
    async with postgresql_proxy(server.folder) as made:
        yield made


async def started(daemons: Daemons) -> None:
    """A resource manager and an executor that is ready."""

    def start() -> None:
        name = unique("e2e-db")
        daemons.manager.start(*LOST_TIMEOUT)
        daemons.manager.endpoint()
        daemons.executor(name).start()
        daemons.await_executors(name)

    await asyncio.to_thread(start)


@pytest.fixture
async def daemons(home: Path, server: PostgresqlServer) -> AsyncIterator[Daemons]:
    """Daemons that serve, on a separate database."""
    made = Daemons(home, server.url(server.create_database()))
    await started(made)
    yield made
    sys.stderr.write(made.manager.log[-8000:])  # shown where the test failed
    await asyncio.to_thread(made.clean_up)


@pytest.fixture
async def behind_proxy(
    home: Path, server: PostgresqlServer, proxy: PostgresqlProxy
) -> AsyncIterator[Daemons]:
    """The same, but through the proxy."""
    direct = server.url(server.create_database())
    made = Daemons(home, direct.replace(str(server.folder), str(proxy.folder)))
    await started(made)
    yield made
    sys.stderr.write(made.manager.log[-8000:])  # shown where the test failed
    await asyncio.to_thread(made.clean_up)


async def test_while_the_database_is_away_nothing_is_acknowledged_and_then_all_goes_on(
    daemons: Daemons, server: PostgresqlServer
) -> None:
    manager, executor = daemons.manager, daemons.executors[0]
    patience = fg.connect(daemons.address, credentials=daemons.credentials_file, budget_s=120)
    async with patience as cluster, cluster.job("patient", lease_s=60) as job:
        events = job.events()
        (before,) = await job.request_slots(SMALL)
        slot = await before.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", TICKER])
        epochs = [(await cluster.info()).rm_epoch]
        for at_once in (False, True):  # first an orderly stop, then a crash
            await asyncio.to_thread(server.shut_down, at_once=at_once)
            patient = asyncio.create_task(job.request_slots(SMALL))
            told = await told_meanwhile(daemons, AWAY_S)
            assert all(isinstance(each, Unavailable) for each in told)
            clear = [each for each in told if isinstance(each, StoreError)]  # else it was too slow
            assert {each.reason for each in clear} == {Reason.STORE_UNAVAILABLE}
            assert "check that the server runs" in clear[-1].message
            assert not patient.done()
            server.start_again()  # not in a thread: it would end with it
            (meanwhile,) = await patient
            await (await meanwhile.granted(PATIENCE_S)).release()
            epochs.append((await cluster.info()).rm_epoch)
        result = await task.wait(PATIENCE_S)
        assert (result.stdout, result.exit_code) == (TICKS, 7)
        await slot.release()
        assert epochs == sorted(set(epochs))
        assert manager.runs()
        assert executor.runs()
        told_of = [await anext(events) for _ in range(6)]
        assert [each.sequence for each in told_of] == [1, 2, 3, 4, 5, 6]
        assert await kinds_told(cluster, "executor_lost", "job_ended") == []
    log = daemons.manager.log
    assert log.count('"database_back"') == 2
    assert "Traceback" not in log


async def told_meanwhile(daemons: Daemons, seconds: float) -> list[FinegrainError]:
    """Returns the errors that impatient callers get in `seconds`, one after the other."""
    told: list[FinegrainError] = []
    end = time.monotonic() + seconds
    hasty = fg.connect(daemons.address, credentials=daemons.credentials_file, budget_s=1)
    async with hasty:
        while time.monotonic() < end:
            try:
                await hasty.info()
            except FinegrainError as error:
                told.append(error)
            else:
                assert not told, "it was noticed, and forgotten"
    return told


async def kinds_told(cluster: fg.Cluster, *kinds: str) -> list[str]:
    """Returns the kinds, of the given ones, that are in the cluster's history."""
    history = cluster.events(follow=False)
    return [each.kind async for each in history if each.kind in kinds]


async def test_connections_that_are_cut_again_and_again_cost_nothing_but_time(
    daemons: Daemons, server: PostgresqlServer
) -> None:
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'finegrain'"
    )
    async with daemons.connect() as cluster, cluster.job("under way") as job:
        acknowledged = []
        for _ in range(6):  # more often than a database may refuse in a row
            asking = asyncio.create_task(job.request_slots([SMALL] * 3))
            await asyncio.to_thread(server.execute, cut)
            acknowledged += await asking
            for request in acknowledged[-3:]:
                await (await request.granted(PATIENCE_S)).release()
        assert daemons.manager.runs()
        found = await cluster.requests(job_id=job.job_id, states=[fg.RequestState.RELEASED])
        ids = {each.allocation_id for each in found}
        assert ids == {each.allocation_id for each in acknowledged}
        assert await kinds_told(cluster, "executor_lost", "job_ended") == []


async def test_a_commit_whose_outcome_nobody_knows_is_settled_by_the_repetition(
    behind_proxy: Daemons, proxy: PostgresqlProxy
) -> None:
    async with behind_proxy.connect() as cluster, cluster.job("unsure") as job:
        events = job.events()
        wanted = []
        for loss in (Loss.BEFORE, Loss.AFTER):
            # One commit stores the requests with their orders, and another commit stores the
            # grants.
            for spared in (0, 1):
                proxy.losses = [Loss.NOTHING] * spared + [loss]
                wanted += await job.request_slots([SMALL] * 2)
                for request in wanted[-2:]:
                    await request.granted(PATIENCE_S)
        assert proxy.lost == [Loss.BEFORE] * 2 + [Loss.AFTER] * 2
        assert behind_proxy.manager.runs()
        found = {each.allocation_id: each.state for each in await cluster.requests()}
        assert found == {each.allocation_id: fg.RequestState.GRANTED for each in wanted}
        told = [await anext(events) for _ in wanted]
        assert [each.sequence for each in told] == list(range(1, len(wanted) + 1))
        assert {each.allocation_id for each in told} == set(found)
