"""Tests that after a reload, streams get events that were stored but not published."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import Unavailable
from resource_manager.service.runner import Runner
from tests.resource_manager.service.test_snapshots import Reader, serving
from tests.support.patience import PATIENCE_S


async def test_one_stream_that_breaks_meanwhile_leaves_the_others_their_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (service, hub):
        await service.submit("r0")
        first, second = hub.watch("job", 0), hub.watch("job", 0)
        reader = Reader()
        async with aclosing(first), aclosing(second):
            await anext(first)
            reader.take(await anext(second))
            service.deaf = True  # stored, but not published
            await service.cancel("r0")
            hub.resync()
            read = Runner.read

            async def refused(*_: Any, **__: Any) -> None:
                raise Unavailable("the resource manager is starting; try again")

            monkeypatch.setattr(Runner, "read", refused)
            with pytest.raises(Unavailable):
                await anext(first)
            monkeypatch.setattr(Runner, "read", read)
            async with asyncio.timeout(PATIENCE_S):
                while reader.living:
                    reader.take(await anext(second))
    assert reader.sequence == 1


async def test_a_stream_reads_on_past_what_slower_ones_had_not_read_when_the_books_were_dropped(
    tmp_path: Path,
) -> None:
    """The events in memory end before those that were stored and never published."""
    async with serving(tmp_path) as (service, hub):
        await service.submit("r0", "r1", "r2")
        quick, slow = hub.watch("job", 0), hub.watch("job", 0)
        readers = Reader(), Reader()
        async with aclosing(quick), aclosing(slow), asyncio.timeout(PATIENCE_S):
            for stream, reader in ((quick, readers[0]), (slow, readers[1])):
                reader.take(await anext(stream))
            await service.cancel("r0")
            while readers[0].sequence < 1:
                readers[0].take(await anext(quick))
            service.deaf = True
            await service.cancel("r1")
            service.deaf = False
            hub.resync()
            while readers[0].sequence < 2:
                readers[0].take(await anext(quick))
            await service.cancel("r2")
            for stream, reader in ((quick, readers[0]), (slow, readers[1])):
                while reader.living:
                    reader.take(await anext(stream))
    assert [reader.sequence for reader in readers] == [3, 3]
