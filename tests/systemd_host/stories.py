"""Slots, limits and restarts of an executor under systemd: real units on a real kernel."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import finegrain_client as fg
from finegrain_client.blocking import Cluster, Slot, Task
from tests.systemd_host.machine import (
    FRONT,
    HELPER,
    RM,
    alive,
    eventually,
    groups_left,
    groups_of,
    is_active,
    journal,
    kill_now,
    limit,
    main_pid,
    on_v2,
    sh,
    slot_groups,
    start_ticks,
    unit_of,
)

OPERATOR = "/var/lib/finegrain/rm/operator.credentials"
ANSWER_S = 300.0
SMALL = fg.SlotSpec(cpu_milli=100, memory_bytes=64 * fg.MIB)
EATER = "b = []\nwhile True: b.append(bytearray(1 << 20))"
TICKER = "n=0; while [ ! -e {stop} ]; do n=$((n+1)); echo $n; sleep 0.2; done; exit 5"


def cluster() -> Cluster:
    """Returns an administrator's client, with timeouts that are long enough for an emulated
    host.
    """
    return fg.blocking.connect(credentials=OPERATOR, budget_s=ANSWER_S)


@contextlib.contextmanager
def slot_of(wish: fg.SlotSpec) -> Iterator[Slot]:
    """Yields one slot, and releases it at the end."""
    with cluster() as each, each.job("story", lease_s=600) as job:
        (request,) = job.request_slots(wish)
        with request.granted(timeout_s=ANSWER_S) as slot:
            yield slot


def executor_id() -> str:
    with cluster() as each:
        return eventually(each.executors, "an executor has registered")[0].executor_id


def scope() -> str:
    return f"finegrain-{executor_id()}.scope"


# -- slots ---------------------------------------------------------------------------------------


def a_command_runs_as_nobody(program: Path) -> None:
    """Runs `finegrain run` with daemons that systemd started. The helper runs in its unit; tasks
    and their supervisors run in a scope, and not in a unit of finegrain.
    """
    with cluster() as each:
        (executor,) = eventually(each.executors, "the executor has registered")
    isolation = executor.isolation
    assert isolation is not None
    hard = (isolation.cpu, isolation.cpuset, isolation.memory, isolation.pids)
    assert hard == ("quota", "cgroup", "hard", "hard"), executor
    assert isolation.driver == ("v2" if on_v2() else "v1"), isolation
    assert isolation.kill == ("cgroup.kill" if on_v2() else "freezer"), isolation
    said = sh(str(program), "run", "--cpu", "0.5", "--memory", "64M", "--", "id", "-un")
    assert said == "nobody\n", said
    assert unit_of(main_pid(HELPER)) == HELPER
    assert unit_of(main_pid(FRONT)) == FRONT
    assert Path(f"/proc/{main_pid(FRONT)}").stat().st_uid != 0, "the front runs as root"
    with slot_of(SMALL) as slot:
        task = slot.run(["sleep", "600"])
        assert unit_of(task.pid) == scope(), unit_of(task.pid)
        supervisor = int(Path(f"/proc/{task.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert unit_of(supervisor) == scope(), unit_of(supervisor)
    eventually(lambda: not groups_left(), "the slots' groups are gone")


def limits_are_the_kernels(_program: Path) -> None:
    """Compares the limits with those in the kernel, and the quota also with the used cpu time."""
    wish = fg.SlotSpec(cpu_milli=500, memory_bytes=64 * fg.MIB, pids_max=32)
    with slot_of(wish) as slot:
        task = slot.run([sys.executable, "-S", "-c", "while True: pass"])
        pid = task.pid
        assert limit(pid, "cpu.max", "cpu/cpu.cfs_quota_us").split()[0] == "50000"
        assert limit(pid, "memory.max", "memory/memory.limit_in_bytes") == str(64 * fg.MIB)
        assert limit(pid, "pids.max", "pids/pids.max") == "32"
        with cluster() as each:
            shared = each.executors()[0].shared_cpus
        assert limit(pid, "cpuset.cpus.effective", "cpuset/cpuset.cpus") == shared
        if on_v2():
            assert limit(pid, "memory.swap.max", "") == "0"
            own = groups_of(pid)[""]
            assert own.name.startswith("task-")
            assert (own / "memory.oom.group").read_text().strip() == "1"
        before, began = _used_s(pid), time.monotonic()
        time.sleep(8)
        share = (_used_s(pid) - before) / (time.monotonic() - began)
        assert 0.2 < share < 0.58, f"{share:.2f} of a core with a quota of 0.50"
        print(f"   used {share:.2f} of a core with a quota of 0.50")
        task.cancel(0)
        assert task.wait(ANSWER_S).signal == signal.SIGKILL


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def who_eats_too_much_memory_dies_alone(_program: Path) -> None:
    """The task is killed as a whole, and its end shows why; its neighbor in the slot lives."""
    with slot_of(fg.SlotSpec(cpu_milli=1000, memory_bytes=64 * fg.MIB)) as slot:
        neighbour = slot.run(["sleep", "600"])
        script = f"sleep 600 & {sys.executable} -S -c '{EATER}'; exit 3"
        eater = slot.run(["/bin/sh", "-c", script])
        ended = eater.wait(ANSWER_S)
        assert ended.oom_killed, ended
        if on_v2():
            assert ended.signal == signal.SIGKILL, f"oom.group left the shell alive: {ended}"
        assert alive(neighbour.pid), "the neighbour died with it"
        neighbour.cancel(0)
        neighbour.wait(ANSWER_S)
    assert is_active(FRONT)
    assert is_active(HELPER)


def a_fork_bomb_is_taken_down(_program: Path) -> None:
    """The number of processes stops at its limit, and none of them is left after the release."""
    bomb = "b() { b | b & }; b; sleep 600"
    with slot_of(fg.SlotSpec(cpu_milli=1000, memory_bytes=256 * fg.MIB, pids_max=200)) as slot:
        task = slot.run(["/bin/sh", "-c", bomb], output=lambda _chunk: None)
        groups = slot_groups(task.pid)
        counter = groups["" if on_v2() else "pids"] / "pids.current"
        eventually(lambda: int(counter.read_text()) > 150, "the bomb has grown")
        most = max(int(counter.read_text()) for _ in range(20))
        assert most <= 200, most
        began = time.monotonic()
    eventually(lambda: not any(path.exists() for path in groups.values()), "it is gone")
    print(f"   {most} processes gone {time.monotonic() - began:.1f} s after the release began")


def a_cpu_that_goes_off_line_costs_no_slot(_program: Path) -> None:
    """Tasks go on with the other cpus, and new slots can be made with the cpu off-line and on-line.
    The executor notices both changes; when the cpu is back, old and new slots may use it again.
    notices, and once it is back, old slots and new ones have it again.
    """
    last = os.cpu_count() or 1
    switch = Path(f"/sys/devices/system/cpu/cpu{last - 1}/online")
    if not switch.exists():
        print("   left out: this host has no cpu that can be switched off")
        return
    try:
        with slot_of(SMALL) as slot:
            whole = _allowed(slot)
            switch.write_text("0")
            assert _allowed(slot) == whole - {last - 1}
            with slot_of(SMALL) as another:
                assert _allowed(another) == whole - {last - 1}
            eventually(lambda: _offline() == str(last - 1), "it is told")
            switch.write_text("1")
            eventually(lambda: _offline() == "", "that it is back is told")
            eventually(lambda: _allowed(slot) == whole, "it has it back")
            with slot_of(SMALL) as another:
                assert _allowed(another) == whole
    finally:
        switch.write_text("1")


def _offline() -> str:
    """Returns the executor's off-line cpus, as the resource manager knows them."""
    with cluster() as each:
        now = each.topology(executor_id()).now
    return now.offline_cpus if now is not None else ""


def _allowed(slot: Slot) -> set[int]:
    """Returns the cpus that a task of the slot may use."""
    task = slot.run(["sleep", "600"])
    allowed = os.sched_getaffinity(task.pid)
    task.cancel(0)
    task.wait(ANSWER_S)
    return allowed


# -- restarts ------------------------------------------------------------------------------------


def _interruptions() -> dict[str, Callable[[], None]]:
    def systemctl(*words: str) -> Callable[[], None]:
        return lambda: void(sh("systemctl", *words))

    def reload_all() -> None:
        sh("systemctl", "daemon-reload")
        sh("systemctl", "daemon-reexec")

    def stop_and_start() -> None:
        sh("systemctl", "stop", FRONT, HELPER)
        time.sleep(1)
        sh("systemctl", "start", HELPER, FRONT)

    def kill_holder() -> None:
        record = json.loads(Path("/var/lib/finegrain/executor-helper/holder.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)

    return {
        "kill -9 of the front": lambda: kill_now(FRONT),
        "kill -9 of the helper": lambda: kill_now(HELPER),
        "kill -9 of both": lambda: kill_now(FRONT, HELPER),
        "kill -9 of who holds the scope": kill_holder,
        "systemctl restart of the front": systemctl("restart", FRONT),
        "systemctl restart of the helper": systemctl("restart", HELPER),
        "systemctl restart of both": systemctl("restart", FRONT, HELPER),
        "daemon-reload and daemon-reexec": reload_all,
        "stop and start of both": stop_and_start,
        "kill -9 of the resource manager": lambda: kill_now(RM),
    }


def void(_value: object) -> None:
    return


def no_restart_costs_a_task(_program: Path) -> None:
    """Daemons are killed, restarted or reloaded. After this, a running task is the same process in
    the same control group, and all of its output is there. A task that ended meanwhile has its exit
    status, and an idle slot still exists.
    """
    stop = Path(f"/tmp/finegrain-stop-{os.getpid()}")
    with cluster() as each, each.job("restarts", lease_s=600) as job:
        wish = fg.SlotSpec(cpu_milli=200, memory_bytes=64 * fg.MIB, count=2)
        busy, idle = (r.granted(timeout_s=ANSWER_S) for r in job.request_slots(wish))
        ticker = busy.run(["/bin/sh", "-c", TICKER.format(stop=stop)])
        who, where = start_ticks(ticker.pid), slot_groups(ticker.pid)
        for what, interrupt in _interruptions().items():
            began = time.monotonic()
            short = busy.run(["/bin/sh", "-c", "echo before; sleep 2; echo after; exit 9"])
            interrupt()
            _all_is_well(short, ticker, who, where)
            done = idle.run(["echo", what]).wait(ANSWER_S).check()
            assert done.stdout.decode() == f"{what}\n"
            print(f"   {what}: nothing lost ({time.monotonic() - began:.1f} s)")
        stop.touch()
        ended = ticker.wait(ANSWER_S)
        stop.unlink()
        assert ended.exit_code == 5, ended
        numbers = [int(line) for line in ended.stdout.split()]
        assert numbers == list(range(1, len(numbers) + 1)), "output has a gap or a repeat"
        assert len(numbers) > 20, numbers
        assert not busy.is_lost
        assert not idle.is_lost
        print(f"   {len(numbers)} lines of output without a gap")
    eventually(lambda: not groups_left(), "the slots' groups are gone")


def _all_is_well(short: Task, ticker: Task, who: int, where: dict[str, Path]) -> None:
    eventually(lambda: all(map(is_active, (HELPER, FRONT, RM))), "all units are active again")
    ended = short.wait(ANSWER_S)
    assert (ended.exit_code, ended.stdout) == (9, b"before\nafter\n"), ended
    assert alive(ticker.pid), "the task has died"
    assert start_ticks(ticker.pid) == who, "another process has its pid"
    assert slot_groups(ticker.pid) == where
    assert unit_of(ticker.pid).endswith(".scope")


def what_nobody_can_explain_is_killed_and_reported(_program: Path) -> None:
    """Someone has made a control group among the slots, with a process in it. When the front or the
    helper restarts, it removes this group; the tasks of slots go on.
    """
    with slot_of(fg.SlotSpec(cpu_milli=200, memory_bytes=64 * fg.MIB)) as slot:
        task = slot.run(["sleep", "600"])
        place = slot_groups(task.pid)["" if on_v2() else "memory"].parent
        for number, unit in enumerate((FRONT, HELPER)):
            group = place / f"by-hand-{number}"
            group.mkdir()
            stranger = subprocess.Popen(["sleep", "600"])
            (group / "cgroup.procs").write_text(str(stranger.pid))
            kill_now(unit)
            _is_gone_and_told_of(stranger, group)
        assert alive(task.pid)
        task.cancel(0)
        task.wait(ANSWER_S)


def _is_gone_and_told_of(stranger: subprocess.Popen[bytes], group: Path) -> None:
    assert stranger.wait(ANSWER_S) == -signal.SIGKILL
    eventually(lambda: not group.exists(), "its group is gone")
    words = re.compile(f"unknown_group_killed.*{group.name}|{group.name}.*unknown_group_killed")
    eventually(lambda: words.search(journal(FRONT)), "the journal tells of it")


def the_last_one_leaves_nothing(_program: Path) -> None:
    """An executor without slots stops: no scope, control group or process is left, and it can start
    again.
    """
    name = scope()
    sh("systemctl", "stop", FRONT, HELPER)
    eventually(lambda: not is_active(name), "the scope is gone")
    eventually(lambda: not groups_left(), "the groups are gone")
    sh("systemctl", "start", HELPER, FRONT)
    with slot_of(SMALL) as slot:
        assert slot.run(["true"]).wait(ANSWER_S).ok


def a_scope_that_is_stopped_takes_its_tasks_with_it(_program: Path) -> None:
    """An administrator ends everything with `systemctl stop` of the scope. The slots are reported
    as broken, and new ones are made in a new scope.
    """
    name = scope()
    with slot_of(SMALL) as slot:
        task = slot.run(["sleep", "600"])
        sh("systemctl", "stop", name)
        with contextlib.suppress(fg.SlotLost):
            assert not task.wait(ANSWER_S).ok
        eventually(lambda: slot.has_ended or slot.is_lost, "the slot is reported as broken")
    with slot_of(SMALL) as slot:
        assert slot.run(["true"]).wait(ANSWER_S).ok
        assert is_active(name)


def one_unit_is_enough(program: Path) -> None:
    """`executor serve` runs as root in an ordinary service, whose stop kills all processes of the
    service. Tasks survive the stop, because they are in a scope.
    """
    sh("systemctl", "stop", FRONT, HELPER)
    unit, place = "finegrain-story-single.service", Path("/var/lib/finegrain/story-single")
    serve = [str(program), "executor", "serve", f"--state-dir={place}", "--executor-id=single"]
    serve += [f"--run-dir=/run/finegrain/{place.name}", "--label=story=single"]
    run = ["systemd-run", f"--unit={unit}", "--service-type=notify", "--collect", *serve]
    try:
        sh(*run)
        with slot_of(replace(SMALL, labels={"story": "single"}, allow_pending=True)) as slot:
            task = slot.run(["/bin/sh", "-c", "echo before; sleep 5; echo after; exit 9"])
            assert unit_of(task.pid) == "finegrain-single.scope"
            sh("systemctl", "stop", unit)
            assert alive(task.pid), "the stop of the service has killed the task"
            sh(*run)
            ended = task.wait(ANSWER_S)
            assert (ended.exit_code, ended.stdout) == (9, b"before\nafter\n"), ended
    finally:
        sh("systemctl", "stop", unit, "finegrain-single.scope", check=False)
        shutil.rmtree(place, ignore_errors=True)
        sh("systemctl", "start", HELPER, FRONT)


STORIES: tuple[Callable[[Path], None], ...] = (
    a_command_runs_as_nobody,
    limits_are_the_kernels,
    who_eats_too_much_memory_dies_alone,
    a_fork_bomb_is_taken_down,
    a_cpu_that_goes_off_line_costs_no_slot,
    no_restart_costs_a_task,
    what_nobody_can_explain_is_killed_and_reported,
    the_last_one_leaves_nothing,
    a_scope_that_is_stopped_takes_its_tasks_with_it,
    one_unit_is_enough,
)
