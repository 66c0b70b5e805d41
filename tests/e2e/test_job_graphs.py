"""Job graphs that really run, through the command line: killed tasks, killed runners, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from tests.e2e.driving import Cli, Daemons, Small, eventually, finish, name_of, unique
from tests.support.components import REPOSITORY

pytestmark = pytest.mark.slow

EXAMPLE = REPOSITORY / "examples" / "word_count"

TWO_OPERATORS = """
schema_version = 1
[job]
name = "two"
mode = "{mode}"
restarts_max = 2
restart_delay = "100ms"
[[operator]]
name = "first"
parallelism = 2
program = ["sh", "-c", '''{first}''']
{resources}
[[operator]]
name = "second"
program = ["sh", "-c", '''{second}''']
{resources}
[[edge]]
from = "first"
to = "second"
exchange = "{exchange}"
pattern = "all-to-all"
"""

RESOURCES = 'resources = { cpu = 0.1, task_heap_memory = "32M", managed_memory = "32M" }'
USES_MANAGED = "uses_managed_memory = true"

NOTE = "echo $$ > $FOLDER/OP.$FINEGRAIN_TASK_ID; "
"""Each task notes its pid in a separate file."""

WAIT = NOTE + "until [ -e $FOLDER/go ]; do sleep 0.05; done"
"""A task that waits until the test lets it continue."""


RUNNER = """
import sys
import finegrain_client as fg

file, state, folder = sys.argv[1:]
plan = fg.graph.parse_job_file(open(file).read(), file).compile()
with fg.blocking.connect() as cluster:
    spec = fg.GraphRunSpec(plan, env={"FOLDER": folder})
    fg.blocking.GraphJob(cluster, spec, state_file=state, lease_s=3).run()
"""
"""A runner with a short lease."""


class Job:
    """A job of two operators, `first` twice and `second` once, and what its tasks have noted."""

    def __init__(
        self,
        cli: Cli,
        folder: Path,
        first: str,
        second: str = NOTE,
        *,
        mode: str = "batch",
        resources: str = "",
    ) -> None:
        self.cli, self.folder = cli, folder
        self.file, self.state = folder / "two.toml", folder / "state.job"
        text = TWO_OPERATORS.format(
            mode=mode,
            first=first.replace("OP", "first"),
            second=second.replace("OP", "second"),
            resources=resources,
            exchange="blocking" if mode == "batch" else "pipelined",
        )
        self.file.write_text(text)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Returns the arguments of the command that starts the job."""
        options = ("--state", str(self.state), "--env", f"FOLDER={self.folder}")
        return ("job", "run", str(self.file), *options)

    def pids(self, operator: str) -> dict[str, int]:
        """Pids that the tasks of an operator have noted, by task id."""
        found = {each.name: each.read_text() for each in self.folder.glob(f"{operator}.*")}
        return {name: int(text) for name, text in found.items() if text.endswith("\n")}

    def await_tasks(self, operator: str, count: int) -> dict[str, int]:
        """Waits until this many tasks of an operator have begun."""
        return eventually(
            lambda: found if len(found := self.pids(operator)) >= count else None,
            f"{count} tasks of {operator} run",
        )

    def go(self) -> None:
        """Lets the tasks end."""
        (self.folder / "go").touch()

    def status(self) -> dict[str, Any]:
        """The job as `finegrain job status` shows it."""
        found: dict[str, Any] = self.cli.json("job", "status", str(self.state))
        return found


def test_the_example_counts_words(small: Small, tmp_path: Path) -> None:
    """Three regions run one after the other. The files that a region writes to the folder are the
    input of the next region. At the end, nothing of the job is left.
    """
    words: Counter[str] = Counter()
    for number in range(7):
        text = "the quick brown fox " * (number + 1) + "jumps\n"
        words.update(text.split())
        (tmp_path / f"{number}.txt").write_text(text)
    outcome = small.cli(
        "job",
        "run",
        str(EXAMPLE / "job.toml"),
        "--cwd",
        str(EXAMPLE),
        "--env",
        f"FOLDER={tmp_path}",
        "--state",
        str(tmp_path / "state"),
        "-o",
        "json",
    )
    assert outcome.code == 0, outcome.stderr
    shown = json.loads(outcome.stdout)
    assert (shown["state"], shown["progress"]["tasks_done"]) == ("FINISHED", 5)
    assert json.loads((tmp_path / "counts.json").read_text()) == dict(words)
    assert shown["slots"] == []


def test_a_job_waits_for_another_job(small: Small, tmp_path: Path) -> None:
    cli, before = small.cli, unique("before")
    job = Job(cli, tmp_path, NOTE)
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    options = ("run", "--cpu", "0.1", "--memory", "32M", "--name", before)
    first = cli.start(*options, "--", "sh", "-c", wait)
    eventually(lambda: before in cli("jobs").text, "the first job is registered")
    runner = cli.start(*job.arguments, "--after", before)
    eventually(
        lambda: any(each["reason"] == "WAITING_DEPENDENCY" for each in cli.items("requests")),
        "the job waits",
    )
    assert not job.pids("first")
    job.go()
    assert finish(first).code == 0
    outcome = finish(runner)
    assert outcome.code == 0, outcome.stderr
    assert job.status()["state"] == "FINISHED"


def test_a_slot_of_a_job_ends_at_the_time_limit_of_the_job(small: Small, tmp_path: Path) -> None:
    """The region restarts `restarts_max` times, as after any failure; then the job fails."""
    job = Job(small.cli, tmp_path, f"{NOTE} sleep 60")
    limits = 'restarts_max = 1\ntime_limit = "3s"\nexpected_run_time = "500ms"'
    job.file.write_text(job.file.read_text().replace("restarts_max = 2", limits))
    outcome = small.cli(*job.arguments)
    assert outcome.code == 9, outcome.stderr
    assert "the time limit of its slot (3s) was over" in outcome.text + outcome.stderr
    assert len(job.pids("first")) == 4


def test_a_region_runs_again_when_a_task_is_killed(small: Small, tmp_path: Path) -> None:
    """Both tasks of the region start again, in the same slots; the next region runs once."""
    job = Job(small.cli, tmp_path, WAIT)
    runner = small.cli.start(*job.arguments)
    before = job.await_tasks("first", 2)
    slots = job.status()["slots"]
    os.kill(next(iter(before.values())), signal.SIGKILL)
    job.await_tasks("first", 4)
    assert job.status()["slots"] == slots
    job.go()
    outcome = finish(runner)
    assert outcome.code == 0, outcome.stderr
    shown = job.status()
    assert [(each["attempt"], each["failures"]) for each in shown["regions"]] == [(2, 1), (1, 0)]
    assert (len(job.pids("first")), len(job.pids("second"))) == (4, 1)


def test_another_runner_continues_after_kill_9(small: Small, tmp_path: Path) -> None:
    """Tasks that ran when the runner was killed are taken over: none runs a second time."""
    job = Job(small.cli, tmp_path, WAIT)
    runner = small.cli.start(*job.arguments)
    job.await_tasks("first", 2)
    runner.kill()
    finish(runner)
    shown = job.status()
    assert (shown["state"], shown["runner_pid"]) == ("OPEN", 0)
    assert [each["reason"] for each in shown["regions"]] == ["", "input from region 1"]
    again = small.cli.start("job", "run", "--attach", str(job.state))
    job.go()
    outcome = finish(again)
    assert outcome.code == 0, outcome.stderr
    assert job.status()["progress"]["restarts"] == 0
    assert (len(job.pids("first")), len(job.pids("second"))) == (2, 1)


def test_a_runner_that_comes_after_the_lease_runs_the_region_again(
    small: Small, tmp_path: Path
) -> None:
    """The cluster has taken the slots back. The next runner requests new ones in a new job."""
    job = Job(small.cli, tmp_path, WAIT)
    arguments = (str(job.file), str(job.state), str(tmp_path))
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, *arguments], env=small.cli.environment()
    )
    job.await_tasks("first", 2)
    runner.kill()
    runner.wait()
    small.cli.settle()
    again = small.cli.start("job", "run", "--attach", str(job.state))
    job.await_tasks("first", 4)
    job.go()
    outcome = finish(again)
    assert outcome.code == 0, outcome.stderr
    assert [(each["attempt"], each["losses"]) for each in job.status()["regions"]] == [
        (2, 1),
        (1, 0),
    ]


def test_explain_says_which_region_waits_for_what(small: Small, tmp_path: Path) -> None:
    """While other slots occupy the cluster, the first region waits for capacity."""
    job = Job(small.cli, tmp_path, WAIT, resources=RESOURCES)
    with small.cli.client() as cluster, cluster.job("occupies all") as other:
        every = [fg.SlotSpec(cpu_milli=1000, memory_bytes=32 * fg.MIB)] * len(small.names)
        slots = [each.granted() for each in other.request_slots(every)]
        runner = small.cli.start(*job.arguments)
        eventually(lambda: job.state.exists() and job.status()["requests"], "it requests slots")
        shown = small.cli.json("explain", str(job.state))
        first, second = shown["regions"]
        assert (first["reason"], second["reason"]) == ("2 slots", "input from region 1")
        assert (first["explanation"]["gang"]["members"], second["explanation"]) == (2, None)
        text = small.cli("explain", str(job.state)).text
        assert "region 1 waits for slots" in text
        assert "short 0.1" in text
        for each in slots:
            each.release()
    job.await_tasks("first", 2)
    assert small.cli.json("explain", str(job.state))["regions"][0]["explanation"] is None
    job.go()
    assert finish(runner).code == 0


def test_a_region_that_fits_nowhere_is_named_by_its_operators(small: Small, tmp_path: Path) -> None:
    resources = 'resources = { cpu = 50, task_heap_memory = "32M" }'
    outcome = small.cli(*Job(small.cli, tmp_path, NOTE, resources=resources).arguments)
    assert outcome.code == 9
    assert "operator first of region 1 cannot get 2 slots: " in outcome.text


def test_the_status_shows_the_managed_memory_of_operators(small: Small, tmp_path: Path) -> None:
    job = Job(small.cli, tmp_path, WAIT, resources=RESOURCES)
    runner = small.cli.start(*job.arguments)
    job.await_tasks("first", 2)
    shown = job.status()
    assert [each["operators"] for each in shown["slots"]] == [["first"]] * 2
    found = [(each["operator_id"], each["subtask"]) for each in shown["operators"]]
    assert found == [("first", 0), ("first", 1)]
    assert {each["quota_bytes"] for each in shown["operators"]} == {32 * fg.MIB}
    without = replace(small.cli, credentials_file=tmp_path / "none")
    shown = without.json("job", "status", str(job.state))
    assert len(shown["tasks"]) == 2
    assert not shown["operators"]
    assert "none" in next(iter(shown["operators_missing"].values()))
    job.go()
    assert finish(runner).code == 0
    assert not job.status()["operators"]


def test_a_detached_job_is_followed_and_cancelled(small: Small, tmp_path: Path) -> None:
    job = Job(small.cli, tmp_path, WAIT)
    begun = small.cli.json(*job.arguments, "--detach")
    assert begun["runner_pid"] > 0
    job.await_tasks("first", 2)
    assert {each["running"] for each in job.status()["tasks"]} == {True}
    outcome = small.cli("job", "run", "--stop", str(job.state))
    assert outcome.code == 0, outcome.stderr
    assert "CANCELLED" in outcome.text
    shown = job.status()
    assert (shown["state"], shown["slots"], shown["runner_pid"]) == ("CANCELLED", [], 0)
    assert small.cli("job", "run", "--attach", str(job.state)).code == 9


def test_ctrl_c_gives_everything_back(small: Small, tmp_path: Path) -> None:
    job = Job(small.cli, tmp_path, WAIT)
    runner = small.cli.start(*job.arguments)
    job.await_tasks("first", 2)
    runner.send_signal(signal.SIGINT)
    assert finish(runner).code == 128 + signal.SIGINT
    small.cli.settle()
    assert job.status()["state"] == "CANCELLED"


def test_a_region_runs_again_elsewhere_when_its_host_is_lost(
    daemons: Daemons, tmp_path: Path
) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    executors = {name: daemons.executor(name) for name in (unique("e2e-job"), unique("e2e-job"))}
    for each in executors.values():
        each.start()
    daemons.await_executors(*executors)
    job = Job(daemons.cli, tmp_path, WAIT)
    runner = daemons.cli.start(*job.arguments)
    job.await_tasks("first", 2)
    lost = job.status()["tasks"][0]["executor_id"]
    executors[lost].kill()
    job.await_tasks("first", 3)
    job.go()
    outcome = finish(runner)
    assert outcome.code == 0, outcome.stderr
    shown = job.status()
    assert [each["losses"] for each in shown["regions"]] == [1, 0]
    assert shown["regions"][0]["message"] == f"host {lost} was lost"
    assert lost not in {each["executor_id"] for each in shown["tasks"]}


def test_output_on_a_host_that_is_lost_is_made_again(daemons: Daemons, tmp_path: Path) -> None:
    """The job has no slot there any more, only the output of its first region."""
    daemons.manager.start()
    daemons.manager.endpoint()
    executors = {name: daemons.executor(name) for name in (unique("e2e-job"), unique("e2e-job"))}
    for each in executors.values():
        each.start()
    daemons.await_executors(*executors)
    lost, other = executors
    second = NOTE + "until [ -e $FOLDER/go2 ]; do sleep 0.05; done"
    job = Job(daemons.cli, tmp_path, WAIT, second, resources=RESOURCES)
    # The second region has other slots, so no slot of the first region is kept.
    before, marker, after = job.file.read_text().rpartition("cpu = 0.1")
    job.file.write_text(f"{before}{marker[:-1]}2{after}")
    assert daemons.cli("drain", other).code == 0
    runner = daemons.cli.start(*job.arguments)
    job.await_tasks("first", 2)
    assert daemons.cli("undrain", other).code == 0
    assert daemons.cli("drain", lost).code == 0
    job.go()
    job.await_tasks("second", 1)
    assert {each["executor_id"] for each in daemons.cli.items("slots")} == {other}
    executors[lost].kill()
    job.await_tasks("first", 4)
    job.await_tasks("second", 2)
    (tmp_path / "go2").touch()
    outcome = finish(runner)
    assert outcome.code == 0, outcome.stderr
    assert {each["executor_id"] for each in job.status()["tasks"]} == {other}


def test_a_job_that_an_operator_ends_is_cancelled(small: Small, tmp_path: Path) -> None:
    job = Job(small.cli, tmp_path, WAIT)
    runner = small.cli.start(*job.arguments)
    job.await_tasks("first", 2)
    outcome = small.cli("terminate", job.status()["job_id"], "--yes")
    assert outcome.code == 0, outcome.stderr
    assert finish(runner).code == 9
    assert job.status()["state"] == "CANCELLED"


def test_a_task_that_fails_too_often_ends_the_job(small: Small, tmp_path: Path) -> None:
    """The outcome has the last lines of the task's standard error."""
    job = Job(small.cli, tmp_path, NOTE + "echo no space on device >&2; exit 3")
    outcome = small.cli(*job.arguments)
    assert outcome.code == 9
    assert "of first failed" in outcome.text
    assert "no space on device" in outcome.text
    assert not job.pids("second")


def test_missing_input_is_made_again(small: Small, tmp_path: Path) -> None:
    """A task reports the edge; the region of the producer runs again, then that of the task."""
    second = NOTE + (
        "if [ ! -e $FOLDER/once ]; then "
        "touch $FOLDER/once; echo 'input missing: first -> second' >&2; exit 1; fi"
    )
    job = Job(small.cli, tmp_path, NOTE, second)
    outcome = small.cli(*job.arguments)
    assert outcome.code == 0, outcome.stderr
    assert (len(job.pids("first")), len(job.pids("second"))) == (4, 2)


@pytest.mark.parametrize("mode", ["batch", "streaming"])
@pytest.mark.parametrize("resources", [RESOURCES, USES_MANAGED], ids=["specified", "unknown"])
def test_the_four_kinds_of_jobs_run(
    small: Small, tmp_path: Path, mode: str, resources: str
) -> None:
    """Streaming and batch, with resources and without: each task finds operators and edges."""
    script = (
        "echo $FINEGRAIN_TASK > $FOLDER/OP.$FINEGRAIN_TASK_ID.task; "
        "echo $FINEGRAIN_EDGES > $FOLDER/OP.$FINEGRAIN_TASK_ID.edges"
    )
    job = Job(small.cli, tmp_path, script, script, mode=mode, resources=resources)
    outcome = small.cli(*job.arguments)
    assert outcome.code == 0, outcome.stderr
    first = [json.loads(each.read_text()) for each in tmp_path.glob("first.*.task")]
    assert sorted(each["subtask_index"] for each in first) == [0, 1]
    (edges,) = [json.loads(each.read_text()) for each in tmp_path.glob("second.*.edges")]
    (second,) = [json.loads(each.read_text()) for each in tmp_path.glob("second.*.task")]
    assert [each["edge"] for each in edges["inputs"]] == ["first -> second"]
    producers = edges["inputs"][0]["tasks"]
    assert [each["subtask"] for each in producers] == [0, 1]
    assert {each["executor_id"] for each in producers} <= set(small.names)
    assert all(each["host"] for each in producers)
    peers = [(each["operator_id"], each["subtask_index"]) for each in second["peers"]]
    assert peers == ([("first", 0), ("first", 1)] if mode == "streaming" else [])
    quotas = {each["operators"][0]["quota_bytes"] for each in [*first, second]}
    limits = [each["memory_limit_bytes"] for each in (first[0], second)]
    if resources == RESOURCES:
        assert quotas == {32 * fg.MIB}
        assert min(limits) >= 64 * fg.MIB  # and network memory
    else:
        # In the streaming job, both operators share each default slot. Otherwise each operator has
        # separate slots.
        parts = 2 if mode == "streaming" else 1
        with small.cli.client() as cluster:
            slot = cluster.executors()[0].default_slot_profile
        assert quotas == {slot.managed_memory_bytes // parts}
        assert limits == [slot.memory_bytes // parts // 65536 * 65536] * 2


def test_tasks_get_ports_and_learn_those_of_their_peers(small: Small, tmp_path: Path) -> None:
    script = "echo $FINEGRAIN_TASK > $FOLDER/OP.$FINEGRAIN_TASK_ID.task"
    resources = f"{RESOURCES}\nports = 2"
    job = Job(small.cli, tmp_path, script, script, mode="streaming", resources=resources)
    outcome = small.cli(*job.arguments)
    assert outcome.code == 0, outcome.stderr
    first = [json.loads(each.read_text()) for each in tmp_path.glob("first.*.task")]
    (second,) = [json.loads(each.read_text()) for each in tmp_path.glob("second.*.task")]
    ports = {each["subtask_index"]: each["ports"] for each in first}
    assert {each["subtask_index"]: each["ports"] for each in second["peers"]} == ports
    assert [each["peers"][0]["ports"] for each in first] == [second["ports"]] * 2
    all_ports = [*second["ports"], *ports[0], *ports[1]]
    assert len(set(all_ports)) == 6
    assert all(20_000 <= each < 30_000 for each in all_ports)


def test_a_job_without_resources_cannot_have_ports(small: Small, tmp_path: Path) -> None:
    outcome = small.cli(*Job(small.cli, tmp_path, NOTE, resources="ports = 1").arguments)
    assert outcome.code == 2
    assert small.cli.error(outcome).startswith(
        "operator first needs ports, and default slots have none; give the operators"
    )


@pytest.mark.parametrize(
    ("clicks", "window", "windows", "spills"),
    [(700, 100, 14, False), (20_000, 20_000, 2, True)],
    ids=["small windows", "a window that is larger than its managed memory"],
)
def test_the_streaming_example_counts_clicks(
    small: Small, tmp_path: Path, clicks: int, window: int, windows: int, spills: bool
) -> None:
    """Two groups, specified resources: all tasks run at the same time and exchange clicks. A window
    writes the data above its quota to a file.
    """
    example = REPOSITORY / "examples" / "clicks"
    variables = {
        "FOLDER": str(tmp_path),
        "CLICKS": str(clicks),
        "WINDOW": str(window),
        # The tasks import the client library.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'client'}",
    }
    options = [each for pair in variables.items() for each in ("--env", "=".join(pair))]
    state = ("--state", str(tmp_path / "state"))
    job = str(example / "job.toml")
    outcome = small.cli("job", "run", job, "--cwd", str(example), *options, *state)
    assert outcome.code == 0, outcome.text
    found = json.loads((tmp_path / "pages.json").read_text())
    assert found["windows"] == windows
    assert sum(found["pages"].values()) == 2 * clicks
    assert found["pages"]["/page-0"] == 2 * -(-clicks // 7)
    assert (found["spilled_bytes"] > 0) is spills


def test_a_job_goes_on_after_kill_9_of_an_executor_front_and_of_its_runner(
    daemons: Daemons, tmp_path: Path
) -> None:
    """No task starts again, and the slots keep their ports."""
    daemons.manager.start()
    daemons.manager.endpoint()
    executor = daemons.executor(unique("e2e-job"))
    executor.start()
    daemons.await_executors(name_of(executor))
    resources = f"{RESOURCES}\nports = 1"
    job = Job(daemons.cli, tmp_path, WAIT, resources=resources)
    runner = daemons.cli.start(*job.arguments)
    job.await_tasks("first", 2)

    def ports() -> dict[str, tuple[int, ...]]:
        with daemons.cli.client() as cluster:
            found = cluster.slots()
        return {each.allocation_id: each.isolation.ports for each in found if each.isolation}

    before = ports()
    assert sorted(len(each) for each in before.values()) == [1, 1]
    runner.kill()
    finish(runner)
    executor.kill()
    executor.start()
    daemons.await_executors(name_of(executor))
    assert ports() == before
    again = daemons.cli.start("job", "run", "--attach", str(job.state))
    job.go()
    outcome = finish(again)
    assert outcome.code == 0, outcome.stderr
    assert job.status()["progress"]["restarts"] == 0
    assert (len(job.pids("first")), len(job.pids("second"))) == (2, 1)
