"""Tests that the list of providers shows shapes, provisions with their causes, and what waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from finegrain.errors import Reason
from finegrain.resources import GIB
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.explain.provisions import ProvidedView, ProvidersView
from resource_manager.engine.model.entities import Provision
from resource_manager.service.wire.encoding import write
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    next_events,
    running_rm,
    slot_request,
)

PROVIDERS = """
[limits]
max = { cpu = 4 }
idle_timeout = "1h"

[[shape]]
name = "far"
provider = "command"
total = { cpu = 4, memory = "8GiB" }
labels = { zone = "b" }
cost = 1.5
count_max = 3
[shape.command]
start = ["true"]
stop = ["true"]

[[shape]]
name = "huge"
provider = "command"
total = { cpu = 64, memory = "64GiB" }
[shape.command]
start = ["true"]
stop = ["true"]
"""
STARTED = cluster_pb2.PROVIDED_EXECUTOR_STATE_STARTED
REGISTERED = cluster_pb2.PROVIDED_EXECUTOR_STATE_REGISTERED


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    file = tmp_path / "providers.toml"
    file.write_text(PROVIDERS)
    async with running_rm(tmp_path / "rm", providers_file=file) as running:
        yield running


async def look(rm: RunningRm) -> cluster_pb2.ListProvidersResponse:
    answer: cluster_pb2.ListProvidersResponse
    answer = await rm.cluster_as_user.ListProviders(cluster_pb2.ListProvidersRequest())
    return answer


async def test_what_is_asked_for_is_listed_from_the_wish_to_the_arrival(rm: RunningRm) -> None:
    shapes = (await look(rm)).shapes
    assert [each.name for each in shapes] == ["far", "huge"]
    assert (shapes[0].provider, shapes[0].cost, shapes[0].count_max) == ("command", 1.5, 3)
    assert (shapes[0].total.cpu_milli, shapes[0].total.memory_bytes) == (4000, 8 * GIB)
    assert dict(shapes[0].labels) == {"zone": "b"}

    job = await ScriptedJob(rm).register()
    stream = job.watch()
    await job.request(slot_request("here", cpu_milli=3000), slot_request("more", cpu_milli=3500))

    async def started() -> cluster_pb2.ListProvidersResponse | None:
        found = await look(rm)
        return found if [each.state for each in found.executors] == [STARTED] else None

    found = await eventually(started)
    (asked,) = found.executors
    assert (asked.shape, asked.planned_requests) == ("far", 1)
    assert asked.cause
    assert "3 cpu" in asked.planned[0]
    assert asked.ask_time.seconds < asked.deadline_time.seconds
    assert dict(found.shapes[0].executors) == {"started": 1}
    assert (found.maximum.cpu_milli, found.present.cpu_milli) == (4000, 4000)
    assert found.idle_timeout.seconds == 3600
    (left,) = found.unplanned
    assert left.startswith("1 request of 3.5 cpu")
    assert "maximum" in left

    explained = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="here"))
    assert explained.primary_reason == Reason.WAITING_EXECUTOR
    assert explained.planned_on == asked.executor_id
    assert asked.executor_id in explained.summary

    async with ScriptedExecutor(rm, asked.executor_id, labels={"zone": "b"}):
        (offer,) = await next_events(stream, 1)
        assert (offer.allocation_id, offer.state) == ("here", slots_pb2.REQUEST_STATE_GRANTED)
        (come,) = (await look(rm)).executors
        assert (come.state, come.planned_requests) == (REGISTERED, 0)
        assert not come.HasField("deadline_time")
    stream.cancel()


async def test_without_providers_all_is_empty(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        found = await look(rm)
        assert not found.shapes
        assert not found.executors
        assert not found.unplanned
        assert not found.HasField("idle_timeout")


def test_every_state_of_what_was_asked_for_has_its_word() -> None:
    for state in ProvidedExecutorState:
        provision = Provision("far-1-1", "far", 1, "because", 1_000, state, "handle", "text")
        view = ProvidersView([], [ProvidedView(provision, None, (), 0)], {}, {}, {}, 0, [])
        (message,) = write(cluster_pb2.ListProvidersResponse, view).executors
        word = cluster_pb2.ProvidedExecutorState.Name(message.state)
        assert word == f"PROVIDED_EXECUTOR_STATE_{state}"
        assert (message.handle, message.message) == ("handle", "text")
