"""Tests which processes belong to a directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from resource_manager.providers.process_tree import processes_of

PROGRAM = "import sys, time; print(flush=True); time.sleep(1000)"


@contextmanager
def running(*words: str) -> Iterator[int]:
    command = [sys.executable, "-c", PROGRAM, "task_executor", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


@pytest.mark.parametrize("name", ["plain", "josé", 'a "b" \\ c'])
@pytest.mark.parametrize("form", ["{}", "--config={}", "json"])
def test_they_name_what_lies_in_it(tmp_path: Path, name: str, form: str) -> None:
    path = f"{tmp_path / name}/state"
    word = json.dumps({"state_dir": path}) if form == "json" else form.format(path)
    with running(word) as pid:
        assert [each.pid for each in processes_of(tmp_path / name)] == [pid]


def test_a_path_that_ends_the_same_is_another_one(tmp_path: Path) -> None:
    with running(f"/other{tmp_path}/state"):
        assert processes_of(tmp_path) == []
    with running(f"{tmp_path}-2/state"):
        assert processes_of(tmp_path) == []
