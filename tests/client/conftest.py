"""A scripted cluster and a client of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.targets import CREDENTIALS_VARIABLE, MANAGER_VARIABLE
from tests.client.scripted import Scripted, serving
from tests.support.identities import credentials_file


@pytest.fixture(autouse=True)
def alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives every client the identity user/alice; returns the credentials file."""
    file = credentials_file(tmp_path, "user/alice", "127.0.0.1:1")
    monkeypatch.setenv(CREDENTIALS_VARIABLE, str(file))
    monkeypatch.delenv(MANAGER_VARIABLE, raising=False)
    return file


@pytest.fixture
async def servant() -> AsyncIterator[Scripted]:
    servant = Scripted()
    async with serving(servant):
        yield servant


@pytest.fixture
async def cluster(servant: Scripted) -> AsyncIterator[fg.Cluster]:
    async with fg.connect(servant.address, budget_s=10) as cluster:
        yield cluster


@pytest.fixture
async def job(cluster: fg.Cluster) -> AsyncIterator[fg.Job]:
    async with cluster.job("test") as job:
        yield job


@pytest.fixture
async def slot(job: fg.Job) -> fg.Slot:
    (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500))
    return await request.granted(timeout_s=10)
