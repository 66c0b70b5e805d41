"""Tasks and their output, as the server of the page passes them on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from finegrain.errors import Unavailable
from finegrain.v1 import task_executor_pb2 as te
from finegrain_cli.web.tasks import output_lines


def chunk(data: bytes, offset: int = 0, stream: int = 1) -> te.WatchTaskResponse:
    return te.WatchTaskResponse(output=te.OutputChunk(stream=stream, offset=offset, data=data))


async def said(*messages: te.WatchTaskResponse, error: Exception | None = None) -> list[Any]:
    """Returns the events that a page gets for these messages, as (name, data)."""

    async def rest() -> AsyncGenerator[te.WatchTaskResponse, None]:
        for each in messages[1:]:
            yield each
        if error is not None:
            raise error

    text = "".join([part async for part in output_lines(rest(), messages[0])])
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_a_character_may_be_divided_between_two_chunks() -> None:
    first, second = await said(chunk(b"na\xc3"), chunk(b"\xaff\xff\n", offset=3))
    assert (first[1]["text"], second[1]["text"]) == ("na", "\u00eff\ufffd\n")


async def test_output_has_its_stream_and_what_is_missing() -> None:
    events = await said(chunk(b"abc"), chunk(b"x", stream=2), chunk(b"def", offset=10))
    assert [each["stream"] for _, each in events] == ["stdout", "stderr", "stdout"]
    assert [each["missing_bytes"] for _, each in events] == [0, 0, 7]


async def test_the_end_of_a_task_and_of_a_stream_are_said() -> None:
    task = te.TaskStatus(
        task_id="t",
        allocation_id="a",
        generation=1,
        job_id="j",
        state=te.TASK_STATE_EXITED,
        exit=te.TaskExit(exit_code=3),
    )
    events = await said(te.WatchTaskResponse(task=task), error=Unavailable("gone\n\nevent: x"))
    assert events[0][1]["result"]["exit_code"] == 3
    assert events[1] == ("failed", {"detail": "gone\n\nevent: x", "code": "UNREACHABLE"})
