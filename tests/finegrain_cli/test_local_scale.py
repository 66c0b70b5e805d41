"""Executors that the resource manager of a local cluster starts: their parts, and their end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finegrain.cpuset import CpuSet
from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain_cli.local.cluster import LocalCluster
from finegrain_cli.local.leftovers import find_leftovers, groups_of
from finegrain_cli.local.lock import take_lock
from finegrain_cli.local.scale import Scale, ScaledExecutors
from resource_manager.providers.config import ProvidersConfiguration, read_providers
from resource_manager.providers.process_shares import Share
from resource_manager.providers.process_sweep import stop_everything
from resource_manager.providers.provider import Presence, ProviderContext
from resource_manager.providers.registry import find_kind
from tests.support.patience import PATIENCE_S
from tests.support.providers import give_token, join_token, joining

pytestmark = pytest.mark.full


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """Its path is short, because it contains sockets."""
    folder = Path(tempfile.mkdtemp(prefix="fg-scale-"))
    (folder / "rm").mkdir(mode=0o700)
    yield folder
    assert stop_everything(folder / "provided") == []
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_providers_file_gives_each_an_equal_part(state_dir: Path, count: int) -> None:
    scaled = ScaledExecutors(Scale(count, idle_timeout_ms=1_500), state_dir)
    scaled.prepare()
    found = read_providers(scaled.providers_file)

    (shape,) = found.provisioning.shapes
    assert (shape.name, shape.count_max) == (scaled.shape, count)
    assert shape.total["cpu_milli"] == scaled.total["cpu_milli"]
    assert found.provisioning.idle_timeout_ms == 1_500
    together = sum(share.total["cpu_milli"] for share in _shares(found))
    assert together <= 1000 * len(os.sched_getaffinity(0))
    assert together > 1000 * len(os.sched_getaffinity(0)) - 1000


def test_where_cores_do_not_divide_evenly_cpu_time_does(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finegrain_cli.local import shares as local_shares

    uneven = [
        local_shares.ExecutorShare("a", cpus="0", memory_bytes=1 << 30),
        local_shares.ExecutorShare("b", cpus="0-1", memory_bytes=1 << 30),
    ]
    monkeypatch.setattr(local_shares, "divide", lambda *_: uneven)
    shares = local_shares.equal_parts(["a", "b"])

    assert len({(share.cpus, share.cpu_milli) for share in shares}) == 1
    (share,) = {shares[0].cpus}
    assert 2 * local_shares.cpu_milli_of(shares[0]) <= 1000 * len(CpuSet.parse(share))


def test_more_executors_than_the_host_can_have(state_dir: Path) -> None:
    with pytest.raises(InvalidArgument, match="fewer"):
        ScaledExecutors(Scale(1_000_000), state_dir)


def test_a_path_that_is_too_long_for_sockets_is_refused_at_once(state_dir: Path) -> None:
    scaled = ScaledExecutors(Scale(1), state_dir / ("x" * 80))
    with pytest.raises(ConfigurationError, match="bytes too long"):
        scaled.prepare()


def test_a_second_one_leaves_the_executors_of_the_first_alone(state_dir: Path) -> None:
    executor = state_dir / "provided" / "executors" / "of-the-first"
    executor.mkdir(parents=True)
    lock = take_lock(state_dir)
    with pytest.raises(
        ConfigurationError, match=f"in use by `finegrain up`, process {os.getpid()}"
    ):
        LocalCluster(scale=1, state_dir=state_dir).start()
    os.close(lock)

    assert executor.exists()
    assert not (state_dir / "providers.toml").exists()
    shutil.rmtree(executor)


def test_what_lies_beside_a_cluster_is_not_left_behind_by_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(1000)", "task_executor"]
    with subprocess.Popen([*words, f"{tmp_path}/cluster-2/state"]) as other:
        beside = find_leftovers(tmp_path / "cluster", tmp_path / "cluster", [])
        (own,) = find_leftovers(tmp_path / "cluster-2", tmp_path / "cluster-2", [])
        other.kill()

    assert beside == []
    assert own.startswith(f"process {other.pid}: ")


def test_what_one_that_was_killed_left_is_waited_for(state_dir: Path) -> None:
    lock = take_lock(state_dir)
    (state_dir / "up.lock").write_text("4194999\n")  # it has ended, and its sweeper works
    sweeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    os.close(lock)
    with pytest.raises(ConfigurationError, match="wait until it has ended, or name another one"):
        take_lock(state_dir, wait_s=0.1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(take_lock, state_dir)
        sweeper.communicate()
        os.close(waiting.result())
    assert sweeper.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["alive", "front killed"])
def test_the_sweeper_ends_what_nobody_else_will(state_dir: Path, killed: bool) -> None:
    scaled = ScaledExecutors(Scale(2), state_dir)
    scaled.prepare()
    _start_one(scaled, f"{scaled.shape}-1-1")
    executor = scaled.directory / "executors" / f"{scaled.shape}-1-1"
    _eventually((executor / "state/endpoint.json").exists)
    groups = [Path(each) for each in groups_of(executor / "state")]
    if killed:
        os.kill(json.loads((executor / "state/endpoint.json").read_text())["pid"], signal.SIGKILL)
    note = {"directory": str(scaled.directory), "rm_state_dir": str(state_dir / "rm")}
    sweeper = subprocess.Popen(
        [sys.executable, "-m", "finegrain_cli.local.sweeper"], stdin=subprocess.PIPE, text=True
    )
    assert sweeper.stdin is not None
    sweeper.stdin.write(json.dumps(note) + "\n")
    sweeper.stdin.flush()
    _eventually(lambda: _ignores(sweeper.pid, signal.SIGTERM))
    sweeper.send_signal(signal.SIGTERM)
    time.sleep(0.1)  # it would have ended within this time
    assert sweeper.poll() is None  # its parent is still there, so it waits
    sweeper.communicate()

    assert sweeper.returncode == 0
    assert not executor.exists()
    assert not [group for group in groups if group.exists()]
    assert find_leftovers(state_dir, state_dir, []) == []


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(mask, 16) & 1 << (number - 1))


def _shares(found: ProvidersConfiguration) -> list[Share]:
    return [share for each in found.shapes["process"] for share in each.settings.shares]


def _start_one(scaled: ScaledExecutors, executor_id: str) -> None:
    """Starts executors as the resource manager does. There is no resource manager at which they
    could register.
    """
    found = read_providers(scaled.providers_file)
    around = ProviderContext(
        state_dir=scaled.providers_file.parent / "rm",
        managers=("127.0.0.1:1",),
    )
    kind = find_kind("process")
    provider = kind.make(found.common["process"], found.shapes["process"], around)

    async def start() -> None:
        async with joining() as address:
            give_token(around, executor_id, join_token(address, executor_id))
            await provider.start(executor_id, scaled.shape, again=False)
            observation = await provider.status(executor_id, scaled.shape, "")
            assert observation.presence is Presence.RUNS
            own = scaled.directory / "executors" / executor_id / "state/executor.credentials"
            while not own.exists():  # noqa: ASYNC110 -- another process writes it
                await asyncio.sleep(0.05)
        await provider.close()

    asyncio.run(start())


def _eventually(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)
