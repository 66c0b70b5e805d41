"""Tests that the guide and the examples work as written."""

import ast
import asyncio
import importlib.util
import inspect
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from tests.client.scripted import Program, Scripted, serving

REPOSITORY = Path(__file__).parents[2]
GUIDE = REPOSITORY / "docs/job-masters.md"
BLOCKS = re.findall(r"(<!-- blocking -->\n)?```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
async def servant(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scripted]:
    servant = Scripted()
    for name, program in {
        "echo": Program(stdout=b"hello\n"),
        "wc": Program(stdout=b"12\n"),
        "cat": Program(stdout=b"line\n"),
        "sleep": Program(ends=False),
    }.items():
        servant.programs[name] = program
    async with serving(servant):
        monkeypatch.setenv("FINEGRAIN_MANAGER", servant.address)
        yield servant


def test_the_guide_has_examples() -> None:
    assert len(BLOCKS) > 10


async def test_every_block_of_the_guide_runs_in_order(servant: Scripted) -> None:
    names: dict[str, Any] = {}
    async with fg.connect() as cluster:
        for blocking, text in BLOCKS:
            servant.events.clear()
            servant.first_kept = 1
            if blocking:
                await asyncio.to_thread(exec, text, dict(names))
                continue
            names["cluster"] = cluster
            code = compile(
                text, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
            result = eval(code, names)
            if inspect.isawaitable(result):
                async with asyncio.timeout(20):
                    await result
    assert len(servant.calls["RegisterJob"]) == len(servant.calls["EndJob"])


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_hello_says_where_it_ran(
    servant: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    servant.programs["uname"] = Program(stdout=b"a-host\n")
    await asyncio.to_thread(_example("hello").main)
    assert "hello from a-host: host-a" in capsys.readouterr().out


async def test_wordcount_counts(
    servant: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scripted executor really runs the commands, on this host."""
    files = []
    for number, text in enumerate(["the fox and the dog", "the end", "Fox!"]):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text)
    servant.run_for_real.add(sys.executable)
    await _example("wordcount").main(["--slots", "2", "--top", "2", *map(str, files)])
    assert capsys.readouterr().out.split() == ["3", "the", "2", "fox"]
    assert len(servant.tasks) == 4
