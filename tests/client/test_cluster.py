"""Tests of administrators' calls: pages, batches, events, values as JSON, addresses."""

import json
from pathlib import Path

import pytest

import finegrain_client as fg
from tests.client.scripted import Scripted
from tests.support.identities import credentials_file


async def test_pages_are_put_together(cluster: fg.Cluster) -> None:
    executors = await cluster.executors()
    assert [each.executor_id for each in executors] == ["host-0", "host-1", "host-2"]
    assert executors[0].total == {"cpu_milli": 4000, "extended.license": 2}
    assert executors[0].state is fg.ExecutorState.ACTIVE


async def test_one_executor_in_json(cluster: fg.Cluster) -> None:
    shown = json.loads(json.dumps((await cluster.executor("host-a")).to_dict()))
    assert shown["report_time"] == "2026-01-02T03:04:05.600000Z"
    assert shown["topology"]["memory_bytes"] == 2**33
    assert shown["topology"]["online_cpus"] == "0-3"
    assert shown["drain_deadline_time"] is None
    assert shown["slot_list"][0]["profile"] == {
        "cpu_milli": 500,
        "task_heap_memory_bytes": 256 * fg.MIB,
    }
    assert shown["slot_list"][0]["isolation"]["cpu"] == "quota"


async def test_providers_with_all_that_they_say(cluster: fg.Cluster) -> None:
    found = await cluster.providers()
    (shape,), (executor,) = found.shapes, found.executors
    assert (shape.total, shape.cost, shape.count_max) == ({"cpu_milli": 4000}, 1.5, 0)
    assert executor.state is fg.ProvidedExecutorState.STARTED
    assert (executor.planned, executor.planned_requests) == (("3 of 0.5 cpu",), 3)
    assert (found.maximum, found.minimum) == ({"cpu_milli": 64_000}, {})
    shown = json.loads(json.dumps(found.to_dict()))
    assert shown["shapes"][0]["backoff_until_time"] == "2026-01-02T03:04:05Z"
    assert shown["idle_timeout_s"] == 60.0
    assert shown["unplanned"] == ["2 requests: maximum reached"]


async def test_advice_with_all_that_it_goes_by(servant: Scripted, cluster: fg.Cluster) -> None:
    advice = await cluster.advise("job-1", target_s=60, quantile=0.9)

    assert servant.calls["AdviseThreads"][0].target.seconds == 60
    assert (advice.threads_recommended, advice.threads_observed) == (530, 190)
    assert (advice.threads_running, advice.threads_waiting) == (10, 0)
    assert (advice.median_s, advice.at_quantile_s, advice.longest_s) == (141.3, 314.678, 469.398)
    assert json.loads(json.dumps(advice.to_dict()))["target_s"] == 60.0
    assert (await cluster.advise("job-1")).quantile == 0.95
    assert not servant.calls["AdviseThreads"][1].HasField("target")


@pytest.mark.parametrize("quantile", [0, 1, -0.5, 95])
async def test_a_quantile_that_is_none(cluster: fg.Cluster, quantile: float) -> None:
    with pytest.raises(fg.InvalidArgument, match="quantile"):
        await cluster.advise("job-1", quantile=quantile)


async def test_events_that_are_kept(servant: Scripted, cluster: fg.Cluster) -> None:
    assert [each.sequence async for each in cluster.events(newest=3)] == [1, 2, 3]
    assert [each.sequence async for each in cluster.events(from_sequence=2)] == [2, 3]
    assert servant.calls["ListEvents"][0].page_size == 3


async def test_events_that_are_followed(servant: Scripted, cluster: fg.Cluster) -> None:
    following = cluster.events(follow=True)
    assert [(await anext(following)).sequence for _ in range(3)] == [1, 2, 3]
    await following.aclose()  # type: ignore[attr-defined]
    assert not servant.calls["ListEvents"][0].HasField("wait")


async def test_many_releases_are_cut(servant: Scripted, cluster: fg.Cluster) -> None:
    outcomes = await cluster.release([f"s-{n}" for n in range(10_001)], grace_s=2)
    assert len(outcomes) == 10_001
    assert all(each.ok for each in outcomes)
    sizes = [len(each.allocation_ids) for each in servant.calls["ReleaseAllocations"]]
    assert sizes == [10_000, 1]


async def test_states_are_words(servant: Scripted, cluster: fg.Cluster) -> None:
    await cluster.requests(states=["pending", fg.RequestState.LOST])
    assert list(servant.calls["ListRequests"][0].states) == [1, 7]
    with pytest.raises(fg.InvalidArgument, match="PENDING, ALLOCATING"):
        await cluster.requests(states=["waiting"])


async def test_a_word_of_a_newer_server_is_refused_clearly(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    (request,) = await job.request_slots(fg.SlotSpec())
    await servant.tell(request.allocation_id, 99)
    with pytest.raises(fg.FailedPrecondition, match="this client does not know"):
        await request.granted(timeout_s=10)


async def test_the_environment_says_where(
    servant: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_MANAGER", f"{servant.address}, 127.0.0.1:1")
    monkeypatch.setenv("FINEGRAIN_CREDENTIALS", str(credentials_file(tmp_path, "viewer/eve")))
    async with fg.connect() as cluster:
        await cluster.executors()
    assert servant.callers["ListExecutors"] == ["spiffe://test/viewer/eve"] * 3


async def test_one_file_is_enough(servant: Scripted, tmp_path: Path) -> None:
    file = credentials_file(tmp_path, "user/bob", servant.address)
    async with fg.connect(credentials=file) as cluster:
        await cluster.executors()
    assert servant.callers["ListExecutors"] == ["spiffe://test/user/bob"] * 3


@pytest.mark.parametrize("address", ["nonsense", "0.0.0.0:1", "host:99999", "", []])
def test_bad_addresses_are_refused_at_once(
    address: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(fg.InvalidArgument, match="address"):
        fg.connect(address or [""])


@pytest.mark.parametrize("lease_s", [0.5, 100_000])
async def test_bad_leases_are_refused(cluster: fg.Cluster, lease_s: float) -> None:
    with pytest.raises(fg.InvalidArgument, match="lease_s"):
        cluster.job("x", lease_s=lease_s)
