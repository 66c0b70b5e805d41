"""Processes that a test run starts end with the run, in whichever way the run ends."""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.control_groups import groups_called
from tests.support.patience import PATIENCE_S, eventually
from tests.support.small_runs import small_run

T = TypeVar("T")

DETACHED = """
import os, subprocess, time
from pathlib import Path

def test_something_that_starts_a_daemon():
    daemon = "trap '' TERM INT HUP; echo $$ > daemon.new; mv daemon.new daemon; sleep 1000 & "
    daemon += "while :; do wait; done"
    subprocess.run(["setsid", "--fork", "sh", "-c", daemon], check=True)
    while not Path("daemon").exists():
        time.sleep(0.01)
    Path("pytest.new").write_text(f"{os.getpid()} {os.getppid()}")
    Path("pytest.new").rename("pytest")
    HANG
"""
HANGS = DETACHED.replace("HANG", "time.sleep(1000)")
ENDS = DETACHED.replace("HANG", "pass")

HELPER = """
import os, time, uuid
from pathlib import Path
from task_executor.helper.launch import HelperConfig, start_helper
from tests.task_executor.helper.conftest import HelperClient, Host

async def test_something_that_carves_a_slot():
    folder = Path("h").resolve()
    folder.mkdir()
    config = HelperConfig(
        state_dir=str(folder / "state"), socket_path=str(folder / "s"),
        executor_id=f"test-{uuid.uuid4().hex[:8]}", front_uid=os.getuid(), front_gid=os.getgid(),
        scratch_root=str(folder), allow_root_tasks=True,
    )
    pid = start_helper(config)
    host = Host(config, pid, await HelperClient.connect(config.socket_path))
    await host.slot()
    shell = await host.start("trap '' TERM; echo up; while :; do sleep 0.1; done")
    Path("pytest.new").write_text(f"{config.executor_id} {pid} {shell}")
    Path("pytest.new").rename("pytest")
    time.sleep(1000)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def words_of(path: Path) -> list[str]:
    eventually(path.exists, f"{path.name} is written")
    return path.read_text().split()


@pytest.mark.parametrize("whom", ["front", pytest.param("guard", marks=pytest.mark.full), "pytest"])
def test_a_daemon_ends_with_a_run_that_was_killed(tmp_path: Path, whom: str) -> None:
    with small_run(tmp_path, HANGS) as run:
        pytest_pid, guard = map(int, words_of(tmp_path / "pytest"))
        (daemon,) = map(int, words_of(tmp_path / "daemon"))
        assert len({run.pid, guard, pytest_pid, daemon}) == 4
        assert alive(daemon)
        os.kill({"front": run.pid, "guard": guard, "pytest": pytest_pid}[whom], signal.SIGKILL)
        assert run.wait(PATIENCE_S) == -signal.SIGKILL
    eventually(lambda: not alive(daemon), "the daemon is killed")
    eventually(lambda: not alive(guard), "the guard ends")
    assert not alive(pytest_pid)


@pytest.mark.full
def test_a_process_group_that_was_killed(tmp_path: Path) -> None:
    """As `timeout --signal=KILL` and most services of continuous integration do it."""
    with small_run(tmp_path, HANGS, start_new_session=True) as run:
        words_of(tmp_path / "pytest")
        (daemon,) = map(int, words_of(tmp_path / "daemon"))
        os.killpg(run.pid, signal.SIGKILL)
        assert run.wait(PATIENCE_S) == -signal.SIGKILL
    eventually(lambda: not alive(daemon), "the daemon is killed")


@pytest.mark.full
def test_a_parallel_worker_that_was_killed(tmp_path: Path) -> None:
    with small_run(tmp_path, HANGS, "-n", "1", "--max-worker-restart", "0") as run:
        worker, controller = map(int, words_of(tmp_path / "pytest"))
        (daemon,) = map(int, words_of(tmp_path / "daemon"))
        assert controller != run.pid
        os.kill(worker, signal.SIGKILL)
        said, _ = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 1
        assert "crashed" in said
        assert not alive(daemon)


def test_ctrl_c_at_a_terminal_interrupts_pytest_once(tmp_path: Path) -> None:
    terminal, inside = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(inside, termios.TIOCSCTTY, 0)

    with small_run(
        tmp_path, HANGS, stdin=inside, start_new_session=True, preexec_fn=take_terminal
    ) as run:
        words_of(tmp_path / "pytest")
        (daemon,) = map(int, words_of(tmp_path / "daemon"))
        os.write(terminal, b"\x03")
        said, _ = run.communicate(timeout=PATIENCE_S)
    os.close(inside)
    os.close(terminal)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert said.count("KeyboardInterrupt") >= 1
    assert "no tests ran" in said  # pytest has ended in order
    assert not alive(daemon)
    assert f"left by the test run, killed now: {daemon} " in said


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_run_reach_pytest(tmp_path: Path, number: signal.Signals) -> None:
    with small_run(tmp_path, HANGS) as run:
        words_of(tmp_path / "pytest")
        (daemon,) = map(int, words_of(tmp_path / "daemon"))
        run.send_signal(number)
        run.communicate(timeout=PATIENCE_S)
    interrupted = pytest.ExitCode.INTERRUPTED
    assert run.returncode == (interrupted if number is signal.SIGINT else -number)
    assert not alive(daemon)


@pytest.mark.full
def test_an_orderly_end_keeps_its_exit_code_and_names_what_was_left(tmp_path: Path) -> None:
    with small_run(tmp_path, ENDS) as run:
        said, _ = run.communicate(timeout=PATIENCE_S)
    (daemon,) = map(int, words_of(tmp_path / "daemon"))
    assert run.returncode == 0
    assert "1 passed" in said
    assert not alive(daemon)
    assert f"left by the test run, killed now: {daemon} sh -c trap" in said


def test_a_run_that_leaves_nothing_says_nothing(tmp_path: Path) -> None:
    with small_run(tmp_path, "def test_fails(): assert False") as run:
        said, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    assert "left by the test run" not in said


@pytest.mark.full
@pytest.mark.needs("root", "cgroup-v1")
def test_control_groups_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    with small_run(tmp_path, HELPER, "-o", "asyncio_mode=auto") as run:
        executor_id, *pids = words_of(tmp_path / "pytest")
        assert groups_called(f"finegrain/{executor_id}/slots/slot*")
        run.kill()
    eventually(lambda: not groups_called(f"finegrain/{executor_id}"), "its groups are removed")
    assert not [pid for pid in pids if alive(int(pid))]
