"""Tests that equal requests of one call, which are queued together, wait like single requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.step import step
from tests.support.engine_cluster import LSE, EngineCluster, host
from tests.support.properties import examples

SMALL, OTHER = ResourceProfile(1_000, 256 * MIB), ResourceProfile(1_500, 256 * MIB)
TOO_LARGE = ResourceProfile(900_000, GIB)
BELOW_MINIMUM = ResourceProfile(1, 1)
SSD = (("disk", "ssd"),)

specs = st.lists(
    st.builds(
        lambda number, profile, kind: RequestSpec(f"request-{number}", profile, **kind),
        st.integers(0, 30),  # some ids are repeated
        st.sampled_from([SMALL] * 6 + [ResourceProfile(1_000, 256 * MIB), OTHER])
        | st.sampled_from([TOO_LARGE, BELOW_MINIMUM]),
        st.sampled_from([{}] * 8)
        | st.sampled_from(
            [
                {"allow_pending": True},
                {"required_labels": SSD},
                {"priority": 1},
                {"revocable": True},
                {"cpu_limit_milli": 500},
                {"cpu_limit_milli": 2_000},
                {"wait_timeout_ms": 60_000},
                {"cpu_policy": LSE},
            ]
        ),
    ),
    max_size=25,
)


def queued(cluster: EngineCluster) -> dict[Any, Any]:
    return {
        each.waiting_key: {
            job_id: (list(job_queue.numbers), job_queue.may_reject, job_queue.position)
            for job_id, job_queue in each.job_queues.items()
        }
        for each in cluster.state.queue.classes()
    }


def submitted(
    cluster: EngineCluster, *calls: Sequence[RequestSpec | GangSpec]
) -> list[list[ItemOutcome]]:
    """Submits requests without a scheduling cycle. Returns the outcomes of each call."""
    return [
        cast("list[ItemOutcome]", step(cluster.state, cluster.submission(*call)).answer)
        for call in calls
    ]


@settings(max_examples=examples(60))
@given(specs)
def test_one_call_and_a_call_for_each_request_have_equal_results(wanted: list[RequestSpec]) -> None:
    together, one_by_one = (
        EngineCluster(host(cpu_milli=8_000), host("host-b", labels=SSD)) for _ in range(2)
    )
    (outcomes,) = submitted(together, wanted)
    assert outcomes == list(chain(*submitted(one_by_one, *([each] for each in wanted))))
    assert queued(together) == queued(one_by_one)
    for cluster in (together, one_by_one):
        cluster.batch()
        cluster.settle()
    assert together.running() == one_by_one.running()
    assert together.waiting() == one_by_one.waiting()


def test_a_gang_between_equal_requests_has_its_own_arrival_number() -> None:
    cluster = EngineCluster(host())
    member = RequestSpec("member", SMALL, gang_id="gang")
    first, second = (RequestSpec(name, SMALL) for name in ("first", "second"))
    submitted(cluster, [first, member, second, GangSpec("gang")])
    ((numbers, _, _),) = (each["job"] for each in queued(cluster).values())
    assert numbers == [cluster.state.requests[name].arrival_number for name in ("first", "second")]
    assert numbers[1] > numbers[0] + 1
    cluster.batch()
    cluster.settle()
    assert all(cluster.is_granted(name) for name in ("first", "member", "second"))
