"""Tests of the blocking client: the same names, on a private loop, safe to interrupt."""

import asyncio
import inspect
import os
import pydoc
import re
import signal
import threading
from collections.abc import Coroutine, Generator, Iterator
from typing import Any, Self, TypeVar

import pytest

import finegrain_client as fg
from finegrain_client.blocking.handle import ContextHandle
from finegrain_client.blocking.loop import PrivateLoop
from tests.client.scripted import GRANTED, LOST, Program, Scripted, eventually, serving

T = TypeVar("T")

TEXT = b"the quick brown fox"


class Served:
    """A scripted cluster on a separate loop and thread."""

    def __init__(self) -> None:
        self.servant = Scripted()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._stop: asyncio.Event | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def start(self) -> None:
        self._thread.start()
        started = threading.Event()

        async def serve() -> None:
            self._stop = asyncio.Event()
            async with serving(self.servant):
                started.set()
                await self._stop.wait()

        self._served = asyncio.run_coroutine_threadsafe(serve(), self._loop)
        assert started.wait(10)

    def stop(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._served.result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    served.start()
    yield served
    served.stop()


@pytest.fixture
def cluster(served: Served) -> Iterator[fg.blocking.Cluster]:
    with fg.blocking.connect(served.servant.address) as cluster:
        yield cluster


def test_a_whole_job(served: Served, cluster: fg.blocking.Cluster) -> None:
    servant = served.servant
    servant.programs["say"] = Program(stdout=TEXT)
    heard: list[bytes] = []
    with cluster.job("blocking") as job:
        requests = job.request_slots(fg.SlotSpec(cpu_milli=100, count=2))
        for slot in fg.blocking.as_granted(requests):
            with slot:
                task = slot.run(["say"], output=lambda chunk: heard.append(chunk.data))
                assert task.wait(timeout_s=10).ok
                assert b"".join(each.data for each in task.output()) == TEXT
        events = job.events()
        (last,) = job.request_slots(fg.SlotSpec())
        granted = next(each for each in events if each.allocation_id == last.allocation_id)
        assert granted.state is fg.RequestState.GRANTED
        assert last.explain().primary_reason == "WAITING_CAPACITY"
    assert b"".join(heard) == TEXT * 2
    assert len(servant.calls["EndJob"]) == 1
    assert [each.executor_id for each in cluster.executors()] == ["host-0", "host-1", "host-2"]
    assert [each.sequence for each in cluster.events()] == [1, 2, 3]


def test_gangs_and_sizes(served: Served, cluster: fg.blocking.Cluster) -> None:
    servant = served.servant
    with cluster.job("elastic") as job:
        slots = job.request_gang(fg.SlotSpec(cpu_milli=500, count=2), placement="spread")
        assert [each.allocation_id for each in slots] == [
            each.allocation_id for each in job.requests
        ]
        assert {each.gang.placement for each in job.requests if each.gang} == {"SPREAD"}
        status = slots[0].resize(cpu_milli=1000)
        assert status.profile.cpu_milli == slots[0].profile.cpu_milli == 1000
        assert slots[0].withdraw_resize().resize_number == 2
        servant.snapshot = [servant.snapshot_of(slots[1].allocation_id, GRANTED)]
        grown = cluster.resize(slots[1].allocation_id, cpu_milli=2000, timeout_s=10)
        assert grown.profile.cpu_milli == 2000
        assert cluster.withdraw_resize(slots[1].allocation_id).resizes == ()
    assert cluster.providers().shapes[0].name == "small"
    assert cluster.groups().groups[0].name == "medium"
    assert cluster.set_group("medium", weight=4.0).weight == 4.0
    cluster.delete_group("nightly")
    assert slots[0].assignment is None
    assert cluster.host_policy(None).number == 4
    assert cluster.set_host_policy("host-a", bind="SpreadByPCPUs").set.bind == "SpreadByPCPUs"
    assert cluster.advise("job-1", quantile=0.9).threads_recommended == 530


def test_slots_are_reused(served: Served, cluster: fg.blocking.Cluster) -> None:
    servant = served.servant
    with cluster.job("reusing") as job:
        (request,) = job.request_slots(fg.SlotSpec())
        slot = request.granted(timeout_s=10)
        servant.auto_grant = False
        waiting = job.request_slots(fg.SlotSpec(count=2))
        assert slot.reuse_for(waiting[0])
        servant.others_first = True
        (outcome,) = job.reuse([(slot, waiting[1].inner.allocation_id)])
        assert (outcome.ok, outcome.reason) == (False, "FAIR_SHARE")
        assert slot.has_ended


def test_a_lost_slot(served: Served, cluster: fg.blocking.Cluster) -> None:
    servant = served.servant
    servant.programs["sleep"] = Program(ends=False)
    with cluster.job("lost") as job:
        (request,) = job.request_slots(fg.SlotSpec())
        slot = request.granted(timeout_s=10)
        task = slot.run(["sleep"])
        assert not slot.lost.wait(timeout_s=0.01)
        served.run(servant.tell(slot.allocation_id, LOST, reason="EXECUTOR_LOST"))
        with pytest.raises(fg.SlotLost):
            task.wait(timeout_s=10)
        assert slot.lost.is_set()


def test_ctrl_c_ends_the_wait_and_then_the_job(
    served: Served, cluster: fg.blocking.Cluster
) -> None:
    served.servant.auto_grant = False

    def wait_until_interrupted() -> None:
        with cluster.job("interrupted") as job:
            (request,) = job.request_slots(fg.SlotSpec())
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            request.granted()

    with pytest.raises(KeyboardInterrupt):
        wait_until_interrupted()
    assert len(served.servant.calls["EndJob"]) == 1


def test_a_timeout_keeps_the_request(served: Served, cluster: fg.blocking.Cluster) -> None:
    served.servant.auto_grant = False
    with cluster.job("patient") as job:
        (request,) = job.request_slots(fg.SlotSpec())
        with pytest.raises(fg.StillWaiting):
            request.granted(timeout_s=0.05)
        served.run(served.servant.tell(request.allocation_id, GRANTED))
        assert request.granted(timeout_s=10).generation == 1


def test_a_closed_client_says_so_and_leaves_no_thread(served: Served) -> None:
    with fg.blocking.connect(served.servant.address) as cluster:
        cluster.executors()
    cluster.close()
    with pytest.raises(fg.ConfigurationError, match="closed"):
        cluster.executors()
    assert "finegrain-client" not in {each.name for each in threading.enumerate()}


def test_standard_input_may_come_from_a_blocking_iterator(
    served: Served, cluster: fg.blocking.Cluster
) -> None:
    cat = served.servant.programs["cat"] = Program(ends=False)
    with cluster.job("feeding") as job:
        (request,) = job.request_slots(fg.SlotSpec())
        task = request.granted(timeout_s=10).run(["cat"], stdin=iter([b"one ", b"two"]))
        served.run(eventually(lambda: cat.eof))
        assert bytes(cat.read) == b"one two"
        task.cancel()


def test_an_iterator_that_is_closed_listens_no_longer(
    served: Served, cluster: fg.blocking.Cluster
) -> None:
    with cluster.job("listening") as job:
        events = job.events()
        job.request_slots(fg.SlotSpec())
        next(events)
        slots = job.request_range(fg.SlotSpec(count=2)).slots()
        next(slots)
        for iterator in (events, slots):
            assert isinstance(iterator, Generator)
            iterator.close()
            with pytest.raises(StopIteration):
                next(iterator)


class Room:
    """An async context manager that records what happens to it."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    async def __aenter__(self) -> Self:
        self.happened.append("entered")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.happened.append("left")


class InterruptedLoop(PrivateLoop):
    """A loop that gets Ctrl-C exactly when the first call is done."""

    interrupted = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        result = super().run(work)
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return result


def test_what_was_entered_when_ctrl_c_came_is_left() -> None:
    loop, room = InterruptedLoop(), Room()
    with pytest.raises(KeyboardInterrupt):
        ContextHandle(loop, room).__enter__()
    assert room.happened == ["entered", "left"]
    loop.close()


def test_nothing_is_left_that_was_not_entered() -> None:
    class Locked(Room):
        async def __aenter__(self) -> Self:
            raise fg.Unavailable("locked")

    loop, room = PrivateLoop(), Locked()
    with pytest.raises(fg.Unavailable):
        ContextHandle(loop, room).__enter__()
    assert room.happened == []
    loop.close()


@pytest.mark.parametrize("name", sorted(set(fg.blocking.__all__) - {"as_granted", "connect"}))
def test_help_speaks_of_blocking_calls(name: str) -> None:
    twin = getattr(fg.blocking, name)
    assert twin.__doc__
    for each, member in inspect.getmembers(twin, inspect.isfunction):
        if not each.startswith("_"):
            assert member.__doc__, each
            assert not inspect.iscoroutinefunction(member)
    text = pydoc.plain(pydoc.render_doc(twin))
    text = re.sub(r"Handle\[.*|LoopOwner\[.*|finegrain_client\S+", "", text)
    assert not re.search(r"\b(async|await|anext|aclose|asyncio\.Event)\b", text)


def test_slots_of_a_range_can_be_waited_for_one_by_one(served: Served) -> None:
    served.servant.auto_grant = False
    with fg.blocking.connect(served.servant.address) as cluster, cluster.job("range") as job:
        asked = job.request_range(fg.SlotSpec(cpu_milli=500, count=3), range_id="r")
        assert (len(asked), asked.waiting, [each.range_id for each in job.ranges]) == (3, 3, ["r"])
        for index, state in ((1, GRANTED), (1, LOST), (0, GRANTED), (0, LOST), (2, LOST)):
            served.run(served.servant.tell(f"r.{index}", state))
        slots = list(asked.slots())
        assert all(each.is_lost for each in slots)
        assert asked.ended == {fg.RequestState.LOST: 3}
        assert asked.has_ended
        assert asked.cancel().ok
