"""The helper reads a kubelet's files for the front, and no other files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.kubelet import KubeletFiles
from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.host.helper_client import HelperClient

STATE = '{"policyName":"static","defaultCpuSet":"0","checksum":1}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kubelet"
    made.mkdir()
    (made / "cpu_manager_state").write_text(STATE)
    (made / "config.yaml").write_text("kind: KubeletConfiguration\n")
    return made


def texts(answer: dict[str, Any]) -> dict[str, str]:
    return dict(answer["texts"])


def test_nothing_is_read_without_a_directory(tmp_path: Path) -> None:
    for directory in (None, str(tmp_path / "none")):
        answer = KubeletFiles(directory, None).read("")
        assert answer["found"] is False
        assert "found" not in KubeletFiles(directory, None).read(answer["mark"])


def test_what_is_there_is_read_and_told_once(folder: Path) -> None:
    files = KubeletFiles(str(folder), None)
    answer = files.read("")
    assert answer["found"] is True
    assert texts(answer) == {
        "cpu_manager_state": STATE,
        "config": "kind: KubeletConfiguration\n",
    }
    assert files.read(answer["mark"]) == {"mark": answer["mark"]}


def test_a_file_that_was_replaced_is_noticed(folder: Path) -> None:
    files = KubeletFiles(str(folder), None)
    before = files.read("")
    fresh = folder / ".new"
    fresh.write_text(STATE.replace('"0"', '"1"'))
    fresh.rename(folder / "cpu_manager_state")
    assert '"1"' in texts(files.read(before["mark"]))["cpu_manager_state"]


def test_the_configuration_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "my.yaml"
    elsewhere.write_text("cpuManagerPolicy: static\n")
    answer = KubeletFiles(str(folder), str(elsewhere)).read("")
    assert texts(answer)["config"] == "cpuManagerPolicy: static\n"


def test_what_cannot_be_read_is_told_and_holds_nobody_up(folder: Path) -> None:
    (folder / "config.yaml").unlink()
    os.mkfifo(folder / "config.yaml")
    (folder / "memory_manager_state").mkdir()
    with (folder / "cpu_manager_state").open("w") as file:
        file.truncate(1 << 20)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    failures = dict(KubeletFiles(str(folder), None).read("")["failures"])
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert "not a regular file" in failures["config"]
    assert (
        "directory" in failures["memory_manager_state"].lower()
        or "not a regular file" in (failures["memory_manager_state"])
    )
    assert "larger than" in failures["cpu_manager_state"]


@contextmanager
def program_called(name: str, *arguments: str, folder: Path) -> Iterator[int]:
    """Runs a process with this name and these arguments, which does nothing."""
    program = folder / name
    # A shell accepts any arguments, and it waits.
    shutil.copy(shutil.which("dash") or "/bin/sh", program)
    process = subprocess.Popen(
        [str(program), "-c", "read x", "kubelet", *arguments], stdin=subprocess.PIPE
    )
    try:
        # The process gets its name a little after Popen returns.
        command = Path(f"/proc/{process.pid}/cmdline")
        while not command.read_bytes().endswith(b"\0".join(map(str.encode, arguments)) + b"\0"):
            time.sleep(0.001)
        yield process.pid
    finally:
        process.communicate(b"\n")


def test_a_running_kubelet_says_where_its_files_are(tmp_path: Path) -> None:
    """The kubelet is asked only about the usual directory; an administrator has named any other
    one.
    """
    root, extra = tmp_path / "root", tmp_path / "extra"
    root.mkdir()
    extra.mkdir()
    (root / "cpu_manager_state").write_text(STATE)
    (extra / "10.conf").write_text("a: 1\n")
    (extra / "20.conf").write_text("a: 2\n")
    (extra / "note.txt").write_text("a: 3\n")
    config = tmp_path / "kubelet.json"
    config.write_text("{}")
    arguments = (f"--root-dir={root}", "--config", str(config), f"--config-dir={extra}")
    with program_called("kubelet", *arguments, folder=tmp_path):
        answer = KubeletFiles(str(tmp_path), None).read("")
        assert answer["command"][-4:] == list(arguments)
        assert list(texts(answer)) == ["config", "config/10.conf", "config/20.conf"]
    gone = KubeletFiles(str(tmp_path), None).read("")
    assert arguments[0] not in gone["command"]
    assert gone["mark"] != answer["mark"]


def test_a_flag_of_a_kubelet_may_be_written_with_an_underscore(tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "10.conf").write_text("a: 1\n")
    with program_called("kubelet", f"--config_dir={extra}", folder=tmp_path):
        answer = KubeletFiles(str(tmp_path), None).read("")
    assert texts(answer) == {"config/10.conf": "a: 1\n"}


def test_a_kubelet_that_runs_on_is_known_the_next_time(tmp_path: Path) -> None:
    with program_called("kubelet", "--root-dir=/nowhere", folder=tmp_path):
        files = KubeletFiles(str(tmp_path), None)
        first = files.read("")
        assert first["command"][-1] == "--root-dir=/nowhere"
        assert files.read(first["mark"]) == {"mark": first["mark"]}


def test_another_program_is_no_kubelet(tmp_path: Path) -> None:
    with program_called("kubelets", "--config=/etc/hostname", folder=tmp_path):
        command = KubeletFiles(str(tmp_path), None).read("")["command"]
    assert "--config=/etc/hostname" not in command


async def test_the_front_gets_it_from_the_helper(config: HelperConfig, folder: Path) -> None:
    config = replace(config, kubelet_dir=str(folder), isolation="none")
    start_helper(config)
    client = await HelperClient.connect(config.socket_path)
    try:
        found = await client.kubelet()
        assert found is not None
        assert found.found
        assert found.texts["cpu_manager_state"] == STATE
        assert await client.kubelet(found.mark) is None
    finally:
        await client.stop()
        await client.close()
