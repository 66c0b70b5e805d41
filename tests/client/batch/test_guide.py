"""Tests that the guide to batches works as written."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from tests.client.scripted import GRANTED, Program, Scripted, serving
from tests.support.components import REPOSITORY

GUIDE = REPOSITORY / "docs/batch.md"
BLOCKS = re.findall(r"(<!-- blocking -->\n)?```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


class Generous(Scripted):
    """Grants all requests at once, however many."""

    async def RequestResource(self, request: Any, context: Any) -> Any:
        self.auto_grant = False
        answer = await super().RequestResource(request, context)
        for each in request.ranges:
            for index in range(each.first_index, each.first_index + each.count):
                await self.tell(f"{each.range_id}.{index}", GRANTED)
        return answer


@pytest.fixture
async def servant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scripted]:
    servant = Generous()
    for name in ("echo", "./work.sh"):
        servant.programs[name] = Program(stdout=b"hello\n")
    monkeypatch.chdir(tmp_path)
    async with serving(servant):
        monkeypatch.setenv("FINEGRAIN_MANAGER", servant.address)
        monkeypatch.setenv("FINEGRAIN_BATCH_DIR", str(tmp_path / "batches"))
        yield servant


async def test_every_block_of_the_guide_runs_in_order(
    servant: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    for blocking, whole in BLOCKS:
        text = whole.replace("500,  # threads", "50,  # threads")  # they show the same in less time
        servant.events.clear()
        if blocking:
            await asyncio.to_thread(exec, text, dict(names))
            continue
        code = compile(
            text, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        result = eval(code, names)
        if inspect.isawaitable(result):
            async with asyncio.timeout(30):
                await result
    assert len(servant.calls["RegisterJob"]) == len(servant.calls["EndJob"]) == 4
    said = capsys.readouterr().out
    assert "50 0 0" in said
    assert "3 of 3, 0 running" in said
    look = fg.batch.read_status("my.batch")
    assert (look.progress.state, look.progress.done) == (fg.BatchState.ENDED, 3)
