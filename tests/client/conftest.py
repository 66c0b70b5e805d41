"""A scripted cluster and a client of it."""

from collections.abc import AsyncIterator

import pytest

import finegrain_client as fg
from tests.client.scripted import Scripted, serving


@pytest.fixture
async def servant() -> AsyncIterator[Scripted]:
    servant = Scripted()
    async with serving(servant):
        yield servant


@pytest.fixture
async def cluster(servant: Scripted) -> AsyncIterator[fg.Cluster]:
    async with fg.connect(servant.address, token="t" * 20, budget_s=10) as cluster:
        yield cluster


@pytest.fixture
async def job(cluster: fg.Cluster) -> AsyncIterator[fg.Job]:
    async with cluster.job("test") as job:
        yield job


@pytest.fixture
async def slot(job: fg.Job) -> fg.Slot:
    (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500))
    return await request.granted(timeout_s=10)
