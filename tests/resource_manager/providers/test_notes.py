"""Tests that notes which providers need after a host crash are on disk before they act."""

from __future__ import annotations

from pathlib import Path

import pytest

from resource_manager.providers.notes import read_json, write_durably
from resource_manager.providers.process_executor import Claim, ExecutorDirectory
from resource_manager.providers.process_shares import Share
from tests.support.disk_calls import DiskCalls, Synced


def test_a_note_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskCalls(monkeypatch)
    path = tmp_path / "note.json"
    for text in ('{"handle": "first"}', '{"handle": "second"}'):
        disk.calls.clear()
        write_durably(path, text)
        disk.check_durable(path)
    assert read_json(path) == {"handle": "second"}


def test_the_directory_of_an_executor_appears_complete_and_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    directory = ExecutorDirectory(tmp_path, "small-1", ["finegrain"], {})
    directory.make(Claim("small", Share("small#1", "0-1", 2_000, 1 << 30)), "configuration")
    disk.check_durable(directory.path)
    appeared = disk.at_naming(directory.path)
    synced = {each.content for each in disk.calls[:appeared] if isinstance(each, Synced)}
    assert {path.read_bytes() for path in directory.path.iterdir() if path.is_file()} <= synced
