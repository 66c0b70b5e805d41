"""Slots in a separate scope: a helper finds the scope again, holds it again, and gives it up when
no slot is left.

`systemctl` and `systemd-run` are scripts that make groups; tests/systemd_host uses the real
programs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pytest

from task_executor.helper import scope
from task_executor.helper.cgroups import choose_driver
from task_executor.helper.launch import HelperConfig, HelperNotStarted, start_helper
from task_executor.helper.paths import read_json
from task_executor.helper.scope import ScopeError
from task_executor.host.helper_client import HelperClient
from tests.support.patience import PATIENCE_S
from tests.task_executor.helper.conftest import Host, alive, eventually
from tests.task_executor.helper.fake_cgroups import FakeV1, FakeV2
from tests.task_executor.helper.test_cgroup_drivers import config as kernel_config

MEMORY = Path("/sys/fs/cgroup/memory")
SYSTEMD_RUN = """#!/bin/sh
echo run >>"$CALLS"
[ -e "$CALLS.refuse" ] && { echo 'Failed to start transient scope unit' >&2; exit 1; }
while :; do case $1 in --unit=*) unit=${1#--unit=} ;; -*) ;; *) break ;; esac; shift; done
for controller in memory pids cpu; do
    mkdir -p "/sys/fs/cgroup/$controller/$SLICE/$unit"
    echo 0 >"/sys/fs/cgroup/$controller/$SLICE/$unit/cgroup.procs"
done
exec "$@"
"""
SYSTEMCTL = """#!/bin/sh
for unit; do :; done
[ -d "/sys/fs/cgroup/memory/$SLICE/$unit" ] && echo "/$SLICE/$unit"
exit 0
"""


@dataclass
class Stage:
    """A host on which two scripts replace systemd."""

    folder: Path
    slice: str

    def scopes_made(self) -> int:
        calls = self.folder / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def refuse(self) -> None:
        (self.folder / "calls.refuse").touch()


@pytest.fixture
def stage(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(place / "bin", f"fg-{place.name}.slice")
    stage.folder.mkdir()
    for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)):
        (stage.folder / name).write_text(text)
        (stage.folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stage.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(stage.folder / "calls"))
    monkeypatch.setenv("SLICE", stage.slice)
    monkeypatch.setattr(scope, "_SYSTEMD", place)
    yield stage
    for top in Path("/sys/fs/cgroup").glob(f"*/{stage.slice}"):
        _remove(top)


def _remove(top: Path) -> None:
    """Removes a group and all groups below it; killed processes in it may take a moment to end."""
    end = time.monotonic() + PATIENCE_S
    while top.exists() and time.monotonic() < end:
        for group in [*sorted(top.rglob("*/"), reverse=True), top]:
            with suppress(OSError):
                group.rmdir()
        time.sleep(0.01)
    assert not top.exists()


@pytest.fixture
async def scoped(config: HelperConfig, stage: Stage) -> AsyncIterator[Host]:
    assert stage.scopes_made() == 0
    host = Host(config, start_helper(config), await HelperClient.connect(config.socket_path))
    yield host
    left = await host.clean_up()
    await host.client.close()
    assert (left.slots, left.tasks) == ([], [])
    await eventually(lambda: not alive(holder_of(host)), "the holder has gone with the helper")


def holder_of(host: Host) -> int:
    return int((read_json(host.state / "holder.json") or {})["pid"])


def memory_group(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1])


@pytest.mark.needs("root", "cgroup-v1")
async def test_tasks_and_supervisors_are_in_the_scope_and_the_helper_is_not(
    scoped: Host, stage: Stage
) -> None:
    await scoped.slot()
    pid = await scoped.start("sleep 600")
    unit = f"/{stage.slice}/finegrain-{scoped.config.executor_id}.scope"
    supervisor = int(scoped.record()["shim_pid"])
    assert memory_group(pid).startswith(f"{unit}/finegrain/")
    assert memory_group(supervisor).startswith(f"{unit}/finegrain/")
    assert unit not in memory_group(scoped.pid)
    assert (await scoped.client.hello()).isolation.memory == "hard"


@pytest.mark.needs("root", "cgroup-v1")
async def test_a_helper_that_comes_back_finds_holder_slots_and_tasks(
    scoped: Host, stage: Stage
) -> None:
    await scoped.slot()
    pid, holder = await scoped.start("sleep 600"), holder_of(scoped)
    scoped.kill_helper()
    scoped.restart_helper()
    assert (holder_of(scoped), stage.scopes_made()) == (holder, 1)
    state = await scoped.client.inspect()
    assert [task.pid for task in state.tasks] == [pid]
    assert len(state.slots) == 1


@pytest.mark.needs("root", "cgroup-v1")
async def test_when_the_holder_dies_a_new_one_goes_beside_the_tasks(
    scoped: Host, stage: Stage
) -> None:
    await scoped.slot()
    pid, holder = await scoped.start("sleep 600"), holder_of(scoped)
    os.kill(holder, signal.SIGKILL)
    await eventually(lambda: not alive(scoped.pid), "the helper has gone, to be started again")
    scoped.restart_helper()
    assert holder_of(scoped) != holder
    assert memory_group(holder_of(scoped)).startswith(f"/{stage.slice}/")
    assert stage.scopes_made() == 1
    assert alive(pid)
    assert [task.pid for task in (await scoped.client.inspect()).tasks] == [pid]


@pytest.mark.needs("root", "cgroup-v1")
async def test_when_the_whole_scope_has_gone_the_slots_are_gone_and_new_ones_are_limited(
    scoped: Host, stage: Stage
) -> None:
    await scoped.slot()
    os.kill(holder_of(scoped), signal.SIGKILL)
    await eventually(lambda: not alive(scoped.pid), "the helper has gone, to be started again")
    for top in Path("/sys/fs/cgroup").glob(f"*/{stage.slice}"):
        _remove(top)
    scoped.restart_helper()
    assert stage.scopes_made() == 2
    assert (await scoped.client.inspect()).slots == []
    await scoped.slot("another")
    task = await scoped.start("sleep 600", allocation_id="another")
    limit = MEMORY / memory_group(task)[1:] / "../memory.limit_in_bytes"
    assert limit.read_text() == f"{256 << 20}\n"


@pytest.mark.needs("root", "cgroup-v1")
async def test_one_that_is_refused_leaves_nobody_behind_in_the_others_scope(
    scoped: Host, stage: Stage, place: Path
) -> None:
    rival = replace(
        scoped.config, state_dir=str(place / "rival"), socket_path=str(place / "rival.sock")
    )
    with pytest.raises(HelperNotStarted, match="is already in use on this host"):
        start_helper(rival)
    record = read_json(place / "rival/holder.json") or {}
    await eventually(lambda: not alive(record["pid"]), "the holder of the refused one has gone")
    assert alive(holder_of(scoped))
    assert stage.scopes_made() == 1
    await scoped.slot()


@pytest.mark.needs("root", "cgroup-v1")
async def test_without_a_scope_the_slots_are_limited_all_the_same(
    config: HelperConfig, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope, "_RETRY_S", 0.01)
    stage.refuse()
    host = Host(config, start_helper(config), await HelperClient.connect(config.socket_path))
    assert (await host.client.hello()).isolation.memory == "hard"
    assert "Failed to start transient scope" in (host.state / "helper.log").read_text()
    await host.clean_up()
    await host.client.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yields the processes that are started to hold a scope, and ends those that are left."""
    pids: list[int] = []

    def start(command: list[str], stderr: IO[bytes] | None) -> int:
        pids.append(really(command, stderr))
        return pids[-1]

    really = scope._start
    monkeypatch.setattr(scope, "_start", start)
    monkeypatch.setattr(scope, "_RETRY_S", 0.01)
    yield pids
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.needs("root", "cgroup-v1")
async def test_nobody_is_left_behind_where_the_kernel_refuses_a_new_holder(
    stage: Stage, place: Path, started: list[int]
) -> None:
    for controller in ("memory", "cpuset"):  # a cpuset without cpus admits no process
        Path(f"/sys/fs/cgroup/{controller}/{stage.slice}/finegrain-a.scope").mkdir(parents=True)
    with pytest.raises(ScopeError, match="No space left on device"):
        scope.hold_scope(place, "a", None)
    assert len(started) == 3
    await eventually(lambda: not any(map(alive, started)), "all of them have gone")


@pytest.mark.needs("root", "cgroup-v1")
async def test_nobody_is_left_behind_where_the_holder_cannot_be_written_down(
    stage: Stage, place: Path, started: list[int]
) -> None:
    with pytest.raises(FileNotFoundError):
        scope.hold_scope(place / "not there", "a", None)
    await eventually(lambda: started and not any(map(alive, started)), "it has gone")


def test_nobody_is_made_to_hold_a_scope_that_has_just_gone(
    place: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope, "_place", lambda unit: f"/finegrain.slice/{unit}")
    with pytest.raises(ScopeError, match="just ended"):
        scope.hold_scope(place, f"{place.name}-gone", None)
    assert started == []


async def test_one_that_systemd_keeps_waiting_is_not_left_behind(
    place: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "bin").mkdir()
    (place / "bin/systemd-run").write_text("#!/bin/sh\nexec sleep 600\n")
    (place / "bin/systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(scope, "_place", lambda unit: "")
    monkeypatch.setattr(scope, "_START_S", 0.05)
    with pytest.raises(ScopeError, match="systemd-run failed"):
        scope.hold_scope(place, "a", None)
    assert len(started) == 3
    await eventually(lambda: not any(map(alive, started)), "all of them have gone")


def test_where_systemd_is_not_or_the_rights_are_not_there_is_no_scope(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scope, "_SYSTEMD", tmp_path / "not there")
    assert not scope.scope_is_available()
    monkeypatch.setattr(scope, "_SYSTEMD", tmp_path)
    monkeypatch.setattr("task_executor.helper.scope.os.geteuid", lambda: 1000)
    assert not scope.scope_is_available()


SCOPE = "/finegrain.slice/finegrain-host-a.scope"


def test_on_v1_supervisors_join_the_scope_by_which_systemd_knows_them() -> None:
    """Otherwise a stop of the helper's service would end the supervisors. The groups of slots need
    no group in this hierarchy.
    """
    kernel = FakeV1(("name=systemd", "memory", "cpuset"))
    lines = [f"1:name=systemd:{SCOPE}", f"2:memory:{SCOPE}", "3:cpuset:/"]
    kernel.files["/proc/777/cgroup"] = "\n".join(lines)
    for top in ("name=systemd", "memory"):
        kernel.mkdir(f"/sys/fs/cgroup/{top}/finegrain.slice")
        kernel.mkdir(f"/sys/fs/cgroup/{top}{SCOPE}")
    driver = choose_driver(kernel_config(holder_pid=777), kernel)
    assert driver.base == {
        "memory": f"/sys/fs/cgroup/memory{SCOPE}/finegrain/host-a",
        "cpuset": "/sys/fs/cgroup/cpuset/finegrain/host-a",
    }
    assert driver.supervisors().keys() == {"memory", "cpuset", "name=systemd"}
    assert driver.supervisors()["name=systemd"] == f"/sys/fs/cgroup/name=systemd{SCOPE}"
    assert driver.slot("a.1").keys() == {"memory", "cpuset"}


@pytest.mark.parametrize("leaf", ["", "/finegrain-daemon"])
def test_on_v2_the_scope_is_split_and_its_holder_moves_to_a_leaf(leaf: str) -> None:
    kernel = FakeV2()
    group = f"{kernel.root}/finegrain-host-a.scope"
    kernel.mkdir(group)
    kernel.delegated.add(group)
    if leaf:
        kernel.mkdir(group + leaf)
    kernel.members[group + leaf].add(777)
    kernel.files["/proc/777/cgroup"] = f"0::/finegrain-host-a.scope{leaf}"
    driver = choose_driver(kernel_config(holder_pid=777), kernel)
    assert driver.base == {"unified": f"{group}/finegrain/host-a"}
    assert driver.unit == {}
    assert kernel.members[f"{group}/finegrain-daemon"] == {777}
    assert kernel.members[kernel.own] == {100}  # we stay where we are


def test_a_scope_that_was_made_anew_has_its_controllers_switched_on_again() -> None:
    """It has the name of the former scope, whose groups the helper remembers."""
    kernel = FakeV2()
    group = f"{kernel.root}/finegrain-host-a.scope"
    kernel.mkdir(group)
    kernel.delegated.add(group)
    kernel.files["/proc/777/cgroup"] = "0::/finegrain-host-a.scope"
    known = {"unified": f"{group}/finegrain/host-a"}
    driver = choose_driver(kernel_config(holder_pid=777), kernel, known)
    assert driver.report()["memory"] == "hard"


def test_the_helper_is_told_of_its_holder_without_being_another_helper(
    config: HelperConfig,
) -> None:
    from task_executor.helper.launch import digest

    assert digest(replace(config, holder_pid=777)) == digest(config)


@pytest.mark.needs("root", "cgroup-v1")
async def test_the_holder_stays_with_the_slots_when_the_helper_cannot_come_back(
    scoped: Host, stage: Stage, place: Path
) -> None:
    await scoped.slot()
    pid, holder = await scoped.start("sleep 600"), holder_of(scoped)
    scoped.kill_helper()
    with pytest.raises(HelperNotStarted, match="No such file"):
        start_helper(replace(scoped.config, socket_path=str(place / "no folder/socket")))
    assert alive(holder)
    scoped.restart_helper()
    assert (holder_of(scoped), stage.scopes_made()) == (holder, 1)
    assert [task.pid for task in (await scoped.client.inspect()).tasks] == [pid]


def test_systemd_run_that_ends_while_it_is_waited_for_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr(scope, "_start", lambda _command, _said: ended.pid)
    monkeypatch.setattr(scope, "_START_S", 0.0)
    with pytest.raises(ScopeError, match="systemd-run failed"):
        scope._make("finegrain-a.scope", None)
