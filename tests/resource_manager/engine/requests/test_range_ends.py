"""Members of ranges whose job ends, or who are given up, some at a time."""

from __future__ import annotations

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.jobs import lifecycle
from resource_manager.engine.lifecycle.members import KINDS_OF_ENDS_MAX
from resource_manager.engine.model.effects import SendAllocate
from resource_manager.engine.model.entities import RangeSpec, RequestSpec, RequestState
from resource_manager.engine.model.events import JobEndRequested, JobRegistered, RequestsSubmitted
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor

SMALL = ResourceProfile(1_000, 256 * MIB)


@pytest.fixture
def cluster() -> ModelCluster:
    cluster = ModelCluster()
    cluster.batch(JobRegistered(cluster.at, "job", "job", "default", None, "s", "r"))
    cluster.register(ModelExecutor("host", {"cpu_milli": 4_000, "memory_bytes": 4 * GIB}, SMALL))
    return cluster


def ask(cluster: ModelCluster, plain: int, members: int) -> None:
    specs = tuple(RequestSpec(f"p{n}", SMALL) for n in range(plain))
    ranges = (RangeSpec(RequestSpec("r", SMALL), 0, members),)
    cluster.batch(RequestsSubmitted(cluster.at, "job", specs, ranges=ranges))
    cluster.settle()


def test_no_member_is_placed_whose_job_is_ending(
    cluster: ModelCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests end one by one here, and each makes room that members wait for."""
    monkeypatch.setattr(lifecycle, "ENDED_AT_ONCE", 1)
    ask(cluster, plain=4, members=50)
    cluster.batch(JobEndRequested(cluster.at, "job", "ENDED"))
    ordered = []
    while cluster.state.unfinished or cluster.wire:
        assert check_invariants(cluster.state) == []
        cluster.batch()
        ordered += [sent for sent in cluster.wire if isinstance(sent.command, SendAllocate)]
        cluster.settle()
    assert ordered == []
    assert cluster.state.requests.live == 0
    (row,) = cluster.store.ranges.values()
    assert [(how[0], list(some.runs())) for how, some in row.ended.items()] == [
        (RequestState.CANCELLED, [(0, 50)])
    ]


def test_ways_of_ending_are_told_apart_only_so_far(cluster: ModelCluster) -> None:
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
    assert check_invariants(cluster.state) == []
