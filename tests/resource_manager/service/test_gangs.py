"""Tests of gangs over real gRPC: checked, submitted and granted as a whole, and published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from finegrain.errors import InvalidArgument, Reason
from finegrain.resources import MIB, ResourceProfile
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import GangPlacement
from resource_manager.engine.model.entities import GangSpec, Instant, RequestSpec
from resource_manager.service.submission import (
    CHUNK_ITEMS_MAX,
    NEW_COST,
    Submission,
    make_submission,
    submission_events,
)
from resource_manager.service.wire.encoding import write
from resource_manager.service.wire.gangs import gangs_of_call
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    next_events,
    refusal,
    running_rm,
    slot_request,
)

GRANTED = slots_pb2.REQUEST_STATE_GRANTED
PENDING = slots_pb2.REQUEST_STATE_PENDING
REJECTED = slots_pb2.REQUEST_STATE_REJECTED
CANCELLED = slots_pb2.REQUEST_STATE_CANCELLED
SAME_LABEL = slots_pb2.GANG_PLACEMENT_SAME_LABEL
Gang = slots_pb2.Gang


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path) as running:
        yield running


def members(count: int, gang_id: str = "gang-1", **more: Any) -> list[slots_pb2.SlotRequest]:
    return [slot_request(f"{gang_id}-{n}", gang_id=gang_id, **more) for n in range(count)]


async def test_a_gang_waits_as_a_whole_and_is_granted_as_a_whole(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    stream = job.watch()
    spread = Gang(gang_id="gang-1", placement=slots_pb2.GANG_PLACEMENT_SPREAD)
    async with ScriptedExecutor(rm, "host-a"):
        wishes = members(2, allow_pending=True)
        results = await job.request_gang(*wishes, gangs=[spread])
        assert not any(each.HasField("error") for each in results)
        again = await job.request_gang(*wishes, gangs=[spread])
        assert not any(each.HasField("error") for each in again)
        listed = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest())
        assert [each.state for each in listed.requests] == [PENDING] * 2
        for each in listed.requests:
            assert (each.request.gang_id, each.gang) == ("gang-1", spread)
        snapshot = (await stream.read()).snapshot
        assert [each.gang.gang_id for each in snapshot.requests] in ([], ["gang-1"] * 2)
        async with ScriptedExecutor(rm, "host-b"):
            events = await next_events(stream, 2)
            assert [each.state for each in events] == [GRANTED] * 2
            assert {each.slot.executor_id for each in events} == {"host-a", "host-b"}
    stream.cancel()


async def test_a_gang_that_waits_is_explained_as_a_whole(rm: RunningRm) -> None:
    racks = Gang(gang_id="gang-1", placement=SAME_LABEL, label="rack", timeout=Duration(seconds=90))
    async with (
        ScriptedExecutor(rm, "host-a", labels={"rack": "r1"}),
        ScriptedExecutor(rm, "host-b", labels={"rack": "r2"}),
        ScriptedExecutor(rm, "host-c", labels={"rack": "r2"}),
    ):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("in-the-way", required_labels={"rack": "r2"}))
        await next_events(stream, 1)
        await job.request_gang(*members(4, cpu_milli=2000), gangs=[racks])
        explained = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="gang-1-3"))
        why = explained.gang
        assert (why.gang, why.members, why.placeable) == (racks, 4, 3)
        assert [(each.name, each.placeable) for each in why.spots] == [("r2", 3), ("r1", 2)]
        assert "rack=r2" in why.summary
        left_s = why.deadline_time.seconds - explained.request.create_time.seconds
        assert 89 <= left_s <= 91
        stream.cancel()


async def test_half_a_gang_is_never_offered(rm: RunningRm) -> None:
    def refuse(_slot: slots_pb2.SlotStatus) -> str:
        return Reason.CARVE_FAILED

    job = await ScriptedJob(rm).register()
    stream = job.watch()
    spread = Gang(gang_id="gang-1", placement=slots_pb2.GANG_PLACEMENT_SPREAD)
    async with (
        ScriptedExecutor(rm, "host-a") as good,
        ScriptedExecutor(rm, "host-b", refuse=refuse) as bad,
    ):
        await job.request_gang(*members(2), gangs=[spread])
        await eventually(lambda: bad.commands)
        await eventually(lambda: not good.slots)
        async with ScriptedExecutor(rm, "host-c"):
            events = await next_events(stream, 2)
            assert [(each.sequence, each.state) for each in events] == [(1, GRANTED), (2, GRANTED)]
            assert {each.slot.executor_id for each in events} == {"host-a", "host-c"}
    stream.cancel()


async def test_a_gang_that_waits_too_long_is_rejected_and_one_cancelled_member_takes_all_along(
    rm: RunningRm,
) -> None:
    async with ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("all", cpu_milli=4000))
        await next_events(stream, 1)
        short = Gang(gang_id="short", timeout=Duration(nanos=1_000_000))
        await job.request_gang(*members(2, "short"), gangs=[short])
        events = await next_events(stream, 2)
        assert [(each.state, each.reason) for each in events] == [
            (REJECTED, Reason.GANG_TIMEOUT)
        ] * 2
        await job.request_gang(*members(2, "long"), gangs=[Gang(gang_id="long")])
        await rm.rm.CancelRequests(
            rm_pb2.CancelRequestsRequest(job_id=job.job_id, allocation_ids=["long-1"]),
        )
        events = await next_events(stream, 2)
        assert {each.allocation_id: each.state for each in events} == {
            "long-0": CANCELLED,
            "long-1": CANCELLED,
        }
        stream.cancel()


async def test_what_is_wrong_with_one_member_refuses_all_of_them(rm: RunningRm) -> None:
    async with ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        wishes = [*members(2), slot_request("large", cpu_milli=9000, gang_id="gang-1")]
        alone = slot_request("alone")
        results = await job.request_gang(*wishes, alone, gangs=[Gang(gang_id="gang-1")])
        assert [each.error.reason for each in results] == [
            Reason.GANG_REFUSED,
            Reason.GANG_REFUSED,
            Reason.INFEASIBLE_NEVER,
            "",
        ]
        assert "large" in results[0].error.message


def gang(**parts: Any) -> slots_pb2.Gang:
    return Gang(**{"gang_id": "gang-1", **parts})


WRONG: list[tuple[str, list[slots_pb2.SlotRequest], list[slots_pb2.Gang], str]] = [
    ("no id", members(2), [gang(), Gang()], "gangs[1].gang_id"),
    ("a malformed id", members(2), [gang(), gang(gang_id="a b")], "gangs[1].gang_id"),
    ("an id twice", members(2), [gang(), gang()], "gangs[1].gang_id"),
    ("nobody in it", members(2), [gang(), gang(gang_id="other")], "gangs[1]"),
    ("more gangs than requests", members(1), [gang(), Gang()], "gangs"),
    ("too many in it", members(1001), [gang()], "gangs[0]"),
    ("an undeclared gang", members(2), [], "requests[0].gang_id"),
    ("another gang", [*members(1), *members(1, "x")], [gang()], "requests[1].gang_id"),
    (
        "a malformed gang of a request",
        [slot_request("a", gang_id="a b")],
        [gang()],
        "requests[0].gang_id",
    ),
    ("an unknown placement", members(1), [gang(placement=9)], "gangs[0].placement"),
    ("a label without need", members(1), [gang(label="rack")], "gangs[0].label"),
    ("no label", members(1), [gang(placement=SAME_LABEL)], "gangs[0].label"),
    (
        "a malformed label",
        members(1),
        [gang(placement=SAME_LABEL, label="a rack")],
        "gangs[0].label",
    ),
    ("no time at all", members(1), [gang(timeout=Duration())], "gangs[0].timeout"),
    ("a negative time", members(1), [gang(timeout=Duration(seconds=-1))], "gangs[0].timeout"),
    (
        "offered directly",
        members(1, target_address="127.0.0.1:1"),
        [gang()],
        "requests[0].target_address",
    ),
    (
        "of two minds about a loss",
        [*members(1), slot_request("b", gang_id="gang-1", restart_on_loss=True)],
        [gang()],
        "requests[1].restart_on_loss",
    ),
    (
        "with one revocable member",
        [*members(1), slot_request("b", gang_id="gang-1", revocable=True)],
        [gang()],
        "requests[1].revocable",
    ),
    ("one member twice", members(1) * 2, [gang()], "requests[1].allocation_id"),
]


@pytest.mark.parametrize(
    ("requests", "gangs", "field"), [pytest.param(r, g, f, id=name) for name, r, g, f in WRONG]
)
async def test_a_malformed_gang_refuses_its_call(
    rm: RunningRm,
    requests: list[slots_pb2.SlotRequest],
    gangs: list[slots_pb2.Gang],
    field: str,
) -> None:
    job = await ScriptedJob(rm).register()
    error = await refusal(job.request_gang(*requests, gangs=gangs))
    assert isinstance(error, InvalidArgument)
    assert error.field == field
    assert error.details["expected"]
    listed = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest())
    assert not listed.requests


def test_a_gang_comes_back_from_the_wire_as_it_went() -> None:
    member = RequestSpec("a", None, gang_id="gang-1")
    for spec in (
        GangSpec("gang-1"),
        GangSpec("gang-1", GangPlacement.SAME_EXECUTOR, "", 1),
        GangSpec("gang-1", GangPlacement.SAME_LABEL, "example.com/rack", 86_400_000),
        GangSpec("gang-1", GangPlacement.SPREAD),
    ):
        assert gangs_of_call([write(slots_pb2.Gang, spec)], [member], {}, members_max=1) == (spec,)


gang_ids = st.sampled_from(["", "", "", "g1", "g2", "g3"])


def call_of(ids: list[str]) -> Submission:
    specs = [RequestSpec(f"r{n}", None, gang_id=name) for n, name in enumerate(ids)]
    gangs = [Gang(gang_id=name) for name in dict.fromkeys(ids) if name]
    return make_submission(specs, gangs, members_max=1_000)


@given(st.lists(gang_ids, min_size=1, max_size=40))
def test_outcomes_come_in_the_order_sent_wherever_members_stand(ids: list[str]) -> None:
    call = call_of(ids)
    outcomes = call.outcomes([ItemOutcome(spec.allocation_id) for spec in call.specs])
    assert [each.id for each in outcomes] == [f"r{n}" for n in range(len(ids))]


def test_an_event_has_fewer_requests_if_they_differ() -> None:
    def sizes(kinds: int) -> list[int]:
        profiles = [ResourceProfile(100 + n, 16 * MIB) for n in range(kinds)]
        specs = [RequestSpec(f"r{n}", profiles[n % kinds]) for n in range(CHUNK_ITEMS_MAX)]
        events = submission_events("job", make_submission(specs, [], members_max=1_000))
        return [len(make(Instant(0, 0)).requests) for make in events]

    most = CHUNK_ITEMS_MAX // (1 + NEW_COST)
    assert sizes(CHUNK_ITEMS_MAX) == [most] * (1 + NEW_COST)
    assert sizes(10) == [CHUNK_ITEMS_MAX - 10 * NEW_COST, 10 * NEW_COST]


@given(
    st.lists(st.tuples(gang_ids, st.integers(1, 700)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_a_large_call_is_cut_between_gangs_only(runs: list[tuple[str, int]], random: Any) -> None:
    ids = [name for name, count in runs for _ in range(count)]
    counts = {name: ids.count(name) for name in ids if name}
    ids = [name for name in ids if counts.get(name, 0) <= CHUNK_ITEMS_MAX] or [""]
    random.shuffle(ids)
    call = call_of(ids)
    events = [make(Instant(0, 0)) for make in submission_events("job", call)]
    sent = [spec for event in events for spec in event.requests]
    assert sorted(spec.allocation_id for spec in sent) == sorted(f"r{n}" for n in range(len(ids)))
    homes: dict[str, int] = {}
    for at, event in enumerate(events):
        assert 1 <= len(event.requests) <= CHUNK_ITEMS_MAX
        assert event.admitted is (at > 0)
        names = {spec.gang_id for spec in event.requests} - {""}
        assert {gang.gang_id for gang in event.gangs} == names
        assert not names & homes.keys()
        homes.update(dict.fromkeys(names, at))
    assert events[0].following == tuple(spec for event in events[1:] for spec in event.requests)
    firsts = [
        ids.index(spec.gang_id) if spec.gang_id else int(spec.allocation_id[1:]) for spec in sent
    ]
    assert firsts == sorted(firsts)  # a gang is sorted by its first member
