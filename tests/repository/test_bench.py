"""Benchmarks that measure parts of a run can leave the other parts out."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench import restart
from bench.filled_books import Size
from bench.rm_process import RmProcess
from resource_manager.engine.model.entities import Slot


class IdleManager(RmProcess):
    """A resource manager without a process."""

    def __init__(self) -> None:
        """Nothing to start."""

    def start(self) -> None:
        """Nothing to start."""

    async def ready(self) -> float:
        return 1.0

    def cpu_s(self) -> float:
        return 0.5

    def memory_bytes(self, of: str = "VmRSS") -> int:
        return 2


class OnePlace(restart.Place):
    """Always the same manager, over no database."""

    def __init__(self) -> None:
        super().__init__(None)

    @contextmanager
    def filled(self, size: Size) -> Iterator[tuple[RmProcess, list[Slot]]]:
        yield IdleManager(), []


def test_a_restart_is_measured_without_executors_that_return(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(restart, "SETTLE_S", 0)
    size = Size(executors=10)
    figures = asyncio.run(restart.measure(OnePlace(), "sqlite", size, returning=0, seconds=0))
    assert [start.size for start in figures.starts] == [Size(), size, size]
    assert figures.returned is None
    restart.show(figures)
    assert "were registered" not in capsys.readouterr().out
