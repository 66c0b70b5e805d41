"""Network ports of slots are reported, are in the environment of tasks, and survive crashes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from finegrain.v1 import slots_pb2
from finegrain.v1 import task_executor_pb2 as te
from task_executor.host.network_ports import is_free
from tests.task_executor.service.conftest import Executor, executor_at
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation, eventually, free

FIRST = next(port for port in range(17_000, 19_000, 8) if all(map(is_free, range(port, port + 8))))
PORTS = range(FIRST, FIRST + 4)


@pytest.fixture
async def executor(rm: ScriptedRM, tmp_path: Path) -> AsyncIterator[Executor]:
    """It has four ports."""
    async with executor_at(tmp_path, rm.address) as made:
        await made.start(task_ports=f"{PORTS[0]}-{PORTS[-1]}")
        await eventually(lambda: rm.reports, "it reports")
        yield made


def with_ports(name: str, count: int) -> te.SlotAllocation:
    made = allocation(name)
    made.slot.profile.extended["ports"] = count
    return made


def ports_of(report: slots_pb2.SlotReport) -> dict[str, list[int]]:
    return {each.allocation_id: list(each.isolation.ports) for each in report.slots}


async def test_slots_get_different_ports_that_return_with_the_slot(
    executor: Executor, rm: ScriptedRM
) -> None:
    assert rm.registered.total.extended["ports"] == 4
    answer = await rm.allocate(with_ports("a", 2), with_ports("b", 1), allocation("c"))
    first = ports_of(answer.report)
    assert first == {"a": [*PORTS[:2]], "b": [PORTS[2]], "c": []}
    answer = await rm.allocate(with_ports("d", 2))
    assert answer.results[0].error.reason == "INSUFFICIENT_RESOURCES"
    await rm.free(free("a"))
    answer = await rm.allocate(with_ports("d", 3))
    assert ports_of(answer.report)["d"] == sorted({*PORTS} - {*first["b"]})


async def test_a_slot_whose_ports_other_programs_use_is_refused(
    executor: Executor, rm: ScriptedRM
) -> None:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", PORTS[1]))
        listener.listen()
        answer = await rm.allocate(with_ports("a", 4))
        assert (
            "4 network ports were requested, but only 3 are free" in answer.results[0].error.message
        )
        await eventually(lambda: len(executor.front.keeper.table) == 0, "nothing is left of it")
        answer = await rm.allocate(with_ports("b", 3))
    assert ports_of(answer.report) == {"b": [PORTS[0], *PORTS[2:]]}


async def test_tasks_find_the_ports_also_after_a_crash(executor: Executor, rm: ScriptedRM) -> None:
    await rm.allocate(with_ports("a", 2))
    for task_id in ("before", "after"):
        request = te.SubmitTaskRequest(
            task_id=task_id,
            allocation_id="a",
            generation=1,
            spec=te.TaskSpec(argv=["true"], env={"FINEGRAIN_PORTS": "1"}),
        )
        await executor.job_master.call("SubmitTask", request)
        env = executor.helper.specs[task_id].env
        assert env["FINEGRAIN_PORTS"] == f"{PORTS[0]},{PORTS[1]}"
        if task_id == "before":
            await executor.crash()
            await executor.start(task_ports=f"{PORTS[0]}-{PORTS[-1]}")
            await eventually(lambda: len(rm.registrations) == 2, "it registers again")
    assert ports_of(rm.full_reports()[-1]) == {"a": [*PORTS[:2]]}
    answer = await rm.allocate(with_ports("b", 2))
    assert ports_of(answer.report)["b"] == [*PORTS[2:]]
