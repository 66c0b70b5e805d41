"""The spawner forks the processes of tasks. They have the same properties as forks of the
supervisor, and tasks start also if the spawner is killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegrain.errors import FinegrainError
from task_executor.helper.spawner import Spawner
from tests.task_executor.helper.conftest import Host, alive, eventually
from tests.task_executor.helper.test_cgroup_v2_kernel import unified, v2_host

__all__ = ["unified", "v2_host"]

USERS = (0, 65534)

PROPERTIES = """
grep -E '^(Umask|Uid|Gid|Groups|SigBlk|SigIgn|Cap...|NoNewPrivs)' /proc/self/status
cat /proc/self/limits /proc/self/oom_score_adj /proc/self/cgroup
echo descriptors
ls /proc/self/fd
pwd
env | sort
read -r _ _ _ parent group session _ < /proc/$$/stat
echo "child of $parent, leads group $((group == $$)), leads session $((session == $$))"
"""


def supervisor_of(task: int) -> int:
    return int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1])


def waits_for_stream(pid: int) -> bool:
    """Returns whether a process waits for a single socket; the event loop waits with epoll."""
    where = Path(f"/proc/{pid}/wchan").read_text()
    return where.startswith(("unix_stream", "poll_schedule"))


def spawner_of(supervisor: int) -> int:
    """Returns the spawner of a supervisor as soon as it waits for orders."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != supervisor or b"helper.spawner" not in (entry / "cmdline").read_bytes():
                continue
            return int(entry.name) if waits_for_stream(int(entry.name)) else 0
        except (OSError, IndexError):
            continue
    return 0


async def with_spawner(host: Host) -> tuple[int, int]:
    """Starts a supervisor with a task that stays. Returns the supervisor and its spawner."""
    await host.slot(pids_max=100)
    supervisor = supervisor_of(await host.start("sleep 600", "stays"))
    return supervisor, await eventually(lambda: spawner_of(supervisor), "the spawner is ready")


async def run(host: Host, script: str, task_id: str) -> str:
    await host.start(script, task_id)
    assert (await host.exit_of(task_id)).exit_code == 0
    return host.output(task_id)


async def properties_of(host: Host, task_id: str, uid: int) -> list[str]:
    """Runs a task that lists its properties. Its own id is replaced in the list."""
    await host.start(PROPERTIES, task_id, uid=uid, gid=uid, cwd="/")
    assert (await host.exit_of(task_id)).exit_code == 0
    return host.output(task_id).replace(task_id, "TASK").splitlines()


@pytest.mark.needs("root", "cgroup-v1")
async def test_a_fork_of_the_spawner_is_like_a_fork_of_the_supervisor(host: Host) -> None:
    await same_properties(host)


@pytest.mark.needs("root")
async def test_a_fork_of_the_spawner_is_like_a_fork_of_the_supervisor_on_v2(v2_host: Host) -> None:
    await same_properties(v2_host)


async def same_properties(host: Host) -> None:
    supervisor, spawner = await with_spawner(host)
    spawned = [await properties_of(host, f"spawned-{uid}", uid) for uid in USERS]
    for each in spawned:
        assert f"child of {supervisor}, leads group 1, leads session 1" in each
        at = each.index("descriptors") + 1
        assert each[at : at + 5] == ["0", "1", "2", "3", "/"]  # 3 lists the folder
    os.kill(spawner, signal.SIGKILL)
    await eventually(lambda: not alive(spawner), "the spawner was reaped")
    for uid, expected in zip(USERS, spawned, strict=True):
        assert await properties_of(host, f"forked-{uid}", uid) == expected


@pytest.mark.needs("root", "cgroup-v1")
async def test_a_start_fails_if_the_spawner_is_killed_meanwhile_and_the_next_one_does_not(
    host: Host,
) -> None:
    supervisor, spawner = await with_spawner(host)
    os.kill(spawner, signal.SIGSTOP)
    starting = asyncio.ensure_future(host.start("sleep 600", "fails"))
    await eventually(lambda: waits_for_stream(supervisor), "the supervisor waits for the spawner")
    os.kill(spawner, signal.SIGKILL)
    with pytest.raises(FinegrainError, match="starts the programs of tasks was killed"):
        await starting
    assert await run(host, "echo works", "works") == "works\n"


@pytest.mark.needs("root", "cgroup-v1")
async def test_the_spawner_ends_with_its_supervisor(host: Host) -> None:
    supervisor, spawner = await with_spawner(host)
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: not alive(spawner), "the spawner has ended")
    assert await run(host, "echo works", "works") == "works\n"


@pytest.mark.needs("root", "cgroup-v1")
async def test_a_long_command_is_spawned(host: Host) -> None:
    await with_spawner(host)
    argv = ["/bin/sh", "-c", "echo $#", "sh", *["x" * 1000] * 100]
    await host.start("", "long", argv=argv)
    assert (await host.exit_of("long")).exit_code == 0
    assert host.output("long") == "100\n"


@pytest.fixture
def connection() -> Iterator[tuple[Spawner, socket.socket]]:
    """A supervisor's view of a spawner, and the spawner's end of the connection."""
    spawner = Spawner.__new__(Spawner)
    spawner._peer, other = socket.socketpair()
    spawner._peer.settimeout(0)
    spawner._was_ready, spawner.pid = False, 0
    yield spawner, other
    other.close()
    spawner._peer.close()


@pytest.mark.parametrize(("version", "is_used"), [(b"1", True), (b"2", False)])
def test_a_spawner_of_another_version_is_not_used(
    connection: tuple[Spawner, socket.socket], version: bytes, is_used: bool
) -> None:
    """The package can be upgraded between the start of the helper and that of its supervisor."""
    spawner, other = connection
    assert not spawner.is_ready()
    other.send(version)
    assert spawner.is_ready() is is_used
    assert spawner.is_ready() is is_used


def test_a_spawner_whose_call_is_forbidden_is_not_used(
    connection: tuple[Spawner, socket.socket],
) -> None:
    """A filter of system calls, as in a container, can refuse a flag of the call."""
    spawner, other = connection
    spec = {"uid": 0, "gid": 0, "cwd": "/", "argv": ["true"], "env": {}}
    other.send(b"1")
    assert spawner.is_ready()
    other.send(struct.pack("!i", -errno.EAGAIN))
    with pytest.raises(BlockingIOError):
        spawner.fork(spec, [], [0, 0, 0, 0])
    assert spawner.is_ready()
    other.send(struct.pack("!i", -errno.EPERM))
    assert spawner.fork(spec, [], [0, 0, 0, 0]) is None
    assert not spawner.is_ready()
