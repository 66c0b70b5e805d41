"""Tests the placement of single requests for another program, by its messages."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from finegrain.errors import InvalidArgument
from resource_manager.simulator.place import serve

HELLO: dict[str, Any] = {
    "type": "hello",
    "gpu_milli_per_device": 1_000,
    "nodes": [
        {"id": "z", "cpu_milli": 8_000, "memory_mib": 4_096, "gpus": 2, "model": "T4"},
        {"id": "a", "cpu_milli": 8_000, "memory_mib": 4_096, "gpus": 2, "model": "V100"},
    ],
}


def request(name: int, milli: int = 0, count: int = 1, **more: Any) -> dict[str, Any]:
    amounts = {"cpu_milli": 1_000, "memory_mib": 512, "num_gpu": count, "gpu_milli": milli}
    return {"type": "request", "id": name, **amounts, **more}


def answers(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    output = io.StringIO()
    serve([json.dumps(each) for each in messages], output)
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_requests_are_placed_released_and_refused() -> None:
    ready, *placed = answers(
        HELLO,
        request(0, 1_000, 2),
        request(1, 500),
        request(2, 500, gpu_spec=["T4"]),
        {"type": "release", "id": 0},
        request(2, 500, gpu_spec=["T4"]),
        request(3, 0, 0),
        {"type": "end"},
        request(4, 0, 0),
    )
    assert ready == {"type": "ready", "name": "finegrain"}
    # Equally good nodes are taken in the order of the hello, not in that of their names.
    assert placed[0] == {"id": 0, "node": "z", "gpus": [0, 1]}
    assert placed[1] == {"id": 1, "node": "a", "gpus": [0]}
    assert placed[2] == {"id": 2, "node": None, "gpus": []}
    assert placed[3] == {"id": 2, "node": "z", "gpus": [0]}
    assert placed[4]["id"] == 3
    assert placed[4]["gpus"] == []
    assert len(placed) == 5


def test_the_same_messages_get_the_same_answers() -> None:
    messages = [HELLO, *(request(number, 100 + number % 7 * 100) for number in range(12))]
    assert answers(*messages) == answers(*messages)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([request(1)], "line 1, type is 'request'; expected hello as the first line"),
        ([HELLO, {"type": "stop"}], "line 2, type is 'stop'; expected hello, request, release"),
        ([HELLO, request(1), request(1)], "line 3, id is 1; expected a number that no request has"),
        ([HELLO, {"type": "release", "id": 5}], "line 2, id is 5; expected the number of a"),
        ([HELLO, request(1, 1_001)], "line 2, gpu_milli is 1001; expected at most 1000"),
        ([HELLO, request(1, cpu_milli=-1)], "line 2, cpu_milli is -1; expected a whole number"),
        ([HELLO, request(1, 10, gpu_spec="T4")], "line 2, gpu_spec is 'T4'; expected a list"),
        ([{**HELLO, "nodes": []}], r"line 1, nodes is \[\]; expected a list of nodes"),
        ([{**HELLO, "nodes": HELLO["nodes"][:1] * 2}], r"line 1, nodes\[1\], id is 'z'"),
        ([{**HELLO, "gpu_milli_per_device": 100}], "gpu_milli_per_device is 100; expected 1000"),
    ],
)
def test_a_wrong_message_is_one_clear_error(messages: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        answers(*messages)


@pytest.mark.parametrize("line", ["{", "[1]", "null"])
def test_a_line_that_is_no_object_is_one_clear_error(line: str) -> None:
    with pytest.raises(InvalidArgument, match=r"line 1 is .*; expected "):
        serve([line], io.StringIO())
