"""Tests of members of ranges that are given up or whose job ends, some at a time."""

from __future__ import annotations

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.lifecycle import journal
from resource_manager.engine.lifecycle.members import KINDS_OF_ENDS_MAX
from resource_manager.engine.model.effects import SendAllocate
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from tests.support.engine_cluster import EngineCluster, host

SMALL = ResourceProfile(1_000, 256 * MIB)


@pytest.fixture
def cluster() -> EngineCluster:
    return EngineCluster(host(memory_bytes=4 * GIB))


def ask(cluster: EngineCluster, plain: int, members: int) -> None:
    requests = (RequestSpec(f"p{n}", SMALL) for n in range(plain))
    cluster.submit(*requests, RangeSpec(RequestSpec("r", SMALL), 0, members))
    cluster.deliver_all()


def test_no_member_is_placed_whose_job_is_ending(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests end one by one here, and each frees capacity that members wait for."""
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 1)
    ask(cluster, plain=4, members=50)
    cluster.end_job("job")
    ordered = []
    while cluster.state.unfinished or cluster.wire:
        cluster.check()
        cluster.batch()
        ordered += [sent for sent in cluster.wire if isinstance(sent.command, SendAllocate)]
        cluster.deliver_all()
    assert ordered == []
    assert cluster.state.requests.live == 0
    (row,) = cluster.store.ranges.values()
    assert [(how[0], list(some.runs())) for how, some in row.ended.items()] == [
        (RequestState.CANCELLED, [(0, 50)])
    ]


def test_ways_of_ending_are_told_apart_only_so_far(cluster: EngineCluster) -> None:
    """Messages may differ for each member; a row must not grow with them."""
    ask(cluster, plain=4, members=500)
    (part,) = cluster.state.ranges.parts()
    for index in range(300):
        request = part.member(index)
        request.state, request.message = RequestState.CANCELLED, f"because of {index}"
        cluster.state.queue.remove(request)
        cluster.state.members.keep_end_of_many(part, request, 1)
    assert len(part.row.ended) == KINDS_OF_ENDS_MAX + 1
    assert sum(map(len, part.row.ended.values())) == 300
    cluster.check()
