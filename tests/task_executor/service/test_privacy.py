"""What an executor shows of a task to callers that do not own the task: nothing.

Commands, outputs and end messages are in the answers to the methods of `SHOWING` only. No answer
contains the environment of a task.
"""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from finegrain.identity import Role
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS
from finegrain.v1 import task_executor_pb2 as te
from tests.support.content import answers_to_readers, listed, messages_within, texts_of
from tests.support.every_method import methods_of
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import (
    OPERATOR,
    OTHER_OWNER,
    OWNER,
    JobMaster,
    ScriptedRM,
    allocation,
)

PRIVATE = {
    "ChainEdge": "chain",
    "GraphPlace": "chain slot_sharing_group",
    "ItemError": "details message reason",
    "OperatorStatus": "fraction operator_id",
    "OutputChunk": "data",
    "TaskExit": "end_message end_reason",
    "TaskStatus": "allocation_id argv job_id peer_operator_ids task_id",
}
"""All fields with text in answers about tasks. Only the owner of the task and administrators get
these messages.
"""

ARGUMENT, VALUE, OUTPUT = b"hidden-argument", b"hidden-value", b"hidden-output"
VIEWER = "viewer/vera"
SUBMIT = te.SubmitTaskRequest(
    task_id="task",
    allocation_id="slot",
    generation=1,
    spec=te.TaskSpec(
        argv=["sleep", ARGUMENT.decode()], env={"HIDDEN_NAME": VALUE.decode()}, stdin=True
    ),
    operator_task=te.OperatorTask(
        operators=[te.TaskOperator(operator_id="hidden-operator")],
        parallelism=1,
        place=te.GraphPlace(chain="hidden-operator"),
    ),
)
SHOWING: dict[str, tuple[Any, set[bytes]]] = {
    "SubmitTask": (SUBMIT, {ARGUMENT, b"hidden-operator"}),
    "WatchTask": (
        te.WatchTaskRequest(task_id="task"),
        {ARGUMENT, b"hidden-operator", OUTPUT},
    ),
    "ListTasks": (te.ListTasksRequest(job_id="job"), {ARGUMENT, b"hidden-operator"}),
}
"""The methods that show tasks: a request for the task of the tests, and what its answer shows."""

METHODS = {
    method.path.rpartition("/")[2]: method for method in methods_of(te, TASK_EXECUTOR_ACCESS)
}


@pytest.fixture
async def running(rm: ScriptedRM, executor: Executor) -> Executor:
    """An executor with alice's task, which has ended, and a slot of bob."""
    await rm.allocate(allocation(), allocation("theirs", job_id="job-b", owner=OTHER_OWNER))
    await executor.job_master.call("SubmitTask", SUBMIT)
    executor.helper.write("task", OUTPUT)
    executor.helper.end("task")
    await executor.job_master.watch()
    return executor


async def shown(executor: Executor, who: str, name: str, request: Any) -> bytes:
    """Returns all that a caller gets: the bytes of the answers, or the text of the refusal."""
    method = METHODS[name]
    master = JobMaster(executor.front.address, who)
    async with master._channel() as channel:
        make: Any = channel.unary_stream if method.server_streams else channel.unary_unary
        shown = master.metadata(request)
        call = make(method.path)(request.SerializeToString(), timeout=20, metadata=shown)
        try:
            if method.server_streams:
                return b"".join([bytes(each) async for each in call])
            return bytes(await call)
        except grpc.RpcError as error:
            refused: Any = error
            return f"{refused.details()} {refused.trailing_metadata()}".encode()


def hidden_in(data: bytes) -> set[bytes]:
    every = (ARGUMENT, VALUE, OUTPUT, b"HIDDEN_NAME", b"hidden-operator", OWNER.encode())
    return {each for each in every if each in data}


@pytest.mark.parametrize("name", SHOWING)
async def test_the_owner_sees_its_task_and_never_the_environment(
    running: Executor, name: str
) -> None:
    request, content = SHOWING[name]
    assert hidden_in(await shown(running, OWNER, name, request)) == content


@pytest.mark.parametrize("name", SHOWING)
async def test_an_administrator_sees_all_tasks_but_does_not_submit_for_others(
    running: Executor, name: str
) -> None:
    request, content = SHOWING[name]
    expected = set() if name == "SubmitTask" else content
    assert hidden_in(await shown(running, OPERATOR, name, request)) == expected


@pytest.mark.parametrize("name", SHOWING)
@pytest.mark.parametrize("who", [OTHER_OWNER, VIEWER])
async def test_others_get_no_word_of_a_task(running: Executor, name: str, who: str) -> None:
    request, _ = SHOWING[name]
    data = await shown(running, who, name, request)
    assert data
    assert hidden_in(data) == set()


async def test_a_user_sees_its_own_task_beside_the_tasks_of_others(running: Executor) -> None:
    bob = JobMaster(running.front.address, OTHER_OWNER)
    await bob.submit("sleep", "1000", task_id="of-bob", allocation_id="theirs")
    (task,) = await bob.tasks("job-b")
    assert (task.task_id, list(task.argv)) == ("of-bob", ["sleep", "1000"])


def test_no_other_method_for_users_answers_with_text() -> None:
    (service,) = te.DESCRIPTOR.services_by_name.values()
    for method in service.methods:
        if Role.USER in METHODS[method.name].roles and method.name not in SHOWING:
            assert not texts_of(messages_within([method.output_type]).values()), method.name


def test_a_new_field_with_text_needs_a_decision_who_sees_it() -> None:
    found = messages_within(answers_to_readers(te, TASK_EXECUTOR_ACCESS)).values()
    assert texts_of(found) == listed(PRIVATE)
