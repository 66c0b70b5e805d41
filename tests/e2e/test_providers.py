"""A resource manager that starts and stops executors by itself, as real processes: with both
providers, with work on the executors, and with processes that are killed in between.
"""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.driving import (
    Daemons,
    eventually,
    finish,
    processes_that_name,
    read_until,
    unique,
)
from tests.support.components import REPOSITORY

pytestmark = pytest.mark.slow

CPU = min(os.sched_getaffinity(0))
LIMITS = """
look_interval = "500ms"
[limits]
idle_timeout = "1s"
lost_timeout = "60s"
plan_interval = "200ms"
"""


class Elastic:
    """Daemons whose resource manager has providers, and nothing else."""

    def __init__(self, daemons: Daemons) -> None:
        self.daemons = daemons
        self.shape = unique("e2e")
        self.file = daemons.folder / "providers.toml"
        self.directory = daemons.folder / "rm" / "provided" / "process"
        daemons.manager.command += ("--providers-file", str(self.file))

    def start(self, text: str) -> None:
        self.file.write_text(LIMITS + text)
        self.daemons.manager.start()
        self.daemons.manager.endpoint()

    def processes(self, shares: int) -> str:
        """A shape of executors on this host; tasks run as the user of the test."""
        share = f"""
        [[shape.process.share]]
        cpus = "{CPU}"
        cpu = "{1000 // shares}m"
        memory = "128MiB"
        """
        return f"""
        [process]
        executor = {{ task_user = "self", allow_root_tasks = true, task_kill_grace = "2s" }}
        [[shape]]
        name = "{self.shape}"
        provider = "process"
        start_timeout = "60s"
        """ + (shares * share)

    def all_gone(self) -> bool:
        """True if the resource manager knows no executor, and this host has no process and no
        directory of one.

        The resource manager forgets an executor that ended cleanly before the provider has removed
        its directory.
        """
        return not (self.daemons.cli.items("executors") or self.left() or self.directories())

    def directories(self) -> list[Path]:
        return list(self.directory.glob("executors/*"))

    def left(self) -> list[str]:
        words = "executor serve"
        found = processes_that_name(self.daemons.folder)
        return [line for _, line in found if words in line or "task_executor" in line]

    def clean_up(self) -> None:
        """Stops all executors that a failed test has left."""
        from resource_manager.providers.process_sweep import stop_everything

        self.daemons.manager.kill()
        stop_everything(self.directory)


@pytest.fixture
def elastic(daemons: Daemons) -> Iterator[Elastic]:
    made = Elastic(daemons)
    yield made
    try:
        assert not made.left()
    finally:
        made.clean_up()


def test_executors_come_for_a_burst_and_go_when_it_is_over(elastic: Elastic) -> None:
    elastic.start(elastic.processes(3))
    cli = elastic.daemons.cli
    run = ("run", "--cpu", "0.3", "--memory", "64M", "--", "sh", "-c")
    told = "echo $FINEGRAIN_EXECUTOR_ID; sleep 0.5"

    runs = [cli.start(*run, told) for _ in range(6)]
    outcomes = [finish(each) for each in runs]
    eventually(elastic.all_gone, "all executors are given back")

    assert [each.code for each in outcomes] == [0] * 6, outcomes
    served_by = {each.text.strip() for each in outcomes}
    assert len(served_by) > 1
    assert all(each.startswith(f"{elastic.shape}-1-") for each in served_by)


def test_a_resource_manager_killed_in_the_middle_of_scaling_leaves_no_stray(
    elastic: Elastic,
) -> None:
    drawn = random.Random(11)
    manager, cli = elastic.daemons.manager, elastic.daemons.patient_cli
    elastic.start(elastic.processes(3))
    outcomes = []
    for _ in range(2):
        runs = [
            cli.start("run", "--cpu", "0.3", "--memory", "64M", "--", "sh", "-c", "echo done")
            for _ in range(3)
        ]
        time.sleep(drawn.uniform(0.2, 2.5))
        manager.kill()
        time.sleep(drawn.uniform(0, 1))
        manager.start()
        manager.endpoint()
        outcomes += [finish(each) for each in runs]

    eventually(elastic.all_gone, "all executors are given back")

    assert [each.text for each in outcomes] == ["done\n"] * 6, outcomes


def test_a_front_that_was_killed_comes_back_and_its_task_never_knew(elastic: Elastic) -> None:
    elastic.start(elastic.processes(1))
    cli = elastic.daemons.cli
    run = cli.start(
        "run", "--memory", "64M", "--cpu", "0.5", "--", "sh", "-c", "echo up; sleep 4; echo done"
    )
    notes = elastic.directory / "executors"
    note = eventually(lambda: next(notes.glob("*/state/endpoint.json"), None), "it serves")
    read_until(run, b"up\n")

    os.kill(json.loads(note.read_text())["pid"], signal.SIGKILL)
    outcome = finish(run)

    assert (outcome.code, outcome.text) == (0, "done\n"), outcome.stderr
    eventually(elastic.all_gone, "it is given back")


def test_executors_of_the_operators_own_commands(elastic: Elastic) -> None:
    folder = elastic.daemons.folder
    elastic.start(commands(folder, elastic.shape))
    manager, cli = elastic.daemons.manager, elastic.daemons.patient_cli

    run = cli.start("run", "--cpu", "0.3", "--memory", "64M", "--", "sh", "-c", "echo done")
    eventually(lambda: "started" in (folder / "log").read_text(), "the start command began")
    manager.kill()  # while the start command runs
    manager.start()
    manager.endpoint()
    outcome = finish(run)
    eventually(elastic.all_gone, "it is given back")

    assert (outcome.code, outcome.text) == (0, "done\n"), outcome.stderr
    done = (folder / "log").read_text().split()
    assert done[:3] == ["started", "stopped", "started"]
    assert done[-1] == "stopped"


def commands(folder: Path, shape: str) -> str:
    """Scripts that do what systemd-run would: an executor in the background, found by its name.

    The first start takes long, so that it can be interrupted.
    """
    own = folder / "far"
    start = f"""#!/bin/sh
    echo started >> {folder}/log
    mkdir -p {own}; test -e {own}/once || {{ touch {own}/once; sleep 120; }}
    cd {REPOSITORY}
    PYTHONPATH={REPOSITORY} setsid {sys.executable} -m finegrain_cli executor serve \\
        --state-dir {own}/$1 --run-dir {own}/run --listen 127.0.0.1:0 --metrics-listen none \\
        --cpus {CPU} --cpu 0.5 --memory 128M --task-user self --allow-root-tasks \\
        --stop-tasks-on-exit > {own}/$1.log 2>&1 < /dev/null &
    echo $! > {own}/$1.pid
    """
    stop = f"""#!/bin/sh
    echo stopped >> {folder}/log
    test -e {own}/$1.pid || exit 0
    pid=$(cat {own}/$1.pid)
    kill $pid 2> /dev/null
    while grep -q '(python' /proc/$pid/stat 2> /dev/null; do sleep 0.1; done
    rm {own}/$1.pid
    """
    for name, text in (("start", start), ("stop", stop)):
        script = folder / name
        script.write_text(text)
        script.chmod(stat.S_IRWXU)
    (folder / "log").touch()
    return f"""
    [[shape]]
    name = "{shape}"
    provider = "command"
    count_max = 1
    total = {{ cpu = 0.5, memory = "128MiB" }}
    [shape.command]
    start = ["{folder}/start", "{{executor_id}}"]
    stop = ["{folder}/stop", "{{executor_id}}"]
    """


def test_what_cannot_work_is_said_before_anything_is_started(elastic: Elastic) -> None:
    elastic.file.write_text('[[shape]]\nname = "x"\nprovider = "cloud"\n')
    elastic.daemons.manager.start()

    assert elastic.daemons.manager.end() == 1
    assert "shape x.provider is 'cloud'; expected one of" in elastic.daemons.manager.log
