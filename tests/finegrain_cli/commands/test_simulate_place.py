"""Tests `finegrain simulate place` as another program uses it: with a real process and pipes."""

from __future__ import annotations

import json
import subprocess
import sys

HELLO = {
    "type": "hello",
    "gpu_milli_per_device": 1000,
    "nodes": [{"id": "n1", "cpu_milli": 8000, "memory_mib": 4096, "gpus": 2, "model": "T4"}],
}
REQUEST = {
    "type": "request",
    "id": 1,
    "cpu_milli": 1000,
    "memory_mib": 512,
    "num_gpu": 1,
    "gpu_milli": 460,
}


def run(*arguments: str, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "finegrain_cli", "simulate", "place", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_another_program_gets_an_answer_to_each_request_before_it_asks_again() -> None:
    command = [sys.executable, "-m", "finegrain_cli", "simulate", "place", "--stdio"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for message, expected in (
            (HELLO, {"type": "ready", "name": "finegrain"}),
            (REQUEST, {"id": 1, "node": "n1", "gpus": [0]}),
            ({**REQUEST, "id": 2}, {"id": 2, "node": "n1", "gpus": [0]}),
        ):
            child.stdin.write(json.dumps(message) + "\n")
            child.stdin.flush()
            assert json.loads(child.stdout.readline()) == expected
        child.stdin.write('{"type": "end"}\n')
        child.stdin.close()
        assert child.wait(60) == 0


def test_a_wrong_message_ends_the_command_with_one_error() -> None:
    result = run("--stdio", text=json.dumps(HELLO) + "\n{\n")

    assert result.returncode == 2
    assert json.loads(result.stdout)["type"] == "ready"
    assert "line 2 is '{'; expected one JSON object per line" in result.stderr


def test_there_is_no_other_way_than_standard_input() -> None:
    result = run(text="")

    assert result.returncode == 2
    assert "--stdio" in result.stderr
