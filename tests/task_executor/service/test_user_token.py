"""How an executor checks the user token while the RM is away: by the hash in its checkpoint."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from finegrain.errors import FinegrainError, Reason, Unauthenticated, Unavailable
from finegrain.rpc.channels import open_channel
from finegrain.rpc.status import DETAILS_KEY
from finegrain.rpc.tokens import sha256_hex
from finegrain.v1 import task_executor_pb2 as te
from finegrain.v1 import task_executor_pb2_grpc
from task_executor.service.checkpoint import read_document, write_document
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import (
    CLUSTER_TOKEN,
    USER_TOKEN,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)

OTHER_TOKEN = "another-user-token-of-the-tests"


@pytest.fixture
async def alone(rm: ScriptedRM, executor: Executor) -> Executor:
    """One whose task runs, and whose front crashed after the RM did."""
    await rm.allocate(allocation())
    await executor.job_master.submit("sleep", "1000")
    await rm.stop()
    await executor.crash()
    return executor


def forget_user_token(executor: Executor) -> None:
    """As a version of the executor that did not store its hash left the checkpoint."""
    path = executor.folder / "state" / "state.json"
    content = read_document(path)
    assert content is not None
    del content["user_token_sha256"]
    write_document(path, content)


async def refused(job_master: JobMaster) -> FinegrainError:
    with pytest.raises(FinegrainError) as caught:
        await job_master.tasks()
    return caught.value


async def test_a_front_that_restarts_while_the_rm_is_away_lets_job_masters_in(
    alone: Executor,
) -> None:
    await alone.start()
    (task,) = await alone.job_master.tasks()
    assert (task.task_id, task.state) == ("task", te.TASK_STATE_RUNNING)
    alone.helper.end("task", 5)
    assert (await alone.job_master.watch()).exit.exit_code == 5
    await alone.job_master.submit("true", task_id="another")


async def test_it_refuses_others_as_before(alone: Executor) -> None:
    address = (await alone.start()).address
    wrong = await refused(JobMaster(address, token="no-token-of-this-cluster"))
    assert isinstance(wrong, Unauthenticated)
    assert wrong.reason is Reason.TOKEN_WRONG
    stranger = await refused(JobMaster(address, secret="of another job"))
    assert stranger.reason is Reason.JOB_SECRET_WRONG


async def test_until_the_user_token_is_known_callers_are_told_to_try_again(
    rm: ScriptedRM, alone: Executor
) -> None:
    forget_user_token(alone)
    address = (await alone.start()).address
    error = await refused(alone.job_master)
    assert isinstance(error, Unavailable)
    assert error.reason is Reason.NOT_REGISTERED
    assert "check that the resource manager is running" in error.message
    (task,) = await JobMaster(address, token=CLUSTER_TOKEN).tasks()
    assert task.task_id == "task"
    assert (await refused(JobMaster(address, token=""))).reason is Reason.TOKEN_MISSING
    await rm.start(rm.address)
    await eventually(lambda: alone.front.agent.state.registered, "it registers")
    assert await alone.job_master.tasks() == [task]
    wrong = await refused(JobMaster(address, token="no-token-of-this-cluster"))
    assert wrong.reason is Reason.TOKEN_WRONG


async def test_the_answer_until_then_says_when_to_try_again(alone: Executor) -> None:
    forget_user_token(alone)
    address = (await alone.start()).address
    async with open_channel(address, token=USER_TOKEN) as channel:
        stub: Any = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            await stub.ListTasks(te.ListTasksRequest(job_id="job"))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert b"google.rpc.RetryInfo" in dict(error.trailing_metadata())[DETAILS_KEY]


async def test_a_registration_that_brings_another_user_token_replaces_it(
    rm: ScriptedRM, executor: Executor
) -> None:
    rm.user_token, rm.register_again = OTHER_TOKEN, True
    await eventually(lambda: len(rm.registrations) == 2, "it registers again")
    await eventually(lambda: executor.front.agent.state.registration_number == 2, "it took that in")
    await rm.allocate(allocation())
    await rm.stop()
    await executor.crash()
    address = (await executor.start()).address
    assert await JobMaster(address, token=OTHER_TOKEN).tasks() == []
    assert (await refused(JobMaster(address))).reason is Reason.TOKEN_WRONG


async def test_the_checkpoint_has_the_hash_and_no_token(executor: Executor) -> None:
    path = executor.folder / "state" / "state.json"
    content = read_document(path)
    assert content is not None
    assert content["user_token_sha256"] == sha256_hex(USER_TOKEN)
    assert USER_TOKEN not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
