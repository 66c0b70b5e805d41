"""Operators of job graphs at an executor: quotas, the socket of their slot, and restarts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Reason
from finegrain.v1 import task_executor_pb2 as te
from task_executor.helper.protocol import decode, encode
from task_executor.helper.server import socket_address
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import MIB, JobMaster, ScriptedRM, allocation, free

PAGE = 32 << 10


class AnyProcess:
    """Says that every process belongs to the first task that runs."""

    def task_of(self, _pid: int, _group: str, tasks: dict[str, int]) -> str | None:
        return next(iter(tasks), None)


@dataclass
class SlotSocket:
    """A task at the socket of its slot."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    async def at(cls, path: str) -> SlotSocket:
        with socket_address(Path(path)) as address:  # paths of tests are too long
            return cls(*await asyncio.open_unix_connection(address))

    async def frame(self) -> dict[str, Any]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return decode(await self.reader.readexactly(size))

    async def call(self, verb: str, **args: Any) -> dict[str, Any]:
        self.number += 1
        self.writer.write(encode({"id": self.number, "verb": verb, "args": args}))
        while (answer := await self.frame()).get("id") != self.number:
            self.events.append(answer)
        return answer


def managed(megabytes: int = 64) -> te.SlotAllocation:
    made = allocation(memory_bytes=64 * MIB)
    made.slot.profile.managed_memory_bytes = megabytes * MIB
    made.slot.memory_bytes += megabytes * MIB
    return made


async def submit(
    master: JobMaster, task_id: str = "task", limit: int = 0, **fractions: str
) -> te.TaskStatus:
    operators = [te.TaskOperator(operator_id=n, fraction=f) for n, f in fractions.items()]
    peer = te.TaskPeer(operator_id="sink", subtask_index=2, host="host-b", ports=[20001])
    request = te.SubmitTaskRequest(
        task_id=task_id,
        allocation_id="slot",
        generation=1,
        spec=te.TaskSpec(argv=["true"]),
        operator_task=te.OperatorTask(
            operators=operators, subtask_index=1, parallelism=4, ports=[20000], peers=[peer]
        ),
        memory_limit_bytes=limit,
    )
    answer: te.SubmitTaskResponse = await master.call("SubmitTask", request)
    return answer.task


def quotas(status: te.TaskStatus) -> dict[str, tuple[int, int]]:
    return {each.operator_id: (each.quota_bytes, each.quota_pages) for each in status.operators}


@pytest.fixture
async def master(rm: ScriptedRM, executor: Executor) -> JobMaster:
    """It owns a slot with 64 MiB of managed memory; every process here counts as a task of it."""
    executor.front.slot_sockets._owners = AnyProcess()  # type: ignore[assignment]
    await rm.allocate(managed())
    return executor.job_master


PLACE = te.GraphPlace(
    chain="sort+join",
    slot_sharing_group="default",
    region=2,
    edges=[
        te.ChainEdge(chain="read", parallelism=3, is_input=True, is_blocking=True),
        te.ChainEdge(chain="sink", parallelism=2),
    ],
)


def placed(task_id: str, place: te.GraphPlace | None) -> te.SubmitTaskRequest:
    operators = [te.TaskOperator(operator_id="sort"), te.TaskOperator(operator_id="join")]
    work = te.OperatorTask(operators=operators, subtask_index=1, parallelism=4, place=place)
    spec = te.TaskSpec(argv=["true"])
    return te.SubmitTaskRequest(
        task_id=task_id, allocation_id="slot", generation=1, spec=spec, operator_task=work
    )


async def test_a_task_is_listed_with_its_place_in_the_graph(
    executor: Executor, master: JobMaster
) -> None:
    await master.call("SubmitTask", placed("task", PLACE))
    (listed,) = await master.tasks()
    assert (listed.subtask_index, listed.parallelism, listed.place) == (1, 4, PLACE)
    # A job master of another version, which sends no place, may repeat the submission.
    await master.call("SubmitTask", placed("task", None))
    assert (await master.tasks())[0].place == PLACE
    await master.call("SubmitTask", placed("other", None))
    assert [each.HasField("place") for each in await master.tasks()] == [True, False]


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (te.GraphPlace(), "place.chain"),
        (te.GraphPlace(chain="\x1b[31m"), "place.chain"),
        (te.GraphPlace(chain="x" * 1001), "place.chain"),
        (te.GraphPlace(chain="a", slot_sharing_group="<b>"), "place.slot_sharing_group"),
        (te.GraphPlace(chain="a", region=-1), "place.region"),
        (te.GraphPlace(chain="a", edges=[te.ChainEdge(chain="b")]), r"edges\[0\].parallelism"),
        (te.GraphPlace(chain="a", edges=[te.ChainEdge(parallelism=1)]), r"edges\[0\].chain"),
        (te.GraphPlace(chain="a", edges=[te.ChainEdge(chain="b")] * 1001), "place.edges"),
    ],
)
async def test_a_place_that_cannot_be_is_refused(
    executor: Executor, master: JobMaster, place: te.GraphPlace, field: str
) -> None:
    with pytest.raises(InvalidArgument, match=field):
        await master.call("SubmitTask", placed("task", place))
    assert not executor.helper.specs


async def test_a_task_finds_its_operators_quotas_ports_and_peers(
    executor: Executor, master: JobMaster
) -> None:
    status = await submit(master, sort="3/4", join="0.25", filter="")
    assert quotas(status) == {
        "sort": (48 * MIB, 48 * MIB // PAGE),
        "join": (16 * MIB, 16 * MIB // PAGE),
        "filter": (0, 0),
    }
    env = executor.helper.specs["task"].env
    task = json.loads(env["FINEGRAIN_TASK"])
    assert task["operators"][0] == {
        "operator_id": "sort",
        "fraction": "3/4",
        "quota_bytes": 48 * MIB,
        "quota_pages": 48 * MIB // PAGE,
    }
    assert (task["subtask_index"], task["parallelism"], task["ports"]) == (1, 4, [20000])
    assert task["peers"] == [
        {"operator_id": "sink", "subtask_index": 2, "host": "host-b", "ports": [20001]}
    ]
    assert Path(env["FINEGRAIN_SLOT_SOCKET"]).is_socket()
    assert list((await master.tasks())[0].operators) == list(status.operators)


@pytest.mark.parametrize("fraction", ["0", "-1/2", "5/4", "half", "1/0", "1e-3", "9" * 41])
async def test_a_fraction_that_is_not_one_is_refused(
    executor: Executor, master: JobMaster, fraction: str
) -> None:
    with pytest.raises(InvalidArgument, match=r"operators\[1\]\.fraction"):
        await submit(master, sort="1/2", join=fraction)
    assert not executor.helper.specs


async def test_a_task_whose_operators_do_not_all_fit_registers_none(
    executor: Executor, master: JobMaster
) -> None:
    await submit(master, "first", sort="2/3")
    with pytest.raises(FailedPrecondition) as refused:
        await submit(master, "second", small="1/6", large="1/3")
    assert refused.value.reason is Reason.MANAGED_MEMORY_EXCEEDED
    assert refused.value.details == {"asked": "1/2", "available": "1/3"}
    assert "second" not in executor.helper.specs
    await submit(master, "third", other="1/3")


async def test_an_operator_is_free_again_when_its_task_has_ended(
    executor: Executor, master: JobMaster
) -> None:
    await submit(master, "first", sort="1")
    with pytest.raises(AlreadyExists, match="runs in task first"):
        await submit(master, "again", sort="1")
    with pytest.raises(AlreadyExists, match="is already registered with 1 of"):
        await submit(master, "again", sort="1/2")
    executor.helper.end("first")
    await master.watch("first")
    assert quotas(await submit(master, "again", sort="1/2"))["sort"][0] == 32 * MIB


async def test_the_operators_of_a_task_that_never_ran_are_free(
    executor: Executor, master: JobMaster
) -> None:
    executor.helper.refuse_start = NotFound("no such program", reason=Reason.COMMAND_NOT_FOUND)
    assert (await submit(master, "never", sort="1")).state == te.TASK_STATE_FAILED
    executor.helper.refuse_start = InvalidArgument("argv", "x", "y")
    with pytest.raises(InvalidArgument):
        await submit(master, "refused", sort="1")
    executor.helper.refuse_start = None
    await submit(master, "runs", sort="1")


async def test_a_job_master_registers_an_operator_for_a_slot(
    rm: ScriptedRM, executor: Executor, master: JobMaster
) -> None:
    request = te.RegisterManagedMemoryRequest(
        allocation_id="slot", generation=1, operator_id="sort", fraction="1/3"
    )
    answer = await master.call("RegisterManagedMemory", request)
    assert answer == await master.call("RegisterManagedMemory", request)
    size = 64 * MIB // 3
    assert (answer.memory_bytes, answer.pages, answer.page_bytes) == (size, size // PAGE, PAGE)
    await executor.crash()
    await executor.start()
    executor.front.slot_sockets._owners = AnyProcess()  # type: ignore[assignment]
    again = executor.job_master
    with pytest.raises(FailedPrecondition):
        await submit(again, other="3/4")
    await submit(again, sort="1/3", other="2/3")


async def test_operators_of_a_task_survive_a_crash_of_the_front(
    executor: Executor, master: JobMaster
) -> None:
    await submit(master, sort="1/2")
    path = executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"]
    task = await SlotSocket.at(path)
    assert (await task.call("RegisterManagedMemory", operator_id="late", fraction="1/4"))["ok"]
    await executor.crash()
    await executor.start()
    executor.front.slot_sockets._owners = AnyProcess()  # type: ignore[assignment]
    again = await SlotSocket.at(path)
    known = (await again.call("WatchQuota"))["result"]["operators"]
    assert [(each["operator_id"], each["fraction"]) for each in known] == [
        ("sort", "1/2"),
        ("late", "1/4"),
    ]
    refused = await again.call("RegisterManagedMemory", operator_id="more", fraction="1/3")
    assert refused["error"]["reason"] == "MANAGED_MEMORY_EXCEEDED"


async def test_a_resize_pushes_new_quotas_and_moves_the_limit_of_a_task(
    rm: ScriptedRM, executor: Executor, master: JobMaster
) -> None:
    await submit(master, limit=80 * MIB, sort="1/2")
    task = await SlotSocket.at(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    assert (await task.call("WatchQuota"))["result"]["operators"][0]["quota_bytes"] == 32 * MIB
    await resized(rm, 1, managed_mib=96)
    event = await task.frame()
    assert (event["event"], event["operators"][0]["quota_bytes"]) == ("quota", 48 * MIB)
    assert executor.helper.said("limit task")[-1] == f"limit task {96 * MIB}"
    await resized(rm, 2, managed_mib=32)
    assert (await task.frame())["operators"][0]["quota_bytes"] == 16 * MIB
    assert executor.helper.said("limit task")[-1] == f"limit task {64 * MIB}"
    status = (await master.tasks())[0]
    assert status.operators[0].enforcement == te.QUOTA_ENFORCEMENT_CGROUP


async def resized(rm: ScriptedRM, number: int, *, managed_mib: int) -> None:
    request = te.TaskExecutorServiceResizeSlotRequest(
        **rm._numbers(None, {}), allocation_id="slot", generation=1, resize_number=number
    )
    request.profile.cpu_milli = 500
    request.profile.task_heap_memory_bytes = 64 * MIB
    request.profile.managed_memory_bytes = managed_mib * MIB
    answer = await rm._command("ResizeSlot", request)
    assert not answer.result.HasField("error"), answer.result


async def test_a_resize_waits_until_a_pool_has_given_back(
    rm: ScriptedRM, executor: Executor, master: JobMaster
) -> None:
    await submit(master, sort="1")
    task = await SlotSocket.at(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    await task.call("WatchQuota")
    await task.call("ReportUse", operator_id="sort", used_bytes=60 * MIB)
    operator = (await master.tasks())[0].operators[0]
    assert (operator.enforcement, operator.used_bytes) == (te.QUOTA_ENFORCEMENT_POOL, 60 * MIB)
    before = len(executor.helper.said("resize"))
    resize = asyncio.create_task(resized(rm, 1, managed_mib=16))
    assert (await task.frame())["operators"][0]["quota_bytes"] == 16 * MIB
    assert len(executor.helper.said("resize")) == before
    await task.call("ReportUse", operator_id="sort", used_bytes=8 * MIB)
    await resize
    assert len(executor.helper.said("resize")) > before


async def test_peers_can_be_replaced(executor: Executor, master: JobMaster) -> None:
    await submit(master, sort="1")
    task = await SlotSocket.at(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    assert (await task.call("GetPeers"))["result"]["peers"][0]["host"] == "host-b"
    moved = te.TaskPeer(operator_id="sink", subtask_index=2, host="host-c", ports=[20007])
    await master.call("SetTaskPeers", te.SetTaskPeersRequest(task_id="task", peers=[moved]))
    assert (await task.call("GetPeers"))["result"]["peers"] == [
        {"operator_id": "sink", "subtask_index": 2, "host": "host-c", "ports": [20007]}
    ]
    (listed,) = await master.tasks()
    assert list(listed.peer_operator_ids) == ["sink"]


BAD_FRAMES = {
    "not JSON": b"\0\0\0\x04oops",
    "too long": (1 << 20).to_bytes(4, "big"),
    "no object": b"\0\0\0\x02[]",
    "no id": encode({"verb": "GetPeers"}),
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
async def test_a_bad_frame_gets_one_error_and_the_end(
    executor: Executor, master: JobMaster, frame: bytes
) -> None:
    await submit(master, sort="1")
    task = await SlotSocket.at(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    task.writer.write(frame)
    answer = await task.frame()
    assert (answer["ok"], answer["error"]["reason"]) == (False, "INVALID_ARGUMENT")
    assert await task.reader.read() == b""


async def test_a_process_of_no_task_is_refused(executor: Executor, master: JobMaster) -> None:
    await submit(master, sort="1")
    path = executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"]
    executor.front.slot_sockets._owners.task_of = lambda *_: None  # type: ignore[method-assign]
    stranger = await SlotSocket.at(path)
    answer = await stranger.frame()
    assert "belongs to no task of slot slot" in answer["error"]["message"]
    assert await stranger.reader.read() == b""


async def test_a_task_has_a_limited_number_of_connections(
    executor: Executor, master: JobMaster
) -> None:
    await submit(master, sort="1")
    path = executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"]
    held = [await SlotSocket.at(path) for _ in range(16)]
    for each in held:
        await each.call("GetPeers")
    assert "close some" in (await (await SlotSocket.at(path)).frame())["error"]["message"]


async def test_the_socket_goes_with_its_slot(
    rm: ScriptedRM, executor: Executor, master: JobMaster
) -> None:
    await submit(master, sort="1")
    path = Path(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    task = await SlotSocket.at(str(path))
    await task.call("WatchQuota")
    await rm.free(free())
    assert await task.reader.read() == b""
    assert not path.exists()


async def test_a_limit_above_the_slot_is_refused(master: JobMaster) -> None:
    with pytest.raises(InvalidArgument, match="the memory of the slot"):
        await submit(master, limit=256 * MIB, sort="1")


async def use(pool: SlotSocket, operator: str, used: int, wanted: int, limit: int) -> None:
    """A pool reports the memory that it uses and wants, and the limit that it obeys, in MiB."""
    sizes = {"used_bytes": used, "wanted_bytes": wanted, "limit_bytes": limit}
    args = {name: size * MIB for name, size in sizes.items()}
    assert (await pool.call("UseMemory", operator_id=operator, **args))["ok"]


async def limits(pool: SlotSocket) -> dict[str, int]:
    """Returns the limits of the operators that lend and borrow, in MiB."""
    known = (await pool.call("WatchQuota"))["result"]["operators"]
    return {each["operator_id"]: each["limit_bytes"] // MIB for each in known}


async def test_memory_that_an_operator_does_not_use_is_lent_and_revoked(
    executor: Executor, master: JobMaster
) -> None:
    await submit(master, sort="1/2", join="1/2")
    pool = await SlotSocket.at(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    await use(pool, "sort", used=0, wanted=0, limit=32)
    await use(pool, "join", used=32, wanted=50, limit=32)
    assert await limits(pool) == {"sort": 14, "join": 32}
    await use(pool, "sort", used=0, wanted=0, limit=14)
    assert await limits(pool) == {"sort": 14, "join": 50}
    await use(pool, "join", used=50, wanted=50, limit=50)
    await use(pool, "sort", used=14, wanted=32, limit=14)
    assert await limits(pool) == {"sort": 14, "join": 32}
    (task,) = await master.tasks()
    shown = {each.operator_id: each for each in task.operators}
    assert shown["join"].revoked_bytes == 18 * MIB
    assert shown["join"].limit_bytes == shown["join"].quota_bytes == 32 * MIB
    await use(pool, "join", used=32, wanted=50, limit=32)
    assert await limits(pool) == {"sort": 32, "join": 32}


async def test_a_task_that_keeps_borrowed_memory_is_ended(
    executor: Executor, master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task has borrowed memory that no operator had; then a task starts whose operator has this
    memory.
    """
    monkeypatch.setattr("task_executor.service.operators.REVOKE_S", 0.05)
    await submit(master, sort="1/2")
    pool = await SlotSocket.at(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    await use(pool, "sort", used=32, wanted=64, limit=32)
    assert await limits(pool) == {"sort": 64}
    await submit(master, "late", join="1/2")
    (first, late) = await master.tasks()
    assert (first.exit.end_reason, late.state) == (
        "MANAGED_MEMORY_REVOKED",
        te.TASK_STATE_RUNNING,
    )


async def test_a_task_with_a_memory_limit_cannot_borrow(
    executor: Executor, master: JobMaster
) -> None:
    await submit(master, limit=64 * MIB, sort="1/2")
    pool = await SlotSocket.at(executor.helper.specs["task"].env["FINEGRAIN_SLOT_SOCKET"])
    await use(pool, "sort", used=32, wanted=64, limit=32)
    assert await limits(pool) == {"sort": 32}
