"""Tests failures of the store, loss of leadership, restarts, and broken invariants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import resource_manager.main as rm_main
from finegrain.errors import (
    FailedPrecondition,
    IllegalTransition,
    InvariantBroken,
    Reason,
    StoreError,
)
from finegrain.options import ListenOptions
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager import wiring as parts
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.events import JobRegistered
from resource_manager.engine.step import step
from resource_manager.main import EXIT_FAILED, EXIT_STEPPED_DOWN
from resource_manager.options import ResourceManagerOptions
from resource_manager.service import engine_driver as books
from resource_manager.service import watch
from resource_manager.storage import schema
from resource_manager.storage.backup import AUTHORITY_KEY
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import NotLeader, Store, StoreAway
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import (
    ScriptedExecutor,
    ScriptedJob,
    endpoint_of,
    eventually,
    fetch,
    next_events,
    refusal,
    running_rm,
    sequences,
    slot_request,
)

GRANTED = slots_pb2.REQUEST_STATE_GRANTED


class FaultyStore:
    """A real store whose commits fail as the test says, before or after they are durable.

    Commits of usage alone do not count, because their time is not fixed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failures: list[tuple[str, Exception]] = []  # ("before" or "after", error)
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, changes: Changes) -> None:
        if not replace(changes, usage_records=[]):
            self._store.commit(changes)
            return
        self.commits += 1
        when, error = self.failures.pop(0) if self.failures else ("", None)
        if when != "before":
            self._store.commit(changes)
        if error is not None:
            raise error


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[], FaultyStore]:
    made: list[FaultyStore] = []

    def opened(*args: Any, **kwargs: Any) -> FaultyStore:
        made.append(FaultyStore(open_store(*args, **kwargs)))
        return made[-1]

    monkeypatch.setattr(parts, "open_store", opened)
    return lambda: made[-1]


BROKEN_DISK = StoreError("the disk is broken")


async def test_a_commit_that_failed_did_nothing_and_a_repetition_does_it_once(
    tmp_path: Path, faulty: Callable[[], FaultyStore]
) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        # The channel retries UNAVAILABLE by itself; the caller must still see the failure.
        faulty().failures = [("before", BROKEN_DISK)]
        (result,) = await job.request(slot_request("slot-1"))
        assert not result.HasField("error")
        await eventually(executor.register_if_asked)
        stream = job.watch()
        await eventually(lambda: executor.slots)
        listed = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest())
        assert [each.allocation_id for each in listed.requests] == ["slot-1"]
        assert len(executor.slots) == 1
        stream.cancel()


async def test_a_caller_is_told_unavailable_when_its_batch_could_not_be_stored(
    tmp_path: Path, faulty: Callable[[], FaultyStore]
) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        faulty().failures = [("before", BROKEN_DISK)] * 4  # one for each attempt of the channel
        error = await refusal(
            rm.rm.RequestResource(
                rm_pb2.RequestResourceRequest(job_id=job.job_id, requests=[slot_request("slot-1")]),
            )
        )
        assert isinstance(error, StoreError)
        listed = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest())
        assert not listed.requests
        (result,) = await job.request(slot_request("slot-1"))
        assert not result.HasField("error")


async def test_a_group_that_could_not_be_stored_is_as_it_was_in_memory_too(
    tmp_path: Path, faulty: Callable[[], FaultyStore]
) -> None:
    async def weight() -> float:
        answer = await rm.cluster.ListGroups(cluster_pb2.ListGroupsRequest())
        found: float = next(group.weight for group in answer.groups if group.name == "low")
        return found

    wish = cluster_pb2.SetGroupRequest(name="low", weight=7)
    async with running_rm(tmp_path) as rm:
        await ScriptedJob(rm).register()  # the predefined groups are stored with it
        faulty().failures = [("before", BROKEN_DISK)] * 4  # one for each attempt of the channel
        assert isinstance(await refusal(rm.cluster.SetGroup(wish)), StoreError)
        assert await weight() == 1.0
        await rm.cluster.SetGroup(wish)
        assert await weight() == 7.0


async def test_an_offer_that_was_stored_but_never_published_still_reaches_the_stream(
    tmp_path: Path, faulty: Callable[[], FaultyStore]
) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await stream.read()
        store = faulty()
        # The next commits are the acceptance with its command, and then the grant.
        executor.on_command = lambda _request: store.failures.append(("after", BROKEN_DISK))
        await job.request(slot_request("slot-1"))
        await eventually(executor.register_if_asked)
        (offer,) = await next_events(stream, 1)
        assert (offer.sequence, offer.state) == (1, GRANTED)
        stream.cancel()


async def test_a_database_that_goes_away_while_leading_begins_is_waited_for(
    tmp_path: Path, faulty: Callable[[], FaultyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def meta(store: FaultyStore, key: str) -> str | None:
        nonlocal asked
        asked += key == AUTHORITY_KEY
        if key == AUTHORITY_KEY and asked <= 2:
            raise StoreAway("the database does not answer")
        found: str | None = store._store.meta(key)
        return found

    monkeypatch.setattr(FaultyStore, "meta", meta, raising=False)
    async with running_rm(tmp_path) as rm:
        await ScriptedJob(rm).register()
    assert asked == 3


async def test_a_disk_that_stays_broken_ends_the_process_with_a_clear_reason(
    tmp_path: Path, faulty: Callable[[], FaultyStore]
) -> None:
    async with running_rm(tmp_path) as rm:
        faulty().failures = [("before", BROKEN_DISK)] * 100
        job = ScriptedJob(rm)
        while not rm.task.done():
            try:
                await job.register()
            except Exception:
                await asyncio.sleep(0.01)
        assert rm.task.result() == EXIT_FAILED


async def test_whoever_is_no_longer_the_leader_steps_down(
    tmp_path: Path, faulty: Callable[[], FaultyStore]
) -> None:
    async with running_rm(tmp_path) as rm:
        faulty().failures = [("before", NotLeader("another one leads"))]
        error = await refusal(
            rm.rm.RegisterJob(
                rm_pb2.RegisterJobRequest(job_id="job", request_id="r" * 16, name="a job")
            )
        )
        assert error.reason in (Reason.NOT_LEADER, Reason.UNREACHABLE)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.shield(rm.task) == EXIT_STEPPED_DOWN


async def test_after_a_restart_streams_go_on_without_gap_or_repetition(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as first, ScriptedExecutor(first) as executor:
        job = await ScriptedJob(first).register()
        await job.request(*(slot_request(f"slot-{n}", cpu_milli=100) for n in range(6)))
        stream = job.watch(from_sequence=1)
        seen = await next_events(stream, 6)
        stream.cancel()
        known = dict(executor.slots)
        assert endpoint_of(tmp_path)["address"] == first.address
    assert not (tmp_path / "endpoint.json").exists()
    async with running_rm(tmp_path) as second:
        executor = ScriptedExecutor(second, instance_id=executor.instance_id, slots=known)
        async with executor:
            assert executor.rm_epoch > 1
            stream = job.watch(from_sequence=4, rm=second)
            seen = seen[:3] + await next_events(stream, 3)
            job.rm = second
            await job.release("slot-0")
            seen += await next_events(stream, 1)
            stream.cancel()
            await eventually(lambda: len(executor.slots) == 5)
    assert sequences(seen) == list(range(1, 8))


async def test_a_slow_reader_reads_from_the_store_what_memory_no_longer_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "TAIL_EVENTS_MAX", 4)
    monkeypatch.setattr(watch, "MESSAGE_EVENTS_MAX", 3)
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        slow, quick = job.watch(), job.watch()
        await slow.read()
        await quick.read()
        for n in range(30):
            await job.request(slot_request(f"slot-{n}", cpu_milli=100))
        assert sequences(await next_events(quick, 30)) == list(range(1, 31))
        assert sequences(await next_events(slow, 30)) == list(range(1, 31))
        slow.cancel()
        quick.cancel()


async def test_events_that_are_no_longer_kept_are_out_of_range_and_a_snapshot_is_offered(
    tmp_path: Path,
) -> None:
    async with running_rm(tmp_path, job_events_max=10) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(*(slot_request(f"slot-{n}", cpu_milli=100) for n in range(30)))
        await next_events(stream, 30)
        for wrong in (1, 40):
            late = job.watch(from_sequence=wrong)
            error = await refusal(late.read())
            assert error.reason is Reason.OUT_OF_RANGE
        snapshot = (await job.watch().read()).snapshot
        assert (snapshot.sequence, len(snapshot.requests)) == (30, 30)
        stream.cancel()


async def test_cancelled_streams_leave_no_feed_behind(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        streams = [job.watch() for _ in range(10)]
        for stream in streams:
            await stream.read()
        assert "finegrain_rm_watch_streams 10.0" in (await fetch(rm.metrics_address, "/metrics"))[1]
        for stream in streams:
            stream.cancel()

        async def none_left() -> bool:
            _, text = await fetch(rm.metrics_address, "/metrics")
            return "finegrain_rm_watch_streams 0.0" in text

        await eventually(none_left)


async def test_books_that_contradict_themselves_grant_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "_engine_check", lambda: lambda _state: ["cpu booked twice"])
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        (result,) = await job.request(slot_request("slot-1"))
        assert not result.HasField("error")
        status, _ = await fetch(rm.metrics_address, "/readyz")
        _, text = await fetch(rm.metrics_address, "/metrics")
        assert status == 503
        assert "finegrain_rm_ledger_mismatches 1.0" in text
        assert not executor.commands


async def test_slots_are_granted_only_after_the_whole_state_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that grant nothing are served while a large state is checked."""
    checked = threading.Event()

    def long_check(_state: Any) -> Iterator[None]:
        while not checked.wait(0.001):
            yield None

    monkeypatch.setattr(books, "_engine_check", lambda: long_check)
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        await asyncio.sleep(0.3)
        assert not executor.commands
        checked.set()
        (event,) = await next_events(stream, 1)
        stream.cancel()
        assert event.state == GRANTED


@pytest.mark.parametrize("bug", [IllegalTransition, InvariantBroken, RuntimeError])
async def test_a_bug_in_a_step_is_internal_and_the_books_are_read_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bug: type[Exception],
) -> None:
    """The bug raises at the worst moment: half of the change has been made."""

    def planted(state: Any, event: Any) -> Any:
        result = step(state, event)
        if isinstance(event, JobRegistered) and event.name == "poison":
            raise bug("planted")
        return result

    monkeypatch.setattr(books, "_engine_step", lambda: planted)
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        await job.request(slot_request("slot-1"))
        with pytest.raises(grpc.RpcError) as told:
            await ScriptedJob(rm).register(name="poison")
        assert told.value.code() is grpc.StatusCode.INTERNAL  # a code that clients do not retry
        assert (await rm.cluster.GetCluster(cluster_pb2.GetClusterRequest())).rm_epoch == 2
        (dropped,) = [each for each in caplog.records if "batch_dropped" in each.getMessage()]
        assert "JobRegistered: " in dropped.getMessage()
        assert "planted" in dropped.getMessage()
        _, text = await fetch(rm.metrics_address, "/metrics")
        for counted in (
            "finegrain_rm_step_failures_total 1.0",
            "finegrain_rm_reloads_total 1.0",
            "finegrain_rm_db_commit_failures_total 0.0",
            "finegrain_rm_ledger_mismatches 0.0",
        ):
            assert counted in text
        listed = await rm.cluster.ListJobs(cluster_pb2.ListJobsRequest())
        assert [each.job_id for each in listed.jobs] == [job.job_id]
        await eventually(executor.register_if_asked)
        await job.request(slot_request("slot-2"))
        await eventually(lambda: set(executor.slots) == {"slot-1", "slot-2"})


@pytest.mark.parametrize("ahead", [0, 3], ids=["the same epoch", "a higher epoch"])
async def test_books_that_executors_have_overtaken_command_nothing_and_name_the_way_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ahead: int
) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as known:
        job = await ScriptedJob(rm).register()
        epoch = known.rm_epoch + ahead
        stranger = ScriptedExecutor(rm, "host-b", rm_epoch=epoch, epoch_proof=rm.proof_of(epoch))
        error = await refusal(stranger.register())
        assert error.reason is Reason.STALE_EPOCH
        assert f"host-b has seen rm_epoch {1 + ahead}, but this database has 1" in error.message
        late = await refusal(job.request(slot_request("slot-1")))
        assert late.reason in (Reason.NOT_LEADER, Reason.UNREACHABLE)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.shield(rm.task) == EXIT_STEPPED_DOWN
        assert not known.commands
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    database = f"sqlite:///{tmp_path / 'finegrain.db'}"
    assert f"`finegrain db raise-epoch --above-epoch {1 + ahead} --database {database}`" in told


async def test_restarts_do_not_end_the_refusal_of_an_old_database(tmp_path: Path) -> None:
    """Each start raises the epoch, so in an earlier version, restarts by a service manager ended
    the refusal.
    """
    async with running_rm(tmp_path) as rm:
        newer = ScriptedExecutor(rm, rm_epoch=4, epoch_proof=rm.proof_of(4))
        await refusal(newer.register())
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.shield(rm.task) == EXIT_STEPPED_DOWN
    options = ResourceManagerOptions(
        state_dir=tmp_path, listen=ListenOptions(address="127.0.0.1:0"), join_listen=""
    )
    for _ in range(5):
        assert await rm_main.serve(options) == EXIT_STEPPED_DOWN
    schema.raise_epoch(f"sqlite:///{tmp_path / 'finegrain.db'}", above_epoch=4)
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        assert executor.rm_epoch > 4


async def test_an_executor_that_obeys_a_newer_resource_manager_stops_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def obeys_another(_request: Any) -> None:
        raise FailedPrecondition(
            "a newer resource manager is in charge, step down", reason=Reason.STALE_EPOCH
        )

    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        executor.on_command = obeys_another
        executor.rm_epoch, executor.epoch_proof = 7, rm.proof_of(7)
        await (await ScriptedJob(rm).register()).request(slot_request("slot-1"))
        # Its report has no proof, so it is asked to register, and shows the proof then.
        await eventually(lambda: executor.commands)
        with suppress(grpc.RpcError):
            await executor.register_if_asked()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.shield(rm.task) == EXIT_STEPPED_DOWN
    assert "host-a has seen rm_epoch 7, but this database has 1" in caplog.text


@pytest.mark.parametrize("claimed", [1, 7, 2**52 - 1])
@pytest.mark.parametrize("proof", ["none", "its own", "of another epoch"])
async def test_an_executor_that_invents_an_epoch_gets_no_slots_and_stops_nothing(
    tmp_path: Path, claimed: int, proof: str
) -> None:
    async with running_rm(tmp_path) as rm:
        liar = ScriptedExecutor(rm, "liar", rm_epoch=claimed)
        if proof == "its own":
            liar.epoch_proof = rm.proof_of(claimed, "executor/liar")
        elif proof == "of another epoch":
            liar.epoch_proof = rm.proof_of(claimed)
            liar.epoch_proof.rm_epoch = claimed + 1
        async with liar:
            liar.rm_epoch = claimed
            await liar.send_report()
            (shown,) = (
                await rm.cluster.ListExecutors(cluster_pb2.ListExecutorsRequest())
            ).executors
            # Epoch 1 is the present epoch, which the executor may know.
            assert shown.draining is (claimed > 1)
            if claimed > 1:
                assert f"it reported the epoch {claimed}" in shown.drain_reason
                assert (
                    "finegrain_rm_unproven_epochs_total 1.0"
                    in (await fetch(rm.metrics_address, "/metrics"))[1]
                )
        assert not rm.task.done()


async def test_a_second_resource_manager_is_refused_by_directory_by_database_and_by_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def options(name: str, address: str = "127.0.0.1:0", **more: Any) -> ResourceManagerOptions:
        return ResourceManagerOptions(
            state_dir=tmp_path / name, listen=ListenOptions(address=address), **more
        )

    database = f"sqlite:///{tmp_path / 'first' / 'finegrain.db'}"
    async with running_rm(tmp_path / "first") as rm:
        for wrong, word in (
            (options("first"), "state directory"),
            (options("second", database_url=database), "STORE_IN_USE"),
            (options("third", address=rm.address), "in use"),
            (options("fourth", strategy="best"), "strategy"),
        ):
            assert await rm_main.serve(wrong) == EXIT_FAILED
            assert word in caplog.text
            caplog.clear()
        assert (await rm.cluster.GetCluster(cluster_pb2.GetClusterRequest())).rm_epoch == 1
