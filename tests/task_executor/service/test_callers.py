"""Who may call what at an executor: every method of the service, every kind of caller."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from finegrain.errors import (
    AlreadyExists,
    FinegrainError,
    InvalidArgument,
    PermissionDenied,
    Reason,
    ResourceExhausted,
)
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS, Access
from finegrain.rpc.channels import AUTHORIZATION, JOB_SECRET
from finegrain.v1 import task_executor_pb2 as te
from finegrain.v1 import task_executor_pb2_grpc
from task_executor.service import task_table
from tests.support.every_method import Method, methods_of, status_of_call
from tests.support.patience import PATIENCE_S
from tests.task_executor.service.conftest import TOTAL, Executor
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    CLUSTER_TOKEN,
    USER_TOKEN,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)

METHODS = list(methods_of(te, TASK_EXECUTOR_ACCESS))
OF_TASKS = [
    method for method in METHODS if method.need is Access.USER and "ListTasks" not in method.path
]
OK, DENIED = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def name_of(method: Method) -> str:
    return method.path.rpartition("/")[2]


async def ask(executor: Executor, method: Method, *metadata: tuple[str, str], data: bytes) -> Any:
    async with grpc.aio.insecure_channel(executor.front.address) as channel:
        return await status_of_call(channel, method, metadata, data)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize(
    "shown",
    [
        pytest.param([], id="no token"),
        pytest.param([(AUTHORIZATION, "")], id="an empty header"),
        pytest.param([(AUTHORIZATION, "Bearer ")], id="an empty token"),
        pytest.param([(AUTHORIZATION, CLUSTER_TOKEN)], id="a token without its scheme"),
        pytest.param([(AUTHORIZATION, f"Bearer {USER_TOKEN}x")], id="nearly the user token"),
        pytest.param([(AUTHORIZATION, f"Bearer {CLUSTER_TOKEN[:-1]}")], id="a part of a token"),
        pytest.param([(AUTHORIZATION, f"Basic {CLUSTER_TOKEN}")], id="another scheme"),
        pytest.param([(JOB_SECRET, CLUSTER_TOKEN)], id="the token in the wrong place"),
    ],
)
async def test_nobody_gets_in_without_a_token(
    executor: Executor, method: Method, shown: list[tuple[str, str]]
) -> None:
    code, _ = await ask(executor, method, *shown, data=b"")
    assert code is UNAUTHENTICATED


@pytest.mark.parametrize("method", METHODS, ids=name_of)
async def test_the_user_token_opens_what_is_for_users_only(
    executor: Executor, method: Method
) -> None:
    code, text = await ask(executor, method, (AUTHORIZATION, f"Bearer {USER_TOKEN}"), data=b"")
    denied = code is DENIED and "cluster token" in text
    assert denied is (method.need is Access.CLUSTER)
    assert code is not UNAUTHENTICATED


@pytest.mark.parametrize("known", [None, ""], ids=["not known yet", "no user token"])
async def test_without_a_hash_from_the_rm_no_user_gets_in(
    executor: Executor, known: str | None
) -> None:
    executor.front.tokens.user_sha256 = known
    for method in METHODS:
        code, _ = await ask(executor, method, (AUTHORIZATION, "Bearer anything-at-all"), data=b"")
        may_be_right = known is None and method.need is Access.USER
        assert code is (grpc.StatusCode.UNAVAILABLE if may_be_right else UNAUTHENTICATED)


def request_for(method: Method) -> bytes:
    """One that names the task `task` of the slot `slot`."""
    fields: dict[str, Any] = {"task_id": "task"}
    if method.path.endswith("SubmitTask"):
        fields |= {"allocation_id": "slot", "generation": 1, "spec": te.TaskSpec(argv=["true"])}
    if method.path.endswith("RegisterManagedMemory"):
        fields |= {"allocation_id": "slot", "generation": 1, "operator_id": "sort"}
    message: Any = getattr(te, f"{name_of(method)}Request")(**fields)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("method", OF_TASKS, ids=name_of)
@pytest.mark.parametrize("token", [USER_TOKEN, CLUSTER_TOKEN], ids=["user token", "cluster token"])
@pytest.mark.parametrize(
    "secret", [None, "", "another-jobs-secret"], ids=["no secret", "empty", "another job's"]
)
async def test_a_task_is_for_its_job_alone(
    rm: ScriptedRM, executor: Executor, method: Method, token: str, secret: str | None
) -> None:
    await rm.allocate(
        allocation(), allocation("theirs", job_id="job-b", secret="another-jobs-secret")
    )
    await executor.job_master.submit("sleep", "1000")
    shown = [(AUTHORIZATION, f"Bearer {token}")]
    if secret is not None:
        shown.append((JOB_SECRET, secret))
    code, _ = await ask(executor, method, *shown, data=request_for(method))
    for_operators = name_of(method) in ("CancelTask", "WatchTask") and token == CLUSTER_TOKEN
    expected = {OK} if for_operators else {DENIED, grpc.StatusCode.ALREADY_EXISTS}
    assert code in expected


async def test_a_slot_without_an_owner_belongs_to_nobody(
    rm: ScriptedRM, executor: Executor
) -> None:
    orphan = allocation()
    orphan.job_secret_sha256 = ""
    await rm.allocate(orphan)
    for secret in ("", "anything"):
        master = JobMaster(executor.front.address, secret=secret)
        with pytest.raises(FinegrainError) as caught:
            await master.submit("true")
        assert caught.value.reason in (Reason.JOB_SECRET_WRONG, Reason.ALLOCATION_UNKNOWN)


async def test_another_jobs_task_id_tells_nothing(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation(), allocation("theirs", job_id="job-b", secret="b"))
    await executor.job_master.submit("sleep", "1000", env={"SECRET": "hidden-value"})
    stranger = JobMaster(executor.front.address, secret="b")
    with pytest.raises(AlreadyExists) as caught:
        await stranger.submit("sleep", "1000", allocation_id="theirs")
    assert "hidden-value" not in str(caught.value)
    assert caught.value.details == {"task_id": "task"}
    with pytest.raises(PermissionDenied):
        await stranger.tasks("job")


@pytest.mark.parametrize("user", ["root", "0", "00", "4294967295", "4294967296", "no-such-user"])
async def test_no_task_becomes_a_user_that_is_not_allowed(
    rm: ScriptedRM, tmp_path: Path, executor: Executor, user: str
) -> None:
    await executor.stop()
    await executor.start(
        task_user="nobody" if os.geteuid() == 0 else "self", allow_root_tasks=False
    )
    await eventually(lambda: executor.front.agent.state.registered, "it is registered")
    await rm.allocate(allocation())
    status = await executor.job_master.submit("true", user=user)
    assert (status.state, status.error.reason) == (te.TASK_STATE_FAILED, "USER_NOT_ALLOWED")


@pytest.mark.parametrize("offset", [10**9, 2**50])
async def test_watching_from_beyond_the_end_brings_the_end(
    rm: ScriptedRM, executor: Executor, offset: int
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    executor.helper.write("task", b"short")
    executor.helper.end("task")
    seen = await executor.job_master.watch(stdout_offset=offset, stderr_offset=offset)
    assert (seen.is_over, seen.stdout) == (True, b"")


async def test_offsets_that_no_output_can_have_are_refused(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    executor.helper.write("task", b"short")
    for offset in (-(2**63), -1, 2**50 + 1, 2**63 - 1):
        with pytest.raises(InvalidArgument, match="stdout_offset"):
            await executor.job_master.watch(stdout_offset=offset)


async def test_so_many_tasks_may_run_that_their_shims_fit_beside_the_slots(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation())
    job_master = executor.job_master
    monkeypatch.setattr(task_table, "RUNNING_MIN", 3)
    monkeypatch.setattr(task_table, "SHIM_BYTES", TOTAL["memory_bytes"] // 20 // 5)
    for number in range(5):
        await job_master.submit("true", task_id=f"task-{number}")
    with pytest.raises(ResourceExhausted, match="5 tasks run") as refused:
        await job_master.submit("true", task_id="one-more")
    assert refused.value.retry_after_s
    executor.helper.end("task-0")
    await job_master.watch("task-0")
    await job_master.submit("true", task_id="one-more")


@pytest.mark.slow
@pytest.mark.full
async def test_watchers_that_never_read_cost_little(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    """A chunk each in our hands and what the transport holds, not the whole output."""
    size, watchers = 32 << 20, 200
    await rm.allocate(allocation())
    await real.submit("head", "-c", str(size), "/dev/zero")
    await real.watch(no_output=True)
    assert process.process is not None
    before = resident_bytes(process.process.pid)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
    channels = [grpc.aio.insecure_channel(real.address, options) for _ in range(watchers)]
    metadata = ((JOB_SECRET, real.secret), (AUTHORIZATION, f"Bearer {USER_TOKEN}"))
    stubs: list[Any] = [task_executor_pb2_grpc.TaskExecutorServiceStub(c) for c in channels]
    calls = [
        stub.WatchTask(te.WatchTaskRequest(task_id="task"), metadata=metadata) for stub in stubs
    ]
    async with asyncio.timeout(PATIENCE_S):
        for call in calls:
            await call.read()
        await asyncio.sleep(1)
        grown = resident_bytes(process.process.pid) - before
        assert (await real.tasks())[0].task_id == "task"
    for channel in channels:
        await channel.close()
    assert grown / watchers < 1 << 20


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
