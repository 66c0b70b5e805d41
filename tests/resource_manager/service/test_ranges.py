"""Tests of ranges over real gRPC: accepted as a whole, stored in few rows, and completed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.resources import GIB
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.lifecycle.range_ends import RangeMoves
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    next_events,
    profile,
    refusal,
    running_rm,
    slot_request,
)

GRANTED = slots_pb2.REQUEST_STATE_GRANTED
PENDING = slots_pb2.REQUEST_STATE_PENDING
CANCELLED = slots_pb2.REQUEST_STATE_CANCELLED
RELEASED = slots_pb2.REQUEST_STATE_RELEASED
LOST = slots_pb2.REQUEST_STATE_LOST


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path) as running:
        yield running


def request_range(
    range_id: str = "r", first_index: int = 0, count: int = 1_000, **more: Any
) -> slots_pb2.RequestRange:
    given: dict[str, Any] = {"profile": profile(), "allow_pending": True} | more
    asked = slots_pb2.SlotRequest(**given)
    return slots_pb2.RequestRange(
        range_id=range_id, first_index=first_index, count=count, request=asked
    )


def members(first_index: int, count: int, range_id: str = "r") -> slots_pb2.RangeMembers:
    return slots_pb2.RangeMembers(range_id=range_id, first_index=first_index, count=count)


async def ask(job: ScriptedJob, *ranges: slots_pb2.RequestRange, requests: Any = ()) -> list[str]:
    """Submits ranges; returns the reasons of the outcomes, empty if accepted."""
    answer = await job.rm.rm.RequestResource(
        rm_pb2.RequestResourceRequest(job_id=job.job_id, ranges=ranges, requests=requests),
    )
    assert [each.id for each in answer.range_results] == [each.range_id for each in ranges]
    assert len(answer.results) == len(requests)
    return [each.error.reason for each in answer.range_results]


async def cancel(job: ScriptedJob, *some: slots_pb2.RangeMembers) -> list[str]:
    answer = await job.rm.rm.CancelRequests(
        rm_pb2.CancelRequestsRequest(job_id=job.job_id, ranges=some)
    )
    return [each.error.reason for each in answer.range_results]


async def listed(rm: RunningRm, **what: Any) -> list[tuple[str, int, int]]:
    answer = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest(**what))
    return [(each.allocation_id, max(1, each.count), each.state) for each in answer.requests]


def row_counts(folder: Path) -> dict[str, int]:
    with sqlite3.connect(next(folder.glob("*.db"))) as database:
        return {
            table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("requests", "request_ranges", "slots", "job_events", "cluster_events")
        }


async def test_a_million_members_are_one_call_and_some_rows(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    before = row_counts(rm.state_dir)
    assert await ask(job, request_range(count=1_000_000)) == [""]
    after = row_counts(rm.state_dir)
    assert (after["requests"], after["request_ranges"]) == (0, 100)
    assert after["cluster_events"] - before["cluster_events"] <= 100
    assert await listed(rm, job_id=job.job_id) == [
        (f"r.{first}", 10_000, PENDING) for first in range(0, 1_000_000, 10_000)
    ]
    assert await ask(job, request_range(count=1_000_000)) == [""]  # the same call again
    assert row_counts(rm.state_dir) == after
    refused = await refusal(ask(job, request_range("s", count=1)))
    assert refused.details["job_requests_max"] == "1000000"
    assert await cancel(job, members(0, 500_000)) == [""]
    stream = job.watch(1)
    events = await next_events(stream, 50)
    assert {(each.state, each.count) for each in events} == {(CANCELLED, 10_000)}
    stream.cancel()
    assert await ask(job, request_range("s", count=500_000)) == [""]


async def test_ranges_stand_in_line_behind_the_requests_of_their_call(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    many = [slot_request(f"p{n}", allow_pending=True) for n in range(1_500)]
    assert await ask(job, request_range(count=3), request_range("s", 7, 2), requests=many) == [
        "",
        "",
    ]
    found = await listed(rm, job_id=job.job_id, page_size=2_000)
    assert [name for name, _, _ in found[:1_500]] == [each.allocation_id for each in many]
    assert found[1_500:] == [("r.0", 3, PENDING), ("s.7", 2, PENDING)]


async def test_a_list_shows_runs_of_members_who_stand_alike(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    await ask(job, request_range(count=30))
    await cancel(job, members(3, 2), members(10, 5))
    assert await listed(rm) == [("r.0", 3, PENDING), ("r.5", 5, PENDING), ("r.15", 15, PENDING)]
    assert await listed(rm, states=[CANCELLED]) == [("r.3", 2, CANCELLED), ("r.10", 5, CANCELLED)]
    assert await listed(rm, allocation_ids=["r.4"], states=[CANCELLED]) == [("r.4", 1, CANCELLED)]
    pages = []
    token = ""
    while True:
        answer = await rm.cluster.ListRequests(
            cluster_pb2.ListRequestsRequest(page_size=1, page_token=token)
        )
        pages += [(each.allocation_id, each.count) for each in answer.requests]
        if not (token := answer.next_page_token):
            break
    assert pages == [("r.0", 3), ("r.5", 5), ("r.15", 15)]
    # By a prefix of the ids, which may divide an interval.
    found = await listed(rm, allocation_ids=["r."])
    assert [name for name, _, _ in found] == ["r.0", "r.5", "r.15"]


async def test_members_are_found_by_the_end_of_the_id_of_their_range(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    await ask(job, request_range("0193-a1b2c3d4", count=30))
    assert await listed(rm, allocation_ids=["b2c3d4.17"]) == [("0193-a1b2c3d4.17", 1, PENDING)]
    assert await listed(rm, allocation_ids=["b2c3d4.30"]) == []
    assert await listed(rm, allocation_ids=["b2c3d4"]) == [("0193-a1b2c3d4.0", 30, PENDING)]


async def test_members_name_their_range_wherever_they_stand(rm: RunningRm) -> None:
    """A request whose id only looks like a member's names no range."""
    job = await ScriptedJob(rm).register()
    async with ScriptedExecutor(rm, cpu_milli=1_000):
        stream = job.watch()
        other = slot_request("r.7", allow_pending=True)
        await ask(job, request_range(count=3), requests=[other])
        await cancel(job, members(2, 1))
        await next_events(stream, 3)
        stream.cancel()
        answer = await rm.cluster.ListRequests(
            cluster_pb2.ListRequestsRequest(states=[PENDING, GRANTED, CANCELLED])
        )
        assert {each.allocation_id: each.range_id for each in answer.requests} == {
            "r.0": "r",
            "r.1": "r",
            "r.2": "r",
            "r.7": "",
        }
        stream = job.watch()
        first = await stream.read()
        assert {each.range_id for each in first.snapshot.requests} == {"r", ""}
        stream.cancel()


async def test_a_member_is_explained_resized_and_released_like_any_request(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    stream = job.watch()
    async with ScriptedExecutor(rm, cpu_milli=1_000):
        await ask(job, request_range(count=5))
        granted = await next_events(stream, 2)
        assert {each.allocation_id for each in granted} == {"r.0", "r.1"}
        waiting = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="r.4"))
        assert (waiting.request.state, waiting.primary_reason) == (PENDING, "WAITING_CAPACITY")
        assert await listed(rm) == [("r.0", 1, GRANTED), ("r.1", 1, GRANTED), ("r.2", 3, PENDING)]
        await job.resize("r.0", profile=profile(400))
        (resized,) = await next_events(stream, 1)
        assert resized.reason == "RESIZED"
        (result,) = await job.release("r.0")
        assert not result.HasField("error")
        told = await next_events(stream, 2)
        assert [(each.allocation_id, each.state) for each in told] == [
            ("r.0", RELEASED),
            ("r.2", GRANTED),
        ]
        over = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="r.0"))
        assert over.request.state == RELEASED
        (unknown,) = await job.release("r.5")
        assert unknown.error.reason == "ALLOCATION_UNKNOWN"
    stream.cancel()


async def test_members_with_slots_are_taken_back_some_at_a_time(
    rm: RunningRm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RangeMoves.give_up_members, "__kwdefaults__", {"most": 3})
    job = await ScriptedJob(rm).register()
    stream = job.watch()
    async with ScriptedExecutor(rm, cpu_milli=4_000) as executor:
        await ask(job, request_range(count=20))
        await next_events(stream, 8)
        assert await cancel(job, members(2, 100)) == [""]
        told = await next_events(stream, 7)
        assert [(each.allocation_id, each.count, each.state) for each in told] == [
            ("r.8", 12, CANCELLED),
            *((f"r.{n}", 0, RELEASED) for n in range(2, 8)),
        ]
        await eventually(lambda: sorted(executor.slots) == ["r.0", "r.1"])
        assert await listed(rm) == [("r.0", 1, GRANTED), ("r.1", 1, GRANTED)]
    stream.cancel()


async def test_the_end_of_a_job_ends_members_wherever_they_stand(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    stream = job.watch()
    async with ScriptedExecutor(rm, cpu_milli=2_000) as executor:
        await ask(job, request_range(count=20_000))
        await next_events(stream, 4)
        await rm.rm.EndJob(rm_pb2.EndJobRequest(job_id=job.job_id))
        told = await next_events(stream, 6)
        assert Counter((each.state, max(1, each.count)) for each in told) == {
            (CANCELLED, 9_996): 1,
            (CANCELLED, 10_000): 1,
            (RELEASED, 1): 4,
        }
        await eventually(lambda: not executor.slots)
    stream.cancel()
    assert row_counts(rm.state_dir)["requests"] == 0


async def test_names_are_taken_once(rm: RunningRm) -> None:
    job, other = await ScriptedJob(rm).register(), await ScriptedJob(rm).register()
    await ask(job, request_range(count=10))
    for range_ in (
        request_range(count=11),
        request_range(first_index=9, count=5),
        request_range(count=10, restart_on_loss=True),
        request_range(first_index=10, count=5, restart_on_loss=True),
        request_range("r.3", count=1),
    ):
        assert await ask(job, range_) == ["ALREADY_EXISTS"], range_
    assert await ask(other, request_range(count=10)) == ["ALREADY_EXISTS"]
    assert await ask(other, request_range(first_index=50)) == ["ALREADY_EXISTS"]
    assert await ask(job, request_range(first_index=3, count=4)) == [""]  # all of them are known
    assert await ask(job, request_range(first_index=10, count=5)) == [""]
    for name in ("r", "r.3"):
        (result,) = await other.request(slot_request(name))
        assert result.error.reason == "ALREADY_EXISTS"
    (same,) = await job.request(slot_request("r.3", allow_pending=True))
    assert not same.HasField("error")
    await job.request(slot_request("t.5", allow_pending=True))
    assert await ask(job, request_range("t", count=6)) == ["ALREADY_EXISTS"]
    assert await ask(job, request_range("t", count=5)) == [""]
    assert await ask(job, request_range("u.4", count=2)) == [""]  # the id of a member of u
    assert await ask(job, request_range("u", count=5)) == ["ALREADY_EXISTS"]
    assert await ask(job, request_range("u", count=4)) == [""]
    assert await cancel(other, members(0, 10)) == ["ALLOCATION_UNKNOWN"]
    assert await cancel(job, members(0, 1, "nobody")) == ["ALLOCATION_UNKNOWN"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"range_id": ""}, "ranges[0].range_id"),
        ({"range_id": "a b"}, "ranges[0].range_id"),
        ({"range_id": "a" * 101}, "ranges[0].range_id"),
        ({"count": 0}, "ranges[0].count"),
        ({"count": -1}, "ranges[0].count"),
        ({"count": 1_000_001}, "ranges[0].count"),
        ({"first_index": -1}, "ranges[0].first_index"),
        ({"first_index": 10**12}, "ranges[0].first_index"),
        ({"allocation_id": "x"}, "ranges[0].request.allocation_id"),
        ({"gang_id": "x"}, "ranges[0].request.gang_id"),
        ({"target_address": "127.0.0.1:1"}, "ranges[0].request.target_address"),
        ({"pids_max": -1}, "ranges[0].request.pids_max"),
    ],
)
async def test_what_no_range_can_be_is_refused_with_the_field(
    rm: RunningRm, changes: dict[str, Any], field: str
) -> None:
    job = await ScriptedJob(rm).register()
    refused = await refusal(ask(job, request_range(**changes)))
    assert isinstance(refused, fg.InvalidArgument)
    assert field in str(refused)
    assert await listed(rm) == []


async def test_calls_that_ask_for_nothing_or_too_much_are_refused(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    for refused in (
        await refusal(ask(job)),
        await refusal(ask(job, *[request_range(f"r{n}", count=1) for n in range(101)])),
        await refusal(ask(job, slots_pb2.RequestRange(range_id="r", count=1))),
        await refusal(cancel(job)),
        await refusal(cancel(job, members(0, 0))),
        await refusal(cancel(job, members(-1, 1))),
        await refusal(cancel(job, members(0, 1, "a b"))),
    ):
        assert isinstance(refused, fg.InvalidArgument)
    mixed = slots_pb2.RequestRange(range_id="u", count=2, request=slots_pb2.SlotRequest())
    unknown = await refusal(ask(job, request_range(), mixed))
    assert unknown.reason == "MIXED_KNOWN_AND_UNKNOWN"
    assert await listed(rm) == []


async def test_a_range_that_nobody_could_serve_is_refused_as_a_whole(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    async with ScriptedExecutor(rm):
        big = request_range(profile=profile(64_000), allow_pending=False)
        small = request_range("small", profile=profile(1))
        assert await ask(job, big, small) == ["INFEASIBLE_NEVER", "INVALID_ARGUMENT"]
        assert await listed(rm) == []
        assert row_counts(rm.state_dir)["request_ranges"] == 0


async def test_a_range_runs_to_its_end_through_restarts_and_a_lost_table(tmp_path: Path) -> None:
    """Every thread of work is repeated only if its slot was lost."""
    count = 300
    done: Counter[int] = Counter()
    async with running_rm(tmp_path) as rm:
        address, credentials = rm.address, rm.own("user/alice").credentials
        executor = ScriptedExecutor(rm, cpu_milli=10_000, memory_bytes=64 * GIB)
        await executor.__aenter__()
        cluster = fg.connect(address, credentials=credentials)
        await cluster.__aenter__()
        job = cluster.job("through restarts", lease_s=60.0)
        await job.__aenter__()
        small = fg.SlotSpec(
            cpu_milli=500, memory_bytes=64 * 2**20, restart_on_loss=True, count=count
        )
        asked = await job.request_range(small, range_id="r")
        slots = asked.slots()
        await _work_off(slots, done, until=100)
        await eventually(lambda: len(executor.slots))
    executor.slots.popitem()  # the executor loses it unnoticed
    async with running_rm(tmp_path, address=address) as rm:
        executor.rm = rm
        await eventually(executor.register_if_asked)
        await _work_off(slots, done, until=220)
    async with running_rm(tmp_path, address=address) as rm:
        executor.rm = rm
        await eventually(executor.register_if_asked)
        async with asyncio.timeout(PATIENCE_S):
            await _work_off(slots, done)
        assert asked.has_ended
        assert sorted(done) == list(range(count))
        assert asked.ended == {fg.RequestState.RELEASED: count}
        assert await listed(rm, states=[RELEASED]) == [("r.0", count, RELEASED)]
        await eventually(lambda: not executor.slots)
        assert row_counts(tmp_path)["requests"] == 0
        await job.__aexit__(None, None, None)
        await cluster.__aexit__(None, None, None)
        await executor.__aexit__()


async def _work_off(slots: fg.GrantedSlots, done: Counter[int], until: int | None = None) -> None:
    """Releases each slot as soon as it is granted, and counts its member's work as done."""
    async for slot in slots:
        index = int(slot.allocation_id.rpartition(".")[2])
        await slot.release()
        done[index] += 1
        if until is not None and done.total() >= until:
            return
