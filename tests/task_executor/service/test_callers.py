"""Which callers may call which method of an executor: all methods and all kinds of callers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from finegrain.errors import (
    AlreadyExists,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
)
from finegrain.identity import Role
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS
from finegrain.rpc.channels import open_channel
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1 import task_executor_pb2 as te
from finegrain.v1 import task_executor_pb2_grpc
from task_executor.service import task_table
from tests.support.every_method import Method, methods_of, status_of_call
from tests.support.identities import authority, credentials, identity, own
from tests.support.patience import PATIENCE_S
from tests.task_executor.service.conftest import TOTAL, Executor
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    EXECUTOR_ID,
    OPERATOR,
    OTHER_OWNER,
    OWNER,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)

METHODS = list(methods_of(te, TASK_EXECUTOR_ACCESS))
OF_TASKS = [
    method for method in METHODS if Role.USER in method.roles and "ListTasks" not in method.path
]
OK, DENIED = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
UNAUTHENTICATED, UNREACHED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE
EVERYBODY = (OWNER, OPERATOR, "viewer/v", "executor/host-a", "executor/other", "rm", "metrics")


def name_of(method: Method) -> str:
    return method.path.rpartition("/")[2]


async def ask(executor: Executor, method: Method, who: OwnCertificate, data: bytes = b"") -> Any:
    server = identity(f"executor/{EXECUTOR_ID}")
    async with open_channel(executor.front.address, who, server) as channel:
        return await status_of_call(channel, method, data)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize("who", EVERYBODY)
async def test_a_role_may_call_what_the_table_says_and_nothing_else(
    executor: Executor, method: Method, who: str
) -> None:
    code, text = await ask(executor, method, own(who))
    denied = code is DENIED and "needs the role" in text
    assert denied is (identity(who).role not in method.roles)
    assert code is not UNAUTHENTICATED


async def test_a_caller_without_a_certificate_of_the_cluster_gets_no_connection(
    executor: Executor,
) -> None:
    stranger = OwnCertificate(credentials("rm", cluster="other"))
    no_certificate = grpc.ssl_channel_credentials(authority().certificate_pem)
    server = identity(f"executor/{EXECUTOR_ID}").dns_name
    options = (("grpc.ssl_target_name_override", server),)
    method, address = METHODS[0], executor.front.address  # the handshake knows no method
    assert (await ask(executor, method, stranger))[0] is UNREACHED
    async with grpc.aio.secure_channel(address, no_certificate, options) as channel:
        assert (await status_of_call(channel, method, b""))[0] is UNREACHED
    async with grpc.aio.insecure_channel(address) as channel:
        assert (await status_of_call(channel, method, b""))[0] is UNREACHED


async def test_a_certificate_that_expires_on_an_open_connection_ends_the_calls(
    executor: Executor,
) -> None:
    method = next(each for each in METHODS if name_of(each) == "ListTasks")
    server = identity(f"executor/{EXECUTOR_ID}")
    async with open_channel(executor.front.address, own(OWNER), server) as channel:
        list_tasks = te.ListTasksRequest(job_id="job")
        request, shown = list_tasks.SerializeToString(), executor.job_master.metadata(list_tasks)
        assert (await status_of_call(channel, method, request, shown))[0] is OK
        later = time.time() + 90 * 24 * 3600
        executor.front._trust._now = lambda: later
        code, text = await status_of_call(channel, method, request, shown)
    assert code is UNAUTHENTICATED
    assert "the clock of this server says" in text


def request_for(method: Method) -> bytes:
    """Returns a request about the task `task` of the slot `slot`."""
    fields: dict[str, Any] = {"task_id": "task"}
    if method.path.endswith("SubmitTask"):
        fields |= {"allocation_id": "slot", "generation": 1, "spec": te.TaskSpec(argv=["true"])}
    if method.path.endswith("RegisterManagedMemory"):
        fields |= {"allocation_id": "slot", "generation": 1, "operator_id": "sort"}
    message: Any = getattr(te, f"{name_of(method)}Request")(**fields)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("method", OF_TASKS, ids=name_of)
@pytest.mark.parametrize("who", [OTHER_OWNER, OPERATOR, "operator/alice"])
async def test_a_task_is_for_the_owner_of_its_job_alone(
    rm: ScriptedRM, executor: Executor, method: Method, who: str
) -> None:
    await rm.allocate(allocation(), allocation("theirs", job_id="job-b", owner=OTHER_OWNER))
    await executor.job_master.submit("sleep", "1000")
    code, _ = await ask(executor, method, own(who), request_for(method))
    for_operators = name_of(method) in ("CancelTask", "WatchTask") and "operator" in who
    expected = {OK} if for_operators else {DENIED, grpc.StatusCode.ALREADY_EXISTS}
    assert code in expected


async def test_another_jobs_task_id_tells_nothing(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation(), allocation("theirs", job_id="job-b", owner=OTHER_OWNER))
    await executor.job_master.submit("sleep", "1000", env={"SECRET": "hidden-value"})
    stranger = JobMaster(executor.front.address, OTHER_OWNER)
    with pytest.raises(AlreadyExists) as caught:
        await stranger.submit("sleep", "1000", allocation_id="theirs")
    assert "hidden-value" not in str(caught.value)
    assert caught.value.details == {"task_id": "task"}
    with pytest.raises(PermissionDenied) as refused:
        await stranger.tasks("job")
    assert OWNER not in refused.value.message


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


async def test_so_many_tasks_may_run_that_their_supervisors_fit_beside_the_slots(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation())
    job_master = executor.job_master
    monkeypatch.setattr(task_table, "RUNNING_MIN", 3)
    monkeypatch.setattr(task_table, "SUPERVISOR_BYTES", TOTAL["memory_bytes"] // 20 // 5)
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
    """For each watcher, memory has one chunk and the buffers of the transport, and not the whole
    output.
    """
    size, watchers = 32 << 20, 200
    await rm.allocate(allocation())
    await real.submit("head", "-c", str(size), "/dev/zero")
    await real.watch(no_output=True)
    assert process.process is not None
    before = resident_bytes(process.process.pid)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
    shown = own(real.who).channel_credentials()
    server = ("grpc.ssl_target_name_override", identity(f"executor/{real.executor_id}").dns_name)
    channels = [
        grpc.aio.secure_channel(real.address, shown, (*options, server)) for _ in range(watchers)
    ]
    stubs: list[Any] = [task_executor_pb2_grpc.TaskExecutorServiceStub(c) for c in channels]
    request = te.WatchTaskRequest(task_id="task")
    calls = [stub.WatchTask(request, metadata=real.metadata(request)) for stub in stubs]
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


async def test_a_cancellation_by_an_administrator_is_reported_once(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("sleep", "1000")
    await executor.job_master.submit("sleep", "1000", task_id="other")
    await executor.job_master.cancel("other")
    await JobMaster(executor.front.address, "operator/ann").cancel()

    def reported() -> list[tuple[str, str, str]]:
        calls = [each for report in rm.reports for each in report.admin_calls]
        return [(each.identity, each.method, each.object) for each in calls]

    await eventually(reported, "it is reported")
    before = len(rm.reports)
    await eventually(lambda: len(rm.reports) > before + 1, "it reports again")
    assert reported() == [("operator/ann", "CancelTask", "task task of job job")]
