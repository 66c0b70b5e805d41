"""Tests that the output of a thread of work is on disk before its result is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain_client.batch.output import Output, publish_all
from finegrain_client.types.status import OutputChunk
from tests.support.disk_calls import DiskCalls, Synced


def test_what_was_published_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    outputs = [Output(tmp_path, thread, attempt=2) for thread in range(3)]
    for thread, output in enumerate(outputs):
        output.take(OutputChunk("stdout", 0, b"line of "))
        output.take(OutputChunk("stdout", 8, str(thread).encode()))
    publish_all(tmp_path, outputs)
    for thread in range(3):
        path = tmp_path / f"{thread}.stdout"
        assert path.read_text() == f"line of {thread}"
        disk.check_durable(path)


def test_an_attempt_without_output_only_removes_what_an_earlier_attempt_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "0.stderr"
    left.write_text("left by a runner that was killed before it recorded the result")
    disk = DiskCalls(monkeypatch)
    publish_all(tmp_path, [Output(tmp_path, thread, attempt=2) for thread in range(3)])
    assert not left.exists()
    assert disk.calls == [Synced(tmp_path, None)]
    publish_all(tmp_path, [Output(tmp_path, 0, attempt=3)])
    assert len(disk.calls) == 1


def test_a_gap_is_marked_in_the_file_and_in_the_tail(tmp_path: Path) -> None:
    output = Output(tmp_path, 0, attempt=1)
    output.take(OutputChunk("stdout", 0, b"first"))
    output.take(OutputChunk("stdout", 105, b"last", missing_bytes=100))
    output.publish()
    marked = b"first\n[finegrain: 100 bytes are missing here: OUTPUT_LOST]\nlast"
    assert (tmp_path / "0.stdout").read_bytes() == marked
    assert output.tail("stdout") == marked
