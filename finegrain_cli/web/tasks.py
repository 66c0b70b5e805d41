"""Reads tasks and their output at the executors, for the page that `finegrain web` serves.

The calls have the identity of the user. The page is never the holder of an output. So a task never
waits for the page, and the executor can drop output that the page has not read in time.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.identity import Role
from finegrain.ids import check_id
from finegrain.v1 import cluster_pb2
from finegrain.v1 import task_executor_pb2 as te
from finegrain_cli.web.application import HEADERS
from finegrain_cli.web.problems import problem
from finegrain_cli.web.routes import document
from finegrain_client.connection import Connection
from finegrain_client.decoding import read
from finegrain_client.retry import call_with_retries, resumed
from finegrain_client.slot.tokens import new_token, showing
from finegrain_client.types.status import TaskStatus

STREAMS = {1: "stdout", 2: "stderr"}
STREAM_HEADERS = {
    **HEADERS,
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}


class TaskReader:
    """Reads the tasks of jobs.

    Args:
        connection: the connection of the user.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def tasks(self, executor_id: str, job_id: str) -> list[TaskStatus]:
        """Returns the tasks of a job on an executor, in the order in which they were submitted."""
        async with self._executor(executor_id, job_id) as (stub, address):
            answer = await call_with_retries(
                lambda timeout_s: stub.ListTasks(
                    te.ListTasksRequest(job_id=job_id), timeout=timeout_s
                ),
                where=lambda: address,
                policy=self._connection.policy,
            )
        return read.each(TaskStatus, answer.tasks)

    async def watch(
        self, executor_id: str, job_id: str, task_id: str
    ) -> AsyncGenerator[te.WatchTaskResponse, None]:
        """Yields the states and the output of a task, until the task and its output have ended."""
        # If the connection breaks, the next stream continues at these offsets.
        ends, has_ended = {1: 0, 2: 0}, False
        async with self._executor(executor_id, job_id) as (stub, address):

            def open_stream() -> Any:
                return stub.WatchTask(
                    te.WatchTaskRequest(
                        task_id=task_id, stdout_offset=ends[1], stderr_offset=ends[2]
                    )
                )

            messages = resumed(
                open_stream,
                where=lambda: address,
                policy=self._connection.policy,
                is_complete=lambda: has_ended,
            )
            async with aclosing(messages):
                async for message in messages:
                    if message.HasField("output"):
                        chunk = message.output
                        ends[chunk.stream] = chunk.offset + len(chunk.data)
                    has_ended = message.HasField("task") and message.task.state in (
                        te.TASK_STATE_EXITED,
                        te.TASK_STATE_FAILED,
                    )
                    yield message

    @asynccontextmanager
    async def _executor(self, executor_id: str, job_id: str) -> AsyncIterator[tuple[Any, str]]:
        """Connects to an executor. Yields a stub of the executor, and the executor's address. Calls
        of the stub prove that the user is allowed to read the job.
        """
        connection = self._connection
        asked = cluster_pb2.GetExecutorRequest(executor_id=executor_id)
        answer = await connection.call_cluster(
            lambda stub, timeout_s: stub.GetExecutor(asked, timeout=timeout_s)
        )
        address = answer.executor.address
        async with AsyncExitStack() as ending:
            link = connection.acquire_executor(address, executor_id)
            ending.callback(connection.release_executor, link)
            stub = link.stub
            if connection.own.credentials.who.role is not Role.OPERATOR:
                stub = showing(stub, await new_token(connection, job_id, executor_id))
            yield stub, address


def task_routes(reader: TaskReader, check: Callable[[Request], None]) -> list[Route]:
    """Returns the routes of tasks.

    Args:
        reader: the object that reads the tasks.
        check: a function that raises an error if a request does not come from the page.
    """
    return [
        Route("/tasks", partial(_guarded, partial(_tasks, reader), check), methods=["GET"]),
        Route(
            "/tasks/{task_id}/output",
            partial(_guarded, partial(_output, reader), check),
            methods=["GET"],
        ),
    ]


async def _guarded(
    handler: Callable[[Request], Any], check: Callable[[Request], None], request: Request
) -> Response:
    try:
        check(request)
        response: Response = await handler(request)
    except FinegrainError as error:
        return problem(error)
    return response


def _place(request: Request) -> tuple[str, str]:
    query: Mapping[str, str] = request.query_params
    for name in query:
        if name not in ("executor_id", "job_id"):
            raise InvalidArgument(name, query[name], "only executor_id and job_id")
    return (
        check_id("executor_id", query.get("executor_id", "")),
        check_id("job_id", query.get("job_id", "")),
    )


async def _tasks(reader: TaskReader, request: Request) -> Response:
    found = await reader.tasks(*_place(request))
    items = [each.to_dict() for each in found]
    return JSONResponse(document("TaskList", {"items": items}), headers=HEADERS)


async def _output(reader: TaskReader, request: Request) -> Response:
    task_id = check_id("task_id", request.path_params["task_id"])
    messages = reader.watch(*_place(request), task_id)
    # Read the first message here, so that an error becomes a response and not a broken stream.
    first = await anext(messages, None)
    return StreamingResponse(
        output_lines(messages, first), media_type="text/event-stream", headers=STREAM_HEADERS
    )


async def output_lines(
    messages: AsyncGenerator[te.WatchTaskResponse, None], first: te.WatchTaskResponse | None
) -> AsyncIterator[str]:
    """Yields server-sent events: `output` with a stream and its text, `task` with a state, and
    `failed` with an error that ended the stream.

    Bytes that are not valid UTF-8 become the replacement character.
    """
    decoders = {number: codecs.getincrementaldecoder("utf-8")("replace") for number in STREAMS}
    ends = dict.fromkeys(STREAMS, 0)

    def lines(message: te.WatchTaskResponse) -> str:
        said = ""
        if message.HasField("output"):
            chunk = message.output
            missing = chunk.offset - ends[chunk.stream]
            ends[chunk.stream] = chunk.offset + len(chunk.data)
            text = decoders[chunk.stream].decode(chunk.data)
            data = {"stream": STREAMS[chunk.stream], "text": text, "missing_bytes": missing}
            said += _event("output", data)
        if message.HasField("task"):
            said += _event("task", read(TaskStatus, message.task).to_dict())
        return said

    async with aclosing(messages):
        if first is not None:
            yield lines(first)
        try:
            async for message in messages:
                yield lines(message)
        except FinegrainError as error:
            yield _event("failed", {"detail": error.message, "code": error.reason.value})


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
