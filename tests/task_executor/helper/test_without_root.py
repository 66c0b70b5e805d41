"""Helper, front and tasks run as an ordinary user: limits that are not enforced are reported, and
all else works.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegrain.errors import PermissionDenied
from tests.support.patience import PATIENCE_S
from tests.task_executor.helper.conftest import Host, alive

REPOSITORY = Path(__file__).resolve().parents[3]
NOBODY = 65534

# Runs as nobody: a task leaves a daemon behind, and the helper is killed meanwhile.
STORY = """
import asyncio, json, os, signal, sys
from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.host.helper_client import HelperClient, SlotLimits, TaskSpec

async def main(place):
    config = HelperConfig(place + "/state", place + "/s", "host-a", os.getuid(), os.getgid())
    pid = start_helper(config)
    client = await HelperClient.connect(config.socket_path)
    info = await client.hello()
    await client.create_slot(SlotLimits("a", 1, 100, 1 << 20, cpus="0"))
    script = "grep Cpus_allowed_list /proc/self/status; (setsid sleep 77 &); sleep 0.4; exit 3"
    await client.start_task(TaskSpec("t", "a", 1, ["sh", "-c", script]))
    os.kill(pid, signal.SIGKILL)
    start_helper(config)
    while (task := (await client.inspect()).tasks[0]).exit is None:
        await asyncio.sleep(0.02)
    output = (task.directory / "stdout.log").read_text()
    stubborn = "trap '' TERM; setsid sleep 78 & wait"
    await client.start_task(TaskSpec("u", "a", 1, ["sh", "-c", stubborn]))
    await client.destroy_slot("a", 1)
    await client.forget_task("t"); await client.forget_task("u")
    left = await client.inspect()
    await client.stop()
    await client.close()
    while os.path.exists(config.socket_path):
        await asyncio.sleep(0.01)
    print(json.dumps({"driver": info.isolation.driver, "memory": info.isolation.memory,
        "reason": info.isolation.reason, "fix": info.isolation.fix, "uid": info.uid,
        "exit_code": task.exit.exit_code, "peak": task.exit.peak_memory_bytes,
        "output": output.split(), "left": len(left.slots) + len(left.tasks)}))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def nobodys_place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="fg-nobody-"))
    os.chown(place, NOBODY, NOBODY)
    place.chmod(0o711)
    yield place
    shutil.rmtree(place)


def python_for_nobody() -> str:
    """Returns an interpreter that another user may run."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    return found or sys.executable


@pytest.mark.needs("nobody-user")
def test_an_ordinary_user_has_tasks_restarts_and_a_plain_word_about_limits(
    nobodys_place: Path,
) -> None:
    for package in ("finegrain", "task_executor"):
        shutil.copytree(REPOSITORY / package, nobodys_place / "code" / package)
    result = subprocess.run(
        [python_for_nobody(), "-c", STORY, str(nobodys_place)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd=nobodys_place,
        env={
            "PYTHONPATH": str(nobodys_place / "code"),
            "PATH": "/usr/bin:/bin",
            "TMPDIR": str(nobodys_place),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stderr
    story = json.loads(result.stdout)
    assert (story["driver"], story["memory"], story["uid"]) == ("none", "none", NOBODY)
    assert "cannot be used" in story["reason"]
    assert "root" in story["fix"]
    assert story["exit_code"] == 3
    assert story["peak"] > 0
    assert story["output"] == ["Cpus_allowed_list:", "0"]
    assert story["left"] == 0
    assert not sleepers_of_nobody()


def sleepers_of_nobody() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == NOBODY and path.joinpath("cmdline").read_bytes() in (
                b"sleep\x0077\x00",
                b"sleep\x0078\x00",
            ):
                found.append(path.name)
        except OSError:
            continue
    return found


async def test_isolation_none_says_what_is_missing_and_still_kills(plain_host: Host) -> None:
    report = await plain_host.client.create_slot(await plain_host.slot())
    assert (report.driver, report.cpu, report.memory, report.pids) == (
        "none",
        "none",
        "none",
        "none",
    )
    assert (report.kill, report.cpuset, report.complete) == ("process tree", "affinity", False)
    assert "auto" in report.fix
    await plain_host.start("setsid sh -c 'echo $$; sleep 79' & wait")
    while not plain_host.output():
        pass
    await plain_host.client.destroy_slot("slot", 1)
    assert not alive(int(plain_host.output()))


@pytest.mark.needs("root")
async def test_a_user_outside_the_allowed_ones_is_refused(host: Host) -> None:
    await host.slot()
    with pytest.raises(PermissionDenied):
        await host.start("true", uid=12345, gid=0)
