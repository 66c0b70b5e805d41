"""`finegrain up` and `run` without root: all commands work, and limits that are not enforced are
reported.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.e2e.driving import Cli, eventually, finish, gone, interrupt, read_until, unique
from tests.support.components import REPOSITORY

pytestmark = pytest.mark.needs("nobody-user")


@pytest.fixture(scope="module")
def nobody() -> Iterator[Cli]:
    """The command, run as the user nobody. Interpreter, libraries and checkout may be in
    directories that this user cannot enter. So they are also mounted below a directory that all
    users can enter.
    """
    user = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp(prefix="fg-nobody-"))
    folder.chmod(0o711)
    (folder / "home").mkdir(mode=0o700)
    os.chown(folder / "home", user.pw_uid, user.pw_gid)
    places = {
        "python": Path(sys.base_prefix),
        "site": Path(grpc.__file__).resolve().parents[1],
        "src": REPOSITORY,
    }
    for name, place in places.items():
        (folder / name).mkdir()
        subprocess.run(["mount", "--bind", place, folder / name], check=True)
    packages = [str(folder / name) for name in ("src", "src/client", "site")]
    environment = {
        "PYTHONPATH": os.pathsep.join(packages),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": str(folder / "python/lib"),
        "TMPDIR": str(folder / "home"),
    }
    program = f"python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    as_nobody = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    yield Cli(folder / "home", extra=environment, popen=as_nobody, python=str(folder / program))
    for name in places:
        subprocess.run(["umount", "--lazy", folder / name], check=True)
        (folder / name).rmdir()  # never what was mounted there
    shutil.rmtree(folder, ignore_errors=True)


def test_up_and_run(nobody: Cli) -> None:
    up = nobody.start("up", "-o", "jsonl")
    try:
        note = json.loads(read_until(up, b"\n"))
        (executor,) = note["executors"]
        assert executor["isolation"]["driver"] == "none"
        assert (executor["isolation"]["memory"], executor["isolation"]["cpu"]) == ("none", "none")
        told = " ".join(executor["isolation"]["notes"])
        assert "run the executor as root" in told, told
        at = replace(
            nobody, manager=note["address"], credentials_file=Path(note["credentials_file"])
        )
        flags = ("--cpu", "0.5", "--memory", "64M")
        outcome = at("run", *flags, "--", "sh", "-c", "id -un; exit 3")
        assert (outcome.code, outcome.stdout) == (3, b"nobody\n"), outcome.stderr
        (said,) = outcome.stderr.splitlines()
        assert "cpu and memory of this slot are only booked, not enforced" in said
        strict = at("run", *flags, "--require-isolation", "memory=kernel", "--", "true")
        assert (strict.code, strict.stdout) == (125, b"")
        assert "with isolation memory=kernel, even when empty [INFEASIBLE_NEVER]" in strict.stderr
        assert "leave out --require-isolation" in strict.stderr
        found = nobody("run", *flags, "--", "echo", "found without being told")
        assert found.stdout == b"found without being told\n", found.stderr
        _runs_a_batch(nobody, flags)
        mark = unique("9999")
        process = at.start("run", *flags, "--", "sh", "-c", f"echo up; sleep 1000; : {mark}")
        read_until(process, b"up")
        interrupt(process)
        assert finish(process).code == 130
        eventually(gone(mark), "the command has gone")
    finally:
        up.send_signal(signal.SIGINT)
        ended = finish(up)
    assert ended.code == 0, ended.stderr
    assert "nothing is left behind" in ended.stderr


def _runs_a_batch(nobody: Cli, flags: tuple[str, ...]) -> None:
    """In the background, with the state where an ordinary user keeps it."""
    begun = nobody("batch", "--threads", "4", *flags, "--detach", "--", "id", "-un")
    assert begun.code == 0, begun.stderr
    outcome = nobody("batch", "--attach", "id", "-o", "jsonl", "--quiet")
    rows = [json.loads(line) for line in outcome.text.splitlines()]
    assert [row["stdout_tail"] for row in rows] == ["nobody\n"] * 4, outcome.stderr
    assert list((nobody.home / ".local/state/finegrain/batches").glob("id-*.batch"))


def test_up_tells_people_what_is_not_enforced(nobody: Cli) -> None:
    up = nobody.start("up", stderr=subprocess.STDOUT)
    try:
        said = read_until(up, b"Ctrl-C stops everything.").decode()
    finally:
        up.send_signal(signal.SIGINT)
        finish(up)
    assert "not enforced" in said
    assert "nobody, who started this" in said


def test_up_grows_and_shrinks(nobody: Cli) -> None:
    up = nobody.start("up", "--scale", "2", "--idle-timeout", "1s", "-o", "jsonl")
    try:
        note = json.loads(read_until(up, b"\n"))
        at = replace(
            nobody, manager=note["address"], credentials_file=Path(note["credentials_file"])
        )
        outcome = at("run", "--cpu", "0.2", "--memory", "64M", "--", "id", "-un")
        assert (outcome.code, outcome.stdout) == (0, b"nobody\n"), outcome.stderr
        eventually(lambda: not at.json("providers")["executors"], "the executor is given back")
        again = at("run", "--cpu", "0.2", "--memory", "64M", "--", "echo", "again")
        assert again.stdout == b"again\n", again.stderr
    finally:
        up.send_signal(signal.SIGINT)
        ended = finish(up)
    assert ended.code == 0, ended.stderr
    assert "nothing is left behind" in ended.stderr
    eventually(gone(note["state_dir"]), "all executors have gone")
